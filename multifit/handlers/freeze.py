"""Freeze parameters for the first part of a fit."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from ..utils.arguments import Count, checked, one_of
from ..utils.protocols import MultiEstimator
from ..utils.text import shown
from .handler import Handler
from .triggers import UNITS


class Freeze(Handler):
    """Freezes parameters for the first epochs or batches of a fit, and then lets them learn.

    While they are frozen, nothing updates them, not even weight decay or momentum, and no gradients are
    computed for them. A BatchNorm layer is frozen as by the argument `frozen` of the estimator. A trainer may
    hold nothing but frozen parameters; its schedule counts its updates, and so begins with the first of them.
    A resumed fit continues the counts. At the end of the fit, all of them can learn again.

    Parameters
    ----------
    params : str, part of the net, parameters, or sequence of these
        The parameters; strings are patterns that must match a whole name, such as ``"body.*"``.
    until : int
        How many epochs or batches of the fit the parameters stay frozen. With ``accumulate=n``, give a
        multiple of n batches.
    unit : {"epoch", "batch"}
        What is counted.

    Raises
    ------
    ValueError
        An argument is not valid. A fit raises it too, if all of the parameters are frozen already, and
        TrainerError, if nothing is selected. If a fit ends before they learn, it warns.
    """

    @checked
    def __init__(self, params: Any, until: Count, unit: Annotated[str, one_of(*UNITS)] = "epoch") -> None:
        self.params, self.until, self.unit = params, until, unit
        self._pattern = ""  # of their names
        self._first = 0  # the count when the fit began
        self._frozen: bool | None = False  # None after a checkpoint was loaded

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Freeze the parameters, and start counting."""
        self._first, self._frozen = self._count(estimator), False
        names = estimator.freeze(self.params)
        if not names:
            raise ValueError(f"{self}: all of them are frozen already; leave one of both out")
        self._pattern, self._frozen = "|".join(map(re.escape, names)), True
        limit = estimator.max_epoch if self.unit == "epoch" else estimator.max_batch
        if limit is not None and limit <= self.until:
            estimator.logger.warning("%s: the fit ends after %d, before they learn", self, limit)

    def batch_begin(self, estimator: MultiEstimator, **_: Any) -> None:
        """Let the parameters learn if it is time; freeze them again if a fit was resumed before that."""
        before, self._frozen = self._frozen, self._count(estimator) - self._first < self.until
        if before is self._frozen:
            return
        if self._frozen:
            estimator.freeze(self._pattern)
            return
        estimator.unfreeze(self._pattern)
        if before:
            estimator.logger.info("%s: %s: they learn from now on", estimator.state.place, self)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Let the parameters learn in further fits; warn if they did not in this one."""
        if self._frozen:
            estimator.logger.warning("%s: the fit ended before they learnt", self)
        if self._frozen is not False:
            estimator.unfreeze(self._pattern)

    def state_dict(self) -> dict[str, Any]:
        """Return the count when the fit began."""
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first, self._frozen = state["first"], None

    def __repr__(self) -> str:
        return f"Freeze({shown(self.params)}, until={self.until}, unit={self.unit!r})"

    def _count(self, estimator: MultiEstimator) -> int:
        return estimator.state.epoch if self.unit == "epoch" else estimator.state.step
