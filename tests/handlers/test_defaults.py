"""The default handlers, what takes their place, and which handlers act on a rank."""

from types import SimpleNamespace
from typing import Any

import pytest

from multifit import Every, Handler, InterruptHandler, LoggingHandler, ProgressBar, ValidationHandler
from multifit.handlers import acting_on, validating, with_defaults

DEFAULTS = ["StoppingHandler", "MetricHandler", "ValidationHandler", "InterruptHandler", "LoggingHandler",
            "ProgressBar"]  # fmt: skip


class Mine(Handler):
    def epoch_end(self, estimator: Any) -> None: ...


class OwnLogging(LoggingHandler):
    pass


def replacing(kinds: Any, base: type = Mine) -> Any:
    return type("Replacing", (base,), {"replaces": kinds, "epoch_end": lambda self, estimator: None})()


@pytest.mark.parametrize(
    ("handlers", "left_out"),
    [
        (None, []),
        (Mine(), []),
        (replacing(LoggingHandler), ["LoggingHandler"]),
        (replacing((ProgressBar, InterruptHandler), object), ["ProgressBar", "InterruptHandler"]),
        (Every(2, "epoch", replacing(ValidationHandler)), ["ValidationHandler"]),
        ([OwnLogging(), ValidationHandler([], epoch_period=2)], ["LoggingHandler", "ValidationHandler"]),
        (type("LoggingHandler", (Mine,), {})(), []),  # its name says nothing
    ],
)
def test_a_default_is_left_out_where_a_handler_replaces_it(handlers: Any, left_out: list[str]) -> None:
    found = with_defaults(handlers, ["a batch"])
    given = handlers if isinstance(handlers, list) else [handlers] if handlers else []
    assert found[: len(given)] == given
    names = [type(each).__name__ for each in found[len(given) :]]
    assert names == [name for name in DEFAULTS if name not in left_out]


def test_without_validation_data_nothing_validates() -> None:
    assert "ValidationHandler" not in [type(each).__name__ for each in with_defaults(None, None)]


@pytest.mark.parametrize("replaces", ["LoggingHandler", LoggingHandler(), OwnLogging, (ProgressBar, Mine)])
def test_only_defaults_can_be_replaced(replaces: Any) -> None:
    valid = (
        'Replacing replaces .*; valid is one of the classes "InterruptHandler", "LoggingHandler", "Progress'
    )
    with pytest.raises(ValueError, match=valid):
        with_defaults(replacing(replaces), None)


@pytest.mark.parametrize("first", [True, False])
def test_what_is_shown_is_shown_by_the_first_rank(first: bool) -> None:
    class Shows:
        first_rank_only = True

        def epoch_end(self, estimator: Any) -> None: ...

    handlers = [Shows(), Every(2, "epoch", Shows()), Mine()]
    assert acting_on(SimpleNamespace(alone=True), handlers) == handlers
    *acting, agreement = acting_on(SimpleNamespace(alone=False, first=first), handlers)
    assert acting == (handlers if first else handlers[2:])
    assert type(agreement).__name__ == "StopAgreement"


def test_the_first_validation_data_is_checked() -> None:
    assert validating([Mine(), LoggingHandler()]) is None
    assert validating(
        [Mine(), Every(1, "epoch", ValidationHandler([1])), ValidationHandler([2])]
    ).val_data == [1]
