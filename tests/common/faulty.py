"""Faulty variants of a small task that trains, and the check that a refused fit has moved nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec

from .noted import with_notes

KINDS = {"SpecError": "spec", "DataError": "data", "TrainerError": "trainer"}
BOTH = {"outputs": "digit", "labels": "digit"}


def arrays(samples: int = 8) -> list[np.ndarray]:
    """x (N, 6), amount (N, 1), float32; digit (N,) in 0 … 2, int64; in the order x, digit, amount."""
    random = np.random.RandomState(0)
    digit = random.randint(0, 3, samples)
    x = random.randn(samples, 6)
    return [x.astype("float32"), digit, x[:, :1].astype("float32")]


@dataclass(frozen=True)
class Faulty:
    """Everything that a fit needs; `but` makes a variant of it around the same net.

    A class for each library has `parameters`.
    """

    net: Any
    spec: dict[str, Any]
    data: Any
    val_data: Any = None
    estimator: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    handlers: tuple[Any, ...] = ()

    def but(self, **changes: Any) -> Faulty:
        """Change fields of the setup, or else of the TaskSpec."""
        own = {name: value for name, value in changes.items() if name in self.__dataclass_fields__}
        spec = {**self.spec, **{name: value for name, value in changes.items() if name not in own}}
        return replace(self, **{"spec": spec, **own})

    def with_loss(self, *args: Any, **fields: Any) -> Faulty:
        """Declare the loss "digit" otherwise; without its metric, so that one fault makes one problem."""
        return self.but(losses={**self.spec["losses"], "digit": LossSpec(*args, **fields)}, metrics={})

    def with_metric(self, *args: Any, **fields: Any) -> Faulty:
        return self.but(metrics={"figure": MetricSpec(*args, **fields)})

    def with_trainers(self, trainers: Any, **more: Any) -> Faulty:
        return self.but(estimator={"trainers": trainers, **more})

    def make(self) -> MultiEstimator:
        return MultiEstimator(self.net, TaskSpec(**self.spec), **self.estimator)

    def check(self, **options: Any) -> Any:
        return self.make().check(_loader(self.data), _loader(self.val_data), **options)

    def fit(self) -> None:
        handlers = list(self.handlers) or None
        self.make().fit(
            _loader(self.data), _loader(self.val_data), epochs=self.epochs, event_handlers=handlers
        )

    def parameters(self) -> dict[str, np.ndarray]:
        """All parameters that have values by name; running statistics are among them."""
        raise NotImplementedError

    def refused(self, error: type[Exception], *texts: str, way: str = "fit") -> str:
        """Check that it is refused with every text in the message, and that nothing moved.

        `way` is "fit" or "check", which look at a first batch in the same way, or "make".
        """
        if error is SpecError and not self._has_spec():
            way = "make"  # a TaskSpec that cannot be built never gets to any data
        before = self.parameters()
        with pytest.raises(error) as raised:
            getattr(self, way)()
        assert type(raised.value) is error
        message = with_notes(raised.value)
        for text in texts:
            assert text in message, f"{text!r} is not in {message!r}"
        if error.__name__ in KINDS:
            assert {p.kind for p in raised.value.problems} == {KINDS[error.__name__]}
            assert all(p.message in message for p in raised.value.problems)
        assert not self.moved(before), f"{way} moved parameters"
        return message

    def moved(self, before: dict[str, np.ndarray]) -> bool:
        after = self.parameters()
        return any(not np.array_equal(before[name], after[name]) for name in before)

    def trains(self) -> None:
        """Check that a fit moves parameters, and to finite values."""
        before = self.parameters()
        self.fit()
        assert self.moved(before)
        assert all(np.isfinite(value).all() for value in self.parameters().values())

    def _has_spec(self) -> bool:
        try:
            TaskSpec(**self.spec)
        except SpecError:
            return False
        return True


def _loader(data: Any) -> Any:
    return data() if callable(data) else data


def fault(name: str, change: Any, *texts: str) -> Any:
    """Return a row of a table: what to change in a setup, and texts of the message."""
    return pytest.param(change, texts, id=name)
