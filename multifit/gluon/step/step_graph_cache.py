"""The step graphs of a stage: one for each kind of batches."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from ...engines.forms import ResultForms
from ...spec import TaskSpec
from ...spec.names import OUTPUTS, Ref
from ...spec.terms import Taker, Term, by_reference
from ..compat import mx
from ..data.arrays import Signature
from ..metrics.labels import LabelRule
from ..metrics.stage_figures import StageFigures
from ..user_code import user_code
from .fused_losses import cross_entropy, fused_loss
from .loss_graph import LossGraph
from .loss_separation import LossSeparation
from .network import Network, is_traceable
from .present_losses import counts_values
from .step_graph import StepGraph

MAX_GRAPHS = 32  # that plan memory for batches of one signature; those of more signatures share graphs
MAX_SIGNATURES = 4096  # whose graph is known; beyond that, the oldest is forgotten


class StepGraphCache:
    """Finds and builds the step graphs of a stage.

    `figures` decides which metrics are computed in the graphs, and `differentiable` says whether something
    outside of a graph differentiates through the outputs. `forms` check that the outputs and losses of all
    graphs have the form of the first batch. `dtype` is that of the objective. `own_gradients` names the
    losses that ignore the gradient that they receive; the check of the first batch finds them. `by_value`
    says of the losses whose labels may be missing whether they leave out single values. `separation` says
    which losses are kept apart.
    """

    def __init__(
        self,
        network: Network,
        spec: TaskSpec,
        figures: StageFigures,
        differentiable: bool,
        dtype: str,
        separation: LossSeparation,
    ) -> None:
        self._network, self._figures, self.differentiable = network, figures, differentiable
        self._dtype, self._separation = dtype, separation
        self._traced = [term for term in spec.terms if term.spec.fn is None or is_traceable(term.spec.fn)]
        self._eager = [term for term in spec.terms if term not in self._traced]
        self._graphs: dict[Hashable, StepGraph] = {}
        self._shared: dict[Hashable, StepGraph] = {}  # by form
        self._fixed_sizes = False
        self.forms = ResultForms(mx.nd.NDArray)
        self.own_gradients: set[str] = set()
        self.by_value: dict[str, bool] = {}
        self._requests: list[str] = []

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def outside_terms(self) -> list[Term]:
        """The losses outside of the graphs: they run operator by operator."""
        return self._eager

    @property
    def first(self) -> StepGraph | None:
        """The graph of the first signature."""
        return next(iter(self._graphs.values()), None)

    def find(self, signature: Signature, size: int) -> StepGraph | None:
        """Return the graph for slots of this signature; None if there is none yet.

        If parameters were frozen or unfrozen, all graphs are discarded: they know what learns.
        """
        frozen = self._network.frozen
        if frozen is not None and self._requests != (requests := frozen.requests()):
            self._requests = requests
            self._graphs.clear()
            self._shared.clear()
            self._network.release_graph()
        return self._graphs.get(self._key(signature, size))

    def build(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], size: int, signature: Signature
    ) -> StepGraph:
        """Build the graph for a new signature from its first batch on one device.

        `signature` is that of the slots, `size` the number of samples. Once the graph has computed this
        batch, pass it to :meth:`keep`.
        """
        arrays = by_reference(outputs, slots)
        traced_terms, eager_terms = (
            [term for term in terms if term.has_slots(arrays)] for terms in (self._traced, self._eager)
        )
        traced_metrics, eager_metrics = self._figures.place([traced_terms, eager_terms], arrays, size)
        whole = self._whole_samples([*traced_terms, *eager_terms], arrays)
        rules = self._figures.label_rules(arrays, whole)
        is_graph = bool(traced_terms or traced_metrics) or self._network.joins_losses
        new = partial(LossGraph, forms=self.forms, dtype=self._dtype, own_gradients=self.own_gradients)
        new = partial(new, by_value=self.by_value)
        new = partial(new, objective_form=self._separation.objective_form)
        fused = self._fused(traced_terms, arrays)
        traced = new(traced_terms, traced_metrics, fused=fused, rules=rules if is_graph else ())
        eager = new(eager_terms, eager_metrics, rules=() if is_graph else rules)
        return StepGraph(
            self._network,
            traced,
            eager,
            forms=self.forms,
            differentiable=self.differentiable,
            separation=self._separation,
            taken=self._outputs_taken(arrays),
            kind=self._kind(signature, size),
        )

    def keep(self, graph: StepGraph, signature: Signature, size: int) -> StepGraph:
        """Return the graph for batches of a signature from now on: `graph`, or another one of its form.

        The first signatures get graphs of their own, which plan memory for their shapes. If there are too
        many forms, `graph` is for this batch only.
        """
        if len(self._graphs) < MAX_GRAPHS:
            self._shared[graph.form] = graph
        elif graph.form in self._shared or len(self._shared) < MAX_GRAPHS:
            graph = self._shared.setdefault(graph.form, graph)
        else:
            return graph
        if len(self._graphs) >= MAX_SIGNATURES:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[self._key(signature, size)] = graph
        return graph

    def _outputs_taken(self, arrays: Mapping[Ref, Any]) -> Collection[str] | None:
        """Return the outputs that losses and metrics read in a batch that lacks some slots; None for all."""
        spec, metrics = self._network.spec, self._figures.metrics
        takers: list[Taker] = [*spec.terms, *(metric.term for metric in metrics)]
        there = [taker for taker in takers if taker.has_slots(arrays)]
        if len(there) == len(takers):
            return None
        return {ref.name for taker in there for ref in taker.args if ref.space == OUTPUTS}

    def _key(self, signature: Signature, size: int) -> Hashable:
        """Return what batches must have in common so that the graph of one is known to suit the others.

        A graph takes arrays of any size. Only device metrics and fused losses depend on the sizes of a
        sample.
        """
        if not (self._fixed_sizes or self._figures.on_device):
            return self._kind(signature, size)
        return size == 1, *[each and each[0][1:] for each in signature]

    def _kind(self, signature: Signature, size: int) -> Hashable:
        """Return what all batches of a graph have in common, whatever the graph computes.

        Labels are compared at once only if they have one value per sample.
        """
        shapes = [each and each[0] for each in signature]
        return size == 1, *[s and (len(s), s[-1:] == (1,)) for s in shapes]

    def counts_values(self, term: Term, arrays: Mapping[Ref, Any]) -> bool:
        """Whether a loss leaves out single values of its labels; see :func:`counts_values`."""
        if term.key not in self.by_value:
            with user_code(lambda: term.where, *((str(ref), arrays[ref]) for ref in term.args)):
                self.by_value[term.key] = counts_values(term, arrays)
        return self.by_value[term.key]

    def _whole_samples(self, terms: Sequence[Term], arrays: Mapping[Ref, Any]) -> list[LabelRule]:
        """Return the rules of losses that take whole samples: their labels may not be missing in part."""
        return [
            LabelRule(term.where, ref, in_part=True)
            for term in terms
            if term.present and not self.counts_values(term, arrays)
            for ref in term.present
            if arrays[ref].size > len(arrays[ref])
        ]

    def _fused(self, terms: Sequence[Term], arrays: Mapping[Any, Any]) -> dict[str, Any]:
        functions = {
            term.key: fused_loss(term.spec.fn, [arrays[ref] for ref in term.args])
            for term in terms
            if not term.present
        }
        fused = {key: function for key, function in functions.items() if function is not None}
        if any(function is not cross_entropy for function in fused.values()):
            self._fixed_sizes = True
        return fused
