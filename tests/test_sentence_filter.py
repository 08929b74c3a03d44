"""The filter of sentences: passages, neighbours, options, and what it refuses."""

import asyncio
import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from pages import NAME, NUMBER, asked, by_line, page

from conformal_retrievers import CalibrationMismatch, ConformalFilter, NothingKept, calibrate
from conformal_retrievers.data import Snippet
from conformal_retrievers.data.ranges import Range
from conformal_retrievers.data.sentences.cutting import Splitter, splitter
from conformal_retrievers.monitoring import event_of
from conformal_retrievers.monitoring.events import annotate_span, check_event
from conformal_retrievers.results import Unscorable
from conformal_retrievers.sentence_filter import SentenceFilter, open_filter

JUDGED = [asked(str(i), [[i, 9]], {0: [0]}, k=2) for i in (1, 2, 3, 4, 5)]
PAGES = [page("a", 9, 1, 8, 7, 4), page("b", 7, 8), page("c", 4, 2)]


def calibrated(alpha=0.4, **options):
    """The threshold is 4 at alpha = 0.4, and +inf at 0.1."""
    judged = [replace(query, k=None) for query in JUDGED]
    return calibrate(judged, NUMBER, alpha=alpha, **{"split": "sentences", **options})


def filter_of(alpha=0.4, **options):
    return SentenceFilter(NUMBER, calibrated(alpha), **options)


def texts(pruned):
    return [(one.document, one.text) for one in pruned.passages]


def test_kept_sentences_come_back_in_their_documents():
    before = copy.deepcopy(PAGES)
    pruned = filter_of()("Which?", PAGES)
    assert texts(pruned) == [(0, "The number is 1. … The number is 4."), (2, PAGES[2].text)]
    ranges = [((17, 33), (68, 84)), ((0, len(PAGES[2].text)),)]
    assert [one.ranges for one in pruned.passages] == ranges
    assert pruned.scores.tolist() == [9, 1, 8, 7, 4, 7, 8, 4, 2]
    assert pruned.kept.tolist() == [1, 4, 7, 8]
    assert (pruned.m1, pruned.m2) == (1, 4 / 9)
    assert before == PAGES


def test_neighbours_are_kept_and_do_not_count_in_m1_and_m2():
    alone, pruned = filter_of()("Which?", PAGES), filter_of(neighbours=1)("Which?", PAGES)
    assert pruned.kept.tolist() == [0, 1, 2, 3, 4, 7, 8]  # not those of other documents
    assert (pruned.m1, pruned.m2) == (alone.m1, alone.m2)
    assert texts(pruned) == [(0, PAGES[0].text), (2, PAGES[2].text)]


def test_all_sentences_of_all_documents_are_scored_at_once_with_their_place():
    asked_for = []

    class Recorder:
        name = "number"

        def score(self, query, snippets):
            asked_for.append((query, snippets))
            return [0.0] * len(snippets)

    SentenceFilter(Recorder(), calibrated())("Which?", PAGES[1:])
    [(query, snippets)] = asked_for
    assert query == "Which?"
    places = [(s.document, s.position) for s in snippets]
    assert places == [("b", 0), ("b", 17), ("c", 0), ("c", 17)]


async def test_asynchronous_equals_synchronous():
    conformal = filter_of(neighbours=1)
    one = conformal("Which?", PAGES)
    for other in await asyncio.gather(*(conformal.acall("Which?", PAGES) for _ in range(3))):
        assert other.passages == one.passages
        np.testing.assert_array_equal(other.scores, one.scores)
    with pytest.raises(TypeError, match="query"):
        await conformal.acall(None, PAGES)


def test_if_no_sentence_passes_or_has_a_score_the_options_say_what_happens():
    only = [page("a", 9, 8, 7, 8), page("b", 9)]
    assert filter_of()("Which?", only).passages == ()
    best = filter_of(on_empty="keep_best")("Which?", only)
    assert texts(best) == [(0, "The number is 7.")]
    assert (best.m1, best.m2) == (0, 0)
    best = filter_of(on_empty="keep_best", neighbours=1)("Which?", only)
    assert texts(best) == [(0, "The number is 8. The number is 7. The number is 8.")]
    with pytest.raises(NothingKept, match="sentences") as raised:
        filter_of(on_empty="raise")("Which?", only)
    assert raised.value.filtered.passages == ()
    assert raised.value.of(raised.value.filtered.calibration)
    with pytest.raises(Unscorable, match=r"sentences \[1\]") as raised:
        filter_of(on_unscorable="raise")("Which?", [page("a", 9, "none", 8)])
    assert texts(raised.value.filtered) == [(0, "The number is none.")]


def test_another_alpha_keeps_the_options_and_is_remembered():
    conformal = filter_of(neighbours=1, on_empty="keep_best", on_unscorable="raise")
    other = conformal.at(0.5)
    assert other is conformal.at(0.5)
    assert isinstance(other, SentenceFilter)
    assert other.calibration.alpha == 0.5
    for name in ("scorer", "splitter", "neighbours", "on_empty", "on_unscorable"):
        assert getattr(other, name) == getattr(conformal, name)
    assert conformal.calibration.alpha == 0.4
    for risky in (conformal.at, lambda a: open_filter(calibrated_whole(), NUMBER, alpha=a)):
        with pytest.warns(UserWarning, match="alpha is 0.9, .* give alpha=0.1"):
            risky(0.9)
    assert isinstance(ConformalFilter(NUMBER, calibrated_whole()).at(0.5), ConformalFilter)


def calibrated_whole():
    fields = {"evidence": (), "k": None, "retriever": "mine"}
    first = [replace(query, snippets=[page(query.id, query.id)], **fields) for query in JUDGED]
    return calibrate(first, NUMBER, alpha=0.4)


def test_k_is_the_number_of_documents():
    calibration = calibrate(JUDGED, NUMBER, alpha=0.4, split="sentences")
    assert calibration.k == 2
    conformal = SentenceFilter(NUMBER, calibration)
    conformal("Which?", PAGES[:2])  # seven sentences, without a warning
    with pytest.warns(UserWarning, match="k = 2"):
        conformal("Which?", PAGES)


def test_a_calibration_of_sentences_and_a_filter_of_snippets_refuse_each_other(tmp_path):
    sentences, whole = calibrated(), calibrated_whole()
    sentences.save(tmp_path / "c.json")
    for use in (
        lambda: ConformalFilter(NUMBER, sentences),
        lambda: ConformalFilter.of(sentences, NUMBER),
        lambda: open_filter(tmp_path / "c.json", NUMBER),
    ):
        with pytest.raises(CalibrationMismatch, match="SentenceFilter.*split='sentences'"):
            use()
    for use in (
        lambda: SentenceFilter(NUMBER, whole),
        lambda: SentenceFilter.of(whole, NUMBER),
        lambda: open_filter(whole, NUMBER, split="sentences"),
        lambda: open_filter(sentences, NUMBER, split=by_line),
    ):
        with pytest.raises(CalibrationMismatch, match=r"split is .*(sentences|by_line)"):
            use()


def test_another_version_of_the_splitter_is_refused():
    newer = Splitter(NAME.replace("1000", "999"), splitter("sentences").find)
    with pytest.raises(CalibrationMismatch, match=r"split is .*999.*1000"):
        SentenceFilter(NUMBER, calibrated(), newer)


def test_a_splitter_of_the_users_own():
    judged = [
        replace(q, snippets=[Snippet(f"The number is {q.id}.\nThe number is 9.", id=f"{q.id}-0")])
        for q in JUDGED
    ]
    calibration = calibrate(judged, NUMBER, alpha=0.4, split=by_line)
    assert calibration.split.endswith("by_line")
    conformal = open_filter(calibration, NUMBER, split=by_line)
    pruned = conformal("Which?", ["The number is 9.\nThe number is 1.\nThe number is 9."])
    assert [one.ranges for one in pruned.passages] == [(Range(17, 33),)]


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"neighbours": -1}, ValueError, "neighbours"),
        ({"neighbours": True}, ValueError, "neighbours"),
        ({"split": "words"}, ValueError, "split"),
    ],
)
def test_invalid_options_are_refused_by_name(options, error, field):
    with pytest.raises(error, match=field):
        filter_of(**options)
    with pytest.raises(error, match=field):
        open_filter(calibrated(), NUMBER, **{"split": "sentences", **options})


def test_neighbours_need_a_split_and_a_filter_a_calibration():
    with pytest.raises(ValueError, match="split"):
        open_filter(calibrated_whole(), NUMBER, neighbours=1)
    with pytest.raises(TypeError, match="path is None; give the path of a calibration's file"):
        open_filter(None, NUMBER)


def test_scores_are_decided_on_with_their_sentences():
    conformal = filter_of()
    pruned = conformal("Which?", PAGES)
    assert conformal.decide_on(pruned.sentences, pruned.scores).passages == pruned.passages
    assert not hasattr(conformal, "decide")
    with pytest.raises(ValueError, match="scores"):
        conformal.decide_on(pruned.sentences, pruned.scores[1:])
    with pytest.raises(CalibrationMismatch, match="split"):
        conformal.decide_on(replace(pruned.sentences, split="lines"), pruned.scores)


def test_the_event_has_the_split_and_the_kept_ranges_and_no_text():
    event = event_of(filter_of(neighbours=1)("Which?", PAGES[:2]), query="Which?")
    assert (event["split"], event["documents"], event["k"]) == (NAME, 2, 7)
    assert event["kept_ranges"] == [{"document": 0, "ranges": [[0, len(PAGES[0].text)]]}]
    assert "number is" not in str(event)
    assert check_event(event, "here") == event
    whole = event_of(ConformalFilter(NUMBER, calibrated_whole())("Which?", [page("a", 1)]))
    assert {"split", "kept_ranges", "documents"}.isdisjoint(whole)


def test_a_document_that_occurs_twice_is_warned_of():
    with pytest.warns(UserWarning, match="an id occurs twice"):
        filter_of()("Which?", PAGES[:1] * 2)


def test_at_an_infinite_threshold_documents_come_back_unchanged():
    pruned = filter_of(alpha=0.1)("Which?", PAGES)
    assert pruned.threshold == math.inf
    assert texts(pruned) == [(i, one.text) for i, one in enumerate(PAGES)]


def test_a_span_has_the_name_of_the_splitter(tracing):
    exporter, provider = tracing
    for conformal in (filter_of(), ConformalFilter(NUMBER, calibrated_whole())):
        with provider.get_tracer("test").start_as_current_span("filter"):
            annotate_span(conformal("Which?", [page("a", 1)]))
    one, other = (span.attributes for span in exporter.get_finished_spans())
    assert one["conformal.split"] == NAME
    assert "conformal.split" not in other
