"""What a calibration of query scores knows of unanswerable queries: how many pass.

The threshold follows from answerable queries alone, so of the m unanswerable queries of a source
the number that it passes is binomial, and Clopper and Pearson's interval holds. Where the same
questions are on both sides, once with their answers and once without, it is approximate.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.file_schema import details_of
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.theory.intervals import Interval, percent
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import binomial_interval


class Source(NamedTuple):
    """Unanswerable queries of one source."""

    name: str
    scores: NDArray[np.float64]  # (m,)
    groups: tuple[str | None, ...]
    same: int  # how many are questions that calibrate the threshold, too


def sources_of(calibration: Thresholds) -> list[Source]:
    """Return the unanswerable queries of a calibration of query scores, by source."""
    details = details_of(calibration)
    known = {*details.answerable}
    return [
        Source(
            name,
            np.array(queries.scores, dtype=np.float64),
            tuple(queries.groups),
            sum(question in known for question in queries.questions),
        )
        for name, queries in details.unanswerable.items()
    ]


def questions_in(calibration: Thresholds) -> frozenset[str]:
    """Return the `query_digest` of each query that a calibration of query scores was made from."""
    details = details_of(calibration)
    unanswerable = (queries.questions for queries in details.unanswerable.values())
    return frozenset(details.answerable).union(*unanswerable)


def silent_on(calibration: Thresholds, source: Source) -> Interval:
    """Return the share of a source's queries that are silenced, with its interval."""
    silent = [
        not calibration.keep([score], group)[0]
        for score, group in zip(source.scores, source.groups, strict=True)
    ]
    return binomial_interval(sum(silent), len(silent))


def false_speech(calibration: Thresholds) -> str:
    """Return what is known of unanswerable queries, as a line of a statement."""
    shares = []
    for source in sources_of(calibration):
        share, n = silent_on(calibration, source), len(source.scores)
        about = f" {say('approximate')}" if source.same else ""
        shares.append(say("of source", share=share, n=n, name=source.name) + about)
    if not shares:
        return say("no unanswerable")
    alpha = percent(exact_alpha(calibration.alpha), exact=True)
    return say("unanswerable", alpha=alpha, shares="; ".join(shares))
