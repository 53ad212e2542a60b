"""How the losses of several tasks share a net: methods that weigh them against each other.

Each method has its own file, computes in NumPy's float64, and needs no engine.
``MultiEstimator(balance=...)`` runs one.
"""

from .aligned_mtl import AlignedMTL
from .cagrad import CAGrad
from .con_fig import ConFIG
from .dualproj import DualProj
from .dwa import DWA
from .fairgrad import FairGrad
from .famo import FAMO
from .gls import GLS
from .gradnorm import GradNorm
from .imtl_g import IMTLG
from .imtl_l import IMTLL
from .measured import Measured
from .mgda import MGDA
from .pcgrad import PCGrad
from .protocol import Balance, GramianMethod, LossMethod, State
from .rlw import RLW
from .sum import Sum
from .uncertainty import Uncertainty
from .upgrad import UPGrad

__all__ = [
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "MGDA",
    "RLW",
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
    "PCGrad",
    "State",
    "Sum",
    "UPGrad",
    "Uncertainty",
]
