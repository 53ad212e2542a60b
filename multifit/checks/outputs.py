"""Binding the declared outputs to what a net really returns."""

from __future__ import annotations

from typing import Any, Mapping

from ..errors import Problem, counted, names, nearest, suggest
from ..spec.names import leaves
from . import describe

__all__ = ["bind_outputs"]

Path = tuple[Any, ...]  # indices and keys that lead from the net's result to one array
Tree = tuple[Any, ...]  # names, nested as they are declared


def bind_outputs(
    declared: Tree, result: Any, where: str = "the net"
) -> tuple[dict[str, Path], list[Problem]]:
    """Find the path of every declared output in what the net returned.

    Parameters
    ----------
    declared : nested tuples of str
        The names, mirroring the structure; ``...`` at the end of any ignores the rest.
    result : array, nested lists or tuples of arrays, or mapping of str to array
        What the net returned; lists and tuples are the same here, as hybridizing turns one into the other.
        A mapping is matched by key: the name, or what follows the last ``/`` of it.
    where : str
        How messages name the net.

    Returns
    -------
    dict of str to tuple, list of Problem
        The path of each name, and what does not fit.
    """
    paths: dict[str, Path] = {}
    messages: list[str] = []
    if not _bound(declared, result, (), paths, messages, where):
        messages = [_mismatch(declared, result, where)]
    return paths, [Problem("spec", message) for message in messages]


def _bound(
    declared: Tree, result: Any, path: Path, paths: dict[str, Path], messages: list[str], where: str
) -> bool:
    """Bind one level; return whether its structure is as declared."""
    named = [item for item in declared if item is not Ellipsis]
    if isinstance(result, Mapping):
        return _by_key(declared, result, path, paths, messages, where)
    if not isinstance(result, (list, tuple)):
        paths.update({named[0]: path} if len(named) == 1 and isinstance(named[0], str) else {})
        return result is not None and len(named) == 1 and isinstance(named[0], str)
    if len(named) > len(result) or (len(named) < len(result) and Ellipsis not in declared):
        return False
    for i, item in enumerate(named):
        here = (*path, i)
        if isinstance(item, tuple):
            if not _bound(item, result[i], here, paths, messages, where):
                return False
        elif isinstance(result[i], (list, tuple, Mapping)) or result[i] is None:
            return False
        else:
            paths[item] = here
    return True


def _by_key(
    declared: Tree,
    result: Mapping[str, Any],
    path: Path,
    paths: dict[str, Path],
    messages: list[str],
    where: str,
) -> bool:
    taken = set()
    for _, name in leaves(declared):
        key = next((key for key in (name, str(name).rpartition("/")[2]) if key in result), None)
        taken.add(key)
        if key is not None:
            paths[name] = (*path, key)
        elif name is not Ellipsis:
            near = nearest(name, result)
            taken.add(near)  # what was meant is not told a second time
            messages.append(
                f'outputs: {where} returns no "{name}"{suggest(name, result)}; it returns {names(result)}'
            )
    spare = [key for key in result if key not in taken]
    if spare and Ellipsis not in declared:
        messages.append(
            f"outputs: {where} also returns {names(spare)}, which is not declared; "
            "name it (and list it in unused=), or end outputs with ... to ignore the rest"
        )
    return True


def _mismatch(declared: Tree, result: Any, where: str) -> str:
    wanted = [name for _, name in leaves(declared)]
    count = len(wanted) - (Ellipsis in wanted)
    arrays = [leaf for _, leaf in leaves(result)]
    way = "name as many, in order and nested alike" if len(arrays) != count else "nest the names alike"
    if len(arrays) > count:
        way += ", or end outputs with ... to ignore the rest"
    if "evaluat" in where:
        way += "; a net that returns something else when evaluating needs evaluate=TaskSpec(...)"
    return (
        f"outputs: {count} declared ({', '.join('...' if n is Ellipsis else str(n) for n in wanted)}), "
        f"{where} returns {counted(len(arrays), 'array')}: {describe.structure(result)}; {way}"
    )
