"""`calibrate_gate`: its two sides, the fit part, and its file."""

import math
from dataclasses import replace

import pytest
from answerable import drawn
from gates import FIRST, LAST
from gates import query as judged
from lookup import QueryFunction
from scipy.stats import beta

from conformal_retrievers import ConformalFilter, FunctionScorer, JudgedQuery, RetrievalScorer
from conformal_retrievers.calibration import CalibrationMismatch, Gate, calibrate, needed_scorers
from conformal_retrievers.calibration.gates.calibrate_gate import JUDGED, calibrate_gate
from conformal_retrievers.calibration.gates.false_answers import silent_on, sources_of
from conformal_retrievers.scoring.scorer import query_digest


def unanswerable(name, score, **fields):
    """Return a query without a relevant snippet; nobody judged whether something answers it."""
    return judged(name, score, (), (9.0,), **fields)


ANSWERABLE = [judged(f"q{i}", i / 20, (float(i),)) for i in range(20)]
REMOVED = [unanswerable(f"q{i}", 0.5 + i / 20) for i in range(20)]
STRIPPED = [replace(query, relevant=[False] * len(query.snippets)) for query in ANSWERABLE]
OTHER = [unanswerable(f"o{i}", 5.0) for i in range(10)]
NEVER = JudgedQuery("Who?", [], [], answerable=False)  # was retrieved


def test_false_speech_is_measured_by_source_with_exact_intervals():
    gate = calibrate_gate(ANSWERABLE, {"removed": REMOVED, "other": OTHER}, FIRST, alpha=0.1)
    assert gate.calibration.threshold() == 18 / 20  # ⌈21 · 0.9⌉ = 19
    removed, other = sources_of(gate.calibration)
    share = silent_on(gate.calibration, removed)  # 9 speak: .5 to .9
    assert share.estimate == 11 / 20
    assert share.low == pytest.approx(beta.ppf(0.025, 11, 10))
    assert share.high == pytest.approx(beta.ppf(0.975, 12, 9))
    assert (removed.same, other.same) == (20, 0)
    assert "55.0 %" in gate.statement
    assert "100.0 %" in gate.statement
    assert "approximate" in gate.statement
    [unscored] = sources_of(of_removed([unanswerable("u", math.nan)]).calibration)
    assert silent_on(gate.calibration, unscored).estimate == 0.0  # it passes
    unknown = of_removed(())
    assert sources_of(unknown.calibration) == []
    assert "none are known" in unknown.statement


def of_removed(unanswerable):
    return calibrate_gate(ANSWERABLE, unanswerable, FIRST, alpha=0.1)


def test_queries_without_a_relevant_snippet_are_a_source_of_their_own_or_not_used():
    real = [unanswerable(f"r{i}", 2.0, answerable=False) for i in range(5)]
    lost = unanswerable("lost", 0.0, missed=2)
    gate = calibrate_gate([*ANSWERABLE, *real, lost], OTHER, FIRST, alpha=0.1)
    assert [source.name for source in sources_of(gate.calibration)] == [JUDGED, "unanswerable"]
    assert (gate.calibration.n_queries, gate.calibration.n_without_relevant) == (20, 1)
    assert gate.calibration.threshold() == 18 / 20
    assert gate.calibration.retrieval["lengths"] == {"1": 36}
    assert "1 query" in gate.statement
    assert str(gate) == str(gate.calibration) != gate.statement


def test_the_threshold_is_that_of_a_query_s_group():
    queries = [judged(f"{g}{i}", (g == "b") * 100 + i, group=g) for g in "ab" for i in range(9)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.2, by_group=True)
    assert (gate.calibration.threshold("a"), gate.calibration.threshold("b")) == (7, 107)
    assert gate.decide(104, "b").decision == "speaks"
    assert gate.decide(104, "a").decision == "silent"
    with pytest.warns(UserWarning, match="has a group that is not among 'a', 'b'"):
        assert gate.decide(1e9, "c").decision == "speaks"


@pytest.mark.parametrize(
    ("n", "others", "n_fit"),
    [
        (60, {"a": 30}, 20 + 10),
        (59, {"a": 30}, 1),
        (60, {"a": 29}, 10),
        (60, {"a": 31, "b": 29}, 20 + 10),
        (60, {}, 10),
        (10, {}, 1),
        (9, {}, 0),  # all are needed for a threshold
    ],
)
def test_a_fit_takes_so_many_queries_and_below_that_few_give_the_scale(n, others, n_fit):
    found = {name: drawn(m, best=0, of=name, seed=m) for name, m in others.items()}
    gate = calibrate_gate(drawn(n, best=2, n_relevant=1), found, alpha=0.1)
    assert gate.calibration.choice.n_fit == n_fit
    assert gate.calibration.n_queries == n - min(n_fit, 20)
    assert math.isfinite(gate.calibration.threshold())
    fit = f"fitted to {n_fit} judged queries that" if n_fit > 10 else "fitted to no"
    assert f"learned from other collections (prior queries 2), and {fit}" in gate.statement
    assert ("scale of its numbers" in gate.statement) == (0 < n_fit <= 10)


def test_every_given_scorer_scores_a_query_once():
    asked = []

    def rating(query, texts):
        asked.append(query)
        return [float(len(text)) for text in texts]

    verdict = QueryFunction(lambda query, texts: sum(rating(query, texts)), "verdict")
    given = [verdict, FunctionScorer(rating, "rating")]
    for n, others in ((30, ()), (60, {"a": drawn(30, best=0, of="a", seed=1)})):
        asked.clear()
        calibrate_gate(drawn(n, best=2, n_relevant=1), others, given, alpha=0.1)
        assert len(asked) == 2 * (n + 30 * bool(others))


def test_a_third_of_the_questions_fit_the_score_and_do_not_calibrate(tmp_path):
    yes = drawn(120, best=5, n_relevant=1)
    away = drawn(90, best=-1, of="away", seed=2)
    gate = calibrate_gate(yes, {"removed": drawn(120, best=0, seed=1), "away": away}, alpha=0.1)
    choice = gate.calibration.choice
    assert choice.n_fit == 40 + 30
    fitted = {*choice.fit_digests}
    assert not fitted & {*gate.calibration.details["answerable"]}
    assert gate.calibration.n_queries == 80
    removed, of_away = sources_of(gate.calibration)
    assert (len(removed.scores), removed.same, len(of_away.scores)) == (80, 80, 60)
    assert len({query_digest(q.query) for q in yes} & fitted) == 40
    # A filter fits its score to some of the same third, and one with a score leaves it out.
    for scorer in (None, RetrievalScorer("retriever", higher_is_better=True)):
        behind = calibrate(yes, scorer, alpha=0.2, gate=gate)
        assert behind.n_queries == 80
        assert not {query.id for query in behind.queries} & {*choice.fit_ids}
    for i in range(8):  # some of them fit the score
        with pytest.raises(ValueError, match="70 of the 71|80 of the 81"):
            calibrate([*yes, replace(yes[0], query=f"new {i}", id=f"{i}")], alpha=0.2, gate=gate)
    of_gate = [query for query in yes if query.id in choice.fit_ids]
    with pytest.raises(ValueError, match="there are no judged queries"):
        calibrate(of_gate, [FunctionScorer(len, "not asked")], alpha=0.2, gate=gate)
    gate.save(tmp_path / "gate.json")
    loaded = Gate.load(tmp_path / "gate.json")  # of hits, it needs nothing else
    for query in yes[:5]:
        assert loaded(query.query, query.snippets).score == gate(query.query, query.snippets).score


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"alpha": 0}, ValueError, "alpha"),
        ({"unanswerable": {"removed": ANSWERABLE}}, ValueError, "removed.*relevant"),
        ({"unanswerable": STRIPPED}, ValueError, r"'q0'.*without_answers"),
        ({"unanswerable": ["q"]}, TypeError, "unanswerable"),
        ({"unanswerable": None}, TypeError, "unanswerable"),
        ({"unanswerable": {"x": []}}, ValueError, "'x'"),
        ({"unanswerable": {"x": [*OTHER, NEVER]}}, ValueError, r"\['x'\]: .*Who.* not retrieved"),
        ({"unanswerable": {"": REMOVED}}, ValueError, "name"),
        ({"unanswerable": [*OTHER, *OTHER]}, ValueError, "id"),
        ({"scorer": 3}, TypeError, "scorer"),
        ({"scorer": [FIRST, FIRST]}, ValueError, "scorer"),
        ({"answerable": REMOVED}, ValueError, "answerable"),
        ({"scorer": LAST}, TypeError, "scorer"),
        ({"scorer": None}, ValueError, "hit"),
        ({"delta": 0.01, "alpha": 0.01}, ValueError, "delta"),
        ({"by_group": True}, ValueError, "group is None"),
        ({"labels": {"x": math.nan}}, ValueError, "labels"),
        ({"scorer": QueryFunction(lambda *_: math.nan, "none")}, ValueError, "'none'"),
    ],
)
def test_invalid_arguments_are_named_before_anything_is_scored(arguments, error, named):
    unpaid = QueryFunction(lambda *_: 1 / 0, "asked for a score, it fails")
    given = {"answerable": ANSWERABLE, "unanswerable": REMOVED, "scorer": unpaid, "alpha": 0.1}
    given.update(arguments)
    with pytest.raises(error, match=named):
        calibrate_gate(given.pop("answerable"), given.pop("unanswerable"), **given)


def test_copies_among_unanswerable_queries_and_a_large_alpha_are_warned_of():
    with pytest.warns(UserWarning, match=r"\['x'\]: 1 of 11 .* copies.*several times in intervals"):
        calibrate_gate(ANSWERABLE, {"x": [*OTHER, replace(OTHER[0], id="y")]}, FIRST, alpha=0.1)
    with pytest.warns(UserWarning, match="alpha is 0.9, the risk"):
        calibrate_gate(ANSWERABLE, (), FIRST, alpha=0.9)
    without_k = [judged(f"q{i}", i, (1.0,), (9.0,), retriever=None) for i in range(20)]
    calibrate_gate(without_k, {"x": [NEVER]}, FIRST, alpha=0.1)  # it may have found nothing
    calibrate_gate(ANSWERABLE, {"x": [replace(OTHER[0], retriever=None)]}, FIRST, alpha=0.1)


def test_a_gate_is_not_calibrated_as_a_filter_is_and_needs_a_scorer_of_its_own():
    gate = calibrate_gate(ANSWERABLE, (), FIRST, alpha=0.1)
    behind = calibrate(ANSWERABLE, LAST, alpha=0.2, gate=gate)
    with pytest.raises(CalibrationMismatch, match="calibrate_gate"):
        Gate(FIRST, behind)
    with pytest.raises(CalibrationMismatch, match="about queries.*gate="):
        ConformalFilter(LAST, gate.calibration)
    assert needed_scorers(behind) == ["last", "first"]
    assert needed_scorers(gate.calibration) == ["first"]
