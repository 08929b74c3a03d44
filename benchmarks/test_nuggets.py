"""Answers judged by their sentences and nuggets: by hand, and by a model that is a function."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.nuggets import (
    Answer,
    JudgedAnswer,
    ajudge_answers,
    judge_answers,
    nugget_f1,
    nugget_f1_differences,
)
from conformal_retrievers.llm.ask import LLM, Reply, Unanswered
from conformal_retrievers.llm.cache import Cache


def test_precision_recall_and_f1_by_hand():
    answer = JudgedAnswer((True, False, True, True), (True, False), (2.0, 1.0))
    assert answer.precision == 3 / 4
    assert answer.recall == 2 / 3
    assert answer.f1 == pytest.approx(2 * (3 / 4) * (2 / 3) / (3 / 4 + 2 / 3))
    assert JudgedAnswer((True,), (True, False)).recall == 1 / 2


def test_an_answer_without_sentences_or_without_anything_right_has_f1_0():
    for answer in (JudgedAnswer((), (False,)), JudgedAnswer((False,), (False,))):
        assert (answer.precision, answer.recall, answer.f1) == (0, 0, 0)


def test_the_mean_is_over_queries():
    answers = [JudgedAnswer((True,) * 9, (True,)), JudgedAnswer((False,), (True, False))]
    f1 = nugget_f1(answers, rng=np.random.default_rng(0))
    assert (f1.n_queries, f1.precision.estimate, f1.recall.estimate) == (2, 1 / 2, 3 / 4)
    assert f1.f1.estimate == 1 / 2
    assert (f1.f1.low, f1.f1.high) == (0, 1)
    assert "F1  50.0%" in str(f1)


def answers_of(shares, size=4):
    return [
        JudgedAnswer(tuple(i < kept for i in range(size)), (True,), id=str(n))
        for n, kept in enumerate(shares)
    ]


def test_a_difference_is_paired_by_query():
    rng = np.random.default_rng(1)
    before = rng.integers(0, 4, size=30)
    better = nugget_f1_differences(answers_of(before + 1), answers_of(before), rng=rng)
    assert better.precision == pytest.approx((0.25, 0.25, 0.25))  # the same for every query
    assert better.precision.significant
    assert better.recall == (0, 0, 0)
    assert (better.n_queries, better.unpaired) == (30, 0)
    same = nugget_f1_differences(answers_of(before), answers_of(before), rng=rng)
    assert not same.f1.significant


def test_answers_are_paired_by_id_and_those_without_a_partner_are_counted():
    rng = np.random.default_rng(3)
    before = rng.integers(0, 4, size=30)
    better, worse = answers_of(before + 1), answers_of(before)
    unordered = [worse[i] for i in rng.permutation(30) if i not in (3, 4)]  # two were not judged
    found = nugget_f1_differences(better[1:], unordered, rng=rng)
    assert found.precision == pytest.approx((0.25, 0.25, 0.25))
    assert (found.n_queries, found.unpaired) == (27, 3)
    assert "27 queries, 3 answers unpaired: precision  +25.0%" in str(found)


def test_a_difference_of_nothing_is_called_significant_in_about_5_of_100():
    """400 pairs of 60 answers; exact binomial test at 1e-4 that it is at most 8 of 100."""
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(400):
        one, other = (answers_of(rng.integers(0, 5, size=60)) for _ in range(2))
        difference = nugget_f1_differences(one, other, rng=rng, resamples=300).precision
        alarms += difference.significant
    assert binomtest(alarms, 400, 0.08, alternative="greater").pvalue > 1e-4
    assert alarms > 0


def test_what_does_not_belong_together_is_refused():
    rng = np.random.default_rng(0)
    nameless = [JudgedAnswer((True,), (True,))]
    with pytest.raises(ValueError, match=r"unfiltered\[0\] has no id"):
        nugget_f1_differences(answers_of([1]), nameless, rng=rng)
    with pytest.raises(ValueError, match=r"filtered\[1\], answer '0', occurs twice"):
        nugget_f1_differences(answers_of([1]) * 2, answers_of([1]), rng=rng)
    with pytest.raises(ValueError, match="none of the 1 filtered and 0 unfiltered answers"):
        nugget_f1_differences(answers_of([1]), [], rng=rng)
    with pytest.raises(ValueError, match="level is 95"):
        nugget_f1_differences(answers_of([1]), answers_of([1]), rng=rng, level=95)
    with pytest.raises(ValueError, match="level is 0"):
        nugget_f1(answers_of([1]), rng=rng, level=0)
    with pytest.raises(ValueError, match="there is no judged answer"):
        nugget_f1([], rng=rng)
    with pytest.raises(ValueError, match="stated is empty"):
        JudgedAnswer((True,), ())
    with pytest.raises(ValueError, match="answer 'a': 1 nuggets but 2 weights"):
        JudgedAnswer((True,), (True,), (1.0, 2.0), "a")
    with pytest.raises(ValueError, match=r"a weight is -1\.0"):
        JudgedAnswer((True,), (True,), (-1.0,))
    with pytest.raises(TypeError, match="sentences is 'one text'"):
        Answer("q", "one text", (), ("fact",))
    with pytest.raises(ValueError, match="nuggets is empty"):
        Answer("q", ("s",), (), ())


# --- by an LLM ------------------------------------------------------------------------------------

ANSWER = Answer(
    "What rises when yeast works?",
    ("Dough rises.", "It tastes of <b>lemon</b>."),
    ("Bread: Dough rises. Yeast makes gas.",),
    ("Dough rises.", "Yeast makes gas."),
    (2.0, 1.0),
    "q1",
)


def substring_model(request):
    """Says yes where the sentence is in the context, or the nugget in the answer."""
    fields = {
        tag: json.loads(data)
        for tag, data in re.findall(r"^<(\w+)>\n(.*)\n</\1>$", request.user, re.M)
    }
    if "sentence" in fields:
        said = any(fields["sentence"] in snippet for snippet in fields["context"])
    else:
        said = fields["nugget"] in fields["answer"]
    return Reply(
        json.dumps({"reasoning": "…", "verdict": "yes" if said else "no"}), prompt_tokens=9
    )


def test_an_llm_judges_each_sentence_and_each_nugget():
    done = judge_answers([ANSWER, ANSWER], LLM(substring_model, "substring"))
    assert done.judged == (JudgedAnswer((True, False), (True, False), (2.0, 1.0), "q1"),) * 2
    assert done.unjudged == ()
    assert (done.usage.requests, done.usage.prompt_tokens) == (4, 36)  # each question once


async def test_it_does_so_without_blocking_too():
    llm = LLM(substring_model, "substring")
    assert await ajudge_answers([ANSWER], llm) == judge_answers([ANSWER], llm)


def test_without_context_or_sentences_nobody_is_asked():
    def never(request):
        raise AssertionError(request)

    nothing = Answer("q", (), (), ("fact", "another"), id="a")
    assert judge_answers([nothing], LLM(never, "never")).judged == (
        JudgedAnswer((), (False, False), None, "a"),
    )
    no_context = Answer("q", ("Dough rises.", "No."), (), ("Dough rises.",))
    done = judge_answers([no_context], LLM(substring_model, "substring"))
    assert done.usage.requests == 1  # of the nugget
    (judged,) = done.judged
    assert (judged.supported, judged.stated) == ((False, False), (True,))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply('{"verdict": "perhaps"}'), "unreadable: "),
        (Reply("yes"), "unreadable: 'yes'"),
        (Reply('{"verdict": "yes"}', finish="length"), "cut off"),
        (Reply('{"verdict": "yes"}', finish="refusal"), "refused"),
        (Unanswered("busy"), "unanswered: busy"),
    ],
)
def test_what_is_no_verdict_leaves_the_answer_unjudged(reply, reason):
    def model(request):
        if "Yeast makes gas." not in request.user or "nugget" not in request.user:
            return substring_model(request)
        if isinstance(reply, Unanswered):
            raise reply
        return reply

    other = Answer("q", ("Dough rises.",), ("Dough rises.",), ("Dough rises.",))
    done = judge_answers([ANSWER, other], LLM(model, "model"))
    assert [answer for answer, _ in done.unjudged] == [ANSWER]
    assert done.unjudged[0][1].startswith(reason)
    assert [answer.f1 for answer in done.judged] == [1]


def test_what_was_judged_once_comes_from_the_cache(tmp_path):
    cache = Cache(tmp_path / "cache.sqlite")
    llm = LLM(substring_model, "substring")
    first = judge_answers([ANSWER], llm, cache=cache)
    again = judge_answers([ANSWER], llm, cache=cache)
    assert first.judged == again.judged
    assert (first.usage.cached, again.usage.cached) == (0, 4)
