"""Train on mixtures of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from ...arguments import Names, Positive, Seed, checked
from ...errors import SpecError, quoted, suggest
from ...events import Handler
from ...protocols import MultiEstimator
from ...spec.missing import presence
from ...spec.names import LABELS, Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..data.arrays import new_array
from ..execution.loss_calls import call_loss
from ..execution.loss_weights import BatchLossScale
from .loss_blend import BEFORE_PENALTIES, LossBlend, selected_terms


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
        inputs: Optional[Names] = None,
        label: Optional[Names] = None,
        loss: Optional[Names] = None,
        alpha: Positive = 0.4,
        random: Optional[Union[np.random.RandomState, Seed]] = None,
    ) -> None:
        self.inputs, self.label, self.loss, self.alpha = inputs, label, loss, alpha
        self._generator = np.random.RandomState(random) if isinstance(random, int) else random
        self._lambda = 1.0

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Find the slots and the losses."""
        spec = estimator.spec
        for name in (*listed(self.inputs), *listed(self.label)):
            if name not in spec.slot_names:
                near, valid = suggest(name, spec.slot_names), quoted(spec.slot_names)
                raise SpecError(f'MixUp: there is no slot "{name}"{near}; valid are {valid}')
        self._inputs = spec.inputs if self.inputs is None else listed(self.inputs)
        terms = selected_terms("MixUp", spec, self.loss)
        self._blend = LossBlend(spec, [term for term in terms if self._is_mixed(term)])
        if not self._blend.terms:
            raise SpecError(
                "MixUp: no loss reads a label that is permuted with the inputs; name one with label=, or mix "
                "other slots with inputs="
            )
        labels = {ref.name for term in self._blend.terms for ref in self._labels_of(term)}
        masks = {ref.name for term in self._blend.terms for ref in term.present}
        # each label once, even if several losses read it, so that it is not permuted twice
        self._labels = [name for name in spec.slot_names if name in labels]
        self._labels += [mask for mask in map(presence, self._labels) if mask in masks]

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Draw the share of each sample's own input and label."""
        self._lambda = float(self._random.beta(self.alpha, self.alpha))
        self._permutations: list[Any] = []
        self._blend.begin()

    def change_batch(self, estimator: MultiEstimator, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Mix a device's inputs, unless the batch has none of the labels that are mixed with them."""
        if all(slots.get(name) is None for name in self._labels):
            self._blend.add(slots)
            return {}
        first = _real_array(slots, self._inputs[0])
        axis = estimator.batch_axis
        order = self._random.permutation(first.shape[axis])
        permutation = new_array(order, first.context, "int32")
        self._permutations.append(permutation)
        mixed = {}
        for name in self._inputs:
            array = _real_array(slots, name)
            mixed[name] = array * self._lambda + mx.nd.take(array, permutation, axis) * (1.0 - self._lambda)
        self._blend.add({**slots, **mixed})
        return mixed

    def change_objective(
        self,
        estimator: MultiEstimator,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
        scale: BatchLossScale,
    ) -> list[Any]:
        """Replace a share of each loss by the loss for the permuted labels."""
        terms, arguments = self._blend.computed(loss), self._blend.arguments(pred, label)
        if not self._permutations:
            return objectives
        for arrays, permutation in zip(arguments, self._permutations):
            for ref in [
                Ref(LABELS, name) for name in self._labels if arrays.get(Ref(LABELS, name)) is not None
            ]:
                arrays[ref] = mx.nd.take(arrays[ref], permutation, estimator.batch_axis)
        permuted: dict[str, list[Any]] = {term.key: [] for term in terms}
        for term in terms:
            for arrays, permutation in zip(arguments, self._permutations):
                with permutation.context:
                    permuted[term.key].append(call_loss(term, arrays)[term.minimized])
        share = 1.0 - self._lambda
        return self._blend.blend(objectives, share, loss, permuted, scale, estimator.batch_axis)

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

    def _is_mixed(self, term: Term) -> bool:
        return bool(self._labels_of(term))

    def _labels_of(self, term: Term) -> list[Ref]:
        slots = [ref for ref in term.labels if ref.name not in self._inputs]
        return [ref for ref in slots if self.label is None or ref.name in listed(self.label)]


def _real_array(slots: Mapping[str, Any], name: str) -> Any:
    array = slots[name]
    if array is None or np.dtype(array.dtype).kind != "f":
        dtype = "missing" if array is None else np.dtype(array.dtype).name
        raise SpecError(
            f'MixUp: the slot "{name}" is {dtype}, and only real numbers can be mixed; make it float32 '
            "in the dataset, or name other slots with inputs="
        )
    return array
