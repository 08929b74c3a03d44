"""Where no filter reaches 1 − alpha end to end: what is printed says so, and which K would do."""

from dataclasses import replace

import drawn
import numpy as np
import pytest

from conformal_retrievers import ScoredQuery, diagnose, evaluate
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.text import filled


def calibrated(k=None, alpha=0.2, **options):
    return drawn.calibrated([0.5] * 9, alpha, retrieval=None if k is None else {"k": k}, **options)


def found_at(*places, n=6, missed=0):
    """A query of n snippets, relevant at these places, from 0."""
    return ScoredQuery(np.full(n, 0.1), np.isin(np.arange(n), places), missed=missed)


# Of two relevant snippets each: at K = 2 it finds 2, 1 and 1 (67 %), at K = 4 all but one (83 %).
QUERIES = [found_at(0, 1), found_at(0, 3), found_at(1, 5)]


def said_of(calibration, queries):
    """Return what an evaluation prints below the verdict and above the table."""
    above = str(evaluate(calibration, queries)).partition("\n\nWhat reaches the model")[0]
    assert above.startswith("Too few to tell")
    return " ".join(above.split("\n\n")[-1].split())


def test_an_evaluation_names_a_deeper_k_that_is_known_to_do():
    line = said_of(calibrated(k=2), QUERIES)
    assert line.startswith("At K = 2, the retriever finds 66.7 %")
    assert "no filter reaches 80 % end to end" in line
    assert "66.7 %" in line
    assert "K = 4 would do" in line
    assert "K = 6 would do" in said_of(calibrated(k=2, alpha=0.1), QUERIES)


def test_without_a_k_that_does_it_says_deeper_than_the_lists():
    shallow = [replace(query, missed=1) for query in QUERIES]
    for calibration in (calibrated(k=2), calibrated(), calibrated(k=100)):
        line = said_of(calibration, shallow)
        deeper = "Retrieve deeper than K = 6, or" if calibration.k == 2 else "Retrieve deeper, or"
        assert deeper in line
    assert line.startswith("At K = 6, ")
    assert "66.7 %" in line


def test_within_reach_and_where_missed_snippets_are_unknown_nothing_is_said():
    assert evaluate(calibrated(), QUERIES).too_shallow is None
    assert evaluate(calibrated(k=4), QUERIES).too_shallow is None
    unknown = [replace(query, missed=None) for query in QUERIES]
    assert evaluate(calibrated(k=2), unknown).too_shallow is None
    assert evaluate(calibrated(), [ScoredQuery([], [], missed=0)]).too_shallow is None


@pytest.mark.parametrize(
    ("guarantee", "reached"), [("all", "33.3 %"), ("any", None), ("snippet", "66.7 %")]
)
def test_what_is_reached_is_that_of_the_guarantee(guarantee, reached):
    said = evaluate(calibrated(k=2, guarantee=guarantee), QUERIES).too_shallow
    assert said is None if reached is None else reached in said


def test_depths_are_those_of_the_retrievers_that_found_a_snippet():
    # In the list both are first, but the one retriever finds them at 4 and 6, the other one at 1.
    ranks = {"dense": np.array([3.0, 5.0]), "bm25": np.array([np.inf, 0.0])}
    hits = {name: HitColumns(of, np.full(2, np.nan)) for name, of in ranks.items()}
    queries = [ScoredQuery([0.1, 0.2], [True, True], missed=0, hits=hits)]
    assert "50.0 %" in said_of(calibrated(k=2), queries)
    line = said_of(calibrated(k=6), queries)  # of the two together, 3 of each
    assert line.startswith("At K = 6 (3 of each retriever), ")  # K is that of the calibration
    assert "K = 8 (4 of each retriever) would do" in line


def test_a_diagnosis_says_so_too_above_the_table():
    d = diagnose(calibrated(k=2), [replace(query, missed=1) for query in QUERIES])
    too_shallow, table = d.evaluation.too_shallow, d.evaluation.equal_recall
    assert str(d).startswith(f"{filled(d.summary)}\n\n{filled(too_shallow)}\n\n{table}\n\n")
