"""Auditing a labeler: a stratified sample, the file that a person fills in, and the rates."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.labels import AuditReport, audit_report, audit_sample


def population(rng, n_queries=60, k=20):
    """Judged and scored queries, and the truth, which the labels miss at high scores."""
    judged, scored, truth = [], [], []
    for q in range(n_queries):
        relevant = rng.random(k) < 0.3
        scores = rng.normal(np.where(relevant, 0.0, 2.0), 1.0)
        labels = np.where(relevant, rng.random(k) > (scores > 1) * 0.6, rng.random(k) < 0.05)
        judged.append(JudgedQuery(f"query {q}", [f"{q} {i}" for i in range(k)], labels, id=str(q)))
        scored.append(ScoredQuery(scores, labels, id=str(q)))
        truth.append(relevant)
    return judged, scored, truth


def read(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows, delimiter=",", encoding="utf-8"):
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, ["audited", "query", "snippet", "id"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def fill_in(path, judged, truth):
    texts = {
        (query.query, snippet.text): is_true
        for query, relevant in zip(judged, truth, strict=True)
        for snippet, is_true in zip(query.snippets, relevant, strict=True)
    }
    rows = read(path)
    for row in rows:
        row["audited"] = "yes" if texts[row["query"], row["snippet"]] else "no"
    write(path, rows)


def audit(judged, scored, truth, path, **options):
    path.unlink(missing_ok=True)
    audit_sample(judged, scored, path, **options)
    fill_in(path, judged, truth)
    return audit_report(path, judged, scored)


# --- by hand --------------------------------------------------------------------------------------

# Two strata: one relevant label, which is right, and four irrelevant ones with tied scores.
JUDGED = [JudgedQuery("q", ["a", "b", "c", "d", "e"], [True] + [False] * 4)]
SCORED = [ScoredQuery([0.0] + [1.0] * 4, [True] + [False] * 4)]


@pytest.fixture
def by_hand(tmp_path, rng):
    """An audit of the relevant label and of two of the irrelevant ones, one of which is wrong."""
    path = tmp_path / "audit.csv"
    assert audit_sample(JUDGED, SCORED, path, share=0.5, rng=rng) == 3
    rows = read(path)
    wrong = next(row for row in rows if row["snippet"] != "a")
    for row in rows:
        row["audited"] = "yes" if row["snippet"] == "a" or row is wrong else "no"
    write(path, rows)
    return path


def test_rates_by_hand(by_hand):
    """Each of the two irrelevant labels stands for two: 1 found, 2 missed, 2 rejected."""
    report = audit_report(by_hand, JUDGED, SCORED)
    assert report.weights.sum() == 5
    assert report.agreement.estimate == pytest.approx(3 / 5)
    assert report.precision.estimate == 1
    assert report.miss_rate.estimate == pytest.approx(2 / 3)
    assert report.coverage(-1).estimate == 0
    assert report.coverage(0).estimate == pytest.approx(1 / 3)
    assert report.coverage(1).estimate == 1


def test_unscorable_snippets_are_a_stratum_of_their_own_and_kept(tmp_path, rng):
    scored = [ScoredQuery([0.0, math.nan, math.nan, math.nan, 1.0], JUDGED[0].relevant)]
    report = audit(JUDGED, scored, [[True] * 5], tmp_path / "a.csv", share=0.1, rng=rng)
    assert sorted(report.weights) == [1, 1, 3]
    assert report.coverage(0).estimate == pytest.approx(4 / 5)


def test_what_stays_labelled_irrelevant_by_hand(by_hand):
    """Of the two relevant ones that are not labelled so, one was audited: 1 of 3 is left."""
    report = audit_report(by_hand, JUDGED, SCORED)
    assert report.remaining_miss_rate.estimate == pytest.approx(1 / 3)
    everything = replace(report, weights=np.ones(3))
    assert everything.remaining_miss_rate == (0, 0, 0)


def test_a_small_audit_that_finds_no_miss_does_not_say_that_there_is_none():
    """In 60 queries with a relevant snippet and 20 others, one of these is audited each.

    The share of misses among them may be 1 − 0.025^(1/60), so 68 of the 1,140 that nobody saw.
    """
    labelled, n = np.array([True, False] * 60), 60
    weights, queries = np.where(labelled, 1.0, 20.0), np.repeat(np.arange(n), 2)
    report = AuditReport(labelled, labelled, np.zeros(2 * n), queries, weights)
    estimate, low, high = report.remaining_miss_rate
    missed = (1 - 0.025 ** (1 / n)) * 19 * n
    assert (estimate, low) == (0, 0)
    assert high == pytest.approx(missed / (missed + n))
    assert report.corrected_labels["audit"]["remaining_miss_rate"] == [0, 0, high]


# --- the sample -----------------------------------------------------------------------------------


def test_rates_are_unbiased_and_exact_if_everything_is_audited(tmp_path):
    """Over 100 samples, the mean is within 3.9 standard errors of the truth: false alarm 1e-4."""
    judged, scored, truth = population(np.random.default_rng(3), 20)
    labels, true = np.concatenate([q.relevant for q in scored]), np.concatenate(truth)
    scores = np.concatenate([q.scores for q in scored])
    path, rng = tmp_path / "a.csv", np.random.default_rng(4)
    report = audit(judged, scored, truth, path, share=1.0, rng=rng)
    assert report.precision.estimate == pytest.approx(np.mean(true[labels]))
    assert report.miss_rate.estimate == pytest.approx(np.mean(~labels[true]))
    assert report.coverage(0.7).estimate == pytest.approx(np.mean(scores[true] <= 0.7))
    reports = [audit(judged, scored, truth, path, share=0.05, rng=rng) for _ in range(100)]
    assert all(r.weights.sum() == pytest.approx(len(labels)) for r in reports)
    missed = np.array([r.weights[r.audited & ~r.labelled].sum() for r in reports])
    assert abs(missed.mean() - np.sum(true & ~labels)) < 3.9 * missed.std() / math.sqrt(100)


def test_the_file_shows_neither_labels_nor_scores(tmp_path, rng):
    judged, scored, _ = population(rng)
    labels = {s.text: r for q in judged for s, r in zip(q.snippets, q.relevant, strict=True)}
    audit_sample(judged, scored, tmp_path / "a.csv", share=0.5, rng=rng)
    rows = read(tmp_path / "a.csv")
    assert {tuple(row) for row in rows} == {("audited", "query", "snippet", "id")}
    by_row = [labels[row["snippet"]] for row in rows]
    first, second = np.mean(by_row[: len(rows) // 2]), np.mean(by_row[len(rows) // 2 :])
    assert abs(first - second) < 3.9 * math.sqrt(0.25 * 4 / len(rows))  # false alarm below 1e-4


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])  # by which a spreadsheet may split
@given(st.text(st.sampled_from('=+-@＝a;\t\r\n" ')) | st.text())
@example('x;=1"')
@example('x\t"=1')
def test_no_cell_is_a_formula_and_every_row_is_found_again(tmp_path_factory, delimiter, text):
    path = tmp_path_factory.mktemp("audit") / "a.csv"
    judged = [JudgedQuery(text, [text, "other"], [True, False], id=text)]
    scored = [ScoredQuery([0.5, -1.5], [True, False], id=text)]
    audit_sample(judged, scored, path, share=1.0, rng=np.random.default_rng(0))
    rows = read(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = [cell for row in csv.reader(file, delimiter=delimiter) for cell in row]
    assert not any(cell.strip(' \r\n\t"').startswith(tuple("=+-@＝")) for cell in cells)
    write(path, [{**row, "audited": "yes"} for row in rows])
    assert len(audit_report(path, judged, scored).labelled) == 2


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_a_file_that_a_spreadsheet_saved_is_read(by_hand, delimiter, encoding):
    expected = audit_report(by_hand, JUDGED, SCORED)
    rows = [
        {**row, "query": "Où, où; où\n?", "audited": f" {row['audited'].upper()}"}
        for row in read(by_hand)
    ]
    write(by_hand, rows, delimiter, encoding)
    assert audit_report(by_hand, JUDGED, SCORED).labels == expected.labels


def test_an_invalid_share_other_queries_and_an_existing_file_are_refused(by_hand, rng):
    for share in (0, 1.01, math.nan):
        with pytest.raises(ValueError, match="share"):
            audit_sample(JUDGED, SCORED, by_hand.with_name("new"), share=share, rng=rng)
    judged, scored, _ = population(rng, 2)
    with pytest.raises(ValueError, match="scored"):
        audit_sample(judged, scored[::-1], by_hand.with_name("new"), rng=rng)
    with pytest.raises(ValueError, match="id"):
        audit_report(by_hand, judged, scored)
    with pytest.raises(FileExistsError):
        audit_sample(JUDGED, SCORED, by_hand, rng=rng)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text.replace("yes,", "maybe,", 1), r"line \d.*audited"),
        (lambda text: text + text.splitlines()[-1], r"line \d.*id"),
        (lambda text: text.replace(",s", ",t"), r"line \d.*id"),
        (lambda text: text.replace("audited,", "checked,"), "audited"),
        (lambda text: text.splitlines()[0], "no rows"),
    ],
    ids=["maybe", "repeated", "id", "column", "rows"],
)
def test_a_file_with_a_fault_is_refused(by_hand, change, match):
    by_hand.write_text(change(by_hand.read_text()))
    with pytest.raises(ValueError, match=match):
        audit_report(by_hand, JUDGED, SCORED)


def test_the_audit_goes_into_the_calibration(by_hand):
    report = audit_report(by_hand, JUDGED, SCORED)
    calibration = Calibration.from_scores(SCORED, alpha=0.5, scorer="s", labels=report.labels)
    stored = calibration.labels["audit"]
    assert (stored["audited"], stored["of"]) == (3, 5)
    assert stored["miss_rate"] == list(report.miss_rate)
    by_hand.write_text(by_hand.read_text().replace("yes,", "no,"))
    unknown = audit_report(by_hand, JUDGED, SCORED).labels["audit"]["miss_rate"]
    assert unknown == [None, 0.0, 1.0]
