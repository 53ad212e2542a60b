"""Confusion matrices and pairs of labels and predictions, of a whole evaluation."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..spec import TaskSpec
from ..spec.checks.values import LENGTH, mask_kind
from ..spec.terms import Taker
from ..utils.errors import SpecError
from ..utils.protocols import MultiEstimator, Numbers
from ..utils.text import quoted, suggest
from .handler import Handler
from .plots import draw_confusion, draw_scatter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRS = 2000  # of numbers, for a scatter plot
MOST_CLASSES = 1000  # whose matrix takes 8 MB


class _Comparison(NamedTuple):
    """How an output is compared with a label: as numbers, unless it has an `axis` or a `threshold`."""

    label: str
    masks: tuple[str, ...]  # further slots that the loss takes
    ignored: tuple[float, ...]
    axis: int | None = None  # of the classes
    threshold: float | None = None  # what is above it is the second of two classes


class Interpretation(Handler):
    """Compares predictions with labels over an evaluation: the classes and numbers that a net confuses.

    An output's loss says how it is compared; without such a loss, its metric does. Cross entropy with class
    indices and accuracy compare classes, binary cross entropy and binary accuracy two classes; L1, L2 and
    Huber losses, MAE, MSE and RMSE compare numbers. Labels that are missing, ignored or masked are left
    out, and so are outputs of more than 1,000 classes. It waits for the device after each batch. An
    evaluation raises SpecError if no output can be compared.

    Attributes
    ----------
    confusion : dict of str to numpy.ndarray
        By output, the counts of the last evaluation, of shape (C, C): a row per label, a column per
        prediction. They are those of all devices and processes.
    scatter : dict of str to numpy.ndarray
        By output, pairs of label and prediction, of shape (n, 2): all of them or, of more than 2,000, as many
        that are drawn at random.
    """

    confusion: dict[str, Numbers] = {}
    scatter: dict[str, Numbers] = {}

    def evaluate_begin(self, estimator: MultiEstimator, **_: Any) -> None:
        """Forget the last evaluation, and find out how outputs are compared."""
        self._spec = estimator.spec.evaluation
        self._how = comparisons(self._spec, estimator.arrays.comparison)
        if not self._how:
            raise SpecError(
                "Interpretation: no output has a loss or a metric by which it can be compared with a label; "
                "valid are cross entropy, L1, L2 and Huber losses, accuracy, MAE and RMSE"
            )
        self.confusion = {}
        self._pairs: dict[str, Numbers] = {}  # a random number, the label and the prediction of each
        self._random = np.random.RandomState(estimator.world.rank)

    def evaluate_batch_end(
        self, estimator: MultiEstimator, pred: Any, label: Any, present: Mapping[str, list[Any]]
    ) -> None:
        """Count the predictions of a batch."""
        outputs = pred if isinstance(pred, Mapping) else {self._spec.output_names[0]: pred}
        labels = label if isinstance(label, Mapping) else {self._spec.labels[0]: label}
        as_numpy = estimator.arrays.numpy
        for name, how in self._how.items():
            masks = [labels[mask] for mask in how.masks if mask in labels]
            masks += [present[how.label]] if how.label in present else []
            for output, truth, *hiding in zip(outputs[name], labels.get(how.label, ()), *masks):
                if output is not None and truth is not None:
                    hidden = [as_numpy(mask) for mask in hiding if mask is not None]
                    self._compare(name, how, as_numpy(output), as_numpy(truth), hidden)

    def evaluate_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Join the counts and the pairs of all processes."""
        ranks = estimator.world.gather((self.confusion, self._pairs))
        self.confusion, self._pairs = {}, {}
        for confusion, pairs in ranks:
            for name, counts in confusion.items():
                self._count(name, counts)
            for name, more in pairs.items():
                self._keep(name, more)
        self.scatter = {name: pairs[1:].T for name, pairs in self._pairs.items()}

    def plots(self, class_names: Mapping[str, Sequence[str]] | None = None) -> dict[str, "Figure"]:
        """Return matplotlib figures of the last evaluation: ``confusion_<output>``, ``scatter_<output>``.

        `class_names` are those of the classes, by output. Raises ValueError if they are of an output without
        a matrix, or if their number is wrong; ImportError without matplotlib.
        """
        names = class_names or {}
        for name in names:
            if len(names[name]) != (classes := len(self.confusion.get(name, ()))):
                near, valid = suggest(name, self.confusion), quoted(self.confusion)
                wrong = f'"{name}"{near} has {len(names[name])} names and {classes} classes'
                raise ValueError(f"class_names: {wrong}; there are matrices of {valid}")
        matrices = [(name, counts, names.get(name)) for name, counts in self.confusion.items()]
        return {
            **{f"confusion_{each[0]}": draw_confusion(*each) for each in matrices},
            **{f"scatter_{name}": draw_scatter(name, *pairs.T) for name, pairs in self.scatter.items()},
        }

    def _compare(
        self, name: str, how: _Comparison, output: Any, label: Any, masks: Sequence[Numbers]
    ) -> None:
        kept = ~np.isin(label, how.ignored)
        for mask in masks:
            kept &= _shown(mask, label)
        numbers, two = how.axis is how.threshold is None, how.axis is None
        if not two and output.shape == label.shape:
            return  # the accuracy of class indices, or of distributions
        classes = 2 if two else output.shape[how.axis]
        predicted = output if numbers else output > how.threshold if two else output.argmax(how.axis)
        if not 1 < classes <= MOST_CLASSES:
            return
        predicted, label = predicted.reshape(label.shape)[kept], label[kept]
        if numbers:
            self._keep(name, np.stack([self._random.random_sample(label.size), label, predicted]))
            return
        label = (label > 0.5 if two else label).astype("int64")
        inside = (label >= 0) & (label < classes)  # others have passed the checks: they are ignored
        pairs = label[inside] * classes + predicted[inside]
        self._count(name, np.bincount(pairs, minlength=classes**2).reshape(classes, classes))

    def _count(self, name: str, counts: Numbers) -> None:
        before = self.confusion.get(name, counts[:0, :0])
        size = max(len(before), len(counts))
        padded = [np.pad(each, [(0, size - len(each))] * 2) for each in (before, counts)]
        self.confusion[name] = padded[0] + padded[1]

    def _keep(self, name: str, pairs: Numbers) -> None:
        pairs = np.concatenate([self._pairs.get(name, pairs[:, :0]), pairs], axis=1)
        if pairs.shape[1] > PAIRS:  # those with the lowest random numbers
            pairs = pairs[:, np.argpartition(pairs[0], PAIRS)[:PAIRS]]
        self._pairs[name] = pairs


def comparisons(
    spec: TaskSpec, comparison: Callable[[Taker], Mapping[str, Any] | None]
) -> dict[str, _Comparison]:
    """Return how outputs are compared with labels, by their names; those for which `comparison` knows it."""
    found: dict[str, _Comparison] = {}
    for taker in spec.takers:
        how = comparison(taker)
        if how is not None and len(taker.outputs) == 1 and taker.labels:
            label, *masks = (ref.name for ref in taker.labels)
            declared = getattr(spec.label_specs.get(label), "ignore", None)
            fn = getattr(taker.spec, "fn", None)
            by_loss = [getattr(fn, name, None) for name in ("_ignore_label", "ignore_index")]
            ignored = tuple(value for value in (declared, *by_loss) if value is not None)
            found.setdefault(taker.outputs[0].name, _Comparison(label, tuple(masks), ignored, **how))
    return found


def _shown(mask: Numbers, label: Numbers) -> Any:
    """Return where a loss's mask, such as weights or lengths of sequences, does not hide its label."""
    kind = mask_kind(mask, label)
    ones = (1,) * (label.ndim - 2)
    if kind == LENGTH:
        return np.arange(label.shape[1]).reshape((1, -1, *ones)) < mask.reshape((-1, 1, *ones))
    return (mask != 0 if mask.ndim == label.ndim else (mask != 0).reshape(label.shape)) if kind else True
