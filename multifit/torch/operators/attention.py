"""Attention with several heads, whose projections are side by side: (T, N, heads · parts · C)."""

from __future__ import annotations

import math

import torch

from ..attributes import Tensor


def heads_of(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """Return the parts, such as queries, keys and values, each of shape (N · heads, T, C)."""
    steps, samples = x.shape[:2]
    x = x.reshape(steps, samples * heads, parts, -1)
    return tuple(part.transpose(0, 1) for part in x.unbind(2))


def scaled(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the product of queries and keys, divided by the square root of their size."""
    return torch.bmm(queries / math.sqrt(queries.shape[-1]), keys.mT)


def weighted(weights: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return the weighted sums of values, the heads side by side: (T, N, heads · C)."""
    sums = torch.bmm(weights, values).transpose(0, 1)
    return sums.reshape(sums.shape[0], sums.shape[1] // heads, -1)


def selfatt_qk(x: Tensor, *, heads: int) -> Tensor:
    """Return how much each step attends to each other step."""
    queries, keys, _ = heads_of(x, heads, 3)
    return scaled(queries, keys)


def selfatt_valatt(x: Tensor, weights: Tensor, *, heads: int) -> Tensor:
    """Return the values, weighted."""
    return weighted(weights, heads_of(x, heads, 3)[2], heads)


def encdec_qk(x: Tensor, memory: Tensor, *, heads: int) -> Tensor:
    """Return how much each step attends to each step of the memory."""
    return scaled(heads_of(x, heads, 1)[0], heads_of(memory, heads, 2)[0])


def encdec_valatt(memory: Tensor, weights: Tensor, *, heads: int) -> Tensor:
    """Return the memory's values, weighted."""
    return weighted(weights, heads_of(memory, heads, 2)[1], heads)


OPERATORS = {
    "_contrib_interleaved_matmul_selfatt_qk": selfatt_qk,
    "_contrib_interleaved_matmul_selfatt_valatt": selfatt_valatt,
    "_contrib_interleaved_matmul_encdec_qk": encdec_qk,
    "_contrib_interleaved_matmul_encdec_valatt": encdec_valatt,
}
