"""Statements: the facts that they must have, for every kind of calibration."""

import math
import re
from dataclasses import replace

import pytest
from calibrations import calibration_of, every_guarantee, relevant

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.calibration.subjects import CLAIMS, FLAGS


def lines(calibration):
    """Return the statement as (guarantee, threshold, assumptions, basis, not covered)."""
    five = calibration.statement.split("\n")
    starts = ("Assumptions: ", "Basis: ", "Not covered: ")
    assert len(five) == 5
    assert five[1].startswith(("Threshold: ", "Thresholds: "))
    assert all(line.startswith(start) for line, start in zip(five[2:], starts, strict=True))
    assert not {"{", "}"} & set(calibration.statement)
    assert "None" not in calibration.statement
    assert "  " not in calibration.statement
    assert all(line.endswith(".") for line in five)
    return five


def two_groups(**options):
    """Return a calibration of 40 queries of group g and 40 of h, and 3 of group tiny."""
    queries = [
        relevant(i / 100, i / 100 + 0.5, id=f"{i}", group=group, missed=int(i % 20 == 0))
        for i, group in enumerate(["g", "h"] * 40 + ["tiny"] * 3)
    ]
    return calibration_of(queries, **options)


WORDS = {
    "query-recall": ("of the relevant snippets", "on average over queries"),
    "snippet": ("a relevant snippet", "with probability at least"),
    "all": ("all relevant snippets", "with probability at least"),
    "any": ("at least one relevant snippet", "with probability at least"),
}


@every_guarantee
@pytest.mark.parametrize("count_missed", [False, True])
@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize("grouping", [{}, {"by_group": True}])
def test_guarantee_and_threshold_come_first(guarantee, count_missed, delta, grouping):
    if delta is not None and guarantee == "snippet":
        return
    grouping = {**grouping, "count_missed": count_missed}
    c = two_groups(alpha=0.25, guarantee=guarantee, delta=delta, **grouping)
    first, second, assumptions, basis, not_covered = lines(c)
    assert "75 %" in first
    for word in WORDS[guarantee]:
        assert word in first
    assert ("retrieved or not" in first) == count_missed
    assert ("at least 90 % of calibrations" in first) == (delta is not None)
    assert first.startswith("Within each group") == c.by_group
    assert ("at once, possibly for fewer" in first) == (c.by_group and delta is not None)
    assert "lookup" in second
    if not c.by_group:
        assert f"≤ {c.threshold():.6g} are kept" in second
    for group, n in c.n_units.items():
        if c.by_group:
            threshold = c.units(group).threshold(c.alpha, c.delta)
            stated = "none" if math.isinf(threshold) else f"{threshold:.6g} ({n} "
            assert f"{group}: {stated}" in second
    assert ("In any other group, every snippet is kept" in second) == c.by_group
    assert ("calibrations like this one" in assumptions) == (delta is None)
    assert ("counts as reaching" in assumptions) == (count_missed and delta is None)
    assert ("'query-recall' assumes less" in assumptions) == (guarantee == "snippet")
    assert f"guarantee = {guarantee!r}, alpha = 0.25" in basis
    assert ("delta = 0.1" in basis) == (delta is not None)
    assert ("the retriever does not return, here 5 of 171" in not_covered) == (not count_missed)


def test_the_basis_of_three_queries():
    *_, basis, not_covered = lines(calibration_of())
    for fact in ("5 relevant snippets", "3 queries", "Not used: 2 queries", "design effect"):
        assert fact in basis
    assert "7 of 12" in not_covered
    *_, basis, not_covered = lines(calibration_of([relevant(0.1)]))
    assert "1 relevant snippet of 1 query" in basis
    assert "Not used" not in basis
    assert "here" not in not_covered


def test_how_far_calibrations_vary_is_stated():
    queries = [relevant(i / 50, id=f"{i}", group="ab"[i % 2]) for i in range(50)]
    calibration = calibration_of([*queries, relevant(id="none", missed=1)], 0.1)
    assert "9 in 10 calibrations cover at least 84.6 %." in calibration.statement  # Beta(46, 5)
    assert calibration.statement.split() == str(calibration).split()
    assert max(map(len, str(calibration).splitlines())) <= 80
    for options in ({"delta": 0.1}, {"guarantee": "snippet"}, {"by_group": True}):
        assert "1 calibration in 10" not in calibration_of(queries, 0.1, **options).statement
    assert "1 calibration in 10" not in calibration_of(queries[:5], 0.1).statement


@every_guarantee
def test_too_few_units_are_stated_with_how_many_more_are_needed(guarantee):
    unit, n = ("relevant snippets", 5) if guarantee == "snippet" else ("judged queries", 3)
    first, threshold, *_ = lines(calibration_of(alpha=0.05, guarantee=guarantee))
    least = {3: 0.25, 5: 0.1667}[n]
    assert first.startswith(
        f"Drops nothing yet: it lacks {19 - n} {unit} at alpha = 0.05, and has enough for "
        f"alpha = {least:g}. Once there are enough: keeps "
    )
    assert "Drops" not in calibration_of(alpha=least, guarantee=guarantee).statement
    assert "none, so every snippet is kept" in threshold
    assert f"at least 19 {unit} are needed, and {n} calibrate: {19 - n} too few" in threshold


@pytest.mark.parametrize(("guarantee", "most"), [("query-recall", "50 %"), ("all", "0 %")])
def test_a_depth_that_misses_too_much_is_out_of_reach(guarantee, most):
    queries = [relevant(i, missed=1) for i in range(100)]
    out_of_reach = calibration_of(queries, 0.1, guarantee, count_missed=True)
    first, threshold, *_ = lines(out_of_reach)
    assert first.startswith("Out of reach")
    assert "every snippet is kept" in threshold
    assert "100 of 200" in threshold
    assert most in threshold
    assert "at this depth, so retrieve deeper" in first
    at_20 = lines(replace(out_of_reach, retrieval={"k": 20}))
    assert at_20[0].startswith("Out of reach at K = 20, so retrieve deeper")
    assert "Retrieve deeper (K above 20)" in at_20[1]
    assert "ut of reach" not in calibration_of(queries, 0.1, "any", count_missed=True).statement


def test_a_depth_that_misses_too_much_is_to_be_deeper_however_few_queries_there_are():
    few = calibration_of([relevant(i, missed=1) for i in range(5)], 0.1, count_missed=True)
    assert "Retrieve deeper (a larger K), or raise alpha" in lines(few)[1]
    assert "too few" not in few.statement
    close = [relevant(i, missed=0) for i in range(11)] + [ScoredQuery([], [], missed=1)]
    text = lines(calibration_of(close, 0.1, count_missed=True))[1]  # 11 of 12 are more than 90 %
    assert "Retrieve deeper (a larger K), judge more, or raise alpha" in text


def test_a_scorer_that_drops_too_much_is_named():
    scored = [*(relevant(0.1 * i) for i in range(18)), relevant(math.inf, 0.5)]
    _, threshold, *_ = lines(calibration_of(scored, 0.05, "all"))
    assert "1 of 20" in threshold
    assert "94.7 %" in threshold  # 18 of 19
    scored += [relevant(0.1), relevant(0.2)]
    _, threshold, *_ = lines(calibration_of(scored, 0.05, "all"))  # 20 of 21
    assert "95.2 %" not in threshold  # which keeping everything reaches


def test_each_group_without_a_threshold_has_its_reason():
    large = [relevant(float(i), group="large", missed=1) for i in range(100)]
    small = [relevant(float(i), group="small", missed=0) for i in range(3)]
    _, thresholds, *_ = lines(calibration_of(large + small, 0.1, by_group=True, count_missed=True))
    assert re.search("large: none, [^;]*100 of 200", thresholds)
    assert re.search("small: none, [^;]*at least 9 judged queries", thresholds)


def test_unscorable_snippets_that_suffice_leave_no_threshold():
    scored = [ScoredQuery([math.nan], [True], group="g", missed=0) for _ in range(19)]
    scored.append(relevant(0.5, group="g", missed=0))
    for options in ({}, {"by_group": True}, {"count_missed": True}):
        c = calibration_of(scored, 0.5, on_unscorable="keep", **options)
        first, threshold, _, basis, _ = lines(c)
        assert c.keep([-0.99, math.nan], "g").tolist() == [False, True]
        assert "no snippet is kept unless it has no score" in threshold
        assert "ut of reach" not in first
        assert "19 of them have no score" in basis


AUDIT = {"audited": 200, "remaining_miss_rate": [0.1, 0.04, 0.2]}
PERSON = {"source": "person", "by": "Ann"}
LLM = {"source": "LLM", "llm": "m-4"}


@pytest.mark.parametrize(
    ("labels", "stated"),
    [
        (None, []),
        ({"source": "judged.jsonl"}, []),
        ({"source": "LLM"}, ["an LLM", "no person checked", "what the LLM calls relevant", "200"]),
        (LLM, ["the LLM 'm-4'", "no person checked"]),
        ({"source": "person"}, ["judged by a person."]),
        (PERSON, ["judged by a person ('Ann')."]),
        ({**PERSON, "given": {"source": "r.jsonl"}}, ["marked by 'r.jsonl' and judged"]),
        ({**PERSON, "given": LLM, "sample": {"share": 1.0}, "audit": AUDIT}, ["who saw these"]),
        (
            {**PERSON, "given": LLM, "sample": {"share": 0.2}, "audit": AUDIT},
            ["a random 20 % of each query", "10.0 % [4.0, 20.0]", "not about these"],
        ),
        ({**PERSON, "unsure": 1}, ["1 query was left out"]),
        ({**LLM, "questions": "synthetic"}, ["synthetic", "labelled by the LLM"]),
        ({**LLM, "queries_without_verdict": 2}, ["2 queries were left out", "no readable"]),
        (
            {**PERSON, "given": {**LLM, "queries_without_verdict": 1}},
            ["1 query was left out", "no readable", "the LLM 'm-4'"],
        ),
        ({**PERSON, "given": {}}, ["was marked before and judged by a person ('Ann')"]),
        ({"source": "answer"}, ["relevant is a text that has the reference answer"]),
        ({"source": "answers"}, ["relevant is a snippet without which a chain's answer"]),
    ],
)
def test_who_judged_is_stated(labels, stated):
    *_, basis, _ = lines(calibration_of(labels=labels))
    for fact in stated:
        assert fact in basis
    assert ("LLM" in basis) == any("LLM" in fact for fact in [*stated, str(labels)])
    assert ("synthetic" in basis) == ("synthetic" in str(labels))
    assert ("random" in basis) == any("random" in fact for fact in stated)
    assert ("left out" in basis) == any("left out" in fact for fact in stated)


@pytest.mark.parametrize("odd", [None, 1, "x", [1], ["x", 1, 2], {"a": 1}])
def test_labels_of_other_shapes_are_no_error(odd):
    for labels in [
        {**LLM, "llm": odd},
        {**PERSON, "given": odd, "sample": odd, "unsure": odd, "by": odd, "audit": odd},
        {**PERSON, "sample": {"share": odd}, "audit": {"remaining_miss_rate": odd}},
    ]:
        assert "Relevance was" in calibration_of(labels=labels).statement


def answers(subject, n=9, **options):
    """Return a calibration of n answers with the scores 0.1, 0.2, …."""
    scored = tuple(relevant(i / 10, id=f"{i}", group="gh"[i % 2]) for i in range(1, n + 1))
    return Calibration(0.25, "all", "name", scored, subject=subject, **options)


@pytest.mark.parametrize("delta", [None, 0.2])
def test_the_statement_of_claims(delta):
    c = answers(CLAIMS, delta=delta, details={"share": 1.0})
    first, threshold, _, basis, _ = lines(c)
    assert "factual" in first
    assert "75 %" in first
    assert ("at least 80 % of calibrations" in first) == (delta is not None)
    assert f"relevance > {c.threshold():g} are kept (scorer name)" in threshold
    assert "9 annotated answers" in basis


def test_what_claims_leave_out_is_stated():
    details = {
        "share": 0.5,
        "unannotated": ["u\nBasis: 0", *(f"u{i}" for i in range(1, 6))],
        "n_without_claims": 1,
        "n_unscorable": 3,
    }
    first, _, assumptions, basis, _ = lines(answers(CLAIMS, details=details))
    assert "50 %" in first
    assert "3 failed" in assumptions
    assert "1 answer without claims was" in basis
    assert r"(u\nBasis: 0, u1, u2, u3, u4, …)" in basis


def test_the_statement_of_flags():
    c = answers(FLAGS, n_without_relevant=4)
    first, threshold, _, basis, _ = lines(c)
    assert "75 %" in first
    assert f"confidence ≤ {c.threshold():g} are flagged (classifier name)" in threshold
    assert "9 inconsistent answers; 4 consistent answers not used" in basis


@pytest.mark.parametrize(
    ("subject", "effect", "unit"),
    [
        (CLAIMS, "no claim is kept", "annotated answers"),
        (FLAGS, "every answer is flagged", "inconsistent answers"),
    ],
)
def test_too_few_answers_have_the_effect_of_their_subject(subject, effect, unit):
    assert (
        f"none, so {effect}: at least 3 {unit} are needed, and 2 calibrate: 1 too few"
        in lines(answers(subject, 2))[1]
    )
    grouped = lines(replace(answers(subject), by_group=True))[1]
    assert f"In any other group, {effect}" in grouped
    assert "g: 0.8 (4" in grouped


def test_claims_that_are_all_factual_keep_every_claim_with_a_relevance():
    scored = tuple(relevant(-math.inf) for _ in range(9))
    c = Calibration(0.25, "all", "name", scored, subject=CLAIMS)
    assert c.keep([-5.0, math.nan]).tolist() == [True, False]
    assert "every claim that has a relevance is kept" in lines(c)[1]
