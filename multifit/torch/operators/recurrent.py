"""Recurrent layers, with time along axis 0."""

from __future__ import annotations

from typing import Literal, Optional

import torch

from ..attributes import Tensor


def rnn(
    x: Tensor,
    parameters: Tensor,
    state: Tensor,
    cell: Optional[Tensor] = None,
    *,
    training: bool,
    mode: Literal["lstm", "gru", "rnn_tanh", "rnn_relu"],
    state_size: int,
    num_layers: int,
    bidirectional: bool = False,
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: Literal[None] = None,
    lstm_state_clip_min: Literal[None] = None,
    lstm_state_clip_max: Literal[None] = None,
    lstm_state_clip_nan: Literal[False, 0] = False,
    use_sequence_length: Literal[False, 0] = False,
) -> tuple[Tensor, ...]:
    """Return the outputs (T, N, C) of a recurrent net, and its last states with `state_outputs`."""
    directions = 2 if bidirectional else 1
    weights = unpacked(parameters, mode, x.shape[-1], state_size, num_layers, directions)
    # One row of zeros may stand for the states of the whole batch.
    state = state.expand(-1, x.shape[1], -1).contiguous()
    # cuDNN has a backward pass in training mode only; without dropout, training mode computes the same.
    mode_options = (p, True) if training else (0.0, torch.is_grad_enabled())
    options = (weights, True, num_layers, *mode_options, bidirectional, False)
    if cell is not None:
        y, *states = torch.lstm(x, (state, cell.expand(-1, x.shape[1], -1).contiguous()), *options)
    else:
        functions = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
        y, *states = functions[mode](x, state, *options)
    # compiled by PyTorch 2.11, an LSTM's states have a dimension more
    return y, *([each.reshape(state.shape) for each in states] if state_outputs else [])


def unpacked(
    parameters: Tensor, mode: str, inputs: int, size: int, layers: int, directions: int
) -> list[Tensor]:
    """Return the weights and biases of each layer and direction, in the order that torch takes.

    In MXNet's vector, all weights come before all biases; the order of the gates is the same.
    """
    gates = {"lstm": 4, "gru": 3}.get(mode, 1) * size
    columns = [[inputs if layer == 0 else size * directions, size] for layer in range(layers)]
    columns = [each for each in columns for _ in range(directions)]
    counts = [gates * count for pair in columns for count in pair]
    pieces = list(parameters.split([*counts, *[gates] * (2 * len(columns))]))
    biases = pieces[len(counts) :]
    weights = [piece.reshape(gates, -1) for piece in pieces[: len(counts)]]
    pairs = zip(weights[::2], weights[1::2], biases[::2], biases[1::2])
    return [piece for group in pairs for piece in group]


OPERATORS = {"RNN": rnn}
