"""Invalid arguments of the handlers: the message names the handler, the value and what is valid."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from multifit.handlers import (
    CheckpointHandler,
    EarlyStoppingHandler,
    InterruptHandler,
    LivePlot,
    LoggingHandler,
    PlateauHandler,
    ProgressBar,
    StoppingHandler,
    TensorBoardHandler,
    ValidationHandler,
)
from multifit.triggers import Every

NEEDED = {
    EarlyStoppingHandler: ("val_loss",),
    PlateauHandler: ("val_loss",),
    ValidationHandler: ("data",),
    CheckpointHandler: ("run",),
    TensorBoardHandler: ("run",),
}
FROM_0, FROM_1 = "a whole number of at least 0", "a whole number of at least 1"
POSITIVE, NOT_NEGATIVE = "a finite number above 0", "a finite number of at least 0"
FACTOR = "a finite number above 0 and below 1"
EVERY = 'every (else Every(n, "batch"))'
INTERVAL = 'log_interval, if not "epoch",'
WRAPS = Every(2, "batch", StoppingHandler())
SIGNAL = "there is no signal {} that can be caught"
PATTERN = '"(" is not a valid regular expression'

# fmt: off
NUMBERS = [  # handler, argument, its name in the message, what is valid, values that are not
    (EarlyStoppingHandler, "patience", "patience", FROM_0, [-1]),
    (EarlyStoppingHandler, "min_delta", "min_delta", NOT_NEGATIVE, [-0.1, math.nan]),
    (PlateauHandler, "factor", "factor", FACTOR, [1.0, math.nan]),
    (PlateauHandler, "patience", "patience", FROM_0, [-1]),
    (PlateauHandler, "cooldown", "cooldown", FROM_0, [0.5]),
    (PlateauHandler, "min_delta", "min_delta", NOT_NEGATIVE, [-0.1]),
    (PlateauHandler, "min_lr", "min_lr", NOT_NEGATIVE, [math.nan]),
    (StoppingHandler, "max_epoch", "max_epoch", FROM_1, [0, -1, 2.5, "3"]),
    (StoppingHandler, "max_batch", "max_batch", FROM_1, [0, -1, 2.5, "3"]),
    (StoppingHandler, "max_seconds", "max_seconds", POSITIVE, [0, -1, math.nan, math.inf]),
    (ValidationHandler, "epoch_period", "n", FROM_1, [0]),
    (ValidationHandler, "batch_period", "n", FROM_1, [1.5]),
    (ValidationHandler, "skip", "skip", FROM_0, [-1]),
    (LoggingHandler, "log_interval", INTERVAL, FROM_1, [0, "batch", 2.5, True]),
    (TensorBoardHandler, "every", "every", FROM_1, [0, 1.5, "epoch"]),
    (CheckpointHandler, "every", EVERY, FROM_1, [0, "epoch"]),
    (CheckpointHandler, "keep_last", "keep_last", FROM_1, [0]),
    (CheckpointHandler, "keep_best", "keep_best", FROM_0, [-1]),
    (CheckpointHandler, "seed", "seed", FROM_0, [1.5]),
]
MONITORS = [EarlyStoppingHandler, PlateauHandler, CheckpointHandler]
CASES = [
    *((handler, {argument: value}, f"{name} is {value!r}; valid is {valid}")
      for handler, argument, name, valid, values in NUMBERS for value in values),
    *((handler, {"monitor": 3}, 'monitor is 3; valid is a name such as "val_loss"') for handler in MONITORS),
    *((handler, {"mode": "maxi"}, 'mode is "maxi" (did you mean "max"?); valid are "min", "max"')
      for handler in MONITORS),
    (CheckpointHandler, {"every": WRAPS}, 'every is Every(2, "batch", StoppingHandler), which'),
    (StoppingHandler, {"condition": "late"}, "condition is 'late'; valid is a function of the run's state"),
    (ValidationHandler, {"epoch_period": None}, "would never evaluate: give epoch_period or batch_period"),
    (InterruptHandler, {"signals": ("SIGINT", "SIGTREM")},
     SIGNAL.format("'SIGTREM'") + ' (did you mean "SIGTERM"?); valid'),
    (InterruptHandler, {"signals": "SIGKILL"}, SIGNAL.format("'SIGKILL'")),
    (InterruptHandler, {"signals": (15,)}, SIGNAL.format(15) + "; valid are"),
    *((handler, {"figures": "("}, PATTERN) for handler in (LivePlot, LoggingHandler, ProgressBar)),
]
# fmt: on


@pytest.mark.parametrize(("handler", "arguments", "message"), CASES)
def test_an_invalid_argument_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Any, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = () if "monitor" in arguments and handler is not CheckpointHandler else NEEDED.get(handler, ())
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        handler(*needed, **arguments)
    assert str(caught.value).startswith((handler.__name__, "Every: ", "figures: "))
    assert list(tmp_path.iterdir()) == []  # nothing is written before the arguments are checked
