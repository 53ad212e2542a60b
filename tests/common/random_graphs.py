"""Random graphs of operators, all of whose arguments and results have one shape."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

SHAPE = (4, 4)
OPERATORS: list[tuple[int, Callable[..., Any]]] = [  # with their numbers of arguments, all of one shape
    (1, lambda F, x: F.relu(x)),
    (1, lambda F, x: F.tanh(x)),
    (1, lambda F, x: F.identity(x)),
    (1, lambda F, x: F.transpose(x)),
    (1, lambda F, x: F.reshape(F.reshape(x, (2, 8)), SHAPE)),
    (1, lambda F, x: F.softmax(x)),
    (1, lambda F, x: F.clip(x, -0.5, 0.7)),
    (1, lambda F, x: F.hard_sigmoid(x)),
    (1, lambda F, x: F.flip(x, axis=1)),
    (1, lambda F, x: F.cumsum(x, axis=1) * 0.5),
    (1, lambda F, x: F.broadcast_like(F.mean(x, axis=1, keepdims=True), x)),
    (1, lambda F, x: F.concat(*list(F.split(x, 2, axis=1))[::-1], dim=1)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: x - y),
    (2, lambda F, x, y: x * y),
    (2, lambda F, x, y: F.broadcast_add(x, y)),
    (2, lambda F, x, y: F.add_n(x, y, x)),
    (2, lambda F, x, y: F.dot(x, y) * 0.5),
    (2, lambda F, x, y: F.FullyConnected(x, y, num_hidden=4, no_bias=True) * 0.5),
    (2, lambda F, x, y: F.LeakyReLU(x, F.reshape(F.slice_axis(y, 0, 0, 1), (-1,)), act_type="prelu")),
]


class Graph(NamedTuple):
    """Operators, each with the numbers of its arguments among the variables and the results before."""

    operators: Sequence[Callable[..., Any]]
    arguments: Sequence[tuple[int, ...]]

    def __call__(self, F: Any, variables: Sequence[Any]) -> list[Any]:
        """Return the variables and all results."""
        values = list(variables)
        for operator, arguments in zip(self.operators, self.arguments):
            values.append(operator(F, *[values[i] for i in arguments]))
        return values


def random_graph(random: np.random.RandomState, variables: int) -> Graph:
    """Return a graph of two to eight operators."""
    chosen = [OPERATORS[i] for i in random.randint(len(OPERATORS), size=random.randint(2, 9))]
    arguments = [
        tuple(random.randint(variables + place, size=number)) for place, (number, _) in enumerate(chosen)
    ]
    return Graph([operator for _, operator in chosen], arguments)
