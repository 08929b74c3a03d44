"""Claims: an answer's score, what is kept of it, what is promised, and the file."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from conformal_retrievers import (
    AnnotatedAnswer,
    Calibration,
    CalibrationMismatch,
    ClaimFilter,
    NothingKept,
    ScoredQuery,
    calibrate_claims,
    evaluate_claims,
)
from conformal_retrievers.claims import answer_scores
from conformal_retrievers.theory.ranks import conformal_quantile, conformal_rank, exact_share
from conformal_retrievers.theory.tolerance import tolerance_rank

NAN = math.nan


def answer(relevance, factual, **options):
    """An answer whose annotations are written as letters: + factual, - not, ? not annotated."""
    return AnnotatedAnswer(
        relevance, [{"+": True, "-": False, "?": None}[f] for f in factual], **options
    )


def five_answers():
    """Five answers with the scores −inf, .1, .3, .5 and .7."""
    return [
        answer([0.9, 0.2], "++", id="a"),
        answer([0.9, 0.1, 0.05], "+-+", id="b"),
        answer([0.3, 0.2], "--", id="c"),
        answer([0.5, 0.8, 0.5], "-++", id="d"),
        answer([0.7], "-", id="e"),
    ]


def calibration_of(answers=None, alpha=0.4, **options):
    return calibrate_claims(
        five_answers() if answers is None else answers, alpha=alpha, scorer="lookup", **options
    )


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


def test_an_answers_score_is_its_highest_relevance_of_a_claim_that_is_not_factual():
    assert answer_scores(five_answers()).tolist() == [-math.inf, 0.1, 0.3, 0.5, 0.7]


def test_the_threshold_is_the_kth_smallest_score_and_what_is_kept_lies_above_it():
    calibration = calibration_of(alpha=0.4)  # ⌈6 × 0.6⌉ = 4
    assert calibration.threshold() == 0.5
    assert calibration.keep([0.49, 0.5, 0.51, NAN]).tolist() == [False, False, True, False]
    assert calibration.at(0.2).threshold() == 0.7  # ⌈4.8⌉ = 5
    assert calibration.at(0.5).threshold() == 0.3


def test_a_threshold_of_plus_infinity_keeps_nothing_and_of_minus_infinity_all_that_is_scored():
    assert calibration_of(alpha=0.1).threshold() == math.inf
    assert not calibration_of(alpha=0.1).keep([1e308, math.inf]).any()
    assert calibration_of(alpha=0.9).threshold() == -math.inf
    assert calibration_of(alpha=0.9).keep([-5.0, 0.0, NAN]).tolist() == [True, True, False]


def test_p_values_count_the_answers_that_score_at_least_as_high():
    p = calibration_of().p_values([0.8, 0.7, 0.5, 0.1, 0.0, NAN])
    assert p[:5].tolist() == [1 / 6, 2 / 6, 3 / 6, 5 / 6, 5 / 6]
    assert np.isnan(p[5])


def test_a_claim_that_cannot_be_scored_counts_for_nothing():
    scores = answer_scores([answer([NAN, 0.2, 0.4], "--+"), answer([NAN, NAN], "-?")])
    assert scores.tolist() == [0.2, -math.inf]
    assert calibration_of([*five_answers(), answer([NAN, 0.2], "+-")]).n_unscorable == 1


@pytest.mark.parametrize(("told", "word"), [("-", "not factual"), ("?", "not annotated")])
def test_a_claim_that_is_not_factual_and_has_no_relevance_is_refused_or_dropped(told, word):
    answers = [*five_answers(), answer([0.9, NAN], f"+{told}")]
    with pytest.raises(ValueError, match=f"number 6: claim number 2 is {word} .*'drop'"):
        calibration_of(answers)
    dropped = calibration_of(answers, on_unscorable="drop")
    assert dropped.answers.queries[5].scores.tolist() == [-math.inf]
    assert "New claims must fail to be scored as often as these, of which 1 did" in (
        dropped.statement
    )
    others = [answer([NAN, 0.5], f"{told}?"), answer([NAN], "+")]  # does not enter, and is factual
    assert calibration_of([*five_answers(), *others]).n_answers == 6
    assert "fail to be scored" not in calibration_of().statement
    with pytest.raises(ValueError, match="on_unscorable is 'keep'; give 'raise' or 'drop'"):
        calibration_of(answers, on_unscorable="keep")


def test_claims_that_fail_as_often_as_in_the_calibration_keep_the_promise_and_others_do_not(rng):
    """Of 1,000 answers 60 % fail in the calibration; false alarms are rarer than 1e-4."""
    scores = rng.random(21_000)
    failed = rng.random(1_000) < 0.6
    calibration = calibration_of(
        [answer([NAN if f else s], "-") for s, f in zip(scores, failed, strict=False)],
        0.2,
        on_unscorable="drop",
    )
    right = ~np.array([calibration.keep([s])[0] for s in scores[1_000:]])
    of = betabinom(20_000, conformal_rank(1_000, 0.2), 1_001 - conformal_rank(1_000, 0.2))
    assert right.sum() < of.ppf(1e-4)  # where nothing fails
    right |= rng.random(20_000) < 0.6
    assert of.ppf(1e-4) <= right.sum()


def test_of_a_share_of_one_half_the_score_is_where_fewer_are_factual():
    # From above: 1 of 1, 1 of 2, 1 of 3 (too few, at .5), 2 of 4, 2 of 5 (too few, at .3), 3 of 6.
    mixed = answer([0.7, 0.6, 0.5, 0.4, 0.3, 0.2], "+--+-+")
    assert answer_scores([mixed], 0.5).tolist() == [0.5]
    assert answer_scores([mixed], 0.3).tolist() == [-math.inf]
    assert answer_scores([mixed]).tolist() == [0.6]
    # Claims of one relevance are kept together: here one of two, not none of one.
    assert answer_scores([answer([0.6, 0.6], "-+")], 0.5).tolist() == [-math.inf]


# --- the theorem, exactly -------------------------------------------------------------------------


@given(ANSWERS, SHARES)
def test_an_answers_score_is_the_smallest_threshold_from_which_on_enough_is_factual(answers, share):
    for one, score in zip(answers, answer_scores(answers, share), strict=True):
        thresholds = sorted({-math.inf, *one.relevance[~np.isnan(one.relevance)].tolist()})
        right = [q for q in thresholds if is_factual(one, one.relevance > q, share)]
        from_here_on = [
            q for q in thresholds if all(higher in right for higher in thresholds if higher >= q)
        ]
        assert score == min(from_here_on)


@settings(max_examples=300, deadline=None)
@given(ANSWERS, ALPHAS, SHARES)
def test_left_out_in_turn_at_least_k_answers_keep_factual_claims_alone(answers, alpha, share):
    """The theorem with no tolerance: of n + 1 exchangeable answers, ⌈(n + 1)(1 − α)⌉ are right."""
    scores = answer_scores(answers, share)
    right = below = 0
    for i, left_out in enumerate(answers):
        others = calibration_of(
            answers[:i] + answers[i + 1 :], alpha, share=share, on_unscorable="drop"
        )
        keeps = others.keep(left_out.relevance)
        right += is_factual(left_out, keeps, share)
        below += scores[i] <= others.threshold()
    assert below >= conformal_rank(len(answers) - 1, alpha)
    assert right >= below
    if share == 1:  # a kept set of all factual claims is one that is cut above the score
        assert right == below


@given(ANSWERS, ALPHAS)
def test_the_engine_is_that_of_the_guarantee_all(answers, alpha):
    calibration = calibration_of(answers, alpha, on_unscorable="drop")
    scores = answer_scores(answers)
    engine = Calibration.from_scores(
        [ScoredQuery([score], [True]) for score in scores],
        alpha=alpha,
        guarantee="all",
        scorer="lookup",
    )
    assert calibration.threshold() == engine.threshold() == conformal_quantile(scores, alpha)
    # At the share's own value of 1, the score is what its definition says.
    worst = [
        max(
            (r for r, f in zip(a.relevance, a.factual, strict=True) if not f and r == r),
            default=-math.inf,
        )
        for a in answers
    ]
    assert scores.tolist() == worst


@given(ANSWERS, ALPHAS)
def test_a_claim_is_kept_iff_its_p_value_is_at_most_alpha(answers, alpha):
    calibration = calibration_of(answers, alpha, on_unscorable="drop")
    relevance = np.concatenate([[-1.0, 2.0, NAN], *(a.relevance for a in answers)])
    with np.errstate(invalid="ignore"):
        p = calibration.p_values(relevance)
    assert calibration.keep(relevance).tolist() == (p <= alpha).tolist()


@given(ANSWERS, ALPHAS, ALPHAS, SHARES)
def test_a_larger_alpha_keeps_all_that_a_smaller_one_keeps(answers, one, other, share):
    low, high = sorted((one, other))
    calibration = calibration_of(answers, low, share=share, on_unscorable="drop")
    relevance = np.linspace(-0.1, 1.1, 50)
    assert (calibration.keep(relevance) <= calibration.at(high).keep(relevance)).all()


@given(ANSWERS, SHARES, SHARES)
def test_a_smaller_share_never_scores_an_answer_higher(answers, one, other):
    low, high = sorted((one, other))
    assert (answer_scores(answers, low) <= answer_scores(answers, high)).all()


def test_where_relevances_tie_keeping_what_is_at_the_threshold_breaks_the_promise(rng):
    """200 answers, relevance rounded to .01, left out in turn: > holds, the paper's ≥ does not."""
    answers = []
    for _ in range(200):
        difficulty, noise = rng.normal(), rng.normal(size=rng.integers(1, 8))
        factual = rng.random(len(noise)) < 1 / (1 + np.exp(-1.5 - noise + difficulty))
        answers.append(AnnotatedAnswer((0.3 + 0.03 * noise).round(2), factual.tolist()))
    without = [calibration_of(answers[:i] + answers[i + 1 :]) for i in range(len(answers))]
    above, at_least, promised = 0, 0, 0
    for alpha in (0.1, 0.2, 0.3, 0.4):
        k = conformal_rank(len(answers) - 1, alpha)
        right = 0
        for i, one in enumerate(answers):
            calibration = without[i].at(alpha)
            right += is_factual(one, calibration.keep(one.relevance))
            at_least += is_factual(one, one.relevance >= calibration.threshold())
        assert right >= k
        above, promised = above + right, promised + k
    assert at_least < promised <= above


# --- groups, delta, what does not enter -----------------------------------------------------------


def grouped():
    return [
        answer([0.9, score], "+-", id=f"{group}{i}", group=group)
        for group, scores in {"x": (0.1, 0.2, 0.3, 0.4), "y": (0.5, 0.6, 0.7), "z": (0.8,)}.items()
        for i, score in enumerate(scores)
    ]


def test_each_group_has_its_own_threshold_and_one_unknown_or_too_small_keeps_nothing():
    calibration = calibration_of(grouped(), 0.3, by_group=True)
    assert calibration.threshold("x") == 0.4  # ⌈5 × .7⌉ = 4
    assert calibration.threshold("y") == 0.7  # ⌈4 × .7⌉ = 3
    for group in ("z", "unknown", None):
        assert calibration.threshold(group) == math.inf
        assert not calibration.keep([1.0], group).any()
    assert calibration.p_values([1.0], "unknown").tolist() == [1.0]
    assert (
        "z (1: nothing is kept, because it takes 3 answers, 2 more than these)"
        in calibration.statement
    )
    assert "In a group that is not named here nothing is kept" in calibration.statement
    merged = calibration_of(grouped(), 0.3, by_group=True, merge_groups={"z": "y"})
    assert merged.threshold("z") == merged.threshold("y") == 0.8


def test_delta_takes_a_higher_rank_and_says_when_it_cannot_be_had(rng):
    scores = rng.random(60)
    answers = [answer([score], "-") for score in scores]
    calibration = calibration_of(answers, 0.1, delta=0.1)
    assert calibration.threshold() == np.sort(scores)[tolerance_rank(60, 0.1, 0.1) - 1]
    assert calibration.threshold() > calibration_of(answers, 0.1).threshold()
    assert (
        "Of all calibrations like this one, at least 0.9 keep what follows" in calibration.statement
    )
    with pytest.raises(ValueError, match="delta is 0.1 with alpha 0.1"):
        calibration_of(answers[:20], 0.1, delta=0.1)


def test_answers_without_claims_or_annotation_do_not_enter_and_are_told():
    more = [answer([], "", id="f"), answer([0.99, 0.1], "?+", id="g"), answer([0.2, 0.8], "-?")]
    calibration = calibration_of([*five_answers(), *more])
    assert calibration.n_answers == 5
    assert calibration.threshold() == calibration_of().threshold()
    assert calibration.n_without_claims == 1
    assert calibration.unannotated == ("answer 'g'", "answer number 8")
    assert "1 more had no claims" in calibration.statement
    assert "2 more had a claim that is not annotated" in calibration.statement
    assert "(answer 'g', answer number 8)" in calibration.statement


def test_the_statement_says_what_is_promised_and_of_what():
    statement = calibration_of().statement
    assert statement.startswith(
        "With probability at least 0.6, all claims that are kept of a new answer are factual"
    )
    assert (
        "A claim is kept whose relevance is above 0.5. Relevance is that of 'lookup'" in statement
    )
    assert "nothing is kept counts as factual" in statement
    assert "not about a text that an LLM makes of them" in statement
    assert "It rests on 5 answers." in statement
    assert "at least a share 0.75 of the claims" in calibration_of(share=0.75).statement
    assert "takes 9 answers, 4 more than these" in calibration_of(alpha=0.1).statement
    assert "Every claim is kept that has a relevance" in calibration_of(alpha=0.9).statement


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: answer([0.1], "+-", id="q"), "answer 'q': relevance has shape \\(1,\\)"),
        (lambda: AnnotatedAnswer([0.1], [0]), r"factual\[0\] is 0; give True or False"),
        (lambda: AnnotatedAnswer([0.1], ["S"]), r"factual\[0\] is 'S'"),
        (lambda: calibration_of(alpha=1.0), "alpha is 1.0; give a risk .* all factual"),
        (lambda: calibration_of().at(0), "alpha is 0; give a risk .* all factual"),
        (lambda: calibration_of(share=0.0), "share is 0.0"),
        (lambda: calibration_of(share=1.5), "share is 1.5"),
        (
            lambda: calibration_of([*five_answers(), answer([1], "+", id="a")]),
            "answer id 'a' occurs 2 times; each answer enters",
        ),
        (lambda: calibration_of(by_group=True), "answer 'a': group is None.*of every answer"),
        (
            lambda: calibration_of(alpha=0.1, delta=0.1),
            "which 5 annotated answers cannot promise: it takes at least 22; annotate 17 more",
        ),
        (lambda: calibration_of(delta=2), "delta is 2"),
        (
            lambda: calibration_of(grouped(), by_group=True, merge_groups={"w": "y"}),
            "merge_groups names 'w', a group of none of the annotated answers",
        ),
        (lambda: calibration_of(merge_groups={}), "merge_groups is given without by_group"),
        (lambda: calibration_of([answer([], ""), answer([1.0], "?")]), "none of 2 answers enters"),
        (lambda: answer_scores([answer([1.0], "?", id="q")]), "answer 'q': a claim has"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calibration",
    [
        calibration_of(share=0.75, labels={"annotator": "a person"}),
        calibration_of(alpha=0.1),
        calibration_of(alpha=0.9),
        calibration_of(
            [*five_answers(), answer([], ""), answer([0.1, NAN, 0.2], "+-+"), answer([0.1], "?")],
            on_unscorable="drop",
        ),
        calibration_of(grouped(), 0.3, by_group=True, merge_groups={"z": "y"}),
    ],
    ids=["share", "keeps none", "keeps all", "left out", "groups"],
)
def test_a_calibration_comes_back_from_its_file_as_it_was(calibration, tmp_path):
    path = tmp_path / "claims.json"
    calibration.save(path)
    loaded = Calibration.load(path)
    assert loaded == calibration
    assert loaded.checksum == calibration.checksum
    assert loaded.statement == calibration.statement
    assert loaded.answers.labels == calibration.answers.labels
    for group in (None, "x", "y", "z"):
        assert loaded.threshold(group) == calibration.threshold(group)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_what_is_told_of_the_labels_is_kept_as_a_copy():
    labels = {"annotator": "a person"}
    calibration = calibration_of(labels=labels)
    labels["annotator"] = "another"
    assert calibration.answers.labels == {"annotator": "a person"}


def test_the_file_is_readable_and_names_what_json_has_no_number_for(tmp_path):
    calibration_of(alpha=0.1).save(tmp_path / "none.json")
    fields = json.loads((tmp_path / "none.json").read_text())
    assert fields["format"] == "conformal-retrievers/claims"
    assert fields["threshold"] == "keep_none"
    assert fields["answers"][0] == {"id": "a", "group": None, "score": "-inf"}
    calibration_of(alpha=0.9).save(tmp_path / "all.json")
    assert json.loads((tmp_path / "all.json").read_text())["threshold"] == "keep_all"


def test_a_file_that_was_changed_or_is_another_is_refused(tmp_path):
    path = tmp_path / "claims.json"
    calibration_of().save(path)
    fields = json.loads(path.read_text())

    def changed(**changes):
        new = {**fields, **changes}
        del new["sha256"]
        text = json.dumps(new, sort_keys=True, separators=(",", ":"))
        return json.dumps({**new, "sha256": hashlib.sha256(text.encode()).hexdigest()})

    for content, message in [
        (path.read_text().replace("0.7", "0.2"), "was changed after it was written"),
        (changed(threshold=0.1), "its field 'threshold' is 0.1, but its scores give 0.5"),
        (changed(share=0.0), "share is 0.0"),
        (changed(version=2), "has version 2"),
        (changed(unannotated="a"), "unannotated"),
        (changed(surprise=1), "surprise"),
        (path.read_text()[:-30], "not a complete calibration file"),
    ]:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            Calibration.load(path)
    Calibration.from_scores([ScoredQuery([0.1], [True])], alpha=0.5, scorer="s").save(path)
    with pytest.raises(ValueError, match="that Calibration.save wrote"):
        Calibration.load(path)
    calibration_of().save(path)
    with pytest.raises(ValueError, match="that Calibration.save wrote"):
        Calibration.load(path)


# --- the filter -----------------------------------------------------------------------------------


class Lookup:
    """A scorer of claims that knows their relevances."""

    name = "lookup"

    def __init__(self, **relevance):
        self.known = relevance

    def relevance(self, query, claims, documents):
        return [self.known[claim] for claim in claims]


def test_the_filter_keeps_what_lies_above_and_drops_what_cannot_be_scored():
    scorer = Lookup(good=0.9, at=0.5, low=0.1, blank=NAN)
    filtered = ClaimFilter(scorer, calibration_of())("q", ["low", "good", "blank", "at"], [])
    assert filtered.kept.tolist() == [1]
    assert filtered.dropped.tolist() == [0, 2, 3]
    assert filtered.unscorable.tolist() == [2]
    assert filtered.kept_claims == ("good",)
    assert filtered.threshold == 0.5
    assert filtered.p_values[:2].tolist() == [5 / 6, 1 / 6]


async def test_the_filter_awaits_what_it_calls():
    conformal = ClaimFilter(Lookup(a=0.9, b=0.2), calibration_of())
    assert (await conformal.acall("q", ["a", "b"], [])).kept_claims == ("a",)
    assert (await conformal.acall("q", [], [])).kept_claims == ()

    class Awaited(Lookup):
        async def arelevance(self, query, claims, documents):
            return [0.9, 0.9]

    both = ClaimFilter(Awaited(a=0.9, b=0.2), calibration_of())
    assert (await both.acall("q", ["a", "b"], [])).kept_claims == ("a", "b")
    assert both("q", ["a", "b"], []).kept_claims == ("a",)


def test_an_empty_answer_is_allowed_or_raises_but_the_best_claim_is_never_kept_instead():
    scorer = Lookup(a=0.3, b=NAN)
    assert ClaimFilter(scorer, calibration_of())("q", ["a", "b"], []).kept_claims == ()
    strict = ClaimFilter(scorer, calibration_of(), on_empty="raise")
    with pytest.raises(NothingKept, match=r"none of 2 claims .* best relevance is 0\.3, .* 0\.5"):
        strict("q", ["a", "b"], [])
    assert strict("q", [], []).kept_claims == ()
    with pytest.raises(ValueError, match="on_empty is 'keep_best'.*would break the guarantee"):
        ClaimFilter(scorer, calibration_of(), on_empty="keep_best")


def test_the_group_of_a_query_is_told_by_name_or_by_its_text():
    conformal = ClaimFilter(
        Lookup(a=0.65), calibration_of(grouped(), 0.3, by_group=True), group_of=lambda query: query
    )
    assert conformal("x", ["a"], []).kept_claims == ("a",)
    assert conformal("y", ["a"], []).kept_claims == ()
    assert conformal("y", ["a"], [], group="x").kept_claims == ("a",)


def test_a_query_without_a_group_or_of_one_unknown_is_warned_of_where_the_calibration_is_by_group():
    conformal = ClaimFilter(Lookup(a=0.9), calibration_of(grouped(), 0.3, by_group=True))
    with pytest.warns(UserWarning, match=r"a query has none.* give group=, or .* group_of="):
        assert conformal("q", ["a"], []).kept_claims == ()
    assert conformal("q", [], []).kept_claims == ()
    with pytest.warns(UserWarning, match="has the group 'w', which it does .*it knows 'x', 'y'"):
        assert conformal("q", ["a"], [], group="w").kept_claims == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conformal("q", ["a"], [], group="z")  # too small to keep anything, but known
    assert ClaimFilter(Lookup(a=0.9), calibration_of())("q", ["a"], []).kept_claims == ("a",)


def test_a_filter_refuses_another_scorers_calibration_and_a_scorer_that_loses_claims():
    class Other(Lookup):
        name = "other"

    with pytest.raises(CalibrationMismatch, match="'lookup', but this filter scores with 'other'"):
        ClaimFilter(Other(), calibration_of())
    with pytest.raises(TypeError, match="give a Calibration"):
        ClaimFilter(Lookup(), calibration_of().answers)
    with pytest.raises(TypeError, match="relevance"):
        ClaimFilter(print, calibration_of())
    with pytest.raises(TypeError, match="give a list of claims"):
        ClaimFilter(Lookup(), calibration_of())("q", "a claim", [])
    with pytest.raises(ValueError, match=r"shape \(1,\) for 2 claims"):
        ClaimFilter(Lookup(), calibration_of()).decide("q", ["a", "b"], [0.1])


# --- what it is worth -----------------------------------------------------------------------------


def test_factuality_stands_beside_what_it_costs():
    calibration = calibration_of()  # above .5
    measured = evaluate_claims(
        calibration,
        [
            answer([0.9, 0.8, 0.1, 0.2], "++-+"),  # keeps two of four, right
            answer([0.9, 0.6], "+-"),  # keeps both, wrong
            answer([0.5, 0.1], "--"),  # keeps none: right
            answer([0.7, NAN], "+-"),  # keeps one of two, right
            answer([], ""),
            answer([0.9], "?"),
        ],
    )
    assert (measured.n_answers, measured.left_out, measured.target) == (4, 2, 0.6)
    assert measured.factuality.estimate == 3 / 4
    assert measured.said_factuality.estimate == pytest.approx(2 / 3)
    assert measured.empty.estimate == 1 / 4
    assert measured.kept.estimate == (0.5 + 1 + 0 + 0.5) / 4
    assert measured.kept_factual.estimate == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert "empty answers" in str(measured)


def test_a_filter_that_says_nothing_is_seen_to_say_nothing():
    new = [
        answer(a.relevance, "".join("+" if f else "-" for f in a.factual)) for a in five_answers()
    ]
    measured = evaluate_claims(calibration_of(alpha=0.1), new)
    assert measured.factuality.estimate == 1
    assert measured.empty.estimate == 1
    assert measured.kept.estimate == 0
    assert math.isnan(measured.said_factuality.estimate)


@pytest.mark.parametrize(
    ("alpha", "options", "new"),
    [
        (0.1, {}, [answer([0.9], "+"), answer([0.9], "-")]),  # keeps nothing
        (0.4, {}, [answer([0.2], "+"), answer([NAN], "-")]),
        (0.3, {"by_group": True}, [answer([0.9], "+", group=g) for g in ("u", None, "z")]),
    ],
    ids=["calibration", "relevance", "groups"],
)
def test_where_nothing_is_kept_of_any_answer_nothing_is_tested(alpha, options, new):
    given = grouped() if options else five_answers()
    measured = evaluate_claims(calibration_of(given, alpha, **options), new)
    assert measured.untested
    assert not measured.fails
    assert "The promise is not tested: nothing is kept" in str(measured)
    assert "Nothing speaks against" not in str(measured)
    assert "nan" not in str(measured)
    assert not evaluate_claims(calibration_of(), [answer([0.9], "+")]).untested


def test_an_evaluation_names_the_groups_that_the_calibration_does_not_know():
    calibration = calibration_of(
        [*grouped(), answer([0.8], "-", group="w")], 0.3, by_group=True, merge_groups={"w": "z"}
    )
    new = [answer([0.9], "+", group=group) for group in ("x", "w", "u", None)]
    measured = evaluate_claims(calibration, new)
    assert measured.unknown_groups == (None, "u")
    assert "does not know the groups none, 'u', and keeps nothing in them" in str(measured)
    assert "it knows 'w', 'x', 'y', 'z'." in str(measured)
    known = evaluate_claims(calibration, new[:2])
    assert known.unknown_groups == ()
    assert "does not know" not in str(known)
    assert evaluate_claims(calibration_of(), new[:1]).unknown_groups == ()


def test_answers_that_calibrated_measure_nothing_and_are_refused():
    calibration = calibration_of()
    with pytest.raises(ValueError, match="answer 'a' has the id of one that the calibration was"):
        evaluate_claims(calibration, five_answers())
    new = answer([0.9], "+", id="new")
    with pytest.raises(ValueError, match="answer id 'new' occurs 2 times; an answer counts once"):
        evaluate_claims(calibration, [new, new])
    measured = evaluate_claims(calibration, [new])
    assert measured.told_apart
    assert "Nobody can tell" not in str(measured)


def test_without_ids_an_evaluation_says_that_nobody_can_tell_whether_answers_are_new():
    new, nameless = answer([0.9], "+", id="new"), answer([0.9], "+")
    without_ids = calibration_of([nameless] * 5)
    for calibration, answers in ((calibration_of(), [new, nameless]), (without_ids, [new])):
        measured = evaluate_claims(calibration, answers)
        assert not measured.told_apart
        assert "Nobody can tell whether these answers are new" in str(measured)


def test_the_p_value_is_beta_binomial_so_that_the_calibrations_luck_is_no_failure(rng):
    """Of honest calibrations on few answers, evaluated on many, at most 5 % fail."""
    failed = 0
    for _ in range(400):
        answers = [answer([score], "-") for score in rng.random(550)]
        failed += evaluate_claims(calibration_of(answers[:50], 0.2), answers[50:]).fails
    assert 0 < failed <= binom.ppf(1 - 1e-4, 400, 0.05)
    n, m, right = 50, 2000, 1300
    new = [answer([0.99], "-")] * (m - right) + [answer([0.0], "-")] * right
    measured = evaluate_claims(calibration_of([answer([i / n], "-") for i in range(n)], 0.2), new)
    k = conformal_rank(n, 0.2)
    assert measured.p_value == pytest.approx(betabinom.cdf(right, m, k, n + 1 - k))


def test_by_group_the_worst_group_decides_and_each_is_told_of():
    calibration = calibration_of(
        [*grouped(), answer([0.8], "-", group="w")], 0.3, by_group=True, merge_groups={"w": "z"}
    )
    new = [answer([0.9], "-", group=g) for g in "xxxxxyyyyyw"] + [answer([0.9], "+", group="x")]
    measured = evaluate_claims(calibration, new)
    assert list(measured.by_group) == ["x", "y", "z"]
    assert [of.n_answers for of in measured.by_group.values()] == [6, 5, 1]
    assert measured.by_group["x"].factuality.estimate == pytest.approx(1 / 6)
    assert measured.by_group["z"].p_value == 1  # too few to keep anything
    worst = min(of.p_value for of in measured.by_group.values())
    assert worst < 1
    assert measured.p_value == pytest.approx(min(1, 3 * worst))
    assert "factual in y" in str(measured)


def test_a_filter_that_keeps_all_can_fail_and_one_that_keeps_nothing_cannot():
    keeps_all = calibration_of([answer([0.5], "+")] * 50, 0.1)
    assert keeps_all.threshold() == -math.inf
    wrong = [answer([0.9], "-")] * 20
    assert evaluate_claims(keeps_all, wrong).fails
    assert evaluate_claims(calibration_of(alpha=0.1), wrong).p_value == 1


def test_of_a_share_the_factuality_counts_answers_that_reach_it_exactly():
    calibration = calibration_of([answer([0.1], "-")] * 5, share=0.6)
    assert calibration.threshold() == 0.1
    reached = [answer([0.5] * 5, "+++--"), answer([0.5] * 5, "++---")]
    measured = evaluate_claims(calibration, reached)
    assert measured.factuality.estimate == 1 / 2
    assert "at least 0.6 factual " in str(measured)
    with pytest.raises(ValueError, match="none of 1 answers"):
        evaluate_claims(calibration, [answer([], "")])


def test_exact_shares_are_the_decimals_that_they_print_as():
    assert exact_share(0.1) == Fraction(1, 10)
    with pytest.raises(TypeError, match="share is True"):
        exact_share(True)
