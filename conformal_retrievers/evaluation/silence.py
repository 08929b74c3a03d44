"""Queries that a gate in front of a filter silences: they are scored with it, or without it."""

from collections.abc import Iterable

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import CalibrationMismatch
from conformal_retrievers.data.queries import ScoredQuery


def check_silenced(scored: Iterable[ScoredQuery], calibration: Calibration) -> None:
    """Raise CalibrationMismatch unless queries are scored with a gate iff the calibration has one.

    What a gate silences counts as dropped, so the queries must be scored as they were calibrated.
    """
    gate = calibration.gate
    for query in scored:
        if gate is not None and query.silenced is None:
            raise CalibrationMismatch(
                f"{query.name} was scored without the gate that the calibration holds; give "
                "score_queries(scorer, judged, gate=gate)"
            )
        if gate is None and query.silenced is not None:
            raise CalibrationMismatch(
                f"{query.name} was scored with a gate, but the calibration holds none; give "
                "score_queries(scorer, judged), or calibrate(..., gate=gate)"
            )
