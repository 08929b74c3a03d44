"""What a calibration's threshold does to judged queries, in one small table."""

from __future__ import annotations

from conformal_retrievers import Calibration, ScoredQuery, evaluate
from conformal_retrievers.diagnostics import diagnose

QUERIES = [
    ScoredQuery([0.1, 0.2, 0.3, 0.4], [True, False, True, False], missed=2),  # keeps .1 .2
    ScoredQuery([0.2, 0.9], [True, False]),  # keeps .2
]


def test_diagnostics_are_the_shares_of_an_evaluation():
    calibration = Calibration.from_scores([ScoredQuery([0.25], [True])], alpha=0.5, scorer="any")
    d, e = diagnose(calibration, QUERIES), evaluate(calibration, QUERIES)
    assert d.query_coverage == e.coverage["query-recall"].interval
    assert d.query_coverage.estimate == 0.75
    assert (d.n_queries, d.n_relevant) == (2, 3)


def test_the_table_names_every_share():
    calibration = Calibration.from_scores([ScoredQuery([0.25], [True])], alpha=0.5, scorer="any")
    text = str(diagnose(calibration, QUERIES))
    assert text.splitlines()[0] == "2 queries, 3 relevant retrieved snippets"
    for name in ("coverage per query", "coverage per snippet", "removed", "recall@K", "m1", "m2"):
        assert name in text
    assert "75.0%" in text
