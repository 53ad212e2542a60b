"""The targets of the benchmarks."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .rows import Row

__all__ = ["PRECISIONS", "TARGETS", "Target", "Verdict", "verdicts"]

LOSSES = ("Uncertainty", "DWA", "RLW", "GLS", "IMTLL")
GRADIENTS = (
    "GradNorm", "PCGrad", "MGDA", "CAGrad", "IMTLG", "FairGrad", "AlignedMTL", "UPGrad", "DualProj", "ConFIG",
)  # fmt: skip
HAND, FUSED = "/ hand-written", "/ fused by hand"
PRECISIONS = ("float32", "bfloat16")
SMALL = "ResNet18 thumbnail", "tiny FCN, mean IoU", "SSD", "NMT"
LARGE = "ResNet18, 224 pixels", "FCN, 512 pixels", "SSD, 256 pixels", "NMT, 1024 units"


class Target(NamedTuple):
    """A limit that the median of a case's figure must not exceed."""

    table: str
    case: str
    figure: str
    limit: float


class Verdict(NamedTuple):
    """A target and the measured median."""

    target: Target
    measured: float

    @property
    def met(self) -> bool:
        """Whether the median is within the limit."""
        return self.measured <= self.target.limit


TARGETS = (
    # being general costs nothing
    Target("heads", "2 heads", FUSED, 1.05),
    Target("heads", "16 heads", FUSED, 1.05),
    Target("heads", "64 heads", FUSED, 1.05),
    # faster than the loop that people write by hand
    Target("heads", "2 heads", HAND, 0.80),
    Target("heads", "16 heads", HAND, 0.40),
    Target("heads", "64 heads", HAND, 0.50),
    Target("step_time", "MLP", HAND, 0.85),
    Target("step_time", "ResNet18 thumbnail", HAND, 1.03),
    Target("step_time", "SSD", HAND, 1.03),
    Target("step_time", "NMT", HAND, 1.03),
    # what balancing costs
    *(
        Target("balance", f"{case}, over the sum", method, limit)
        for case, dearest in (("MLP", 1.3), ("conv", 1.1))
        for methods, limit in ((LOSSES, 1.05), (("FAMO",), 1.4), (GRADIENTS, dearest))
        for method in methods
    ),
    # two processes that train together reach .95 of the speed of two independent ones
    Target("distributed", "ResNet18 thumbnail, torch", "/ independent processes", 1.05),
    Target("distributed", "ResNet18 thumbnail, horovod", "/ independent processes", 1.05),
    Target("distributed", "ResNet18 thumbnail, 256 samples, torch", "/ independent processes", 1.05),
    Target("distributed", "ResNet18 thumbnail, 256 samples, horovod", "/ independent processes", 1.05),
    # faster than what people would use instead
    Target("others", "2 heads", "/ Lightning", 0.5),
    Target("others", "2 heads", "/ Keras, torch", 0.3),
    Target("evaluation", "2 heads", HAND, 0.8),
    Target("evaluation", "tiny FCN, mean IoU", HAND, 0.8),
    Target("first_update", "MLP, 1 update", "multifit later by", 5.0),
    Target("first_update", "2 heads, 1 update", "multifit later by", 5.0),
    Target("first_update", "ResNet18 thumbnail, 1 update", "multifit later by", 5.0),
    Target("memory", "MLP, peak", HAND, 1.05),
    Target("memory", "2 heads, peak", HAND, 1.05),
    Target("memory", "64 heads, peak", HAND, 1.05),
    Target("memory", "ResNet18 thumbnail, peak", HAND, 1.05),
    Target("memory", "tiny FCN, mean IoU, peak", HAND, 1.05),
    Target("memory", "MLP, many batches", "late", 1.01),
    # on a GPU, faster than the loop in PyTorch thanks to CUDA graphs if nets are small, else as fast
    *(
        Target("gpu", f"{case}, {precision}", "/ PyTorch by hand", limit)
        for cases, limit in ((("2 heads", *SMALL), 0.7), (LARGE, 1.05))
        for case in cases
        for precision in PRECISIONS
    ),
    *(
        Target("gpu", f"{case}, {precision}{way}", f"/ PyTorch by hand{loop}", 1.05)
        for case in (*SMALL, *LARGE)
        for precision in PRECISIONS
        for way, loop in ((", operator by operator", ""), (", compiled", ", compiled"))
    ),
)


def verdicts(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Return a verdict for each target whose case was measured."""
    measured = {
        (row.table, row.case, figure): spread.median
        for row in rows
        for figure, spread in row.figures().items()
    }
    return [Verdict(target, measured[target[:3]]) for target in targets if target[:3] in measured]
