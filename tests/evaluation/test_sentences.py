"""Measures of sentences: top k of whole documents beside them, nouns, and what is refused."""

import re
from dataclasses import replace

import pytest
from pages import NAME, NUMBER, asked

from conformal_retrievers import CalibrationMismatch, SentenceFilter, calibrate, score_queries
from conformal_retrievers.data import Hit, JudgedQuery, ScoredQuery, by_sentence
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.evaluation import compare, diagnose, evaluate, report
from conformal_retrievers.evaluation.baselines import FILTER
from conformal_retrievers.evaluation.equal_recall import equal_recall
from conformal_retrievers.monitoring import FilterLog, Monitor, Observer, event_of, read_log

JUDGED = [asked(str(i), [[i, 9]], {0: [0]}) for i in (1, 2, 3, 4, 5)]
CALIBRATION = calibrate(JUDGED, NUMBER, alpha=0.4, split="sentences")  # its threshold is 4
NEW = [asked("a", [[9, 9], [3, 8, 9], [9]], {1: [0]}), asked("b", [[2, 7], [6]], {0: [0]})]


def scored_of(judged=NEW, count=lambda text: 1):
    return score_queries(NUMBER, by_sentence(judged, "sentences"), count_tokens=count)


def rows_of(scored):
    found = equal_recall(CALIBRATION, ScoredQueries.of(scored))
    return found, {re.sub(r"[0-9.]", "", row.name): row for row in found.rows}


def measured(row):
    return [round(estimate.estimate, 6) for estimate in row.measured.values()]


def test_top_k_passes_all_sentences_of_the_first_k_documents():
    scored = scored_of()
    assert [q.document_of.tolist() for q in scored] == [[0, 0, 1, 1, 1, 2], [0, 0, 1]]
    found, rows = rows_of(scored)
    assert measured(rows[FILTER]) == [1, 1, 1]  # 3 of the first, 2 of the second
    top = rows["top  of retriever"]  # all is found at k = 2: sentences 5 and 3
    assert (top.setting, measured(top)) == (2, [1, 4, 4])
    assert "Top k counts documents" in str(found)
    top = rows_of([replace(query, hits={}) for query in scored])[1]["top  of the list"]
    assert (top.setting, measured(top)) == (2, [1, 4, 4])


def test_in_the_fusion_documents_of_equal_rank_stay_apart():
    [query] = by_sentence(NEW[:1], "sentences")
    ranks = {"a-0": (0, 1), "a-1": (1, 0), "a-2": (2, 2)}
    both = [
        replace(s, hits=(Hit("x", ranks[s.document][0]), Hit("y", ranks[s.document][1])))
        for s in query.snippets
    ]
    _, rows = rows_of(score_queries(NUMBER, [replace(query, snippets=both)]))
    top = rows["top  of the fusion"]  # the documents 0 and 1 are equal: 0 comes first
    assert top.setting == 2
    assert rows["top  of y"].setting == 1
    assert [rows[f"top  of {name}"].measured["snippets"].estimate for name in ("x", "y")] == [5, 3]
    assert top.measured["snippets"].estimate == 5


def test_an_evaluation_speaks_of_sentences():
    result = evaluate(CALIBRATION, scored_of())
    assert result.coverage["query-recall"].estimate == 1
    assert (result.n_snippets, result.n_relevant, result.removal.estimate) == (9, 2, 1 - 2 / 9)
    assert "9 sentences, 2 of them relevant" in str(result)
    assert "snippets" not in str(result)
    lost = [replace(NEW[0], evidence=[*NEW[0].evidence, ("gone", 0, 1)]), NEW[1]]
    shallow = evaluate(CALIBRATION.at(0.2), scored_of(lost))
    assert "relevant sentences" in shallow.too_shallow
    assert shallow.n_missed == 1


def test_a_diagnosis_and_its_report_speak_of_sentences():
    scored = scored_of()
    found = diagnose(CALIBRATION, scored)
    assert "snippet" not in str(found)
    page = report.html(found, scored)
    assert "sentences" in page
    assert "snippet" not in re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)


def test_scores_of_whole_snippets_and_of_sentences_are_not_mixed():
    whole = [ScoredQuery([1.0], [True], id="w")]
    of_whole = type(CALIBRATION).from_scores(whole, alpha=0.4, scorer="number")
    for calibration, scored in ((CALIBRATION, whole), (of_whole, scored_of())):
        for use in (
            lambda c, s: evaluate(c, s),
            lambda c, s: diagnose(c, s),
            lambda c, s: compare(c, c, s),
            lambda c, s: Monitor(c).observe_judged(s[0]),
        ):
            with pytest.raises(CalibrationMismatch, match="split"):
                use(calibration, scored)
    with pytest.raises(ValueError, match="split"):
        evaluate(CALIBRATION, [*whole, *scored_of()])
    with pytest.raises(CalibrationMismatch, match="split"):  # before anything is scored
        evaluate(CALIBRATION, [JudgedQuery("q", ["a"], [True])])


def test_calibrations_of_sentences_are_compared():
    assert compare(CALIBRATION.at(0.7), CALIBRATION, scored_of())["query-recall"].estimate == -0.5


def test_a_monitor_and_a_log_take_decisions_about_sentences(tmp_path, caplog):
    conformal = SentenceFilter(NUMBER, CALIBRATION)
    observer = Observer(FilterLog(tmp_path / "filter.jsonl"))
    monitor = Monitor(CALIBRATION)
    with caplog.at_level("INFO", "conformal_retrievers"):
        for query in NEW:
            pruned = conformal(query.query, query.snippets)
            observer.observe(event_of(pruned, query=query.query))
            status = monitor.observe(pruned.scores)
    assert "kept 1 of 6 sentences" in caplog.text
    assert (status.counts.snippets, status.counts.kept) == (9, 2)
    events = list(read_log(tmp_path / "filter.jsonl"))
    assert [event["split"] for event in events] == [NAME, NAME]
    assert events[0]["kept_ranges"] == [{"document": 1, "ranges": [[0, 16]]}]
