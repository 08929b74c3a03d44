"""Auditing a labeler: a stratified sample, the file that a person fills in, and the rates."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.labels import audit_report, audit_sample
from conformal_retrievers.theory.intervals import wilson_interval


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
    assert "3 of 5" in report.statement
    assert "66.7 %" in report.statement


def test_unscorable_snippets_are_a_stratum_of_their_own_and_kept(tmp_path, rng):
    scored = [ScoredQuery([0.0, math.nan, math.nan, math.nan, 1.0], JUDGED[0].relevant)]
    report = audit(JUDGED, scored, [[True] * 5], tmp_path / "a.csv", share=0.1, rng=rng)
    assert sorted(report.weights) == [1, 1, 3]
    assert report.coverage(0).estimate == pytest.approx(4 / 5)


def test_with_one_snippet_a_query_the_interval_is_wilsons(tmp_path, rng):
    """But for Student's t: with 399 degrees of freedom, 1.966 in place of 1.960."""
    n = 400
    judged = [JudgedQuery(f"q{i}", ["s"], [True]) for i in range(n)]
    scored = [ScoredQuery([0.0], [True]) for _ in range(n)]
    truth = [[i % 5 > 0] for i in range(n)]
    report = audit(judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=rng)
    assert report.precision == pytest.approx(wilson_interval(0.8, n - 1), abs=2e-4)


# --- the sample -----------------------------------------------------------------------------------


def test_every_stratum_is_sampled_and_the_weights_add_up(tmp_path, rng):
    judged, scored, truth = population(rng)
    report = audit(judged, scored, truth, tmp_path / "a.csv", share=0.02, rng=rng)
    scores = np.concatenate([q.scores for q in scored])
    labels = np.concatenate([q.relevant for q in scored])
    deciles = 10 * np.argsort(np.argsort(scores)) // len(scores)
    sampled = np.searchsorted(np.sort(scores), report.scores) * 10 // len(scores)
    for label in (True, False):
        for decile in range(10):
            size = np.sum((labels == label) & (deciles == decile))
            rows = (report.labelled == label) & (sampled == decile)
            assert np.sum(rows) == math.ceil(0.02 * size)
            assert report.weights[rows].sum() == pytest.approx(size)


def test_a_share_is_read_as_the_decimal_that_it_is(tmp_path, rng):
    """In floats 0.07 · 100 is above 7, and an eighth row would be drawn."""
    judged = [JudgedQuery("q", [f"s{i}" for i in range(100)], [True] * 100)]
    scored = [ScoredQuery([0.0] * 100, [True] * 100)]
    assert audit_sample(judged, scored, tmp_path / "a.csv", share=0.07, rng=rng) == 7


def test_the_file_shows_neither_labels_nor_scores(tmp_path, rng):
    judged, scored, _ = population(rng)
    labels = {s.text: r for q in judged for s, r in zip(q.snippets, q.relevant, strict=True)}
    audit_sample(judged, scored, tmp_path / "a.csv", share=0.5, rng=rng)
    rows = read(tmp_path / "a.csv")
    assert {tuple(row) for row in rows} == {("audited", "query", "snippet", "id")}
    by_row = [labels[row["snippet"]] for row in rows]
    first, second = np.mean(by_row[: len(rows) // 2]), np.mean(by_row[len(rows) // 2 :])
    assert abs(first - second) < 3.9 * math.sqrt(0.25 * 4 / len(rows))  # false alarm below 1e-4


def test_the_same_seed_draws_the_same_sample(tmp_path):
    judged, scored, _ = population(np.random.default_rng(1), 10)
    for name in ("a", "b"):
        audit_sample(judged, scored, tmp_path / name, rng=np.random.default_rng(2))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_rates_are_unbiased(tmp_path):
    """Over 200 samples, the mean is within 3.9 standard errors of the truth: false alarm 1e-4."""
    judged, scored, truth = population(np.random.default_rng(3), 30)
    labels, true = np.concatenate([q.relevant for q in scored]), np.concatenate(truth)
    rng = np.random.default_rng(4)
    path = tmp_path / "a.csv"
    reports = [audit(judged, scored, truth, path, share=0.05, rng=rng) for _ in range(200)]
    missed = np.array([r.weights[r.audited & ~r.labelled].sum() for r in reports])
    assert abs(missed.mean() - np.sum(true & ~labels)) < 3.9 * missed.std() / math.sqrt(200)
    miss_rate = np.mean(~labels[true])
    inside = sum(r.miss_rate.low <= miss_rate <= r.miss_rate.high for r in reports)
    assert inside >= 178  # of 95 %: false alarm 1e-4


def test_an_audit_of_everything_is_exact(tmp_path, rng):
    judged, scored, truth = population(rng, 20)
    report = audit(judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=rng)
    labels, true = np.concatenate([q.relevant for q in scored]), np.concatenate(truth)
    scores = np.concatenate([q.scores for q in scored])
    assert report.precision.estimate == pytest.approx(np.mean(true[labels]))
    assert report.miss_rate.estimate == pytest.approx(np.mean(~labels[true]))
    assert report.coverage(0.7).estimate == pytest.approx(np.mean(scores[true] <= 0.7))


# --- the file -------------------------------------------------------------------------------------


@given(st.text(max_size=20) | st.builds("{}{}".format, st.sampled_from("=+-@\t"), st.text()))
def test_no_text_is_a_formula_and_every_row_is_found_again(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("audit") / "a.csv"
    judged = [JudgedQuery(text, [text, "other"], [True, False], id=text)]
    scored = [ScoredQuery([0.5, -1.5], [True, False], id=text)]
    audit_sample(judged, scored, path, share=1.0, rng=np.random.default_rng(0))
    rows = read(path)
    assert not any(row["query"].lstrip().startswith(("=", "+", "-", "@")) for row in rows)
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


def test_an_audit_is_not_overwritten(by_hand, rng):
    before = by_hand.read_bytes()
    with pytest.raises(FileExistsError, match=r"audit\.csv"):
        audit_sample(JUDGED, SCORED, by_hand, rng=rng)
    assert by_hand.read_bytes() == before


@pytest.mark.parametrize("share", [0, -1, 1.01, math.nan])
def test_an_invalid_share_is_refused(tmp_path, rng, share):
    with pytest.raises(ValueError, match="share"):
        audit_sample(JUDGED, SCORED, tmp_path / "a.csv", share=share, rng=rng)


def test_queries_that_differ_are_refused(tmp_path, rng):
    judged, scored, _ = population(rng, 3)
    other = ScoredQuery(scored[1].scores, ~scored[1].relevant, id=scored[1].id)
    for given_scored in (scored[:2], scored[::-1], [scored[0], other, scored[2]], []):
        with pytest.raises(ValueError, match="judged and scored"):
            audit_sample(judged, given_scored, tmp_path / "a.csv", rng=rng)
    with pytest.raises(ValueError, match="snippets"):
        audit_sample([JudgedQuery("q", [], [])], [ScoredQuery([], [])], tmp_path / "a", rng=rng)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text.replace("yes,", "maybe,", 1), r"line \d.*audited"),
        (lambda text: text.replace("no,", ",", 1), r"line \d.*audited"),
        (lambda text: text + text.splitlines()[-1], r"line \d.*id"),
        (lambda text: text.replace(",s", ",t"), r"line \d.*id"),
        (lambda text: text.replace("audited,", "checked,"), "audited"),
        (lambda text: text.splitlines()[0], "no rows"),
        (lambda text: "", "columns"),
    ],
    ids=["maybe", "blank", "repeated", "id", "column", "rows", "empty"],
)
def test_a_file_with_a_fault_is_refused(by_hand, change, match):
    by_hand.write_text(change(by_hand.read_text()))
    with pytest.raises(ValueError, match=match):
        audit_report(by_hand, JUDGED, SCORED)


def test_an_audit_of_other_queries_is_refused(by_hand, rng):
    judged, scored, _ = population(rng, 3)
    with pytest.raises(ValueError, match="id"):
        audit_report(by_hand, judged, scored)


# --- what is stored -------------------------------------------------------------------------------


def test_the_audit_goes_into_the_calibration(by_hand, tmp_path):
    report = audit_report(by_hand, JUDGED, SCORED)
    labels = {"source": "LLM", **report.labels}
    calibration = Calibration.from_scores(SCORED, alpha=0.5, scorer="s", labels=labels)
    calibration.save(tmp_path / "c.json")
    stored = Calibration.load(tmp_path / "c.json").labels["audit"]
    assert (stored["audited"], stored["of"]) == (3, 5)
    assert stored["miss_rate"] == list(report.miss_rate)


def test_without_relevant_snippets_the_miss_rate_is_unknown(by_hand):
    by_hand.write_text(by_hand.read_text().replace("yes,", "no,"))
    report = audit_report(by_hand, JUDGED, SCORED)
    assert math.isnan(report.miss_rate.estimate)
    stored = json.loads(json.dumps(report.labels, allow_nan=False))["audit"]
    assert stored["miss_rate"] == [None, 0.0, 1.0]
