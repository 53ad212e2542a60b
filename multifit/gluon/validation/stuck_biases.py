"""Find biases that a trainer should update, but for which MXNet computes no gradient."""

from __future__ import annotations

from typing import Any

from ...errors import Problem
from ...stages import TRAIN
from ..compat import mx
from ..engine import Engine

KEYS = ("", "i2h_", "h2h_")  # prefixes of weight and bias in Dense and recurrent cells


def stuck_biases(engine: Engine) -> list[Problem]:
    """Return the biases of dense layers whose weights have no gradient: the biases then get none either.

    On CPUs, MXNet's FullyConnected computes the gradient of the bias only together with that of the weight;
    otherwise it leaves the bias's gradient as it was. With `frozen=`, both are computed.
    """
    on_cpu = any(context.device_type == "cpu" for context in engine.model.contexts)
    blocks: list[Any] = []
    if on_cpu and not engine.stages[TRAIN].network.precision.on_other_engine:
        engine.model.net.apply(blocks.append)
    names = {id(parameter): name for name, parameter in engine.model.parameters.items()}
    frozen = {*engine.trainers.not_updated()}
    pairs = [pair for block in blocks for pair in _pairs(block) if id(pair[1]) in names]
    of_names = [(names[id(weight)], names[id(bias)]) for weight, bias in pairs]
    return [
        Problem(
            "trainer",
            f'"{bias}" would not be updated: on CPUs, MXNet computes the gradient of a dense layer\'s bias '
            f'only with that of its weight, and "{weight}" has grad_req="null"; set it to "write", and give '
            f'frozen=["{weight}"] if the weight must stay as it is',
        )
        for weight, bias in dict.fromkeys(of_names)
        if bias not in frozen
    ]


def _pairs(block: Any) -> list[tuple[Any, Any]]:
    """Return a layer's pairs of a weight without and a bias with a gradient that one operator takes."""
    if not isinstance(block, (mx.gluon.nn.Dense, mx.gluon.rnn.RecurrentCell)):
        return []
    pairs = [(getattr(block, f"{key}weight", None), getattr(block, f"{key}bias", None)) for key in KEYS]
    known = [(weight, bias) for weight, bias in pairs if weight is not None and bias is not None]
    return [pair for pair in known if [each.grad_req == "null" for each in pair] == [True, False]]
