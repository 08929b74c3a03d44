"""A calibration on a chain's answers keeps its promise, exactly, and says what it is about."""

import math
from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers import Calibration, ConformalFilter, Monitor, Snippet, diagnose, evaluate
from conformal_retrievers.answers import Scans, calibrate_answers, calibrate_scans, scan_answers
from conformal_retrievers.answers.same import same_text
from conformal_retrievers.calibration import CalibrationMismatch, calibrate_gate
from conformal_retrievers.data import Hit, JudgedQuery, ScoredQuery
from conformal_retrievers.scoring import BestScore, FunctionScorer, score_queries
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.ranks import conformal_rank
from tests.answers.chains import SCORER, Chain, dice, digest, drawn, scored


def without(scans: Scans, i: int) -> Scans:
    return replace(scans, scans=scans.scans[:i] + scans.scans[i + 1 :])


def calibrated(seed, n=60, alpha=0.1, **options):
    """The calibration on n drawn questions, and these."""
    queries, places = drawn(n, seed)
    options = {"scorer": SCORER, "alpha": alpha, **options}
    return calibrate_answers(queries, Chain(places), **options), queries


def pairs(n):
    """Return n questions of two snippets each."""
    return [scored([0.1, 0.2], i) for i in range(n)]


def moody_on(some):
    """Return a chain that answers some questions in another way each time."""
    asked = []

    def answer(question, snippets):
        asked.append(question)
        return f"{asked.count(question)}" if some(question) else "the same"

    return answer


def asked_again(asked, scan, calibration):
    """What a chain answers from what a filter keeps."""
    query = scan.query
    kept = ConformalFilter(SCORER, calibration)(query.query, query.snippets).kept
    return asked(query.query, [query.snippets[j] for j in kept])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_left_out_questions_are_answered_exactly_as_often_as_promised(alpha, noise, right):
    """Each question is the new one in turn, which is exact for exchangeable ones.

    As from everything, or, of those that are right from everything, rightly: with ties, unscorable
    snippets, empty lists, and a chain that throws dice.
    """
    queries, places = drawn(120 if right else 60, seed=11)
    chain, expected = Chain(places, noise), {query.query: "Paris" for query in queries}
    scans = scan_answers(queries, chain, scorer=SCORER, expected=expected if right else None)
    counted = [i for i, scan in enumerate(scans.scans) if not scan.wrong]
    assert 40 < len(counted) < 120
    held = 0
    for i in counted:
        scan, calibration = scans.scans[i], calibrate_scans(without(scans, i), alpha=alpha)
        assert calibration.n_queries == len(counted) - 1
        will_do = same_text("", asked_again(chain, scan, calibration), scan.references[0])
        assert will_do or scan.needed > calibration.threshold()
        held += will_do
    assert held >= conformal_rank(len(counted) - 1, alpha)


def test_without_ties_it_is_no_more_than_promised():
    rng = np.random.default_rng(12)
    n, alpha = 39, 0.2
    queries = [scored(rng.normal(size=8).tolist(), i) for i in range(n + 1)]
    places = {query.query: int(rng.integers(8)) for query in queries}
    scans = scan_answers(queries, Chain(places), scorer=SCORER)
    within = [
        scan.needed <= calibrate_scans(without(scans, i), alpha=alpha).threshold()
        for i, scan in enumerate(scans.scans)
    ]
    assert sum(within) == conformal_rank(n, alpha)


def test_wrong_questions_count_if_asked():
    queries = pairs(40)
    places = {query.query: (5 if i < 4 else 1) for i, query in enumerate(queries)}  # 5: not there
    expected = {query.query: "Paris" for query in queries}
    scans = scan_answers(queries, Chain(places), scorer=SCORER, expected=expected)
    ours = calibrate_scans(scans, alpha=0.2, count_wrong=True)
    assert (ours.n_queries, ours.n_without_relevant, ours.threshold()) == (40, 0, 0.2)
    lost = calibrate_scans(scans, alpha=0.05, count_wrong=True)
    assert lost.out_of_reach
    assert lost.threshold() == math.inf
    assert "4 of 40 questions fail, because the chain is wrong, so that" in lost.statement
    assert "To mend it, leave out count_wrong, or raise alpha" in lost.statement
    wrong = "In 4 of 40 questions it is wrong with all snippets. These count as lost."
    assert wrong in lost.statement
    theirs = calibrate_scans(scans, alpha=0.05)
    assert (theirs.n_queries, theirs.n_without_relevant, theirs.threshold()) == (36, 4, 0.2)
    assert theirs.ids == {f"q{i}" for i in range(40)}


def test_a_chain_that_contradicts_itself_is_said_to():
    queries, moody = pairs(100), moody_on(lambda question: dice(question) < 0.2)
    calibration = calibrate_answers(queries, moody, alpha=0.1, scorer=SCORER)
    n = sum(dice(query.query) < 0.2 for query in queries)
    assert n >= 11
    first, second, *_ = calibration.statement.splitlines()
    assert first.startswith("Out of reach: no threshold keeps snippets from which")
    assert f"{n} of 100 questions fail, because the chain contradicts itself on the same" in second
    assert "alpha = 0.1 cannot be had. To mend it, set its temperature to 0" in second
    without_any = calibration.at(0.4)
    assert without_any.threshold() == -math.inf
    words = "no snippet is kept unless it has no score: enough answers will do without"
    assert words in without_any.statement


def test_the_statement_says_what_is_guaranteed_of_which_answers():
    unchanged, queries = calibrated(14)
    assert unchanged.statement.startswith(
        "Keeps snippets from which the chain's answer is the one from all retrieved snippets (by "
        "same_text), with probability at least 90 %.\n"
    )
    expected = {query.query: "Paris" for query in queries}
    right, _ = calibrated(14, expected=expected, chain="gpt, prompt 7")
    assert right.statement.startswith(
        "Keeps snippets from which the chain's answer is right (by has_answer), with probability "
        "at least 90 %, if it is right from all retrieved ones.\n"
    )
    for text in ("The chain is gpt, prompt 7.", "its model, prompt and order of snippets"):
        assert text in right.statement


def test_a_file_gives_it_back_and_a_changed_one_is_refused(tmp_path):
    path = tmp_path / "answers.json"
    calibration, _ = calibrated(15)
    calibration.save(path)
    assert Calibration.load(path) == calibration
    assert Calibration.load(path).statement == calibration.statement
    path.write_text(path.read_text().replace('"n_wrong": 0', '"n_wrong": -1'))
    with pytest.raises(ValueError, match="answers.json"):
        Calibration.load(path)


def test_the_default_score_is_the_prior_alone_and_needs_nothing_in_the_filter(tmp_path):
    rng = np.random.default_rng(16)
    queries = []
    for i in range(40):
        snippets = [
            Snippet(f"{digest(i, j)[:8]} place {j}", hits=[Hit("dense", j, score)])
            for j, score in enumerate(np.sort(rng.normal(size=10))[::-1].tolist())
        ]
        queries.append(JudgedQuery(f"thing {digest(i)[:8]}", snippets, [False] * 10, id=f"q{i}"))
    places = {query.query: int(rng.integers(3)) for query in queries}
    calibration = calibrate_answers(queries, Chain(places), alpha=0.2)
    assert "fitted to none of these queries." in calibration.statement
    assert "20 judged queries" not in calibration.statement
    calibration.save(tmp_path / "answers.json")
    loaded = ConformalFilter.of(Calibration.load(tmp_path / "answers.json"))
    n_kept = [len(loaded(query.query, query.snippets).kept) for query in queries]
    assert 1 < np.mean(n_kept) < 6
    assert f"hold, {np.mean(n_kept):.1f} snippets pass per question that" in calibration.statement
    assert "usually 9 in 10 calibrations cover at least 72." in calibration.statement
    none_needed = calibrate_answers(queries, lambda q, s: "yes", alpha=np.float32(0.2))
    words = "0.0 snippets pass per question that calibrates; 100.0 % of these keep none."
    assert words in none_needed.statement
    assert "Check that the chain reads them" in none_needed.statement
    asked = [*queries, JudgedQuery("of nothing", [], [])]
    expected = {q.query: "Rome" if i < 9 else "Paris" for i, q in enumerate(asked)}
    some = calibrate_answers(asked, Chain(places), alpha=0.2, expected=expected)
    of_right = [int(some.keep(loaded.scorer.score(q.query, q.snippets)).sum()) for q in queries[9:]]
    assert some.choice.passes == np.mean(of_right)


def test_it_holds_within_groups_and_for_most_calibrations():
    rng = np.random.default_rng(17)
    queries = [scored(rng.normal(size=6).tolist(), i, group="ab"[i % 2]) for i in range(80)]
    places = {query.query: int(rng.integers(6)) for query in queries}
    scans = scan_answers(queries, Chain(places), scorer=SCORER)
    by_group = calibrate_scans(scans, alpha=0.2, by_group=True)
    needed = [scan.needed for scan in scans.scans]
    assert by_group.threshold("a") == sorted(needed[::2])[conformal_rank(40, 0.2) - 1]
    assert by_group.threshold("b") == sorted(needed[1::2])[conformal_rank(40, 0.2) - 1]
    sure = calibrate_scans(scans, alpha=0.2, delta=0.1)
    assert sure.threshold() > calibrate_scans(scans, alpha=0.2).threshold()
    assert "This holds for at least 90 % of calibrations" in sure.statement


class Fitted(FunctionScorer):
    fitted_on = frozenset([query_digest(scored([0.1]).query)])


def test_questions_that_a_score_was_fitted_on_are_refused():
    scorer = Fitted(lambda query, texts: [0.0 for _ in texts], "fitted")
    with pytest.raises(ValueError, match="was fitted on query 'What is thing 0"):
        calibrate_answers([scored([0.1])], Chain(), alpha=0.5, scorer=scorer)


@pytest.mark.parametrize("count_wrong", [False, True])
def test_a_chain_that_is_never_right_is_an_error(count_wrong):
    expected = {query.query: "Rome" for query in pairs(5)}
    scans = scan_answers(pairs(5), Chain(0), scorer=SCORER, expected=expected)
    with pytest.raises(ValueError, match="the chain is right in none of 5 questions"):
        calibrate_scans(scans, alpha=0.5, count_wrong=count_wrong)


def test_only_answered_questions_with_snippets_need_all_of_them():
    # The fourth has no snippets, and the last keeps one without a score.
    last = [scored([0.1], 4), scored([0.1, 0.2], 5), scored([math.nan, 0.5], 6)]
    queries = [*pairs(3), scored([], 3), *last]
    places = {query.query: i for query, i in zip(queries, (0, 1, 1, 1, 9, 9, 9), strict=True)}
    chain, asked = Chain(places), []

    def answer(question, snippets):  # contradicts itself on the third question
        asked.append(question)
        times = asked.count(question) * (question == queries[2].query)
        return f"{chain(question, snippets)} {times}"

    calibration = calibrate_answers(queries, answer, alpha=0.5, scorer=SCORER)
    counts = "1 of 7 questions need all their snippets. 2 of 7 questions need none. In 1 of 7"
    assert counts in calibration.statement
    assert "reads them" not in calibration.statement
    assert ["swayed" in calibration.at(a).statement for a in (0.15, 0.14)] == [
        False,
        True,
    ]  # of 1 / 7


def test_relevance_is_not_evaluated_with_it_but_it_is_monitored():
    calibration, _ = calibrated(18, 40, 0.2)
    for measure in (evaluate, lambda c, of: Monitor(c).observe_judged(of[0])):
        with pytest.raises(CalibrationMismatch, match="measure its filter with evaluate_answers"):
            measure(calibration, [ScoredQuery([0.1, 0.2], [True, False])] * 30)
    unjudged = [replace(q, id=None) for q in score_queries(SCORER, drawn(90, 21)[0])]
    assert "ask the chain with evaluate_answers" in diagnose(calibration, unjudged).summary


def test_judgements_are_not_read():
    queries, places = drawn(40, seed=19)
    marked = [replace(q, relevant=tuple(i == 0 for i in range(len(q.snippets)))) for q in queries]
    options = {"alpha": 0.2, "scorer": SCORER}
    ours, theirs = (calibrate_answers(of, Chain(places), **options) for of in (queries, marked))
    assert ours.threshold() == theirs.threshold()


def test_a_random_chain_keeps_what_is_right_as_often_as_promised():
    """What is right from all is asked for once more than the scan, so that dice count."""
    queries = pairs(400)
    expected = {query.query: "Paris" for query in queries}
    asked = []

    def coin(question, snippets):
        asked.append(question)
        return "Paris" if dice(question, asked.count(question)) < 0.5 else "Rome"

    scans = scan_answers(queries, coin, scorer=SCORER, expected=expected, concurrency=1)
    right = [scan for scan in scans.scans if not scan.wrong]
    assert 150 < len(right) < 250
    assert 0.35 < np.mean([scan.contradicts for scan in right]) < 0.65
    assert calibrate_scans(scans, alpha=0.1).out_of_reach


def test_what_can_be_refused_is_refused_before_anything_is_asked():
    queries = pairs(5)
    twice = [*queries, replace(scored([0.3], 7), id="q0")]
    for given, options, message in (
        (queries, {"alpha": 1.5}, "alpha is 1.5"),
        (queries, {"alpha": 0.1, "delta": 0.1}, "delta is 0.1 with alpha 0.1, which needs"),
        (queries, {"alpha": 0.1, "by_group": True}, "group"),
        (queries, {"alpha": 0.1, "count_wrong": True}, "count_wrong is True without expected"),
        (twice, {"alpha": 0.1}, "question id 'q0' occurs 2 times"),
    ):
        chain = Chain()
        with pytest.raises(ValueError, match=message):
            calibrate_answers(given, chain, scorer=SCORER, **options)
        assert chain.calls == []


def test_too_few_questions_are_said_to_be_too_few():
    with pytest.warns(UserWarning, match="To guarantee 0.9, give alpha=0.1"):
        calibrate_answers(pairs(3), Chain(1), alpha=0.9, scorer=SCORER)
    calibration = calibrate_answers(pairs(3), Chain(1), alpha=0.1, scorer=SCORER)
    assert not calibration.out_of_reach
    assert calibration.statement.startswith("Drops nothing yet: it lacks 6 answered questions")
    assert "Once there are enough: keeps snippets from which" in calibration.statement
    assert "at least 9 answered questions are needed, and 3 calibrate: 6" in calibration.statement


def test_a_group_that_fails_says_how_often_it_does():
    queries = [scored([0.1, 0.2], i, group="ab"[i % 2]) for i in range(60)]
    moody = moody_on(lambda question: int(question.split()[3][:-1]) % 6 == 0)
    scans = scan_answers(queries, moody, scorer=SCORER)
    calibration = calibrate_scans(scans, alpha=0.2, by_group=True)
    assert "a: none, so every snippet is kept: with all snippets, 10 of 30" in calibration.statement


def test_a_scorer_that_drops_what_is_needed_is_named():
    queries = [scored([0.1, math.inf], i) for i in range(20)]
    calibration = calibrate_answers(queries, Chain(1), alpha=0.1, scorer=SCORER)
    assert "because the scorer gives needed snippets a score of inf" in calibration.statement


def test_keeping_the_best_keeps_all_that_score_the_same():
    calibration = calibrate_answers(pairs(20), lambda q, s: "yes", alpha=0.2, scorer=SCORER)
    assert calibration.threshold() == -math.inf
    conformal = ConformalFilter(SCORER, calibration, on_empty="keep_best")
    assert conformal("q", ["0.3 a", "0.1 b", "0.1 c"]).kept.tolist() == [1, 2]


def test_a_gate_in_front_is_refused():
    judged = [replace(query, relevant=[True, False]) for query in pairs(20)]
    silent = [scored([3.0, 4.0], 100 + i) for i in range(20)]
    unanswerable = [replace(query, answerable=False) for query in silent]
    gate = calibrate_gate(judged, unanswerable, BestScore(SCORER), alpha=0.1)
    calibration = calibrate_answers(judged, Chain(0), alpha=0.2, scorer=SCORER)
    with pytest.raises(CalibrationMismatch, match="gate stands before a filter that is calibrated"):
        ConformalFilter(SCORER, calibration, gate=gate)
