"""Binding the declared outputs to what a net really returns."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..errors import Problem, names, suggest
from ..spec.names import leaves
from . import describe

__all__ = ["bind_outputs"]

Path = tuple  # of indices and keys that lead from the net's result to one array


def bind_outputs(
    declared: tuple[Any, ...], result: Any, where: str = "the net"
) -> tuple[dict[str, Path], list[Problem]]:
    """Find the path of every declared output in what the net returned.

    Parameters
    ----------
    declared : nested tuples of str
        The names, mirroring the structure; ``...`` at the end ignores the rest.
    result : array, nested lists or tuples of arrays, or mapping of str to array
        What the net returned; lists and tuples are the same here, as hybridizing turns one into the other.
    where : str
        How messages name the net.

    Returns
    -------
    dict of str to tuple, list of Problem
        The path of each name, and what does not fit.
    """
    paths: dict[str, Path] = {}
    if isinstance(result, Mapping):
        problems = _by_key(declared, result, where, paths)
    elif not isinstance(result, (list, tuple)):
        fits = len(declared) >= 1 and isinstance(declared[0], str) and declared[1:] in ((), (Ellipsis,))
        paths = {declared[0]: ()} if fits else {}
        problems = [] if fits else [_mismatch(declared, result, where)]
    else:
        problems = [] if _walk(declared, result, (), paths) else [_mismatch(declared, result, where)]
    return paths, problems


def _by_key(
    declared: tuple[Any, ...], result: Mapping[str, Any], where: str, paths: dict[str, Path]
) -> list[Problem]:
    wanted = [name for _, name in leaves(declared) if name is not Ellipsis]
    found = []
    for name in wanted:
        if name in result:
            paths[name] = (name,)
        else:
            found.append(
                f'outputs: {where} returns no "{name}"{suggest(name, result)}; it returns {names(result)}'
            )
    extra = [key for key in result if key not in wanted]
    if extra and Ellipsis not in declared:
        found.append(
            f"outputs: {where} also returns {names(extra)}, which are not declared; "
            "name them (and list them in unused=), or end outputs with ... to ignore the rest"
        )
    return [Problem("spec", message) for message in found]


def _walk(declared: Sequence[Any], result: Any, path: Path, paths: dict[str, Path]) -> bool:
    if not isinstance(result, (list, tuple)):
        return False
    named = [item for item in declared if item is not Ellipsis]
    if len(named) > len(result) or (len(named) < len(result) and Ellipsis not in declared):
        return False
    for i, item in enumerate(named):
        here = (*path, i)
        if isinstance(item, tuple):
            if not _walk(item, result[i], here, paths):
                return False
        elif isinstance(result[i], (list, tuple)) or result[i] is None:
            return False
        else:
            paths[item] = here
    return True


def _mismatch(declared: tuple[Any, ...], result: Any, where: str) -> Problem:
    wanted = [name for _, name in leaves(declared)]
    count = len(wanted) - (Ellipsis in wanted)
    arrays = [leaf for _, leaf in leaves(result)]
    way = "name as many, in order and nested alike" if len(arrays) != count else "nest the names alike"
    more = ", or end outputs with ... to ignore the rest" if len(arrays) > count else ""
    mode = (
        "; a net that returns something else when evaluating needs evaluate=TaskSpec(...)"
        if "evaluat" in where
        else ""
    )
    plural = "array" if len(arrays) == 1 else "arrays"
    return Problem(
        "spec",
        f"outputs: {count} declared ({', '.join('...' if n is Ellipsis else str(n) for n in wanted)}), "
        f"{where} returns {len(arrays)} {plural}: {describe.structure(result)}; {way}{more}{mode}",
    )
