"""A gate is silent on an answerable query with probability at most alpha, exactly."""

import asyncio
import math
from fractions import Fraction

import pytest
from answerable import drawn
from gates import FIRST, LAST, unanswerable
from gates import query as judged
from hypothesis import assume, example, given
from hypothesis import strategies as st

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    JudgedQuery,
    calibrate,
    calibrate_gate,
    score_queries,
)
from conformal_retrievers.scoring import LearnedQueryScorer
from conformal_retrievers.scoring.hits import HitScorer

pytestmark = pytest.mark.filterwarnings("ignore:relevant snippets score", "ignore:the threshold")


def of_scores(scores, **options):
    queries = [judged(f"q{i}", score) for i, score in enumerate(scores)]
    return calibrate_gate(queries, (), FIRST, **{"alpha": 0.2, **options})


def decided(gate, query):
    return gate(query.query, query.snippets, query.group)


def test_the_threshold_is_the_kth_smallest_score_of_the_answerable_queries():
    gate = of_scores([0.1, 0.4, 0.2, 0.3])  # k = ⌈5 · 0.8⌉ = 4
    assert gate.calibration.threshold() == 0.4
    assert gate.decide(0.4).decision == "speaks"
    assert gate.decide(0.41).decision == "silent"
    assert gate.decide(0.41).p_value == 0.2
    assert gate.decide(0.3).p_value == pytest.approx(0.6)


def test_too_few_answerable_queries_never_silence_one():
    gate = of_scores([0.1, 0.2, 0.3])  # k = ⌈4 · 0.8⌉ = 4
    assert gate.decide(1e9).decision == "speaks"
    assert "at least 4" in gate.statement


def test_a_query_without_a_score_passes():
    gate = of_scores([0.1, 0.2, 0.3, 0.4])
    assert gate.decide(math.nan).decision == "speaks"


def test_a_query_for_which_nothing_is_retrieved_is_silenced():
    assert of_scores([0.1, 0.2, 0.3, 0.4])("q", ()).decision == "silent"


def test_answerable_queries_without_a_score_count_as_passed():
    gate = of_scores([math.nan, 0.2, 0.3, 0.4], alpha=0.5)  # −inf, .2, .3, .4: the third of four
    assert gate.calibration.threshold() == 0.3


@given(st.lists(st.integers(0, 6), min_size=2, max_size=12), st.sampled_from([0.05, 0.2, 0.3, 0.5]))
def test_leaving_one_out_each_in_turn_silences_at_most_alpha_of_them(scores, alpha):
    silent = 0
    for i, left_out in enumerate(scores):
        gate = of_scores([*scores[:i], *scores[i + 1 :]], alpha=alpha)
        silent += gate.decide(left_out).silent
    allowed = len(scores) * Fraction(str(alpha))
    assert silent <= allowed
    if len(set(scores)) == len(scores):  # without ties, exactly as many as alpha allows
        assert silent == math.floor(allowed)


units = st.tuples(
    st.integers(0, 5), st.lists(st.integers(0, 5), min_size=0, max_size=3), st.integers(0, 2)
)


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
        excused = calibration.out_of_reach
        losses.append(0 if excused else loss)
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


def test_one_file_holds_filter_and_gate(tmp_path):
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, [unanswerable("u", 30)], FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate)
    calibration.save(tmp_path / "both.json")
    loaded = Calibration.load(tmp_path / "both.json")
    assert loaded == calibration
    assert loaded.gate == gate.calibration
    opened = ConformalFilter.of(loaded, [LAST, FIRST])
    assert opened.gate.scorer is FIRST
    silenced = opened("u", ["30 u 0.5"])
    assert (silenced.gated.decision, silenced.silenced, silenced.keeps.tolist()) == (
        "silent",
        True,
        [False],
    )
    assert silenced.scores.tolist() == [0.5]
    assert (silenced.m1, silenced.m2) == (0.0, 0.0)


def test_a_filter_needs_the_scorer_of_its_gate():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate)
    with pytest.raises(CalibrationMismatch, match="'first'"):
        ConformalFilter.of(calibration, LAST)


def test_a_filter_refuses_another_gate_than_the_one_that_it_was_calibrated_behind():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate)
    with pytest.raises(CalibrationMismatch, match="gate"):
        ConformalFilter(LAST, calibration, gate=gate.at(0.2))


def test_a_gate_that_is_added_later_states_the_sum_of_both_alphas():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    both = ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2), gate=gate)
    assert "30 %" in both.statement
    assert gate.statement in both.statement


def test_a_silent_gate_that_only_flags_drops_nothing():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate)
    flagging = ConformalFilter(LAST, calibration, gate=gate, on_silence="flag")
    filtered = flagging("u", ["30 u 0.5"])
    assert (filtered.gated.decision, filtered.silenced, filtered.kept.tolist()) == (
        "silent",
        False,
        [0],
    )
    assert filtered.m1 == 1.0


def test_the_best_snippet_is_not_kept_where_the_gate_is_silent():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate)
    keeping = ConformalFilter(LAST, calibration, gate=gate, on_empty="keep_best")
    assert keeping("u", ["30 u 99"]).kept.tolist() == []
    assert keeping("a", ["1 u 99"]).kept.tolist() == [0]


def test_a_gate_may_be_put_in_front_of_a_filter_at_any_alpha():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    alone = ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2))
    assert alone.at(0.3)("u", ["30 u 0.5"]).kept.tolist() == [0]
    behind = alone.behind(gate)
    for both in (behind, behind.at(0.3), alone.at(0.3).behind(gate)):
        assert both("u", ["30 u 0.5"]).silenced
        assert both("a", ["1 a 0.5"]).kept.tolist() == [0]
    assert (alone.gate, alone.at(0.3).gate, alone.behind(None)) == (None, None, alone)
    flagging = ConformalFilter(LAST, alone.calibration, on_silence="flag").behind(gate)
    assert flagging("u", ["30 u 0.5"]).kept.tolist() == [0]
    with pytest.raises(TypeError, match="gate"):
        alone.behind(0.1)


async def _acall(filter, query, snippets):
    return await filter.acall(query, snippets)


def test_a_filter_decides_the_same_asynchronously():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    both = ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2, gate=gate), gate=gate)
    for query in [*queries, unanswerable("u", 30)]:
        found = asyncio.run(_acall(both, query.query, query.snippets))
        same = both(query.query, query.snippets)
        assert (found.gated, found.keeps.tolist()) == (same.gated, same.keeps.tolist())


def test_scores_alone_do_not_tell_a_filter_what_its_gate_decides():
    queries = [judged(f"q{i}", i, (float(i),), (9.0,)) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    both = ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2, gate=gate), gate=gate)
    with pytest.raises(ValueError, match="gated"):
        both.decide([1.0])
    assert both.decide([1.0], gated=gate.decide(30)).silenced


@pytest.mark.parametrize(
    ("options", "named"), [({"guarantee": "snippet"}, "snippet"), ({"delta": 0.1}, "delta")]
)
def test_what_has_no_guarantee_behind_a_gate_is_refused(options, named):
    queries = [judged(f"q{i}", i) for i in range(60)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    with pytest.raises(ValueError, match=named):
        calibrate(queries, LAST, alpha=0.2, gate=gate, **options)


def test_a_filter_is_calibrated_on_the_queries_of_its_gate():
    queries = [judged(f"q{i}", i, (float(i % 7),)) for i in range(60)]
    gate = calibrate_gate(queries[:40], (), FIRST, alpha=0.1)
    for others in (queries[40:], queries):
        with pytest.raises(ValueError, match="gate was calibrated on 40"):
            calibrate(others, LAST, alpha=0.2, gate=gate)
    # Of the gate's, ⌊41 · 0.1⌋ = 4 may be silenced, which are within 0.2 of 20 queries, not of 18.
    assert calibrate(queries[:20], LAST, alpha=0.2, gate=gate).n_queries == 20
    with pytest.raises(ValueError, match="gate was calibrated on 40"):
        calibrate(queries[:18], LAST, alpha=0.2, gate=gate)


def test_a_gate_by_group_may_silence_too_many_in_small_groups():
    # ⌊10 · 0.1⌋ = 1 of 9 in each of two groups, and 2 of 18 are more than 0.1 · 19.
    queries = [judged(f"q{i}", i, (float(i),), group="ab"[i % 2]) for i in range(18)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1, by_group=True)
    assert calibrate(queries, LAST, alpha=0.11, gate=gate, by_group=True).by_group
    with pytest.raises(ValueError, match="gate was calibrated on 18"):
        calibrate(queries, LAST, alpha=0.101, gate=gate)
    # Of the group b, whose gate may silence 1, too few are left: 1 is more than 0.15 · 5.
    few = [query for query in queries if query.group == "a"] + queries[1:8:2]
    with pytest.raises(ValueError, match="gate was calibrated on 18"):
        calibrate(few, LAST, alpha=0.15, gate=gate, by_group=True)


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_a_filter_needs_a_larger_alpha_than_its_gate(alpha):
    queries = [judged(f"q{i}", i, (float(i),)) for i in range(40)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    with pytest.raises(ValueError, match="alpha"):
        calibrate(queries, LAST, alpha=alpha, gate=gate)
    with pytest.raises(ValueError, match="alpha"):
        calibrate(queries, LAST, alpha=0.2, gate=gate).at(alpha)


def test_a_filter_by_group_needs_a_gate_by_group():
    queries = [judged(f"q{i}", i, (float(i),), group="ab"[i % 2]) for i in range(60)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    with pytest.raises(ValueError, match="by_group"):
        calibrate(queries, LAST, alpha=0.2, gate=gate, by_group=True)
    of_groups = calibrate_gate(queries, (), FIRST, alpha=0.1, by_group=True)
    assert calibrate(queries, LAST, alpha=0.2, gate=of_groups, by_group=True).by_group
    assert not calibrate(queries, LAST, alpha=0.2, gate=of_groups).by_group


def test_nothing_is_guaranteed_of_a_filter_and_a_gate_that_do_not_fit():
    queries = [judged(f"q{i}", i, (float(i),), group="ab"[i % 2]) for i in range(60)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    for options in ({"guarantee": "snippet"}, {"by_group": True}):
        both = ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2, **options), gate=gate)
        assert "Nothing is guaranteed of both" in both.statement


@pytest.mark.parametrize("field", ["retriever", "k"])
def test_a_gate_of_another_retrieval_is_refused(field):
    def retrieved(value):
        return [
            JudgedQuery(q.query, q.snippets, q.relevant, id=q.id, **{field: value})
            for q in (judged(f"q{i}", i, (float(i),)) for i in range(40))
        ]

    one, other = ("a", "b") if field == "retriever" else (5, 6)
    gate = calibrate_gate(retrieved(one), (), FIRST, alpha=0.1)
    with pytest.raises(CalibrationMismatch, match=field):
        calibrate(retrieved(other), LAST, alpha=0.2, gate=gate)
    with pytest.raises(CalibrationMismatch, match=field):
        ConformalFilter(LAST, calibrate(retrieved(other), LAST, alpha=0.2), gate=gate)


def test_what_was_scored_without_the_gate_is_not_calibrated_behind_it():
    queries = [judged(f"q{i}", i, (float(i),)) for i in range(40)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    behind = calibrate(queries, LAST, alpha=0.2, gate=gate)
    options = {"alpha": 0.2, "scorer": "last"}
    scored = score_queries(LAST, queries, gate=gate)
    same = Calibration.from_scores(scored, gate=gate.calibration, **options)
    assert same.threshold() == behind.threshold()
    with pytest.raises(CalibrationMismatch, match="gate"):
        Calibration.from_scores(scored, **options)
    plain = score_queries(LAST, queries)
    with pytest.raises(CalibrationMismatch, match="gate"):
        Calibration.from_scores(plain, gate=gate.calibration, **options)


def test_what_the_gate_learned_from_does_not_calibrate_a_filter():
    known = drawn(40, best=5, n_relevant=1)
    lost = drawn(40, best=0, of="lost", seed=1)
    learned = LearnedQueryScorer.fit(known, {"lost": lost})
    new = drawn(40, best=5, n_relevant=1, of="new", seed=2)
    gate = calibrate_gate(new, (), learned, alpha=0.1)
    scorer = HitScorer("retriever", higher_is_better=True)
    with pytest.raises(ValueError, match="fitted"):
        calibrate([*new, *known], scorer, alpha=0.2, gate=gate)


@pytest.mark.parametrize("gate", [3, "gate.json"])
def test_anything_but_a_gate_is_named(gate):
    with pytest.raises(TypeError, match="gate is"):
        calibrate([judged("q", 1)], LAST, alpha=0.2, gate=gate)


def test_a_gate_of_other_sentences_is_refused():
    queries = [judged(f"q{i}", i) for i in range(20)]
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    cut = [
        JudgedQuery(q.query, q.snippets, q.relevant, id=q.id, k=9, split="by_line") for q in queries
    ]
    with pytest.raises(CalibrationMismatch, match="split"):
        calibrate(cut, LAST, alpha=0.2, gate=gate)
    behind = calibrate(cut, LAST, alpha=0.2, gate=calibrate_gate(cut, (), FIRST, alpha=0.1))
    assert behind.gate.split == behind.split == "by_line"
