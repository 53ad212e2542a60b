"""Handlers that print: a line per epoch, progress bars, and the log in a file."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from tqdm.auto import tqdm
from tqdm.notebook import tqdm_notebook

from ..sampling import COUNTS, TaskBatch
from ..spec import TaskSpec
from ..utils.arguments import Count, NotNegative, PathLike, Patterns, TextStream, checked, one_of
from ..utils.output import Output
from ..utils.protocols import MultiEstimator
from ..utils.stages import EVALUATE, PREFIXES, TRAIN, figure_name, split_figure, split_set
from ..utils.text import counted, quoted, suggest
from .handler import Handler, Priority
from .history import figure_text
from .plots import select_figures
from .triggers import Every

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class LoggingHandler(Handler):
    """Logs each epoch's figures, seconds (with validation) and training samples per second.

    A message has one line. By default it shows the objective, the metrics (of one with several figures, the
    last) and the losses of the outputs that no metric reads; `history.json` and `History.table()` have all
    figures. Messages are logged to ``estimator.logger`` at level INFO. An evaluation outside of a fit is
    logged too.

    Parameters
    ----------
    log_interval : "epoch" or int
        A number n also logs the running figures after every n-th batch of an epoch. This reads the figures,
        which waits for the device.
    clock : callable
        Returns the time in seconds.
    figures : str or iterable of str, optional
        The figures to show: full names such as ``"val_loss"``, or regular expressions that match whole names,
        such as ``"val_.*"``.

    Raises
    ------
    ValueError
        `log_interval` is neither "epoch" nor a whole number of at least 1, or one of `figures` is not a
        regular expression.
    """

    priority = Priority.LOGGING
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        log_interval: Annotated[str, one_of("epoch")] | Count = "epoch",
        clock: Callable[[], float] = time.monotonic,
        figures: Patterns | None = None,
    ) -> None:
        self._trigger = Every(log_interval, "batch") if isinstance(log_interval, int) else None
        self._clock = clock
        self._figures = _patterns(figures)
        self._in_epoch = False
        self._samples: int | None = None  # before the first epoch of a fit

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the limits of this fit and the learning rates."""
        self._epochs, self._samples, self._in_epoch = 0, None, False
        self._began = self._clock()
        limits = ((estimator.max_epoch, "epoch", "epochs"), (estimator.max_batch, "batch", "batches"))
        goal = " or ".join(counted(n, unit, plural) for n, unit, plural in limits if n is not None)
        head = f"training for {goal}" if goal else "training without a limit"
        estimator.logger.info("%s: %s", head, _text(estimator.learning_rates()))

    def epoch_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Start the epoch's clock."""
        self._batches, self._in_epoch = batches, True
        self._epoch_began, self._paused = self._clock(), 0.0
        self._epoch_samples = estimator.state.samples
        if self._samples is None:  # in a resumed run, the checkpoint has set their number by now
            self._samples = self._epoch_samples

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Log the running figures of the epoch if the batch is the n-th."""
        batch = estimator.state.batch + 1
        if self._trigger is not None and self._trigger.fires(batch):
            figures = estimator.figures()  # before the clock is read: this waits for all batches before
            place = f"{_epoch(estimator)}  batch {_count(batch, self._batches)}"
            self._log(estimator, f"{place}  {self._rate(estimator)}", figures)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the epoch's figures from the history, without reading them a second time."""
        self._epochs, self._in_epoch = self._epochs + 1, False
        seconds = f"{self._clock() - self._epoch_began:8.2f} s"
        head = f"{_epoch(estimator)}  {seconds}  {self._rate(estimator)}"
        self._log(estimator, head, estimator.history.last)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log how long the fit took and why it stopped, and name patterns that no figure matched."""
        history, state = estimator.history, estimator.state
        missing = select_figures(history, self._figures)[1]
        if missing and history:
            near = suggest(missing[0], history)
            message = "LoggingHandler: no figure %s%s; there are %s"
            estimator.logger.warning(message, quoted(missing), near, quoted(history))
        samples = 0 if self._samples is None else state.samples - self._samples
        estimator.logger.info(
            "trained %s, %s, in %.2f s; stopped: %s",
            counted(self._epochs, "epoch"),
            counted(samples, "sample"),
            self._clock() - self._began,
            state.stop_reason or "the data is exhausted",
        )

    def evaluate_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Start the evaluation's clock."""
        self._evaluation_began = self._clock()

    def evaluate_end(self, estimator: MultiEstimator, figures: Mapping[str, float], **arguments: Any) -> None:
        """Log the figures of an evaluation outside of a fit; within an epoch, the epoch's line has them."""
        seconds = self._clock() - self._evaluation_began
        if self._in_epoch:
            self._paused += seconds  # which do not count for the rate
            return
        named = {figure_name(EVALUATE, name): value for name, value in figures.items()}
        shown = _without_stage(_chosen(named, self._figures, estimator))
        estimator.logger.info("evaluated in %.2f s: %s", seconds, _text(shown))

    def _rate(self, estimator: MultiEstimator) -> str:
        seconds = self._clock() - self._epoch_began - self._paused
        return f"{(estimator.state.samples - self._epoch_samples) / max(seconds, 1e-9):8.0f} samples/s"

    def _log(self, estimator: MultiEstimator, head: str, figures: Mapping[str, float]) -> None:
        shown = _chosen(figures, self._figures, estimator)
        estimator.logger.info("%s", f"{head}  {_text(shown)}".rstrip())


class ProgressBar(Handler):
    """Shows a progress bar for each epoch and each evaluation, with the running figures.

    Reading figures waits for the device. All bars together read them at most once in `refresh` seconds, and
    only count batches in between. With several loaders, the title ends with the name of the loader of the
    current batch. Bars disappear when they are done; `LoggingHandler` logs what should stay.

    Parameters
    ----------
    stream : text stream, optional
        Where to draw. Defaults to `sys.stderr`. In a notebook, the bars are widgets if ipywidgets is
        installed.
    refresh : float
        Seconds between two readings of the figures.
    clock : callable
        Returns the time in seconds.
    enabled : bool, optional
        Whether to draw at all. By default, bars are drawn in terminals, and as widgets.
    figures : str or iterable of str, optional
        The figures to show: full names such as ``"train_loss"``, or regular expressions that match whole
        names, such as ``".*_loss"``. Defaults to those that `LoggingHandler` shows, without those that are
        computed from all arrays of the pass so far, such as the figures of functions: at each reading, these
        would take longer. A line ends where the terminal does.

    Raises
    ------
    ValueError
        One of `figures` is not a valid regular expression.
    """

    priority = Priority.PROGRESS
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        stream: TextStream | None = None,
        refresh: NotNegative = 0.5,
        clock: Callable[[], float] = time.monotonic,
        enabled: bool | None = None,
        figures: Patterns | None = None,
    ) -> None:
        self._stream, self._clock, self._refresh = stream, clock, refresh
        if enabled is None and issubclass(tqdm, tqdm_notebook):
            enabled = True
        self._disable = None if enabled is None else not enabled  # None disables tqdm outside of terminals
        self._figures = _patterns(figures)
        self._read_at = clock()
        self._bars: dict[str, Any] = {}
        self._titles: dict[str, str] = {}

    def epoch_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Open the epoch's bar. If the number of batches is not known, it only counts."""
        self._open(TRAIN, _epoch(estimator), batches)

    def batch_end(self, estimator: MultiEstimator, batch: Any = None, **_: Any) -> None:
        """Advance the epoch's bar."""
        self._advance(TRAIN, estimator, batch)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the epoch's bar."""
        self._close(TRAIN)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close all bars."""
        self._close(*self._bars)

    def evaluate_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Open the evaluation's bar; within an epoch, it is drawn below the epoch's."""
        self._open(EVALUATE, EVALUATE, batches)

    def evaluate_batch_end(self, estimator: MultiEstimator, batch: Any = None, **_: Any) -> None:
        """Advance the evaluation's bar."""
        self._advance(EVALUATE, estimator, batch)

    def evaluate_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the evaluation's bar."""
        self._close(EVALUATE)

    def _open(self, stage: str, title: str, batches: int | None) -> None:
        self._close(stage)
        self._titles[stage] = title
        self._bars[stage] = tqdm(
            desc=title,
            total=batches,
            unit=" batches",
            leave=False,
            file=Output(sys.stderr if self._stream is None else self._stream),
            dynamic_ncols=True,
            disable=self._disable,
        )

    def _advance(self, stage: str, estimator: MultiEstimator, batch: Any) -> None:
        bar = self._bars.get(stage)
        if bar is None or bar.disable:
            return
        if isinstance(batch, TaskBatch):
            bar.set_description_str(f"{self._titles[stage]}, {batch.name}", refresh=False)
        bar.update(1)
        if self._clock() - self._read_at >= self._refresh:
            figures = estimator.figures(stage, self._figures is None)
            shown = _chosen(figures, self._figures, estimator)
            bar.set_postfix_str(_text(_without_stage(shown)))  # the bar's title says which stage it is
            self._read_at = self._clock()  # after reading, which may itself take long

    def _close(self, *stages: str) -> None:
        for stage in stages:
            if stage in self._bars:
                self._bars.pop(stage).close()


class LogFile(Handler):
    """Writes what ``estimator.logger`` logs in a fit to a file, each record with its date and time.

    The file is opened before the handlers' ``train_begin`` and closed after their ``train_end``. Records are
    appended, so a resumed run continues the same file. Progress bars are not written.

    Parameters
    ----------
    path : str or path
        The file, in UTF-8. Its folder is created if necessary.
    """

    priority = -math.inf
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    @contextmanager
    def around_fit(self, estimator: MultiEstimator) -> Iterator[None]:
        """Open the file, and close it when the fit is over or has failed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(self.path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter(FORMAT))
        estimator.logger.addHandler(file)
        try:
            yield
        finally:
            estimator.logger.removeHandler(file)
            with suppress(OSError):  # a full disk, which logging has reported on stderr
                file.close()


def key_figures(figures: Iterable[str], spec: TaskSpec, sets: Collection[str] = ()) -> list[str]:
    """Return, for each stage, the objective and what says most of each task; then the figures of no stage.

    These are the metrics, and the losses of outputs that no metric reads. If a metric has several figures,
    it is the last, which by convention is the mean over the classes. The sets for validation follow each
    other.
    """
    staged: dict[str, list[str]] = {prefix: [] for prefix in ("", *PREFIXES.values())}
    for figure in figures:
        prefix, name = split_figure(figure)
        staged[prefix].append(name)
    keys = []
    for stage, prefix in PREFIXES.items():
        declared = spec if stage == TRAIN else spec.evaluation
        of_sets: dict[str, list[str]] = {}
        for name in staged[prefix]:
            own, rest = split_set(name, sets if stage == EVALUATE else ())
            of_sets.setdefault(f"{own}_" if own else "", []).append(rest)
        for own, names in of_sets.items():
            keys += [f"{prefix}_{own}{name}" for name in _key_names(names, declared)]
    return [*keys, *staged[""]]


def _key_names(names: list[str], spec: TaskSpec) -> list[str]:
    of_term = {
        term.key: [name for name in names if name == term.key or name.startswith(f"{term.key}.")]
        for term in (*spec.metric_terms, *spec.terms)
    }
    keys, read = ["loss"], set()
    of_loss = {figure: term.outputs for term in spec.terms for figure in term.figures}
    for metric in spec.metric_terms:
        if of_term[metric.key]:
            keys.append(of_term[metric.key][-1])
            read |= set(metric.outputs).union(*(of_loss[loss] for loss in metric.losses))
    if len(spec.terms) > 1:  # a single loss is the objective
        keys += [term.key for term in spec.terms if read.isdisjoint(term.outputs)]
    known = {"loss"}.union(*of_term.values())
    # The numbers of batches and passes of several loaders are left out: they hardly change.
    keys += [n for n in names if n not in known and "." not in n and n.partition("_")[0] not in COUNTS]
    return [key for key in keys if key in names]


def _patterns(figures: Patterns | None) -> str | list[str] | None:
    """Return patterns as they can be read several times; raise ValueError if one is not a valid one."""
    patterns = figures if figures is None or isinstance(figures, str) else list(figures)
    select_figures([], patterns)
    return patterns


def _chosen(
    figures: Mapping[str, float], patterns: str | list[str] | None, estimator: MultiEstimator
) -> dict[str, float]:
    """Return the figures that are shown; all have full names, such as ``val_loss``."""
    if patterns is None:
        names = key_figures(figures, estimator.spec, estimator.validation_sets)
    else:
        names = select_figures(figures, patterns)[0]
    return {name: figures[name] for name in names}


def _without_stage(figures: Mapping[str, float]) -> dict[str, float]:
    return {split_figure(name)[1]: value for name, value in figures.items()}


def _text(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {figure_text(value)}" for name, value in figures.items())


def _count(number: int, total: int | None) -> str:
    """Return ``3/20``, padded to the total's width, or ``3`` if the total is not known."""
    return f"{number}" if total is None else f"{number:{len(str(total))}}/{total}"


def _epoch(estimator: MultiEstimator) -> str:
    """Return the current epoch and the last one of this fit, counted over the whole run.

    A second fit of 5 epochs after one of 20 begins with ``epoch 21/25``; the history is that of this fit.
    """
    epoch, most = estimator.state.epoch + 1, estimator.max_epoch
    return f"epoch {_count(epoch, None if most is None else epoch - estimator.history.epochs + most)}"
