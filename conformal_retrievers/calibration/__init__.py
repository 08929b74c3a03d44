"""Calibrations: what is guaranteed, the value that is saved, its file and its statement."""

from conformal_retrievers.calibration.calibrate import calibrate
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import CalibrationMismatch
from conformal_retrievers.calibration.gates.calibrate_gate import calibrate_gate
from conformal_retrievers.calibration.gates.gate import Gate, Gated
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.planning import Plan, plan, smallest_alpha
from conformal_retrievers.calibration.scorer import needed_scorers
from conformal_retrievers.calibration.subjects import OnUnscorable, Subject

__all__ = [
    "Calibration",
    "CalibrationMismatch",
    "Gate",
    "Gated",
    "Guarantee",
    "OnUnscorable",
    "Plan",
    "Subject",
    "calibrate",
    "calibrate_gate",
    "needed_scorers",
    "plan",
    "smallest_alpha",
]
