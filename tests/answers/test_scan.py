"""What a question needs is found from all snippets downwards."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from dataclasses import replace

import pytest

from conformal_retrievers import calibrate
from conformal_retrievers.answers import evaluate_answers, scan_answers
from conformal_retrievers.answers.same import CONTROLS, has_answer, llm_same, same_text
from conformal_retrievers.data import read_jsonl, write_jsonl
from conformal_retrievers.llm import LLM, Reply
from conformal_retrievers.scoring import FunctionScorer, score_snippets
from tests.answers.chains import SCORER, Chain, drawn, scored


def scan_of(query, answer, **options):
    (scan,) = scan_answers([query], answer, scorer=SCORER, **options).scans
    return scan


def brute_force(query, chain, reference):
    """Return the needed score, from the answer at every level, by its definition."""
    scores = score_snippets(SCORER, query.query, query.snippets)
    needed = math.inf
    for level in sorted({*scores[scores == scores].tolist(), -math.inf}, reverse=True):
        kept = [s for s, score in zip(query.snippets, scores, strict=True) if not score > level]
        if not same_text(query.query, chain(query.query, kept), reference):
            break
        needed = level
    return needed


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_needed_score_is_that_of_its_definition(noise):
    queries, places = drawn(200, seed=1)
    scans = scan_answers(queries, Chain(places, noise), scorer=SCORER, chain="c").scans
    again = Chain(places, noise)
    for query, scan in zip(queries, scans, strict=True):
        assert scan.needed == brute_force(query, again, again(query.query, query.snippets))


def test_the_scan_stops_at_the_first_level_that_fails():
    chain = Chain(1)
    scan = scan_of(scored([0.1, 0.2, 0.3, 0.4]), chain)
    # All twice, then without the worst, without the two worst, and without what is needed.
    assert [len(ids) for _, ids in chain.calls] == [4, 4, 3, 2, 1]
    assert (scan.needed, scan.kept) == (0.2, 2)
    assert scan.lost == (False, True, False, False)


def test_snippets_are_in_the_retrievers_order_and_an_unscorable_one_in_every_context():
    chain = Chain(0)
    assert scan_of(scored([math.nan, 0.3, 0.2, 0.1]), chain).needed == -math.inf
    assert [ids for _, ids in chain.calls[2:]] == [["0-0", "0-2", "0-3"], ["0-0", "0-3"], ["0-0"]]


def test_a_question_without_snippets_needs_nothing_unless_the_chain_contradicts_itself():
    assert scan_of(scored([]), Chain()).needed == -math.inf
    for query in (scored([]), scored([0.1, math.inf])):
        answers = iter(["one thing", "another"])
        scan = scan_of(query, lambda q, s, answers=answers: next(answers), chain="moody")
        assert (scan.needed, any(scan.lost)) == (math.inf, False)


def test_one_of_several_references_suffices_whatever_blanks_are_around_their_question():
    query = scored([0.1, 0.2])
    scan = scan_of(query, Chain(0), expected={f" {query.query} ": ["London", "in paris", "Paris"]})
    assert scan.needed == 0.1
    scans = scan_answers([query], Chain(0), scorer=SCORER, expected={query.query: "Rome"})
    (wrong,), (verdict,) = scans.scans, scans.verdicts
    assert (wrong.needed, wrong.wrong, wrong.levels) == (math.inf, True, ())
    [snippet] = verdict.snippets
    assert (snippet.text, verdict.relevant) == ("Paris", (False,))


def test_one_question_of_two_groups_is_asked_about_the_snippets_of_each():
    queries = [scored([0.1, 0.2], group="a"), replace(scored([0.3, 0.4], group="b"), id="q1")]
    scans = scan_answers(queries, Chain(0), scorer=SCORER).scans
    assert [scan.needed for scan in scans] == [0.1, 0.3]
    expected = {"q0": "Paris", queries[1].query: "unknown"}  # the id is more exact
    first, second = scan_answers(queries, Chain(0), scorer=SCORER, expected=expected).scans
    assert [first.needed, first.wrong, second.wrong] == [0.1, False, True]
    others = [scored([0.1], i) for i in range(1, 9)]
    some = {query.query: 0 for query in others}  # the chain fails for the two
    assert len(scan_answers([*others, *queries], Chain(some), scorer=SCORER).failed) == 2
    longer = scored([0.5] * 3, 0, group="c")
    given, expected = [queries[0], replace(longer, id="q2")], {"q0": "Paris", "q2": "unknown"}
    (whole,) = evaluate_answers({}, given, Chain(0), expected=expected).measures.values()
    assert whole["snippets"].tolist() == [2, 3]
    assert (whole["unchanged"].tolist(), whole["right"].tolist()) == ([1, 1], [1, 0])


def test_an_asynchronous_chain_gives_what_a_synchronous_one_gives():
    queries, places = drawn(30, seed=2)
    loops = set()

    async def answer(question, snippets):
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return Chain(places)(question, snippets)

    ours = scan_answers(queries, answer, scorer=SCORER)
    theirs = scan_answers(queries, Chain(places), scorer=SCORER)
    assert [s.levels for s in ours.scans] == [s.levels for s in theirs.scans]

    async def within_a_loop():
        return scan_answers(queries, answer, scorer=SCORER)

    assert len(asyncio.run(within_a_loop()).scans) == 30
    assert len(loops) == 1  # so that its client stays usable between scans


def test_no_more_questions_are_asked_at_once_than_allowed():
    inside, seen = [], []

    def answer(question, snippets):
        inside.append(question)
        seen.append(len(inside))
        threading.Event().wait(0.002)
        inside.remove(question)
        return "the same"

    scan_answers(drawn(20, 3)[0], answer, scorer=SCORER, concurrency=3)
    assert max(seen) == 3


def test_a_few_questions_of_many_may_fail_without_snippets():
    queries = [scored([0.1], i) for i in range(40)]
    last = [query.query for query in queries[-3:]]
    scans = scan_answers(queries, lambda q, s: "yes" if q not in last else s[0].id, scorer=SCORER)
    assert [*scans.failed] == last


@pytest.mark.parametrize(("n", "failed"), [(50, 8), (2, 2)])
def test_after_eight_failures_and_no_success_nothing_more_is_asked(n, failed):
    calls = []

    def answer(question, snippets):
        calls.append(question)
        raise PermissionError("wrong key")

    text = rf"all of the first {failed} questions failed: Perm.*wrong key"
    with pytest.raises(ValueError, match=text):
        scan_answers([scored([0.1], i) for i in range(n)], answer, scorer=SCORER, concurrency=2)
    assert len(calls) < 20


@pytest.mark.parametrize("verdict", ["no", None, 1])
def test_a_comparison_that_says_neither_yes_nor_no_stops_the_scan(verdict):
    def same(question, answer, reference):
        return verdict

    with pytest.raises(TypeError, match=f"same returned {verdict!r}; return True or False"):
        scan_answers([scored([0.1], i) for i in range(3)], Chain(), scorer=SCORER, same=same)


def test_a_failing_call_leaves_its_question_out_and_names_it_and_all_others_are_asked(caplog):
    queries = [scored([0.1], i) for i in range(12)]
    last = queries[-1].query

    def answer(question, snippets):
        if question in (queries[0].query, last):
            return "<think>yes</think> " if question == last else "<think>no?</think>yes"
        raise TimeoutError("the server sleeps")

    scans = scan_answers(queries, answer, scorer=SCORER, concurrency=1)
    assert [(scan.query.id, scan.first) for scan in scans.scans] == [("q0", "yes")]
    assert [*scans.failed] == [query.query for query in queries[1:]]
    assert "the server sleeps" in scans.failed[queries[1].query]
    assert "What is thing 11, d66a370d?' is blank" in scans.failed[last]
    assert "11 of 12 questions are left out" in caplog.text


def test_a_cache_answers_what_was_asked_and_another_chain_asks_anew(cache):
    queries, places = drawn(20, seed=4)
    first, second, third = Chain(places), Chain(places), Chain(places)
    ours = scan_answers(queries, first, scorer=SCORER, cache=cache)
    again = scan_answers(queries, second, scorer=SCORER, cache=cache)
    assert second.calls == []
    assert [s.levels for s in ours.scans] == [s.levels for s in again.scans]
    scan_answers(queries, third, scorer=SCORER, cache=cache, chain="another prompt")
    assert len(third.calls) == len(first.calls) > 20
    renamed = [
        replace(q, snippets=[replace(x, id=f"new {i}") for i, x in enumerate(q.snippets)])
        for q in queries
    ]
    scan_answers(renamed, second, scorer=SCORER, cache=cache)  # it knows texts, not ids
    assert second.calls == []
    with pytest.raises(ValueError, match="chain is missing, but the cache .* give chain="):
        scan_answers(queries, lambda question, snippets: "a", scorer=SCORER, cache=cache)


def test_the_whole_context_is_asked_twice_also_with_a_cache(cache):
    answers = iter(["one", "two"])
    scan = scan_of(scored([0.1]), lambda q, s: next(answers), chain="moody", cache=cache)
    assert (scan.references, scan.needed) == (("one",), math.inf)


@pytest.mark.slow
def test_after_a_kill_nothing_is_asked_twice(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, sys
        from conformal_retrievers.answers import scan_answers
        from conformal_retrievers.llm import Cache
        from tests.answers.chains import SCORER, Chain, drawn
        queries, places = drawn(40, seed=5)
        chain = Chain(places)
        def answer(question, snippets):
            found = chain(question, snippets)
            with open({str(tmp_path / "calls")!r}, "a") as file:
                file.write(repr((question, [s.id for s in snippets])) + chr(10))
            if len(sys.argv) > 1 and len(chain.calls) == 30:
                os.kill(os.getpid(), 9)
            return found
        cache = Cache({str(tmp_path / "answers.db")!r})
        scan_answers(queries, answer, scorer=SCORER, chain="c", cache=cache, concurrency=1)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script, "kill"], env={**os.environ}, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", script], check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    queries, places = drawn(40, seed=5)
    whole = Chain(places)
    scan_answers(queries, whole, scorer=SCORER)
    assert len(calls) == len(whole.calls) + 1  # the one under way when the process was killed


def test_the_number_of_calls_is_said_before_the_first(caplog):
    caplog.set_level("INFO")
    chain, queries = Chain(), [scored([0.1, 0.2, 0.3], 1), scored([0.1, 0.1], 2)]
    scan_answers(queries, chain, scorer=SCORER)
    assert "2 questions take at most 8 calls" in caplog.text
    scan_answers([scored([0.1, 0.2])], chain, scorer=SCORER)
    assert "1 questions take at most 4 calls of chain that needs one place, fewer" in caplog.text
    assert "about 13 tokens of snippets" in caplog.text  # of (22 + 22 + 11) / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"expected": {scored([0.1]).query: empty}}, "give a reference answer or several, or")
            for empty in ("", " ", ["Paris", ""], [], [1990], b"Paris", 3, None, {"a": 1})
        ),
        ({"expected": {}}, "expected has no reference for 'What is thing 0"),
        ({"expected": "Paris"}, "expected is 'Paris'; give reference answers by question, a dict"),
        ({"same": "text"}, "same is 'text'; give a function"),
        ({"chain": "bell\a"}, r"answer: name is 'bell\\x07'"),
        ({"cache": "answers.db"}, "cache is 'answers.db'; give Cache"),
        ({"concurrency": 0}, "concurrency is 0; give a whole number"),
        ({"scorer": 3}, "scorer is 3; give an object with an attribute name"),
        ({"queries": [scored([0.1])] * 2}, "independent queries"),
        ({"queries": [replace(scored([0.1]), split="x")]}, "is cut into sentences; give whole"),
        ({"scorer": None}, "no snippet has a hit .* give scorer="),
    ],
)
def test_bad_arguments_are_named(options, message):
    chain = Chain()
    arguments = {"queries": [scored([0.1])], "answer": chain, "scorer": SCORER, **options}
    with pytest.raises((TypeError, ValueError), match=message):
        scan_answers(**arguments)
    assert chain.calls == []


def test_silence_from_no_snippet_is_an_answer(cache):
    query = scored([0.1])
    options = {"expected": {query.query: "Paris"}, "cache": cache}
    for _ in range(2):
        scan = scan_of(query, lambda q, s: "Paris" if s else "", chain="c", **options)
        assert [level.answer for level in scan.levels] == ["Paris", ""]
        assert scan.needed == 0.1


def test_what_the_answer_needed_can_be_read_as_judged_queries_that_nobody_judged():
    queries, places = drawn(50, seed=6)
    scans = scan_answers(queries, Chain(places), scorer=SCORER)
    marked = [q for q in scans.judged if any(q.relevant)]
    assert len(marked) > 10
    for query in marked:
        needed = [s.text for s, lost in zip(query.snippets, query.relevant, strict=True) if lost]
        assert any(text.endswith(f"place {places[query.query]}") for text in needed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = calibrate(marked, SCORER, alpha=0.2, labels=scans.labels, on_unscorable="keep")
    assert "Nobody judged relevance: relevant is a snippet without which" in made.statement


def test_verdicts_go_to_the_judging_page(tmp_path):
    queries, places = drawn(20, seed=7)
    scans = scan_answers(queries, Chain(places), scorer=SCORER)
    write_jsonl(scans.verdicts, tmp_path / "verdicts.jsonl")
    read = read_jsonl(tmp_path / "verdicts.jsonl")
    texts = {(s.text, r) for q in read for s, r in zip(q.snippets, q.relevant, strict=True)}
    assert texts <= {("Paris", True), ("unknown", True), ("unknown", False)}
    assert any("Reference: Paris" in query.query for query in read)


# --- comparisons ----------------------------------------------------------------------------------


def judge(otherwise, asked=None, controls=CONTROLS):
    """Return a comparison by an LLM that knows controls, and says one word about all else."""
    asked = [] if asked is None else asked

    def complete(request):
        asked.append(request)
        known = [same for _, *pair, same in controls if all(text in request.user for text in pair)]
        verdict = otherwise if not known else "yes" if known[0] else "no"
        return Reply(json.dumps({"reasoning": "…", "verdict": verdict}))

    return llm_same(LLM(complete, "judge"))


def test_an_llm_compares_what_differs_in_words_only():
    asked = []
    same = judge("yes", asked)
    assert same("Where?", "Paris.", "paris")
    assert not asked
    assert same("Where?", "It is in France's capital", "Paris")
    assert len(asked) == 1
    assert "capital" in asked[0].user
    assert same.name.startswith("llm_same(judge, prompt=")


def test_the_number_of_calls_that_is_said_counts_those_of_an_llm_that_compares(caplog):
    query, same = scored([0.1], 1), judge("no")
    expected = {query.query: ["Rome", "Oslo", "Lima"]}
    with caplog.at_level("INFO"):
        scan_answers([query], Chain(0), scorer=SCORER, same=same, expected=expected)
    # three contexts, of all twice and of none, each with an answer and four comparisons
    assert "take at most 3 calls of chain that needs one place and 12 of llm_same(" in caplog.text


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("yes", "'It is Berlin.' and 'Paris' are equal"),
        ("no", "different"),
        ("perhaps", "did not say whether two answers agree"),
    ],
)
def test_an_llm_that_says_the_same_of_each_pair_is_refused_before_anything_is_scored(
    verdict, words
):
    seen, chain, same = [], Chain(0), judge(verdict, controls=())
    scorer = FunctionScorer(lambda query, texts: seen.append(query), "unused")
    with pytest.raises(ValueError, match=f"{words}.*give llm_same another LLM"):
        scan_answers([scored([0.1, 0.2], 1)], chain, scorer=scorer, same=same)
    assert not seen
    assert not chain.calls


def test_a_comparison_without_a_verdict_leaves_the_question_out():
    queries = [scored([0.1, 0.2], 1), scored([], 2)]
    scans = scan_answers(queries, Chain(0), scorer=SCORER, same=judge("perhaps"))
    assert [*scans.failed] == [query.query for query in queries[:1]]
    assert "did not say whether two answers agree" in scans.failed[queries[0].query]


@pytest.mark.parametrize(
    ("answer", "reference", "same", "has"),
    [
        ("It is the Eiffel Tower, in Paris", "Eiffel Tower", False, True),
        ("?", "!", False, False),
        ("東京", "東 京", True, True),
        ("1,990年に東京で", "1990年に東京", False, True),
        ("気温は-5度", "5度", False, False),
        ("二十五年、3万5千円", "十五年、3万5千円", False, False),
        ("١٬٠٠٠٫٥ ΔΥΟ ΕΤΗ ๓", "1000.5 Δύο Έτη 3", True, True),
        ("กรุงเทพฯ มี", "เทพ", False, True),
        ("It is not in “Paris”.", "Paris", False, True),
        ("3.14", "314", False, False),
        ("C#", "C", False, False),
        ("Caf\u0065\u0301", "caf\u00e9", True, True),
        ("The U.S.A.", "USA", True, True),
        ("You need plan B.", "Plan A", False, False),
        ("Answer: B, not a C", "A", False, False),
        ("It is A.", "A", False, True),
        ("A is correct.", "A", False, True),
        ("A car. A red one", "a car, a red one", True, True),
        ("It is 19,99 €", "99 €", False, False),
        ("≤ 5", "≥ 5", False, False),
        ("10 %", "10", False, True),
        ("✓ wine", "✗ wine", False, False),
        ("ls -a", "ls", False, True),
        ("THE DANUBE", "Danube", True, True),
        ("AB-", "AB", False, False),
        ("AB--that is rare", "AB", False, True),
        ("short- and long-term", "short and long-term", True, True),
        ("-$5", "$5", False, False),
        ("\u20135", "\u22125", True, True),
        ("10³", "103", False, False),
        ("10³", "10^3", True, True),
        ("ไม่", "ไม้", False, False),
        ("की", "कि", False, False),
    ],
)
def test_texts_are_compared_as_squad_compares_them(answer, reference, same, has):
    assert same_text("", answer, reference) is same
    assert has_answer("", answer, reference) is has


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("returned", [7, None])
def test_an_answer_that_is_no_text_stops_the_scan_whatever_failed(returned, concurrency):
    """At once, the last question to start is the first to end: the others wait for it."""
    ended = threading.Event()
    queries = [scored([0.1], i) for i in range(4)]

    def answer(question, snippets):
        if question == queries[-1].query:
            ended.set()
            return returned
        if concurrency == 1:
            return "yes"
        ended.wait()
        raise TimeoutError("the server sleeps")

    with pytest.raises(TypeError, match=f"answer returned {returned} to 'What is .* 3"):
        scan_answers(queries, answer, scorer=SCORER, concurrency=concurrency)
