"""Which slots are valid: what the rules of all engines have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..spec import TaskSpec
from ..spec.checks.values import counted_labels_problem, partly_missing_problem
from ..spec.parsing import label_of
from ..spec.terms import LABELS, Ref
from ..utils.errors import Problem


@dataclass(frozen=True)
class LabelRule:
    """A rule for the values of one slot, which `where` names or takes.

    With `classes`, values must be class indices, or one of `ignored`; without, finite numbers. With
    `in_part`, the slot is 1 where a label is present, and must be so for all values of a sample or for none:
    those that are missing beside others are counted. `taken` says what became of wrong class indices.
    """

    where: str
    label: Ref
    classes: int | None = None
    ignored: tuple[float, ...] = ()
    in_part: bool = False

    taken: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """The rule's name among the sums of a pass."""
        return f"{self.where}: {self.label}"

    @property
    def counted(self) -> Any:
        """What it counts, wherever it is declared."""
        return self.label, self.classes, self.ignored

    def problem(self, stage: str, count: int) -> Problem:
        """Return the problem of so many wrong values in "training", "evaluation", or "" for one batch."""
        if self.in_part:
            return partly_missing_problem(self.where, label_of(self.label).name, stage, count)
        return counted_labels_problem(self.where, self.label.name, self.classes, stage, count, self.taken)


Rule = TypeVar("Rule", bound=LabelRule)


def declared_classes(spec: TaskSpec) -> Iterator[tuple[str, Ref, int, tuple[float, ...]]]:
    """Yield, for each label with declared classes, its place in the spec, the label, and what it ignores."""
    for name, label in spec.label_specs.items():
        if label.classes is not None:
            ignored = () if label.ignore is None else (label.ignore,)
            yield f'labels["{name}"]', Ref(LABELS, name), label.classes, ignored


def once(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules without those that count the same as an earlier one."""
    different = {rule.counted: rule for rule in reversed(list(rules))}
    return list(reversed(different.values()))


def finite_slots(
    spec: TaskSpec, arrays: Mapping[Ref, Any], classes: Collection[Ref]
) -> Iterator[tuple[str, Ref]]:
    """Yield the inputs, and the labels that are taken, except class indices, and their places in the spec.

    The sums of normalizers are checked elsewhere.
    """
    taken = {ref for taker in spec.takers for ref in taker.refs}
    taken |= {Ref(LABELS, term.spec.sample_weight) for term in spec.terms if term.spec.sample_weight}
    for name in spec.slot_names:
        ref, where = Ref(LABELS, name), "inputs" if name in spec.inputs else "labels"
        skipped = ref in classes or name in spec.state or (where == "labels" and ref not in taken)
        if not skipped and arrays.get(ref) is not None:
            yield f'{where}["{name}"]', ref
