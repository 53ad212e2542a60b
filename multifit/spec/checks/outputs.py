"""Binding the declared outputs to what a net returns."""

from collections.abc import Mapping
from typing import Any

from ...utils.errors import Problem
from ...utils.text import counted, nearest, quoted, suggest
from ..names import Tree, leaves
from . import describe

Path = tuple[Any, ...]  # indices and keys that lead from the net's result to one array


def bind_outputs(
    declared: Tree, result: Any, where: str = "the net"
) -> tuple[dict[str, Path], list[Problem]]:
    """Return the path of every declared output in what the net returned, and what does not match.

    Lists and tuples are the same here, as hybridizing turns one into the other. A mapping is matched by key:
    the name, or the part after its last ``/``. ``...`` at the end of any level ignores the rest.
    """
    binding = _Binding(where)
    if not binding.bind(declared, result, ()):
        binding.messages = [_mismatch(declared, result, where)]
    return binding.paths, [Problem("spec", message) for message in binding.messages]


def at_path(result: Any, path: Path) -> Any:
    """Return the item of a net's result that a path from :func:`bind_outputs` leads to."""
    for step in path:
        result = result[step]
    return result


class _Binding:
    """Paths and messages, collected level by level."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.paths: dict[str, Path] = {}
        self.messages: list[str] = []

    def bind(self, declared: Tree, result: Any, path: Path) -> bool:
        """Bind one level; return whether its structure is as declared."""
        items = [item for item in declared if item is not Ellipsis]
        if isinstance(result, Mapping):
            self._bind_keys(declared, result, path)
            return True
        if not isinstance(result, (list, tuple)):
            is_single = result is not None and len(items) == 1 and isinstance(items[0], str)
            if is_single:
                self.paths[items[0]] = path
            return is_single
        if len(items) > len(result) or (len(items) < len(result) and Ellipsis not in declared):
            return False
        return all(self._bind_item(item, result[i], (*path, i)) for i, item in enumerate(items))

    def _bind_item(self, item: Any, result: Any, path: Path) -> bool:
        if isinstance(item, tuple):
            return self.bind(item, result, path)
        if result is None or isinstance(result, (list, tuple, Mapping)):
            return False
        self.paths[item] = path
        return True

    def _bind_keys(self, declared: Tree, result: Mapping[str, Any], path: Path) -> None:
        used = set()
        for _, name in leaves(declared):
            key = next((key for key in (name, str(name).rpartition("/")[2]) if key in result), None)
            used.add(key)
            if key is not None:
                self.paths[name] = (*path, key)
            elif name is not Ellipsis:
                used.add(nearest(name, result))  # or one typo would be two problems
                self.messages.append(
                    f'outputs: {self.where} returns no "{name}"{suggest(name, result)}; '
                    f"it returns {quoted(result)}"
                )
        undeclared = [key for key in result if key not in used]
        if undeclared and Ellipsis not in declared:
            self.messages.append(
                f"outputs: {self.where} also returns {quoted(undeclared)}, which is not declared; "
                "name it (and list it in unused=), or end outputs with ... to ignore the rest"
            )


def _mismatch(declared: Tree, result: Any, where: str) -> str:
    items = [name for _, name in leaves(declared)]
    count = len(items) - (Ellipsis in items)
    returned_items = [leaf for _, leaf in leaves(result)]
    arrays = [leaf for leaf in returned_items if leaf is not None]
    fix = "nest the names as the net nests its outputs"
    if len(arrays) < len(returned_items):
        fix = (
            "None cannot be an output: return arrays alone, or pick them, with forward=lambda net, slots: "
            "[each for each in net(slots[...]) if each is not None]"
        )
        if all(each is not None for each in returned_items[:count]):
            fix = "None cannot be an output: leave it out, or end outputs with ... to ignore the rest"
    elif len(arrays) != count:
        fix = "name as many, in the same order and nesting"
    if len(arrays) > count:
        fix += ", or end outputs with ... to ignore the rest"
    if "evaluat" in where:
        fix += "; a net that returns something else when evaluating needs evaluate=TaskSpec(...)"
    shown = ", ".join("..." if name is Ellipsis else str(name) for name in items)
    nothing = " and None" if len(arrays) < len(returned_items) else ""
    returned = f"{counted(len(arrays), 'array')}{nothing}: {describe.structure(result)}"
    return f"outputs: {count} declared ({shown}), {where} returns {returned}; {fix}"
