"""The parameters of a net and its losses by their structural names, as ``save_parameters`` writes them."""

from __future__ import annotations

from typing import Mapping

from ..compat import mx

__all__ = ["named_parameters", "trainable"]


def named_parameters(net: mx.gluon.Block, losses: Mapping[str, object]) -> dict[str, mx.gluon.Parameter]:
    """Return all parameters by name, each once.

    A net's have their structural names (``body.0.weight``); a SymbolBlock keeps its flat ones. Those of
    losses that are Blocks are named ``losses.<key>.<name>``.
    """
    all_names = _of_block(net, "")
    for key, loss in losses.items():
        if isinstance(loss, mx.gluon.Block):
            all_names.update(_of_block(loss, f"losses.{key}."))
    named, seen = {}, set()
    for name, parameter in all_names.items():
        if id(parameter) not in seen:  # a shared parameter has the first of its names
            seen.add(id(parameter))
            named[name] = parameter
    return named


def _of_block(block: mx.gluon.Block, prefix: str) -> dict[str, mx.gluon.Parameter]:
    named = {prefix + name: p for name, p in block._collect_params_with_prefix().items()}
    known = {id(p) for p in named.values()}
    # parameters from `block.params` that are not attributes of the block have no structural name
    named.update({prefix + name: p for name, p in block.collect_params().items() if id(p) not in known})
    return named


def trainable(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.gluon.Parameter]:
    """Return the parameters that receive gradients."""
    return {name: p for name, p in parameters.items() if p.grad_req != "null"}
