"""Claims: an answer's score, the calibration, the filter, and its evaluation."""

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer
from scipy.stats import betabinom

from benchmarks.quantile import conformal_quantile
from conformal_retrievers.calibration import Calibration, CalibrationMismatch
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    ClaimFilter,
    answer_scores,
    calibrate_claims,
    evaluate_claims,
    write_answers,
)
from conformal_retrievers.theory.ranks import conformal_rank, exact_share

NAN = math.nan


def answer(relevance, factual, **options):
    """An answer whose annotations are written as letters: + factual, - not, ? not annotated."""
    annotations = {"+": True, "-": False, "?": None}
    return AnnotatedAnswer(relevance, [annotations[f] for f in factual], **options)


FIVE = [  # with the scores −inf, .1, .3, .5 and .7
    answer([0.9, 0.2], "++", id="a"),
    answer([0.9, 0.1, 0.05], "+-+", id="b"),
    answer([0.3, 0.2], "--", id="c"),
    answer([0.5, 0.8, 0.5], "-++", id="d"),
    answer([0.7], "-", id="e"),
]
GROUPED = [
    answer([0.9, score], "+-", id=f"{group}{i}", group=group)
    for group, scores in {"x": (0.1, 0.2, 0.3, 0.4), "y": (0.5, 0.6, 0.7), "z": (0.8,)}.items()
    for i, score in enumerate(scores)
]


def calibration_of(answers=FIVE, alpha=0.4, **options):
    return calibrate_claims(answers, alpha=alpha, scorer="lookup", **options)


RELEVANCE = st.integers(0, 8).map(lambda i: i / 8) | st.just(NAN)
CLAIMS = st.lists(st.tuples(RELEVANCE, st.booleans()), min_size=1, max_size=6)
ANSWERS = st.lists(
    CLAIMS.map(lambda claims: AnnotatedAnswer([r for r, _ in claims], [f for _, f in claims])),
    min_size=2,
    max_size=14,
)
ALPHAS = st.integers(1, 19).map(lambda i: i / 20)
SHARES = st.sampled_from([1.0, 0.9, 0.75, 0.5, 0.3, 1 / 3])


def is_factual(answer, keeps, share=1.0):
    """Whether a share of the kept claims is factual, exactly."""
    kept = [f for f, k in zip(answer.factual, keeps, strict=True) if k]
    return sum(kept) >= exact_share(share) * len(kept)


# --- by hand --------------------------------------------------------------------------------------


def test_claims_above_the_threshold_are_kept_and_ties_are_dropped():
    assert answer_scores([answer([NAN, NAN], "-?")]).tolist() == [-math.inf]
    calibration = calibration_of(alpha=0.4)  # ⌈6 × 0.6⌉ = 4
    assert calibration.threshold() == 0.5
    assert calibration.keep([0.49, 0.5, 0.51, NAN]).tolist() == [False, False, True, False]
    assert calibration.at(0.2).threshold() == 0.7  # ⌈4.8⌉ = 5
    assert calibration.at(0.5).threshold() == 0.3
    p = calibration.p_values([0.8, 0.7, 0.5, 0.1, 0.0, NAN])
    assert p[:5].tolist() == [1 / 6, 2 / 6, 3 / 6, 5 / 6, 5 / 6]
    assert np.isnan(p[5])


# --- the theorem, exactly -------------------------------------------------------------------------


@given(ANSWERS, SHARES)
def test_the_score_is_the_smallest_threshold_from_which_on_enough_is_factual(answers, share):
    for one, score in zip(answers, answer_scores(answers, share), strict=True):
        thresholds = sorted({-math.inf, *one.relevance[~np.isnan(one.relevance)].tolist()})
        right = [q for q in thresholds if is_factual(one, one.relevance > q, share)]
        from_here_on = [q for q in thresholds if all(t in right for t in thresholds if t >= q)]
        assert score == min(from_here_on)


@given(ANSWERS, ALPHAS, SHARES)
def test_left_out_in_turn_at_least_k_answers_keep_only_factual_claims(answers, alpha, share):
    """The theorem with no tolerance: of n + 1 exchangeable answers, ⌈(n + 1)(1 − α)⌉ are right."""
    scores = answer_scores(answers, share)
    right = below = 0
    for i, left_out in enumerate(answers):
        threshold = conformal_quantile(np.delete(scores, i), alpha)
        right += is_factual(left_out, left_out.relevance > threshold, share)
        below += scores[i] <= threshold
    assert below >= conformal_rank(len(answers) - 1, alpha)
    assert right >= below
    if share == 1:  # the kept claims are all factual iff the threshold is at least the score
        assert right == below


@pytest.mark.filterwarnings("ignore:alpha is", "ignore:claims that are not")
@given(ANSWERS, ALPHAS)
def test_a_claim_is_kept_iff_its_p_value_is_at_most_alpha(answers, alpha):
    calibration = calibration_of(answers, alpha, on_unscorable="drop")
    relevance = np.concatenate([[-1.0, 2.0, NAN], *(a.relevance for a in answers)])
    with np.errstate(invalid="ignore"):
        p = calibration.p_values(relevance)
    assert calibration.keep(relevance).tolist() == (p <= alpha).tolist()


# --- unscorable claims, groups, delta, unused answers ---------------------------------------------


@pytest.mark.parametrize("annotation", ["-", "?"])
def test_an_unscorable_claim_that_may_not_be_factual_is_refused_or_dropped(annotation):
    answers = [*FIVE, answer([0.9, NAN], f"+{annotation}")]
    with pytest.raises(ValueError, match=r"number 6: relevance\[1\]"):
        calibration_of(answers)
    dropped = calibration_of(answers, on_unscorable="drop")
    assert dropped.queries[5].scores.tolist() == [-math.inf]
    assert dropped.details["n_unscorable"] == 1
    others = [answer([NAN, 0.5], f"{annotation}?"), answer([NAN], "+")]  # unused, and factual
    assert calibration_of([*FIVE, *others]).n_queries == 6


def test_each_group_has_its_threshold_and_an_unknown_or_small_group_keeps_nothing(tmp_path):
    calibration_of(GROUPED, 0.3, by_group=True).save(tmp_path / "claims.json")
    calibration = Calibration.load(tmp_path / "claims.json")
    assert calibration.threshold("x") == 0.4  # ⌈5 × .7⌉ = 4
    assert calibration.threshold("y") == 0.7  # ⌈4 × .7⌉ = 3
    for group in ("z", "unknown", None):
        assert calibration.threshold(group) == math.inf
        assert not calibration.keep([1.0], group).any()
    assert calibration.p_values([1.0], "unknown").tolist() == [1.0]


def test_answers_without_claims_or_annotation_are_not_used_and_are_named():
    more = [answer([], "", id="f"), answer([0.99, 0.1], "?+", id="g"), answer([0.2, 0.8], "-?")]
    calibration = calibration_of([*FIVE, *more])
    assert (calibration.n_queries, calibration.details["n_without_claims"]) == (5, 1)
    assert calibration.details["unannotated"] == ["answer 'g'", "answer number 8"]
    assert "answer 'g', answer number 8" in calibration.statement


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: answer([0.1], "+-", id="q"), "answer 'q': relevance"),
        (lambda: AnnotatedAnswer([0.1], ["S"]), r"factual\[0\] is 'S'"),
        (lambda: calibration_of(alpha=1.0), "alpha is 1.0"),
        (lambda: calibration_of(share=1.5), "share is 1.5"),
        (lambda: calibration_of(delta=0.01), "delta"),
        (lambda: calibration_of(on_unscorable="keep"), "on_unscorable"),
        (lambda: calibration_of([*FIVE, answer([1], "+", id="a")]), "answer id 'a'"),
        (lambda: calibration_of(by_group=True), "answer 'a': group is None"),
        (lambda: calibration_of([answer([], ""), answer([1.0], "?")]), "none of 2 answers"),
        (lambda: answer_scores([answer([1.0], "?", id="q")]), "factual"),
        (lambda: ClaimFilter(LookupScorer({}), calibration_of())(" ", [], []), "query is ' '"),
    ],
)
def test_invalid_answers_and_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_looks_the_wrong_way_round_is_warned_of_and_what_is_no_answer_is_refused():
    with pytest.warns(UserWarning, match="alpha is 0.9, .* give alpha=0.1"):
        calibration_of(alpha=0.9)
    with pytest.warns(UserWarning, match="not factual have higher.*AUC 0.00"):
        calibration_of([answer([0.9, 0.1], "-+")] * 9)
    with pytest.warns(UserWarning, match="delta is 0.8, .* give delta=0.2"):
        calibration_of(delta=0.8, alpha=0.5)
    calibration_of([answer([0.9, 0.1], "-+")] * 3)  # by chance
    with pytest.raises(ValueError, match="query is ''"):
        asyncio.run(ClaimFilter(LookupScorer({}), calibration_of()).acall("", [], []))
    for answers in ("answers.jsonl", FIVE[0]):
        with pytest.raises(TypeError, match="answers"):
            evaluate_claims(calibration_of(), answers)
        with pytest.raises(TypeError, match="answers"):
            write_answers(answers, "never written")


# --- the filter -----------------------------------------------------------------------------------


def test_the_filter_keeps_claims_above_the_threshold_and_no_others():
    scorer = LookupScorer({"good": 0.9, "at": 0.5, "low": 0.1, "blank": NAN})
    conformal = ClaimFilter(scorer, calibration_of())
    filtered = conformal("q", ["low", "good", "blank", "at"], [])
    assert filtered.kept.tolist() == [1]
    assert filtered.dropped.tolist() == [0, 2, 3]
    assert filtered.unscorable.tolist() == [2]
    assert (filtered.kept_claims, filtered.threshold) == (("good",), 0.5)
    assert filtered.p_values[:2].tolist() == [5 / 6, 1 / 6]
    assert conformal("q", ["low", "blank"], []).kept_claims == ()  # not the best instead


async def test_the_filter_awaits_an_asynchronous_scorer():
    conformal = ClaimFilter(LookupScorer({"a": 0.9, "b": 0.2}), calibration_of())
    assert (await conformal.acall("q", ["a", "b"], [])).kept_claims == ("a",)
    assert (await conformal.acall("q", [], [])).kept_claims == ()

    class Awaited(LookupScorer):
        async def arelevance(self, query, claims, documents):
            return [0.9, 0.9]

    both = ClaimFilter(Awaited({}), calibration_of())
    assert (await both.acall("q", ["a", "b"], [])).kept_claims == ("a", "b")


def test_the_group_of_a_query_is_given_or_computed_from_its_text():
    made = calibration_of(GROUPED, 0.3, by_group=True)
    conformal = ClaimFilter(LookupScorer({"a": 0.65}), made, group_of=lambda query: query)
    assert conformal("x", ["a"], []).kept_claims == ("a",)
    assert conformal("y", ["a"], []).kept_claims == ()
    assert conformal("y", ["a"], [], group="x").kept_claims == ("a",)
    conformal("z", ["a"], [])  # too small to keep anything, but known: without a warning
    conformal("w", [], [])
    for query, group in (("w", None), ("x", "w")):
        with pytest.warns(UserWarning, match=r"group .*'x', 'y'"):
            assert conformal(query, ["a"], [], group=group).kept_claims == ()


def test_a_filter_refuses_another_scorer_and_arguments_of_another_type():
    with pytest.raises(CalibrationMismatch, match="'other'.*'lookup'"):
        ClaimFilter(LookupScorer({}), calibrate_claims(FIVE, alpha=0.4, scorer="other"))
    conformal = ClaimFilter(LookupScorer({}), calibration_of())
    for make, message in (
        (lambda: ClaimFilter(print, calibration_of()), "scorer"),
        (lambda: calibration_of([1]), r"answers\[0\] is 1; give AnnotatedAnswer"),
        (lambda: conformal("q", "a claim", []), "claims"),
        (lambda: conformal("q", ["a claim"], "a document"), "documents"),
    ):
        with pytest.raises(TypeError, match=message):
            make()
    for relevance in ([0.1], ["0.9", "0.9"], [0.9, 10**400]):
        with pytest.raises(ValueError, match="2 claims|relevance"):
            conformal.decide("q", ["a", "b"], relevance)
    assert conformal.decide("q", ["a", "b"], [None, 0.9]).kept.tolist() == [1]


# --- evaluation -----------------------------------------------------------------------------------


def test_factuality_and_its_cost_by_hand():
    measured = evaluate_claims(
        calibration_of(),  # keeps claims above .5
        [
            answer([0.9, 0.8, 0.1, 0.2], "++-+"),  # keeps two of four, right
            answer([0.9, 0.6], "+-"),  # keeps both, wrong
            answer([0.5, 0.1], "--"),  # keeps none: right
            answer([0.7, NAN], "+-"),  # keeps one of two, right
            answer([], ""),
            answer([0.9], "?"),
        ],
    )
    assert (measured.n_answers, measured.left_out, measured.verdict.target) == (4, 2, 0.6)
    assert measured.factuality.estimate == 3 / 4
    assert measured.factuality_if_any.estimate == pytest.approx(2 / 3)
    assert measured.empty.estimate == 1 / 4
    assert measured.kept.estimate == (0.5 + 1 + 0 + 0.5) / 4
    assert measured.kept_factual.estimate == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert "empty answers" in str(measured)


@pytest.mark.parametrize(
    ("alpha", "options", "new"),
    [
        (0.1, {}, [answer([0.9], "+"), answer([0.9], "-")]),  # keeps nothing
        (0.4, {}, [answer([0.2], "+"), answer([NAN], "-")]),
        (0.3, {"by_group": True}, [answer([0.9], "+", group=g) for g in ("u", None, "z")]),
    ],
    ids=["calibration", "relevance", "groups"],
)
def test_nothing_is_tested_if_no_claim_is_kept(alpha, options, new):
    measured = evaluate_claims(calibration_of(GROUPED if options else FIVE, alpha, **options), new)
    assert (measured.factuality.estimate, measured.empty.estimate) == (1, 1)
    assert (measured.untested, measured.fails) == (True, False)
    assert "not tested" in str(measured)
    assert "nan" not in str(measured)


def test_nothing_is_tested_if_half_of_the_claims_have_no_score():
    measured = evaluate_claims(calibration_of(), [answer([NAN, 0.9], "-+")] * 40)
    assert (measured.verdict.unscorable, measured.untested, measured.fails) == (0.5, True, False)
    assert "50.0 % of the claims could not be scored and are dropped" in str(measured.verdict)
    grouped = [answer([score, 0.9], "-+", group=g) for g, score in (("x", NAN), ("y", 0.1))] * 40
    measured = evaluate_claims(calibration_of(GROUPED, 0.5, by_group=True), grouped)
    assert (measured.verdict.unscorable, measured.untested) == (0.25, False)
    assert measured.by_group["x"].untested


def test_answers_that_calibrated_or_occur_twice_are_refused_in_an_evaluation():
    for answers, words in (
        (FIVE, "answer id 'a'"),
        ([answer([0.9], "+", id="new")] * 2, "answer id 'new'"),
        ([answer([], "")], "none of 1 answers"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate_claims(calibration_of(), answers)


def test_without_ids_an_evaluation_states_that_it_is_not_verified():
    new, nameless = answer([0.9], "+", id="new"), answer([0.9], "+")
    for calibration, answers, verified in (
        (calibration_of(), [new], True),
        (calibration_of(), [new, nameless], False),
        (calibration_of([nameless] * 5), [new], False),
    ):
        measured = evaluate_claims(calibration, answers)
        assert measured.held_out_verified is verified
        assert ("Cannot verify" in str(measured)) is not verified
        assert not measured.untested


def test_the_p_value_is_beta_binomial_over_calibration_and_new_answers():
    n, m, right = 50, 2000, 1300
    new = [answer([0.99], "-")] * (m - right) + [answer([0.0], "-")] * right
    measured = evaluate_claims(calibration_of([answer([i / n], "-") for i in range(n)], 0.2), new)
    k = conformal_rank(n, 0.2)
    assert measured.verdict.p_value == pytest.approx(betabinom.cdf(right, m, k, n + 1 - k))


def test_by_group_the_worst_group_decides():
    calibration = calibration_of([*GROUPED, answer([0.8], "-", group="z")], 0.3, by_group=True)
    new = [answer([0.9], "-", group=g) for g in "xxxxxyyyyyz"] + [answer([0.9], "+", group="x")]
    measured = evaluate_claims(calibration, new)
    assert list(measured.by_group) == ["x", "y", "z"]
    assert [of.n_answers for of in measured.by_group.values()] == [6, 5, 1]
    assert measured.by_group["x"].factuality.estimate == pytest.approx(1 / 6)
    assert measured.by_group["z"].verdict is None  # too few to keep anything
    x, y = (measured.by_group[group].verdict.p_value for group in "xy")
    assert (measured.verdict.group, measured.verdict.p_value) == ("y", pytest.approx(2 * y))
    assert y < x < 1
    assert "factual in y" in str(measured)


def test_a_filter_that_keeps_everything_can_fail():
    keeps_all = calibration_of([answer([0.5], "+")] * 50, 0.1)
    assert keeps_all.threshold() == -math.inf
    assert evaluate_claims(keeps_all, [answer([0.9], "-")] * 20).fails


def test_with_a_share_factuality_counts_answers_that_reach_it_exactly():
    calibration = calibration_of([answer([0.1], "-")] * 5, share=0.6)
    assert calibration.threshold() == 0.1
    measured = evaluate_claims(calibration, [answer([0.5] * 5, f) for f in ("+++--", "++---")])
    assert measured.factuality.estimate == 1 / 2
    assert "at least 0.6 factual " in str(measured)
