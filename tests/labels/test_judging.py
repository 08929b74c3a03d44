"""Judging: what a person sees, what is written, and what is refused."""

import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest
from judging import finish, queries

from conformal_retrievers.data import Evidence, JudgedQuery, read_jsonl
from conformal_retrievers.labels import read_labels, write_labelled
from conformal_retrievers.labels.judging import Judging
from conformal_retrievers.labels.judging.sample import draw


@pytest.fixture
def out(tmp_path):
    return tmp_path / "judged.jsonl"


@pytest.fixture
def begin(out):
    """A function that begins a judging, which ends with the test."""
    with ExitStack() as ends:
        yield lambda q, **options: ends.enter_context(closing(Judging(q, out, **options)))


def number_of(judging, place):
    return judging.sample.order.index(place)


def mark(judging, place, marks, done=True):
    number = number_of(judging, place)
    return judging.mark(number, marks, done=done, version=judging.question(number)["version"])


# --- what a person sees ---------------------------------------------------------------------------


def test_few_snippets_are_all_shown_and_of_many_the_marked_ones_and_a_share():
    assert draw(queries(3, 10), None, 0).shown == (tuple(range(10)),) * 3
    sample = draw(queries(3, 31, marked=[4, 9, 30]), None, 0)
    assert sample.share == 0.2
    for shown in sample.shown:
        assert {4, 9, 30} <= set(shown)
        assert len(shown) == 3 + 6  # ⌈0.2 · 28⌉
        assert list(shown) == sorted(shown)


def test_without_marks_everything_is_shown():
    assert draw(queries(2, 30, marked=[]), None, 0).shown == (tuple(range(30)),) * 2
    with pytest.raises(ValueError, match="share"):
        draw(queries(2, 30, marked=[]), 0.5, 0)
    with pytest.raises(ValueError, match="snippets"):
        draw([JudgedQuery("q", [], [])], None, 0)


def test_a_second_person_sees_the_same_snippets_in_the_same_order(tmp_path):
    samples = []
    for name in ("ann", "ben"):
        with closing(Judging(queries(5, 30), tmp_path / f"{name}.jsonl", by=name)) as judging:
            samples.append(judging.sample)
    assert samples[0] == samples[1]


def test_every_unmarked_snippet_is_as_likely_to_be_shown():
    """Each of 10 is in 2,000 samples of 3 about 600 times: 5 standard errors are 102."""
    judged = queries(1, 11)
    counts = np.zeros(11)
    for seed in range(2000):
        counts[list(draw(judged, 0.3, seed).shown[0])] += 1
    assert counts[0] == 2000
    assert np.abs(counts[1:] - 600).max() < 102


# --- what is written ------------------------------------------------------------------------------


def test_a_question_is_written_once_the_person_goes_on_from_it(begin, out):
    judging = begin(queries())
    mark(judging, 1, [False, True, True, False], done=False)
    assert not out.exists()
    mark(judging, 1, [False, True, True, False])
    (query,) = read_jsonl(out)
    assert query == replace(queries()[1], relevant=(False, True, True, False))
    mark(judging, 1, [False, False, True, False], done=False)  # gone back, and changed
    assert read_jsonl(out)[0].relevant == (False, False, True, False)
    mark(judging, 0, [True, False, False, False])
    assert [q.id for q in read_jsonl(out)] == ["q0", "q1"]  # in the order of the file


def test_it_goes_on_where_it_was_and_asks_what_is_added_to_the_file_after_that(out):
    judging = Judging(queries(3, 20), out, by="Ann")
    before, unsure = judging.sample, [None] + [False] * (len(judging.sample.shown[0]) - 1)
    mark(judging, 1, [True] * len(before.shown[1]))
    mark(judging, 0, unsure, done=False)
    written = judging.judged()
    judging.close()
    for more in (queries(8, 20), queries(8, 20), queries(9, 20)):  # it grows, goes on, grows again
        judging = Judging(more, out, by="Ann")
        assert judging.sample.order[:3] == before.order
        asked = judging.question(number_of(judging, 0))
        assert (asked["marks"], asked["version"], judging.n_done) == (unsure, 1, len(written))
        assert sorted(judging.sample.order) == [*range(len(more))]
        assert {len(shown) for shown in judging.sample.shown} == {len(before.shown[0])}
        assert judging.judged() == read_jsonl(out) == written
        place = 2 + len(written)
        mark(judging, place, [True] * len(judging.sample.shown[place]))
        written = judging.judged()
        judging.close()
    assert [query.id for query in read_jsonl(out)] == ["q1", "q3", "q4", "q5"]
    assert read_labels(out)["of"] == 9
    with pytest.raises(ValueError, match="queries"):
        Judging(queries(8, 20), out, by="Ann")


def test_snippets_that_are_not_shown_keep_their_judgement(begin, out):
    judging = begin(queries(1, 20, marked=[0, 5]))
    shown = judging.sample.shown[0]
    mark(judging, 0, [i != 5 for i in shown])
    (query,) = read_jsonl(out)
    assert query.relevant == tuple(i in shown and i != 5 for i in range(20))
    seen = json.loads(out.with_name("judged.labels.json").read_text())["seen"]
    assert seen == [{"seen": list(shown), "given": [i in (0, 5) for i in shown]}]


def test_a_question_with_an_unsure_snippet_is_left_out_and_counted(begin, out):
    judging = begin(queries())
    mark(judging, 0, [True, None, False, False])
    mark(judging, 1, [True, False, False, False])
    assert [query.id for query in judging.unsure] == ["q0"]
    assert [query.id for query in read_jsonl(out)] == ["q1"]
    labels = read_labels(out)
    assert (labels["queries"], labels["unsure"], labels["of"]) == (1, 1, 3)
    mark(judging, 0, [True, True, False, False])  # they made up their mind
    assert [query.id for query in read_jsonl(out)] == ["q0", "q1"]
    assert read_labels(out)["unsure"] == 0


def test_a_question_without_snippets_is_asked_for_and_written(begin, out):
    mark(begin([*queries(1), JudgedQuery("Nothing?", [], [], missed=2)]), 1, [])
    assert read_jsonl(out) == [JudgedQuery("Nothing?", [], [], missed=2)]


def test_a_question_in_which_something_is_relevant_is_answerable(begin, out):
    judging = begin([replace(queries(1, marked=[])[0], answerable=False)])
    mark(judging, 0, [False] * 4)
    assert not read_jsonl(out)[0].answerable
    mark(judging, 0, [True] + [False] * 3)
    assert read_jsonl(out)[0].answerable


@pytest.mark.parametrize(("marked", "missed"), [([], None), ([1], 0)])
def test_that_nothing_is_missed_is_unknown_where_nothing_was_marked(marked, missed, begin, out):
    finish(begin([replace(q, missed=0) for q in queries(1, marked=marked)]))
    assert read_jsonl(out)[0].missed == missed


def test_the_record_says_who_judged_and_what_was_given(begin, out):
    given = {"source": "LLM", "questions": "synthetic"}
    judging = begin(queries(), by="Ann", given=given)
    finish(judging)
    labels = read_labels(out)
    assert (labels["source"], labels["by"], labels["questions"]) == ("person", "Ann", "synthetic")
    assert labels["given"] == given
    assert labels["sample"] == {"share": 1.0, "seed": judging.sample.seed}
    assert labels["audit"]["precision"][0] == labels["audit"]["agreement"][0] == 1


def test_the_record_of_queries_without_marks_has_no_audit(begin, out):
    judging = begin(queries(marked=[]), given={"questions": "synthetic"})
    finish(judging, lambda question, given: [True, *given[1:]])
    assert read_labels(out).keys() == {"source", "by", "queries", "unsure", "of", "questions"}
    judging.close()
    with pytest.raises(ValueError, match="after number 3 have marks"):
        begin([*queries(marked=[]), replace(queries(1)[0], query="new", id="new")])


def test_the_rate_of_missed_snippets_by_hand(begin, out):
    """One query of 21: one marked rightly; of 20 unmarked ones, 4 are shown, one is relevant.

    It stands for 5 relevant ones, of which 4 stay unmarked, of 6 relevant ones in all.
    """
    judging = begin(queries(1, 21), share=0.2)
    assert len(judging.sample.shown[0]) == 5
    mark(judging, 0, [True, True, False, False, False])
    audit = read_labels(out)["audit"]
    assert (audit["audited"], audit["of"]) == (5, 21)
    assert audit["miss_rate"][0] == pytest.approx(5 / 6)
    assert audit["remaining_miss_rate"][0] == pytest.approx(4 / 6)


# --- what is refused ------------------------------------------------------------------------------


def test_other_queries_another_person_or_share_are_refused(out):
    Judging(queries(3, 20), out, by="Ann").close()
    for change, match in [
        ({"queries": queries(2, 20)}, "queries: .*marks.sqlite was begun with other.* at its end"),
        ({"queries": queries(4, 20)[1:]}, "queries"),
        ({"queries": queries(3, 20, marked=[1])}, "queries"),
        ({"by": "Ben"}, "by"),
        ({"share": 0.5}, "share"),
    ]:
        given = {"queries": queries(3, 20), "by": "Ann", **change}
        with pytest.raises(ValueError, match=match):
            Judging(given.pop("queries"), out, **given)
    Judging(queries(3, 20), out, by="Ann", share=0.2).close()  # as it was begun


def test_a_file_that_judging_did_not_write_is_never_overwritten(out):
    out.write_text("precious")
    with pytest.raises(FileExistsError, match="--out"):
        Judging(queries(), out)
    assert out.read_text() == "precious"


def test_a_file_that_was_edited_is_not_written_over(out):
    judging = Judging(queries(), out)
    mark(judging, 0, [True] * 4)
    record = out.with_name("judged.labels.json")
    before, edited = record.read_bytes(), out.read_text().replace("true", "false", 1)
    mark(judging, 0, [False] * 4)
    judging.close()
    record.write_bytes(before)  # as if the process was killed between the two files
    Judging(queries(), out).close()
    out.write_text(edited)
    for _ in range(2):  # the journal is given back
        with pytest.raises(FileExistsError, match="was edited"):
            Judging(queries(), out)
    assert out.read_text() == edited


def test_marks_are_on_the_disk_and_not_only_handed_to_the_system(begin):
    assert begin(queries()).journal._file.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA


def test_a_folder_that_does_not_exist_is_named_with_a_remedy(tmp_path):
    with pytest.raises(OSError, match="absent.*--out"):
        Judging(queries(), tmp_path / "absent" / "judged.jsonl")


@pytest.mark.parametrize("other", ["text", "database"])
def test_another_file_in_the_journals_place_is_refused(other, out):
    journal = out.with_name("judged.marks.sqlite")
    if other == "text":
        journal.write_text("precious " * 100)
    else:
        with sqlite3.connect(journal) as database:
            database.execute("CREATE TABLE t (x)")
        database.close()
    content = journal.read_bytes()
    with pytest.raises(ValueError, match=r"marks\.sqlite"):
        Judging(queries(), out)
    assert journal.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE plan SET fields = 'null'",
        "UPDATE plan SET fields = json_set(fields, '$.order[0]', 99)",
        "UPDATE plan SET fields = json_set(fields, '$.shown[0][0]', 99)",
        "UPDATE events SET question = 99",
        "UPDATE events SET marks = NULL",
        "UPDATE events SET marks = '[true]'",
        "DROP TABLE events",
    ],
)
def test_a_journal_that_was_changed_is_one_error_that_names_it(change, out):
    judging = Judging(queries(), out)
    mark(judging, 0, [True] * 4)
    judging.close()
    database = sqlite3.connect(out.with_name("judged.marks.sqlite"), isolation_level=None)
    database.execute(change)
    database.close()
    for _ in range(2):  # the journal is given back
        with pytest.raises(ValueError, match=r"marks\.sqlite (was changed|is not a journal)"):
            Judging(queries(), out)


def test_a_second_judging_of_the_same_file_is_refused_until_the_first_ends(out):
    for _ in ("a new file", "one that was begun"):
        first = Judging(queries(), out)
        with pytest.raises(BlockingIOError, match="--out"):
            Judging(queries(), out)
        first.close()


def test_evidence_and_a_name_with_control_characters_are_refused(out):
    with pytest.raises(ValueError, match="evidence"):
        Judging([replace(queries(1)[0], evidence=(Evidence("page 0", 0, 3),))], out)
    with pytest.raises(ValueError, match="by"):
        Judging(queries(), out, by="a\x1b[2J")


@pytest.mark.parametrize("marks", [[True], [True] * 5, [1, 0, 0, 0], ["x"] * 4])
def test_marks_of_another_number_or_kind_change_nothing(marks, begin):
    judging = begin(queries())
    with pytest.raises(ValueError, match="marks"):
        mark(judging, 0, marks)
    assert judging.n_done == 0


def test_marks_on_what_another_window_changed_are_not_stored(begin):
    judging = begin(queries())
    assert judging.mark(0, [True] * 4, done=True, version=0)
    assert not judging.mark(0, [False] * 4, done=True, version=0)
    assert judging.question(0)["marks"] == [True] * 4


# --- the record beside a file ---------------------------------------------------------------------


def test_a_record_is_read_only_beside_the_queries_it_was_written_with(tmp_path):
    path = tmp_path / "judged.jsonl.gz"
    assert read_labels(tmp_path) is None
    write_labelled(queries(), {"source": "LLM"}, path)
    assert read_labels(path) == {"source": "LLM"}
    record = json.loads((tmp_path / "judged.jsonl.gz.labels.json").read_text())
    assert record["format"] == "conformal-retrievers/labels"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match="judged"):
        read_labels(path)
    (tmp_path / "judged.jsonl.gz.labels.json").unlink()
    assert read_labels(path) is None
