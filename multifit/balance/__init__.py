"""How the losses of several tasks share a net: methods that weigh them against each other.

A method computes in NumPy's float64, and needs no engine.
``MultiEstimator(balance=...)`` runs one.
"""

from .gradients import (
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    ConFIG,
    DualProj,
    FairGrad,
    GradNorm,
    NashMTL,
    PCGrad,
    Sum,
    UPGrad,
)
from .losses import DWA, FAMO, GLS, IMTLL, RLW, STCH, Uncertainty
from .protocol import Balance, GramianMethod, LossMethod, Measured, State

__all__ = [
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "MGDA",
    "RLW",
    "STCH",
    "AlignedMTL",
    "Balance",
    "CAGrad",
    "ConFIG",
    "DualProj",
    "FairGrad",
    "GradNorm",
    "GramianMethod",
    "LossMethod",
    "Measured",
    "NashMTL",
    "PCGrad",
    "State",
    "Sum",
    "UPGrad",
    "Uncertainty",
]
