"""MixUp, CutMix and label smoothing, which change batches and blend losses."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.checks.values import CHANNELS_FIRST, has_channels_last
from ..spec.parsing import presence
from ..spec.terms import LABELS, OUTPUTS, Ref, Term, listed
from ..utils.arguments import Names, Positive, Seed, Share, checked
from ..utils.errors import SpecError
from ..utils.protocols import Array, MultiEstimator
from ..utils.text import quoted, suggest
from .handler import Handler

# Handlers that only blend losses run before handlers that add to the objective (penalties, at the normal
# priority), so that they scale losses only.
BEFORE_PENALTIES = -100.0


class LossBlend:
    """Replaces a share of some losses of a spec in the objective by other values."""

    def __init__(self, spec: TaskSpec, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self._all_terms = len(self.terms) == len(spec.terms)
        self._slots: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """Forget the last batch."""
        self._slots = []

    def add(self, slots: Mapping[str, Any]) -> None:
        """Remember a device's slots: a loss may read an input, which is not among the labels."""
        self._slots.append(slots)

    def computed(self, losses: Mapping[str, list[Any]]) -> list[Term]:
        """Return the terms that were computed: with a loader for each task, a batch may lack labels."""
        return [term for term in self.terms if not any(value is None for value in losses[term.key])]

    def arguments(
        self, pred: Mapping[str, list[Any]], label: Mapping[str, list[Any]]
    ) -> list[dict[Ref, Any]]:
        """Return the arrays that the losses can read, by reference, for each device."""
        return [
            {
                **{Ref(OUTPUTS, name): array for name, array in _at(pred, device).items()},
                **{Ref(LABELS, name): array for name, array in {**slots, **_at(label, device)}.items()},
            }
            for device, slots in enumerate(self._slots)
        ]

    def blend(
        self,
        estimator: MultiEstimator,
        objectives: list[Array],
        share: float,
        arguments: Sequence[tuple[dict[Ref, Any], dict[Ref, Any]]],
        losses: Mapping[str, list[Array]],
        scale: Any,
        smoothed: bool = False,
    ) -> list[Array]:
        """Return objectives with a share of 1 - `share` of the losses, and of `share` of the replacements.

        `arguments` are the arrays that the losses can read, and those that the replacements can, for each
        device; `losses` are what the losses returned, and `scale` is the batch's scale. If all losses of the
        spec are blended, the objectives are scaled by 1 - `share`, including what other handlers have
        changed. Otherwise the difference is added.
        """
        terms = self.computed(losses)
        blended = [value * (1.0 - share) for value in objectives] if self._all_terms else list(objectives)
        for own, replaced in arguments:
            given = terms, scale, estimator.batch_axis
            values = estimator.arrays.objectives(replaced, *given, smoothed)
            if not self._all_terms:
                before = estimator.arrays.objectives(own, *given)
                values = [value - other for value, other in zip(values, before)]
            blended += [value * share for value in values]
        return blended


def selected_terms(owner: str, spec: TaskSpec, loss: str | Sequence[str] | None) -> list[Term]:
    """Return the losses with the names `loss`, by default all; raises SpecError for an unknown name.

    `owner` is the handler's name, for the message.
    """
    by_key = {term.key: term for term in spec.terms}
    for key in listed(loss):
        if key not in by_key:
            near, valid = suggest(key, by_key), quoted(by_key)
            raise SpecError(f'{owner}: there is no loss "{key}"{near}; valid are {valid}')
    return [term for key, term in by_key.items() if loss is None or key in listed(loss)]


def _at(columns: Mapping[str, list[Any]], device: int) -> dict[str, Any]:
    return {name: values[device] for name, values in columns.items()}


class LabelSmoothing(Handler):
    r"""Smooths the labels of softmax losses: a share of each label is spread evenly over all classes.

    .. math:: \tilde L = (1 - \varepsilon) L(x, y) + \varepsilon \frac{1}{C} \sum_c L(x, c)

    that is, the cross entropy with :math:`(1 - \varepsilon)` of the label's distribution and
    :math:`\varepsilon` of the uniform one. Weights, normalisation, padding, and ignored and missing labels
    are treated as in the original losses. Figures, in training and validation, are computed with the original
    losses.

    Together with `MixUp`, the mixture of labels is smoothed if all losses of the spec are smoothed. If only
    some are smoothed, only each sample's own label is.

    Parameters
    ----------
    epsilon : float
        The share that is spread over all classes, at least 0 and below 1.
    loss : str or sequence of str, optional
        The losses to smooth: ``SoftmaxCrossEntropyLoss`` with class indices as labels, ``SegmentationCELoss``
        or ``SequenceCELoss``; or PyTorch's ``CrossEntropyLoss``, as by its `label_smoothing`. Defaults to
        all losses of these types.

    Raises
    ------
    ValueError
        `epsilon` is not valid. At the beginning of a fit, a SpecError is raised if there is no such loss.

    References
    ----------
    C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna: Rethinking the Inception Architecture for
    Computer Vision. CVPR 2016, arXiv:1512.00567, section 7.
    """

    priority = BEFORE_PENALTIES + 1  # after MixUp
    blends_losses = True

    @checked
    def __init__(self, epsilon: Share = 0.1, loss: Names | None = None) -> None:
        self.epsilon, self.loss = epsilon, loss

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Find the losses."""
        terms = selected_terms("LabelSmoothing", estimator.spec, self.loss)
        smoothed = [term for term in terms if estimator.arrays.can_smooth(term)]
        others = [term for term in terms if term not in smoothed]
        if others and (self.loss is not None or not smoothed):
            types = ", ".join(f"{term.where} is {type(term.spec.fn).__name__}" for term in others)
            raise SpecError(
                f"LabelSmoothing: {types}; valid are SoftmaxCrossEntropyLoss with sparse_label=True, "
                "SegmentationCELoss and SequenceCELoss, and PyTorch's CrossEntropyLoss"
            )
        self._blend = LossBlend(estimator.spec, smoothed)

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget the last batch."""
        self._blend.begin()

    def change_batch(self, estimator: MultiEstimator, slots: Mapping[str, Any]) -> None:
        """Remember a device's slots."""
        self._blend.add(slots)

    def change_objective(
        self,
        estimator: MultiEstimator,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
        scale: Any,
    ) -> list[Any]:
        """Replace a share of each loss by its mean over all classes."""
        arguments = [(arrays, arrays) for arrays in self._blend.arguments(pred, label)]
        return self._blend.blend(estimator, objectives, self.epsilon, arguments, loss, scale, smoothed=True)


class MixUp(Handler):
    r"""Mixes the samples of each batch in pairs, with the losses of both labels.

    .. math::
        \tilde x = \lambda x + (1 - \lambda) x_\pi, \qquad
        \tilde L = \lambda L(f(\tilde x), y) + (1 - \lambda) L(f(\tilde x), y_\pi)

    with one :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` per batch, and a permutation :math:`\pi` of
    each device's share of the batch. With several processes that train together, each draws its own. Weights
    and normalisation are those of the spec. Training figures compare the mixed samples with their own labels,
    so they are worse than in validation, where nothing is mixed.

    Parameters
    ----------
    inputs : str or sequence of str, optional
        The slots to mix, of real numbers. Default to the spec's inputs.
    label : str or sequence of str, optional
        The slots that are permuted with the inputs. Default to all slots that the losses read, except
        `inputs`.
    loss : str or sequence of str, optional
        The losses that count for both labels. Default to all that read such labels. Other losses compare the
        outputs for mixed inputs with each sample's own labels.
    alpha : float
        Parameter of the distribution, above 0. Small values mix little.
    random : numpy.random.RandomState or int, optional
        A random generator or its seed. Defaults to NumPy's global generator.

    Raises
    ------
    ValueError
        An argument is not valid. At the beginning of a fit, a SpecError is raised if the spec has no such
        slot or loss.

    References
    ----------
    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018,
    arXiv:1710.09412.
    """

    priority = BEFORE_PENALTIES
    blends_losses = True

    @checked
    def __init__(
        self,
        inputs: Names | None = None,
        label: Names | None = None,
        loss: Names | None = None,
        alpha: Positive = 0.4,
        random: np.random.RandomState | Seed | None = None,
    ) -> None:
        self.inputs, self.label, self.loss, self.alpha = inputs, label, loss, alpha
        self._generator = np.random.RandomState(random) if isinstance(random, int) else random
        self._lambda = 1.0  # the share of each sample's own input and label

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Find the slots and the losses."""
        spec, owner = estimator.spec, type(self).__name__
        for name in (*listed(self.inputs), *listed(self.label)):
            if name not in spec.slot_names:
                near, valid = suggest(name, spec.slot_names), quoted(spec.slot_names)
                raise SpecError(f'{owner}: there is no slot "{name}"{near}; valid are {valid}')
        self._inputs = spec.inputs if self.inputs is None else listed(self.inputs)
        terms = selected_terms(owner, spec, self.loss)
        self._blend = LossBlend(spec, [term for term in terms if self._labels_of(term)])
        if not self._blend.terms:
            raise SpecError(
                f"{owner}: no loss reads a label that is permuted with the inputs; name one with label=, or "
                "mix other slots with inputs="
            )
        labels = {ref.name for term in self._blend.terms for ref in self._labels_of(term)}
        masks = {ref.name for term in self._blend.terms for ref in term.present}
        # each label once, even if several losses read it, so that it is not permuted twice
        self._labels = [name for name in spec.slot_names if name in labels]
        self._labels += [mask for mask in map(presence, self._labels) if mask in masks]
        self._labels += [term.weights.name for term in self._blend.terms if term.weights is not None]

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Draw the share of each sample's own input and label."""
        self._draw()
        self._permutations: list[Any] = []
        self._blend.begin()

    def change_batch(self, estimator: MultiEstimator, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Mix a device's inputs, unless the batch has none of the labels that are mixed with them."""
        if all(slots.get(name) is None for name in self._labels):
            self._blend.add(slots)
            return {}
        axis, first = estimator.batch_axis, self._real_array(slots, self._inputs[0])
        order = self._random.permutation(first.shape[axis])
        permutation = estimator.arrays.indices(order, first)
        self._permutations.append(permutation)
        self._take = partial(estimator.arrays.take, order=permutation, axis=axis)
        mixed = {name: self._mix(slots, name, axis) for name in self._inputs}
        self._blend.add({**slots, **mixed})
        return mixed

    def change_objective(
        self,
        estimator: MultiEstimator,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
        scale: Any,
    ) -> list[Any]:
        """Replace a share of each loss by the loss for the permuted labels."""
        if not self._permutations:
            return objectives
        arguments, take, axis = [], estimator.arrays.take, estimator.batch_axis
        for arrays, permutation in zip(self._blend.arguments(pred, label), self._permutations):
            found = {ref: arrays.get(ref) for ref in (Ref(LABELS, name) for name in self._labels)}
            permuted = {ref: take(a, permutation, axis) for ref, a in found.items() if a is not None}
            arguments.append((arrays, {**arrays, **permuted}))
        return self._blend.blend(estimator, objectives, 1.0 - self._lambda, arguments, loss, scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state; None for NumPy's global generator, which every checkpoint saves."""
        return {"random": None if self._generator is None else list(self._generator.get_state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self._generator is not None and state["random"] is not None:
            self._generator.set_state(tuple(state["random"]))

    @property
    def _random(self) -> Any:
        return np.random if self._generator is None else self._generator

    def _labels_of(self, term: Term) -> list[Ref]:
        slots = [ref for ref in term.labels if ref.name not in self._inputs]
        return [ref for ref in slots if self.label is None or ref.name in listed(self.label)]

    def _real_array(self, slots: Mapping[str, Any], name: str) -> Any:
        array = slots[name]
        dtype = "missing" if array is None else describe.array(array).rpartition(" ")[2]
        if "float" not in dtype:
            raise SpecError(
                f'{type(self).__name__}: the slot "{name}" is {dtype}, and only real numbers can be mixed; '
                "make it float32 in the dataset, or name other slots with inputs="
            )
        return array

    def _draw(self) -> None:
        """Draw what a batch needs but the permutations: the share."""
        self._lambda = float(self._random.beta(self.alpha, self.alpha))

    def _mix(self, slots: Mapping[str, Any], name: str, axis: int) -> Any:
        """Return a device's input, mixed with that of the permuted samples."""
        array = self._real_array(slots, name)
        return array * self._lambda + self._take(array) * (1.0 - self._lambda)


class CutMix(MixUp):
    r"""Pastes a box of another image of the batch into each image, with the losses of both labels.

    .. math::
        \tilde x = x \text{ outside of the box}, \; x_\pi \text{ in the box}, \qquad
        \tilde L = \lambda L(f(\tilde x), y) + (1 - \lambda) L(f(\tilde x), y_\pi)

    The box of a batch has a random centre, and half the sides :math:`\lfloor H \sqrt{1 - \rho} / 2 \rfloor`
    and :math:`\lfloor W \sqrt{1 - \rho} / 2 \rfloor`, with :math:`\rho \sim \mathrm{Beta}(\alpha, \alpha)`.
    It ends where the image ends. :math:`1 - \lambda` is the share of the image that it covers, and
    :math:`\pi` a permutation of each device's share of the batch. All else is as with `MixUp`, which should
    not change the same batches.

    Parameters
    ----------
    inputs : str or sequence of str, optional
        The slots with images, of real numbers and shape (N, C, H, W), all of the same H and W. Default to
        the spec's inputs.
    label : str or sequence of str, optional
        The slots that are permuted with the inputs. Default to all slots that the losses read, except
        `inputs`. Labels of pixels are refused, as a weight for the whole image is wrong for them.
    loss : str or sequence of str, optional
        The losses that count for both labels. Default to all that read such labels.
    alpha : float
        Parameter of the distribution, above 0. The paper's is 1, by which all areas are equally likely.
    random : numpy.random.RandomState or int, optional
        A random generator or its seed. Defaults to NumPy's global generator.

    Raises
    ------
    ValueError
        An argument is not valid. At the beginning of a fit, a SpecError is raised if the spec has no such
        slot or loss; in a batch, if an input has another shape, or a label has a value for each pixel.

    References
    ----------
    S. Yun, D. Han, S. J. Oh, S. Chun, J. Choe, Y. Yoo: CutMix: Regularization Strategy to Train Strong
    Classifiers with Localizable Features. ICCV 2019, arXiv:1905.04899.
    """

    @checked
    def __init__(
        self,
        inputs: Names | None = None,
        label: Names | None = None,
        loss: Names | None = None,
        alpha: Positive = 1.0,
        random: np.random.RandomState | Seed | None = None,
    ) -> None:
        super().__init__(inputs, label, loss, alpha, random)

    def _draw(self) -> None:
        side = math.sqrt(1.0 - self._random.beta(self.alpha, self.alpha))
        self._box, self._size = (*self._random.uniform(size=2), side / 2), None

    def _mix(self, slots: Mapping[str, Any], name: str, axis: int) -> Any:
        array = self._real_array(slots, name)
        size = array.shape[2:]
        if array.ndim != 4 or axis > 1 or has_channels_last(array.shape) or self._size not in (None, size):
            raise SpecError(
                f'CutMix: the slot "{name}" is {describe.array(array)}; {CHANNELS_FIRST}, all of one H and '
                "W, or name other slots with inputs="
            )
        for label in self._labels:
            if slots.get(label) is not None and slots[label].shape[1:][-2:] == size:
                raise SpecError(
                    f'CutMix: the label "{label}" {describe.array(slots[label])} has a value for each pixel, '
                    "and a loss is weighed as a whole; name other labels with label=, or use MixUp"
                )
        *centre, half = self._box
        edges = [(int(at * length), int(half * length), length) for at, length in zip(centre, size)]
        (top, bottom), (left, right) = [(max(c - r, 0), min(c + r, length)) for c, r, length in edges]
        self._size, self._lambda = size, 1.0 - (bottom - top) * (right - left) / (size[0] * size[1])
        mixed, box = array * 1.0, (slice(None), slice(None), slice(top, bottom), slice(left, right))
        if self._lambda < 1.0:
            mixed[box] = self._take(array[box])
        return mixed
