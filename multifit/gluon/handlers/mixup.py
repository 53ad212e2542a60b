"""Train on mixtures of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...arguments import finite_number
from ...errors import SpecError, names, suggest
from ...spec.names import SLOTS, Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_graph import call_term
from .loss_blend import BEFORE_PENALTIES, LossBlend, chosen

__all__ = ["MixUp"]


class MixUp:
    r"""Mixes each batch with a permutation of itself, and lets the losses count for both labels.

    .. math::
        \tilde x = \lambda x + (1 - \lambda) x_\pi, \qquad
        \tilde L = \lambda L(f(\tilde x), y) + (1 - \lambda) L(f(\tilde x), y_\pi)

    with one :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` per batch, and a permutation :math:`\pi` of
    each device's share of it. Weights and normalisation are the spec's. Figures are of the mixed samples
    against their own labels, so those of training are worse than those of a validation, which is not mixed.

    Parameters
    ----------
    inputs : str or sequence of str, optional
        Slots to be mixed, of real numbers; None: the spec's inputs.
    label : str or sequence of str, optional
        Slots whose permutation goes with that of the inputs; None: all that the losses take, other than
        `inputs`.
    loss : str or sequence of str, optional
        Losses that count for both; None: all that take such labels. A loss that is left out compares the
        outputs for mixed inputs with its own labels alone.
    alpha : float
        Parameter of the distribution, above 0. The smaller, the less is mixed.
    random : numpy.random.RandomState or int, optional
        Where chance comes from, or its seed; None: NumPy's global generator.

    Raises
    ------
    ValueError
        An argument is not valid; or, at the begin of a fit, the spec has no such slot or loss (a SpecError).

    References
    ----------
    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018,
    arXiv:1710.09412.
    """

    priority = BEFORE_PENALTIES

    def __init__(
        self,
        inputs: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        loss: str | Sequence[str] | None = None,
        alpha: float = 0.4,
        random: np.random.RandomState | int | None = None,
    ) -> None:
        self.inputs, self.label, self.loss = inputs, label, loss
        self.alpha = finite_number("MixUp: alpha", alpha, above=0)
        self._own = np.random.RandomState(random) if isinstance(random, (int, np.integer)) else random
        self._random: Any = np.random if self._own is None else self._own
        self._kept = 1.0

    def train_begin(self, estimator: Any, **facts: Any) -> None:
        """Find the slots and the losses."""
        spec = estimator.spec
        for name in (*listed(self.inputs), *listed(self.label)):
            if name not in spec.slot_names:
                near, valid = suggest(name, spec.slot_names), names(spec.slot_names)
                raise SpecError(f'MixUp: there is no slot "{name}"{near}; valid are {valid}')
        self._inputs = spec.inputs if self.inputs is None else listed(self.inputs)
        self._recount = LossBlend(
            spec, [term for term in chosen("MixUp", spec, self.loss) if self._is_meant(term)]
        )
        if not self._recount.terms:
            raise SpecError(
                "MixUp: no loss takes a label that is permuted with the inputs; name it with label=, or mix "
                "other slots with inputs="
            )
        taken = {ref.name for term in self._recount.terms for ref in self._labels_of(term)}
        self._labels = [name for name in spec.slot_names if name in taken]

    def batch_begin(self, estimator: Any, **facts: Any) -> None:
        """Draw how much of each sample is kept."""
        self._kept = float(self._random.beta(self.alpha, self.alpha))
        self._permutations: list[Any] = []
        self._recount.begin()

    def change_batch(self, estimator: Any, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Mix a device's inputs."""
        first = self._real(slots, self._inputs[0])
        axis = estimator.batch_axis
        drawn = self._random.permutation(first.shape[axis])
        permutation = mx.nd.array(drawn, ctx=first.context, dtype="int32")
        self._permutations.append(permutation)
        mixed = {}
        for name in self._inputs:
            array = self._real(slots, name)
            mixed[name] = array * self._kept + mx.nd.take(array, permutation, axis) * (1.0 - self._kept)
        self._recount.see({**slots, **mixed})
        return mixed

    def change_objective(
        self,
        estimator: Any,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
    ) -> list[Any]:
        """Let the losses count for the permuted labels too."""
        arrays = self._recount.arrays(pred, label)
        for own, permutation in zip(arrays, self._permutations):
            for ref in [Ref(SLOTS, name) for name in self._labels]:
                own[ref] = mx.nd.take(own[ref], permutation, estimator.batch_axis)
        other: dict[str, list[Any]] = {term.key: [] for term in self._recount.terms}
        for term in self._recount.terms:
            for own, permutation in zip(arrays, self._permutations):
                with permutation.context:
                    other[term.key].append(call_term(term, own)[term.minimized])
        return self._recount.moved(estimator, objectives, 1.0 - self._kept, loss, other, label)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator; None for NumPy's own, which a checkpoint holds anyway."""
        return {"random": None if self._own is None else list(self._own.get_state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        if self._own is not None and state["random"] is not None:
            self._own.set_state(tuple(state["random"]))

    def _is_meant(self, term: Term) -> bool:
        if not self._labels_of(term):
            return False
        if term.spec.scope == "batch":
            raise SpecError(
                f'MixUp: {term.where} has scope="batch", and takes samples of all devices at once; leave it '
                "out with loss="
            )
        return True

    def _labels_of(self, term: Term) -> list[Ref]:
        slots = [ref for ref in term.args if ref.space == SLOTS and ref.name not in self._inputs]
        return [ref for ref in slots if self.label is None or ref.name in listed(self.label)]

    def _real(self, slots: Mapping[str, Any], name: str) -> Any:
        array = slots[name]
        if array is None or np.dtype(array.dtype).kind != "f":
            found = "missing" if array is None else np.dtype(array.dtype).name
            raise SpecError(
                f'MixUp: the slot "{name}" is {found}, and only real numbers can be mixed; make it float32 '
                "in the dataset, or name other slots with inputs="
            )
        return array
