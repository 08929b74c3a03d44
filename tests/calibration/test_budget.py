"""A calibration at a number of tokens: its threshold, the recall that it certifies, its file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    ScoredQuery,
    calibrate,
    score_queries,
)
from conformal_retrievers.calibration.budget import certified
from conformal_retrievers.calibration.choosing import split
from conformal_retrievers.calibration.guarantees import in_hashed_order
from conformal_retrievers.data.files import checksum
from conformal_retrievers.theory.tolerance import betting_lower, binomial_lower

# Ten snippets of 1 to 10 letters; shorter ones are more often relevant.
RNG = np.random.default_rng(0)
TEXTS = ["a" * (i + 1) for i in range(10)]
JUDGED = [
    JudgedQuery(f"query {i}", TEXTS, np.arange(10) == min(9, RNG.geometric(0.4) - 1), id=str(i))
    for i in range(150)
]
LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")


def at(tokens, **options):
    return calibrate(JUDGED, LENGTH, tokens=tokens, **options)


def test_the_threshold_is_the_last_that_passes_the_tokens():
    assert [at(tokens).threshold() for tokens in (6, 9.9, 10)] == [3, 3, 4]  # 1 + 2 + 3 + 4 = 10
    assert at(3, count_tokens=lambda text: 1).threshold() == 3


def test_the_recall_of_the_calibration_part_is_certified():
    calibration = at(10)
    part = split(JUDGED).calibration
    kept = [bool(np.array(query.relevant)[:4].any()) for query in part]
    assert calibration.n_queries == len(part) == 100
    assert calibration.ids == {query.id for query in part}
    for guarantee in ("query-recall", "all", "any"):
        bound = {"query-recall": betting_lower}.get(guarantee)
        found = at(10, guarantee=guarantee, delta=0.05)
        if bound is None:
            expected = binomial_lower(sum(kept), 100, 0.05)
            assert 1 - found.alpha == pytest.approx(expected, abs=1e-4)
        assert 1 - found.alpha < np.mean(kept)
        assert found.delta == 0.05
    assert calibration.delta == 0.1


def test_the_betting_bound_is_that_of_the_queries_in_the_order_of_their_hashes():
    scored = [ScoredQuery([i % 7], [True]) for i in range(50)]
    base = Calibration.from_scores(scored, alpha=0.5, scorer="s", delta=0.1)
    found = certified(base, 100, threshold=4.0)
    shares = base.units().scores <= 4.0
    hashed = base.units().certified(4.0, 0.1)
    assert 1 - found.alpha == pytest.approx(hashed, abs=1e-4)
    assert hashed == shares.mean()  # the bet, which was won early, gives more
    assert betting_lower(shares[in_hashed_order([None] * 50)], 0.1) > shares.mean()


def test_a_fixed_threshold_certifies_its_recall_for_all_but_delta_of_calibrations():
    """Of 400 calibrations, more than 65 would fall short with probability 1e-4 if 10 % did."""
    rng = np.random.default_rng(1)
    short = 0
    for _ in range(400):
        scored = [_drawn(rng) for _ in range(60)]
        base = Calibration.from_scores(scored, alpha=0.5, scorer="s", delta=0.1)
        short += 1 - certified(base, 100, threshold=0.8).alpha > 0.8  # scores are uniform
    assert short <= 65


def _drawn(rng):
    n = 1 + rng.integers(3)
    return ScoredQuery(rng.random(n), np.ones(n, dtype=bool))


def test_it_works_as_any_other_calibration(tmp_path):
    calibration = at(10)
    calibration.save(tmp_path / "calibration.json")
    loaded = Calibration.load(tmp_path / "calibration.json")
    assert loaded == calibration
    assert loaded.threshold() == 4
    assert ConformalFilter.of(loaded, LENGTH)("new", TEXTS).kept.tolist() == [0, 1, 2, 3]
    assert "10 characters a query" in loaded.statement
    in_tokens = at(3, count_tokens=lambda text: 1)
    assert "3 tokens a query" in in_tokens.statement
    del (fields := json.loads(in_tokens.to_json()))["details"]["unit"]
    del fields["sha256"]
    old = Calibration.from_json(json.dumps({**fields, "sha256": checksum(fields)}))
    assert "3 tokens a query" in old.statement
    assert loaded.at(loaded.alpha) == loaded
    part = score_queries(LENGTH, split(JUDGED).calibration)
    usual = Calibration.from_scores(part, alpha=0.3, scorer="length", delta=0.1)
    assert loaded.at(0.3).threshold() == usual.threshold()
    assert loaded.at(0.3).fixed is None
    assert loaded.guaranteeing("all").fixed is None


def test_another_alpha_takes_the_place_of_a_fixed_threshold_of_zero():
    scored = [ScoredQuery([i % 3], [True]) for i in range(60)]
    base = Calibration.from_scores(scored, alpha=0.5, scorer="s", delta=0.1)
    at_zero = certified(base, 10, threshold=0.0)
    assert at_zero.threshold() == 0.0
    assert at_zero.at(0.4).threshold() == base.at(0.4).threshold() > 0
    assert at_zero.guaranteeing("all", delta=0.1).fixed is None


def test_a_file_that_states_more_than_its_scores_certify_is_refused():
    fields = json.loads(at(10).to_json())
    del fields["sha256"]
    fields["alpha"] /= 2
    text = json.dumps({**fields, "sha256": checksum(fields)})
    with pytest.raises(ValueError, match="alpha"):
        Calibration.from_json(text)
    with pytest.raises(ValueError, match="alpha"):
        replace(at(10), delta=None)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (TypeError, {"tokens": "600"}),
        (TypeError, {"tokens": 5, "alpha": 0.1}),
        (TypeError, {"tokens": None}),
        (ValueError, {"tokens": 0}),
        (ValueError, {"tokens": math.inf}),
        (ValueError, {"tokens": 10, "guarantee": "snippet"}),
        (ValueError, {"tokens": 10, "by_group": True}),
        (ValueError, {"tokens": 100}),  # everything is kept
        (ValueError, {"tokens": 0.5}),  # nothing is
    ],
)
def test_errors_name_tokens(error, options):
    with pytest.raises(error, match="tokens"):
        calibrate(JUDGED, LENGTH, **options)


def test_too_few_queries_for_tokens_are_an_error():
    with pytest.raises(ValueError, match="tokens"):
        calibrate(JUDGED[:20], LENGTH, tokens=10)
    assert calibrate(JUDGED[:40], LENGTH, tokens=10).threshold() == 4
