"""Invalid arguments of the handlers: the message names the handler, the value and what is valid."""

from __future__ import annotations

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
FROM_1 = "a whole number of at least 1"
SEED = "a whole number of at least 0 and below 4294967296"
CONDITION = "a function of the run's state"
MODES = '(did you mean "max"?); valid is "min", "max" or None'
WRAPS = Every(2, "batch", StoppingHandler())
SIGNAL = "signals: there is no {} that can be caught"

# fmt: off
CASES = [
    (EarlyStoppingHandler, {"baseline": "x"}, "baseline is 'x'; valid is a finite number or None"),
    (PlateauHandler, {"factor": 1.0}, "factor is 1.0; valid is a finite number above 0 and below 1"),
    (PlateauHandler, {"mode": "maxi"}, f"mode is 'maxi' {MODES}"),
    (PlateauHandler, {"monitor": 3}, 'monitor is 3; valid is a name such as "val_loss"'),
    (StoppingHandler, {"max_epoch": 2.5}, f"max_epoch is 2.5; valid is {FROM_1} or None"),
    (StoppingHandler, {"condition": "late"}, f"condition is 'late'; valid is {CONDITION} or None"),
    (ValidationHandler, {"epoch_period": 0}, f"epoch_period is 0; valid is {FROM_1} or None"),
    (ValidationHandler, {"epoch_period": None}, "would never evaluate: give epoch_period or batch_period"),
    (LoggingHandler, {"log_interval": "batch"}, f"""log_interval is 'batch'; valid is "epoch" or {FROM_1}"""),
    (TensorBoardHandler, {"every": "epoch"}, f"every is 'epoch'; valid is {FROM_1} or None"),
    (CheckpointHandler, {"seed": 1.5}, f"seed is 1.5; valid is {SEED} or None"),
    *((CheckpointHandler, {"every": every},
       f'every is {every!r}; valid is {FROM_1}, Every(n, "batch") without a handler or None')
      for every in (0, "epoch", WRAPS)),
    (InterruptHandler, {"signals": ("SIGINT", "SIGTREM")},
     SIGNAL.format("'SIGTREM'") + ' (did you mean "SIGTERM"?); valid'),
    (InterruptHandler, {"signals": "SIGKILL"}, SIGNAL.format("'SIGKILL'")),
    (InterruptHandler, {"signals": (15,)}, "signals is (15,); valid is a name or a list of names"),
    *((handler, {"figures": "("}, '"(" is not a valid regular expression')
      for handler in (LivePlot, LoggingHandler, ProgressBar)),
    (ProgressBar, {"stream": 3}, "stream is 3; valid is a text stream or None"),
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
