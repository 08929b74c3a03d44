"""A gate is silent on an answerable query with probability at most alpha, exactly."""

import asyncio
import math
import re
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
from answerable import drawn
from gates import FIRST, LAST, gate_of, unanswerable
from gates import query as judged
from hypothesis import assume, example, given
from hypothesis import strategies as st

from conformal_retrievers import ConformalFilter, calibrate, calibrate_gate, score_queries
from conformal_retrievers.calibration import Calibration, CalibrationMismatch
from conformal_retrievers.data.queries import JudgedQuery, with_hits
from conformal_retrievers.scoring import FunctionScorer, RetrievalScorer
from conformal_retrievers.scoring.hit_features import sources_of
from conformal_retrievers.scoring.learned.queries import fitted_queries

pytestmark = pytest.mark.filterwarnings("ignore:relevant snippets score", "ignore:the threshold")

# Query scores 0 to 19 with one relevant snippet of the same score: the gate is silent above 18.
QUERIES = [judged(f"q{i}", i, (float(i),), (30.0,)) for i in range(20)]
GATE = calibrate_gate(QUERIES, (), FIRST, alpha=0.1)
BEHIND = calibrate(QUERIES, LAST, alpha=0.2, gate=GATE)
ALONE = calibrate(QUERIES, LAST, alpha=0.2)
SILENCED = ("u", ["30 u 0.5"])  # a query, and a snippet that the filter alone would keep
GROUPED = [judged(f"q{i}", i, (float(i),), group="ab"[i % 2]) for i in range(60)]


def test_the_threshold_is_the_kth_smallest_score_of_the_answerable_queries():
    gate = gate_of([0.1, 0.4, 0.2, 0.3])  # k = ⌈5 · 0.8⌉ = 4
    assert gate.calibration.threshold() == 0.4
    decisions = [gate.decide(score).decision for score in (0.4, 0.41, math.nan)]
    assert decisions == ["speaks", "silent", "speaks"]
    assert [gate.decide(score).p_value for score in (0.41, 0.3)] == pytest.approx([0.2, 0.6])
    assert gate("q", ()).decision == "silent"  # nothing is retrieved
    # −inf, .2, .3, .4: the third of four
    assert gate_of([math.nan, 0.2, 0.3, 0.4], alpha=0.5).calibration.threshold() == 0.3
    few = gate_of([0.1, 0.2, 0.3])  # k = ⌈4 · 0.8⌉ = 4
    assert few.decide(1e9).decision == "speaks"
    assert "at least 4" in few.statement


@given(st.lists(st.integers(0, 6), min_size=2, max_size=12), st.sampled_from([0.05, 0.2, 0.3, 0.5]))
def test_leaving_one_out_each_in_turn_silences_at_most_alpha_of_them(scores, alpha):
    silent = 0
    for i, left_out in enumerate(scores):
        silent += gate_of([*scores[:i], *scores[i + 1 :]], alpha=alpha).decide(left_out).silent
    allowed = len(scores) * Fraction(str(alpha))
    assert silent <= allowed
    if len(set(scores)) == len(scores):  # without ties, exactly as many as alpha allows
        assert silent == math.floor(allowed)


units = st.tuples(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=3), st.integers(0, 2))


@pytest.mark.filterwarnings("ignore:a retriever returned fewer")  # these lists are short ones
@given(
    st.lists(units, min_size=2, max_size=9),
    st.sampled_from([(0.1, 0.2), (0.1, 0.3), (0.2, 0.3), (0.2, 0.5), (0.4, 0.5)]),
    st.sampled_from(["query-recall", "all", "any"]),
    st.booleans(),
)
# At the gate's own threshold, three quarters of these would be lost.
@example([(0, [0], 0), (1, [2], 0), (2, [3], 0), (3, [1], 0)], (0.25, 0.5), "query-recall", False)
def test_gate_and_filter_calibrated_on_the_same_queries_lose_at_most_alpha_together(
    drawn, alphas, guarantee, count_missed
):
    gate_alpha, alpha = alphas
    queries = [
        judged(f"q{i}", score, tuple(map(float, relevant)), (3.0,), missed=missed)
        for i, (score, relevant, missed) in enumerate(drawn)
    ]
    losses = []
    for i, new in enumerate(queries):
        others = [*queries[:i], *queries[i + 1 :]]
        known = sum(new.relevant) + (new.missed or 0) * count_missed
        if not known:
            continue
        if not any(any(query.relevant) for query in others):
            return
        gate = calibrate_gate(others, (), FIRST, alpha=gate_alpha)
        calibration = calibrate(
            others, LAST, alpha=alpha, guarantee=guarantee, count_missed=count_missed, gate=gate
        )
        keeps = ConformalFilter(LAST, calibration, gate=gate)(new.query, new.snippets).keeps
        share = Fraction(int(keeps[: sum(new.relevant)].sum()), known)
        loss = {"query-recall": 1 - share, "all": share < 1, "any": share == 0}[guarantee]
        # Where too much is missed, the statement says so, and it counts as reaching the target.
        losses.append(0 if calibration.out_of_reach else loss)
    assume(losses)
    assert sum(losses) <= len(losses) * Fraction(str(alpha))


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        min_size=12,
        max_size=30,
    ),
    st.sampled_from(["query-recall", "all", "any"]),
)
def test_a_filter_calibrated_behind_the_gate_keeps_no_more_than_one_at_alpha_less_the_gates(
    drawn, guarantee
):
    queries = [judged(f"q{i}", s, tuple(map(float, r))) for i, (s, r) in enumerate(drawn)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    behind = calibrate(queries, LAST, alpha=0.3, guarantee=guarantee, gate=gate)
    apart = calibrate(queries, LAST, alpha=0.2, guarantee=guarantee)
    assert behind.threshold() <= apart.threshold()


# --- the filter behind it -------------------------------------------------------------------------


def test_one_file_holds_filter_and_gate(tmp_path):
    BEHIND.save(tmp_path / "both.json")
    loaded = Calibration.load(tmp_path / "both.json")
    assert (loaded, loaded.gate) == (BEHIND, GATE.calibration)
    opened = ConformalFilter.of(loaded, [LAST, FIRST])
    assert opened.gate.scorer is FIRST
    silenced = opened(*SILENCED)
    assert (silenced.gated.decision, silenced.silenced) == ("silent", True)
    assert (silenced.keeps.tolist(), silenced.scores.tolist()) == ([False], [0.5])
    assert (silenced.m1, silenced.m2) == (0.0, 0.0)
    with pytest.raises(CalibrationMismatch, match="'first'"):
        ConformalFilter.of(loaded, LAST)
    with pytest.raises(CalibrationMismatch, match="gate"):  # another than the calibrated one
        ConformalFilter(LAST, loaded, gate=GATE.at(0.2))


def test_a_gate_may_be_given_by_its_file(tmp_path):
    GATE.save(tmp_path / "gate.json")
    for path in (tmp_path / "gate.json", str(tmp_path / "gate.json")):
        assert ConformalFilter.of(ALONE, [LAST, FIRST], gate=path)(*SILENCED).silenced
    with pytest.raises(CalibrationMismatch, match="'first'"):
        ConformalFilter.of(ALONE, LAST, gate=path)


def test_a_silent_gate_keeps_no_best_snippet():
    assert GATE(" ", ["30 u 99"]).decision == "speaks"  # what is blank has no score
    keeping = ConformalFilter(LAST, BEHIND, gate=GATE, on_empty="keep_best")
    assert [keeping("q", [text]).kept.tolist() for text in ("30 u 99", "1 u 99")] == [[], [0]]


@pytest.mark.filterwarnings("ignore:alpha is 0.99")
@pytest.mark.parametrize("own", [0.1, 0.9985])
def test_an_alpha_that_is_not_above_the_gates_is_an_error_with_the_nearest_valid_one(own):
    gate = calibrate_gate(QUERIES, (), FIRST, alpha=own)
    behind = calibrate(QUERIES, LAST, alpha=0.9999, gate=gate)
    with pytest.raises(ValueError, match="alpha is 0.05") as error:
        behind.at(0.05)
    nearest = float(re.search(r"alpha of ([\d.]+) or more", str(error.value))[1])
    assert own < behind.at(nearest).alpha <= own + 0.001


def test_a_gate_may_be_put_in_front_of_a_filter_at_any_alpha():
    alone = ConformalFilter(LAST, ALONE)
    assert alone.at(0.3)(*SILENCED).kept.tolist() == [0]
    behind = alone.with_gate(GATE)
    for both in (behind, behind.at(0.3), alone.at(0.3).with_gate(GATE)):
        assert both(*SILENCED).silenced
        assert both("a", ["1 a 0.5"]).kept.tolist() == [0]
    assert (alone.gate, alone.at(0.3).gate, alone.with_gate(None)) == (None, None, alone)
    assert "30 %" in behind.statement  # the sum of both alphas
    assert GATE.statement in behind.statement
    with pytest.raises(TypeError, match="gate"):
        alone.with_gate(0.1)


def test_a_filter_decides_the_same_asynchronously_and_needs_the_gates_decision_beside_scores():
    both = ConformalFilter(LAST, BEHIND, gate=GATE)
    for query in [*QUERIES, unanswerable("u", 30)]:
        found = asyncio.run(both.acall(query.query, query.snippets))
        same = both(query.query, query.snippets)
        assert (found.gated, found.keeps.tolist()) == (same.gated, same.keeps.tolist())
    with pytest.raises(ValueError, match="gated"):
        both.decide([1.0])
    assert both.decide([1.0], gated=GATE.decide(30)).silenced


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"guarantee": "snippet"}, "snippet"),
        ({"delta": 0.1}, "delta"),
        ({"alpha": 0.05}, "alpha"),
        ({"alpha": 0.1}, "alpha"),  # that of the gate
        ({"by_group": True}, "by_group"),
        ({"gate": "gate.json"}, "gate is"),
    ],
)
def test_what_has_no_guarantee_behind_a_gate_is_refused(options, named):
    gate = calibrate_gate(GROUPED, (), FIRST, alpha=0.1)
    with pytest.raises((TypeError, ValueError), match=named):
        calibrate(GROUPED, LAST, **{"alpha": 0.2, "gate": gate, **options})
    if options.get("alpha"):
        with pytest.raises(ValueError, match="alpha"):
            calibrate(GROUPED, LAST, alpha=0.2, gate=gate).at(options["alpha"])
    if named in ("snippet", "by_group"):
        both = ConformalFilter(LAST, calibrate(GROUPED, LAST, alpha=0.2, **options), gate=gate)
        assert "Nothing is guaranteed of both" in both.statement


def test_a_filter_is_calibrated_on_the_queries_of_its_gate():
    queries = [judged(f"q{i}", i, (float(i % 7),)) for i in range(60)]
    gate = calibrate_gate(queries[:40], (), FIRST, alpha=0.1)
    for others in (queries[40:], queries, queries[:3]):  # of 3, 4 may be silenced
        with pytest.raises(ValueError, match="gate was calibrated on 40"):
            calibrate(others, LAST, alpha=0.2, gate=gate)
    # Of the gate's, ⌊41 · 0.1⌋ = 4 may be silenced, which are 0.2 · (19 + 1), and 4 / 19 of 18 + 1.
    with pytest.raises(ValueError, match=r"alpha of 0\.211 or more"):
        calibrate(queries[:18], LAST, alpha=0.2, gate=gate)
    assert calibrate(queries[:19], LAST, alpha=0.2, gate=gate).n_queries == 19
    assert calibrate(queries[:18], LAST, alpha=0.211, gate=gate).n_queries == 18
    found = [JudgedQuery(f"h{i}", with_hits(["a", "b"]), [True, False]) for i in range(30)]
    unpaid = FunctionScorer(lambda query, texts: pytest.fail("it was paid for"), "unpaid")
    with pytest.raises(ValueError, match="gate was calibrated on 40"):
        calibrate(found, [unpaid], alpha=0.2, gate=gate)


def test_a_gate_by_group_may_silence_too_many_in_small_groups():
    # ⌊10 · 0.1⌋ = 1 of 9 in each of two groups, and 2 of 18 are more than 0.1 · 19.
    queries = GROUPED[:18]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1, by_group=True)
    assert calibrate(queries, LAST, alpha=0.11, gate=gate, by_group=True).by_group
    with pytest.raises(ValueError, match=r"alpha of 0\.106 or more"):
        calibrate(queries, LAST, alpha=0.101, gate=gate)
    # Of the group b, whose gate may silence 1, too few are left: 1 is more than 0.15 · 5.
    few = [query for query in queries if query.group == "a"] + queries[1:8:2]
    with pytest.raises(ValueError, match=r"alpha of 0\.2 or more"):
        calibrate(few, LAST, alpha=0.15, gate=gate, by_group=True)


@pytest.mark.parametrize(
    ("field", "one", "other"), [("retriever", "a", "b"), ("k", 5, 6), ("split", None, "by_line")]
)
def test_a_gate_of_another_retrieval_is_refused(field, one, other):
    ours, theirs = ([replace(q, **{"k": 9, field: v}) for q in QUERIES] for v in (one, other))
    gate = calibrate_gate(ours, (), FIRST, alpha=0.1)
    with pytest.raises(CalibrationMismatch, match=field):
        calibrate(theirs, LAST, alpha=0.2, gate=gate)
    own = calibrate_gate(theirs, (), FIRST, alpha=0.1)
    behind = calibrate(theirs, LAST, alpha=0.2, gate=own)
    assert behind.gate == own.calibration
    assert behind.gate.split == behind.split
    if field != "split":
        with pytest.raises(CalibrationMismatch, match=field):
            ConformalFilter(LAST, calibrate(theirs, LAST, alpha=0.2), gate=gate)


def test_what_was_scored_without_the_gate_is_not_calibrated_behind_it():
    options = {"alpha": 0.2, "scorer": "last"}
    scored = score_queries(LAST, QUERIES, gate=GATE)
    same = Calibration.from_scores(scored, gate=GATE.calibration, **options)
    assert same.threshold() == BEHIND.threshold()
    for queries, gate in ((scored, None), (score_queries(LAST, QUERIES), GATE.calibration)):
        with pytest.raises(CalibrationMismatch, match="gate"):
            Calibration.from_scores(queries, gate=gate, **options)


def test_what_the_gate_learned_from_does_not_calibrate_a_filter():
    known = drawn(40, best=5, n_relevant=1)
    learned = fitted_queries(sources_of(known), [], known, drawn(40, best=0, of="lost", seed=1))
    new = drawn(40, best=5, n_relevant=1, of="new", seed=2)
    paid = SimpleNamespace(name="paid", score_query=None, fitted_on=learned.fitted_on)  # not called
    for scorer in (learned, [paid]):
        with pytest.raises(ValueError, match="fitted on query"):
            calibrate_gate([*new, *known], (), scorer, alpha=0.1)
    gate = calibrate_gate(new, (), learned, alpha=0.1)
    scorer = RetrievalScorer("retriever", higher_is_better=True)
    with pytest.raises(ValueError, match="gate was calibrated on 40 queries, and 40 of the 80"):
        calibrate([*new, *known], scorer, alpha=0.2, gate=gate)
