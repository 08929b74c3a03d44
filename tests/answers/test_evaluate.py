"""Filters are compared by what the chain answers, paired by question."""

import math
from dataclasses import replace

import markupsafe
import numpy as np
import pytest

from conformal_retrievers import ConformalFilter, FunctionScorer, calibrate, score_queries
from conformal_retrievers.answers import calibrate_answers, evaluate_answers, f1, scan_answers
from conformal_retrievers.answers.calibrate import calibrate_scans
from conformal_retrievers.answers.chain import plain_chain
from conformal_retrievers.evaluation.power import coverage_p_value
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.llm import LLM, Reply
from tests.answers.chains import SCORER, Chain, dice, scored


def questions(n, seed, first=0):
    rng = np.random.default_rng(seed)
    queries = [scored(rng.normal(size=8).tolist(), first + i) for i in range(n)]
    places = {}
    for query in queries:
        order = np.argsort([float(snippet.text.split()[0]) for snippet in query.snippets])
        places[query.query] = int(order[rng.integers(3)])
    return queries, places


def asked(n=30, seed=1, **options):
    """A filter that is calibrated on 30 questions, n new ones, and a chain that answers all."""
    queries, places = questions(30, seed)
    new, of_new = questions(n, seed + 1, first=1000)
    chain = Chain(places | of_new)
    calibration = calibrate_answers(queries, chain, alpha=0.1, scorer=SCORER, **options)
    chain.calls.clear()
    return ConformalFilter(SCORER, calibration), new, chain


def test_what_the_filter_keeps_is_compared_with_a_top_k_of_as_many():
    conformal, new, chain = asked(200)
    expected = {query.query: "Paris" for query in new}
    found = evaluate_answers({"answers": conformal}, new, chain, expected=expected)
    whole, ours, top = found.measures
    assert found.same == "same_text (unchanged) and has_answer (right)"
    assert [whole, ours, top[:4]] == ["all snippets", "answers", "top "]
    by_hand = [
        chain(q.query, [q.snippets[i] for i in conformal(q.query, q.snippets).kept]) == "Paris"
        for q in new
    ]
    assert found.measures["answers"]["right"].tolist() == by_hand
    n_kept, k = (found.estimates[way]["snippets"].estimate for way in (ours, top))
    assert top == f"top {k:.0f}" == f"top {n_kept:.0f}"
    unchanged = [way["unchanged"].estimate for way in found.estimates.values()]
    assert unchanged[:2] == pytest.approx([1, np.mean(by_hand)])
    assert unchanged[1] > unchanged[2] + 0.2
    gap = found.compare("answers", top, "right")
    assert gap.difference.low > 0
    assert gap.needed < 200
    lines = str(found).splitlines()
    assert found.compare(top, "all snippets", "right").difference.high < 0
    assert "would tell" not in next(line for line in lines if line.startswith(f"{top} −"))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["snippets", "tokens", "unchanged,", "%", "right,", "%", "f1,", "%"]


def test_without_references_it_says_what_is_unchanged():
    conformal, new, chain = asked()
    found = evaluate_answers({"f": conformal}, new, chain)
    whole = found.measures["all snippets"]
    assert {*whole} == {"snippets", "tokens", "seconds", "unchanged"}
    assert all(0 <= seconds < 60 for seconds in whole["seconds"])
    unchanged = found.estimates["all snippets"]["unchanged"]
    assert (unchanged.estimate, unchanged.high) == (1, 1)
    assert 0.8 < unchanged.low < 0.95  # 30 of 30 do not prove that all are
    found = evaluate_answers({"f": conformal.at(0.01)}, new, chain)  # which keeps everything
    assert "f − all snippets, unchanged: no difference in 30 questions." in str(found)
    with pytest.raises(ValueError, match="'q0' was used to calibrate"):
        evaluate_answers({"f": conformal}, questions(1, seed=1)[0], chain)


def test_questions_that_calibrated_by_their_texts_are_noticed_under_other_ids():
    queries = [replace(query, id=query.query) for query in questions(30, seed=1)[0]]
    keep = ConformalFilter(SCORER, calibrate_answers(queries, Chain(), alpha=0.1, scorer=SCORER))
    with pytest.raises(ValueError, match="What is thing 0.* was used to calibrate"):
        evaluate_answers({"f": keep}, [replace(queries[0], id="new")], Chain())


def test_contexts_of_the_same_texts_are_told_apart_by_their_ids():
    conformal, (new,), _ = asked(1, chain="last id")
    twins = [replace(snippet, text="0.1") for snippet in new.snippets[:2]]
    scorer = FunctionScorer(lambda question, texts: [9.0, -9.0], "stated")
    ways = {"f": ConformalFilter(scorer, conformal.calibration)}  # which keeps the second
    queries = [replace(new, snippets=twins, relevant=[False] * 2)]
    shown = evaluate_answers(ways, queries, lambda q, s: s[-1].id if s else "", chain="last id")
    assert shown.measures["f"]["unchanged"].tolist() == [1]


def test_a_chain_that_throws_dice_shows_in_the_row_of_all_snippets():
    conformal, new, _ = asked(40, chain="c")
    given: list[str] = []

    def moody(question, snippets):
        given.append(question)
        return str(dice(question, len(given)) < 0.5)

    found = evaluate_answers({"f": conformal}, new, moody, chain="c", concurrency=1)
    assert found.estimates["all snippets"]["unchanged"].estimate < 0.8


def test_the_scan_and_the_evaluation_share_a_cache(cache):
    conformal, new, chain = asked(10)
    scan_answers(new, chain, scorer=SCORER, cache=cache)
    n = len(chain.calls)
    scan_answers(new, chain, scorer=SCORER, cache=cache)
    assert len(chain.calls) == n
    evaluate_answers({"f": conformal}, new, chain, cache=cache)
    assert all(len(ids) < 8 for _, ids in chain.calls[n:])


def test_f1_is_that_of_squad():
    assert f1("a b b", "b b c") == pytest.approx(0.8)
    assert f1("x", "y") == 0.0


def test_a_plain_chain_puts_the_snippets_before_the_question():
    requests = []

    def complete(request):
        requests.append(request)
        return Reply(" Paris\n")

    chain = plain_chain(LLM(complete, "toy"))
    query = scored([0.1, 0.2])
    assert chain(query.query, query.snippets) == "Paris"
    text = requests[0].user
    assert text.index("0.1 place 0") < text.index("0.2 place 1") < text.index("What is thing 0")
    assert chain.name.startswith("toy, prompt=")
    refusing = plain_chain(LLM(lambda request: Reply("no", "refusal"), "toy"))
    with pytest.raises(RuntimeError, match="toy gave no answer: refused"):
        refusing(query.query, query.snippets)


def test_a_picture_has_a_mark_for_each_way():
    plot = pytest.importorskip("conformal_retrievers.evaluation.plot").plot
    conformal, new, chain = asked()
    found = evaluate_answers({"my $filter$": conformal}, new, chain)
    (axes,) = plot(found).axes
    assert axes.get_ylabel() == "unchanged answers, %"
    assert [text.get_text() for text in axes.texts][:2] == ["all snippets", r"my \$filter\$"]
    assert [line.get_marker() for line in axes.lines] == ["s", "o", "s"]
    expected = {query.query: "Paris" for query in new}
    found = evaluate_answers({"f": conformal}, new, chain, expected=expected)
    assert plot(found).axes[0].get_ylabel() == "right answers, %"


def test_the_report_of_a_filter_has_a_section_of_answers(tmp_path):
    report = pytest.importorskip("conformal_retrievers.evaluation.report")
    _, new, chain = asked(seed=9)
    first = [True, *[False] * 7]
    own, judged = ([replace(q, relevant=first) for q in of] for of in (questions(30, 9)[0], new))
    by_relevance = calibrate(own, SCORER, alpha=0.5)
    found = evaluate_answers({"<b>": ConformalFilter(SCORER, by_relevance)}, new, chain)
    path = tmp_path / "report.html"
    report.write(path, by_relevance, score_queries(SCORER, judged), answers=found)
    page = path.read_text(encoding="utf-8")
    assert str(markupsafe.escape(found)) in page.replace("\xa0", " ")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    report.write(path, by_relevance, score_queries(SCORER, judged))
    assert path.read_text(encoding="utf-8").count("<img") == page.count("<img") - 1


def test_names_of_other_ways_are_refused_and_nothing_is_asked():
    conformal, new, chain = asked(5)
    for filters, message in (
        ({"all snippets": conformal}, "the name 'all snippets'; give another"),
        ({"top 3": conformal}, "the name 'top 3'; give another"),
        ([conformal], r"filters is \[.*; give filters by name"),
        ({"f": conformal.calibration}, r"filters\['f'\] is .*; give a filter, such as Conf"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            evaluate_answers(filters, new, chain)
    with pytest.raises(ValueError, match="queries is empty"):
        evaluate_answers({"f": conformal}, [], chain)
    assert chain.calls == []


def test_without_ids_it_says_that_it_cannot_verify():
    conformal, new, chain = asked(12)
    filters = {"a filter with a name that is far longer than a table has room for": conformal}
    found = evaluate_answers(filters, [replace(q, id=None) for q in new], chain)
    assert "Cannot verify that these data were held out" in str(found)
    assert max(map(len, str(found).splitlines()[:4])) == 80


def test_the_answers_of_another_chain_are_warned_of():
    conformal, new, chain = asked(5, chain="gpt, prompt 1")
    with pytest.warns(UserWarning, match="calibrated on the chain 'gpt, prompt 1', and"):
        assert evaluate_answers({"f": conformal}, new, chain).verdicts == {"f": None}


def test_equal_contexts_are_asked_about_once():
    conformal, new, chain = asked(1)
    evaluate_answers({"one": conformal, "two": conformal}, new, chain)
    contexts = [tuple(ids) for _, ids in chain.calls]
    assert len(contexts) == len(set(contexts)) + 1  # all snippets twice


@pytest.mark.parametrize(("right", "count_wrong"), [(False, False), (True, False), (True, True)])
def test_what_a_filter_by_answers_guarantees_is_tested(right, count_wrong):
    queries, places = questions(60, seed=1)
    new, of_new = questions(400, seed=2, first=1000)
    wrong = {query.query for query in [*queries, *new][::5]}
    expected = {q.query: "Rome" if q.query in wrong else "Paris" for q in [*queries, *new]}
    chain, options = Chain(places | of_new), {"expected": expected} if right else {}
    scans = scan_answers(queries, chain, scorer=SCORER, **options)
    of_answers = calibrate_scans(scans, alpha=0.25, count_wrong=count_wrong)
    unnamed = calibrate_scans(replace(scans, same="<lambda>"), alpha=0.25, count_wrong=count_wrong)
    filters = {n: ConformalFilter(SCORER, c) for n, c in (("f", of_answers), ("g", unnamed))}
    found = evaluate_answers(filters, new, chain, **options)
    will_do = found.measures["f"]["right" if right else "unchanged"].astype(bool)
    if right and not count_wrong:
        will_do = will_do[[q.query not in wrong for q in new]]
        still = found.estimates["f"]["still right"].estimate
        assert still == will_do.mean() > found.estimates["f"]["right"].estimate
        assert found.compare("f", "all snippets", "still right").difference.estimate == still - 1
    verdict = found.verdicts["f"]
    assert (verdict.coverage.estimate, verdict.coverage.n) == (will_do.mean(), len(will_do))
    assert verdict.p_value == coverage_p_value(of_answers, Share.of_units(will_do))
    assert f"f: {verdict}" in str(found).replace("\n", " ")
    never = evaluate_answers(filters, new, chain, same=lambda *texts: False, expected=expected)
    assert "f: untested: it is by group, keeps everything, or is about" in str(never)
    assert never.verdicts == {"f": None, "g": None}
    assert math.isnan(never.compare("f", "all snippets", "still right").needed)
