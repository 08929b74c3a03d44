"""Auditing a labeler: a stratified sample, the file that a person fills in, and what it says."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import Calibration, JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.labels.audit import audit_report, audit_sample
from conformal_retrievers.labels.audit_sheet import key_of
from conformal_retrievers.theory.intervals import wilson_interval


def population(rng, n_queries=60, k=20, false_alarms=0.05):
    """Judged and scored queries, and the truth, which the labels miss at high scores."""
    judged, scored, truth = [], [], []
    for q in range(n_queries):
        relevant = rng.random(k) < 0.3
        scores = rng.normal(np.where(relevant, 0.0, 2.0), 1.0)
        labels = np.where(
            relevant, rng.random(k) > (scores > 1) * 0.6, rng.random(k) < false_alarms
        )
        snippets = [Snippet(f"snippet {i}", id=f"{q}-{i}") for i in range(k)]
        judged.append(JudgedQuery(f"query {q}", snippets, labels, id=str(q)))
        scored.append(ScoredQuery(scores, labels, id=str(q)))
        truth.append(relevant)
    return judged, scored, truth


def table(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def read(path):
    """The rows of the sheet, each with what the key says of it."""
    key = {row["id"]: row for row in table(key_of(path))}
    return [row | key[row["id"]] for row in table(path)]


def write(path, rows, delimiter=",", encoding="utf-8"):
    """Write the sheet, without what the key says."""
    names = ["audited", "query", "snippet", "id"]
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def fill_in(path, truth):
    rows = read(path)
    for row in rows:
        said = truth[int(row["query_number"])][int(row["snippet_number"])]
        row["audited"] = "yes" if said else "no"
    write(path, rows)
    return rows


def audit(judged, scored, truth, path, **options):
    path.unlink(missing_ok=True)
    key_of(path).unlink(missing_ok=True)
    audit_sample(judged, scored, path, **options)
    fill_in(path, truth)
    return audit_report(path)


# --- by hand --------------------------------------------------------------------------------------


TEXTS = ",".join([hashlib.sha256(b"q\0s").hexdigest()[:12]] * 2)  # of all rows


@pytest.fixture
def by_hand(tmp_path):
    """Two strata that matter: 2 of 4 irrelevant low scores are sampled, 1 of 1 relevant one."""
    key = """id,query_number,snippet_number,query_id,snippet_id,label,score,decile,stratum_size,stratum_rows
sa,0,0,,,yes,0.1,1,1,1
sb,1,0,,,yes,0.3,2,2,1
sc,1,1,,,no,0.5,3,4,2
sd,2,0,,,no,0.6,3,4,2
se,2,1,,,no,,,3,1
sf,3,0,,,no,0.9,10,10,1
"""  # noqa: E501
    head, *rows = key.splitlines()
    key = "\n".join([f"{head},text,ascii_text", *(f"{row},{TEXTS}" for row in rows), ""])
    path = tmp_path / "audit.csv"
    key_of(path).write_text(key, encoding="utf-8")
    sheet = "audited,query,snippet,id yes,q,s,sa no,q,s,sb yes,q,s,sc no,q,s,sd no,q,s,se no,q,s,sf"
    path.write_text(sheet.replace(" ", "\n") + "\n", encoding="utf-8")
    return path


def test_a_confusion_matrix_by_hand(by_hand):
    report = audit_report(by_hand)
    assert report.counts == (1, 1, 1, 3)
    assert report.estimated == (1, 2, 2, 15)
    assert report.agreement.estimate == pytest.approx(16 / 20)
    assert report.precision.estimate == pytest.approx(1 / 3)
    assert report.miss_rate.estimate == pytest.approx(2 / 3)
    assert report.false_alarm_rate.estimate == pytest.approx(2 / 17)
    by_chance = (3 * 3 + 17 * 17) / 400
    assert report.kappa == pytest.approx((0.8 - by_chance) / (1 - by_chance))
    assert report.misses == (
        (1, 1.0, 0.0),
        (2, 0.0, 0.0),
        (3, 2.0, 2.0),
        (10, 0.0, 0.0),
        (None, 0.0, 0.0),
    )


def test_coverage_by_hand(by_hand):
    report = audit_report(by_hand)
    for threshold, of_relevant, of_labelled in [
        (0.05, 0, 0),
        (0.1, 1 / 3, 1 / 3),
        (0.4, 1 / 3, 1),
        (0.5, 1, 1),
    ]:
        assert report.coverage(threshold).estimate == pytest.approx(of_relevant)
        assert report.labelled_coverage(threshold).estimate == pytest.approx(of_labelled)


def test_an_unscorable_snippet_is_kept(by_hand):
    by_hand.write_text(by_hand.read_text().replace("no,q,s,se", "yes,q,s,se"))
    report = audit_report(by_hand)
    assert report.coverage(0.05).estimate == pytest.approx(3 / 6)
    assert report.misses[-1] == (None, 3.0, 3.0)


def test_the_statement_says_what_is_missed_where_and_what_follows(by_hand):
    report = audit_report(by_hand)
    assert str(report) == report.statement
    assert "Of 20 labelled snippets 6 were judged again." in report.statement
    assert "misses 66.7%" in report.statement
    assert "in score decile 3.0 on average; the found lie in 1.0" in report.statement
    assert "0.333 × coverage of the found + 0.667 × coverage of the missed" in report.statement


def test_the_missed_lie_where_their_weight_is(by_hand):
    by_hand.write_text(by_hand.read_text().replace("no,q,s,sf", "yes,q,s,sf"))
    assert (
        f"in score decile {(2 * 3 + 10 * 10) / 12:.1f} on average"
        in audit_report(by_hand).statement
    )


def test_intervals_do_not_depend_on_how_many_snippets_a_row_stands_for(by_hand):
    """Here queries are more alike than chance allows: a row still counts no more than once."""
    header = key_of(by_hand).read_text().splitlines()[0]
    said = {
        f"s{query}-{snippet}": said
        for query in range(20)
        for snippet, said in enumerate(["yes" if query == 0 else "no", "yes"])
    }
    texts = {"query": "q", "snippet": "s"}
    write(by_hand, [{"id": row, "audited": audited, **texts} for row, audited in said.items()])
    agreements = []
    for size in (40, 4000):
        rows = [f"{row},{row[1:].replace('-', ',')},,,no,0,1,{size},40,{TEXTS}" for row in said]
        key_of(by_hand).write_text("\n".join([header, *rows]))
        agreements.append(audit_report(by_hand).agreement)
    assert agreements[0] == pytest.approx(agreements[1])


def test_with_one_row_a_query_and_equal_weights_the_interval_is_wilsons(tmp_path):
    """But for Student's t: with 399 degrees of freedom, 1.966 in place of 1.960."""
    n = 400
    judged = [JudgedQuery(f"q{i}", ["s"], [True]) for i in range(n)]
    scored = [ScoredQuery([0.0], [True]) for _ in range(n)]
    truth = [[i % 5 > 0] for i in range(n)]
    report = audit(
        judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=np.random.default_rng(0)
    )
    expected = wilson_interval(0.8, n - 1)
    assert report.precision == pytest.approx(expected, abs=2e-4)


# --- the sample -----------------------------------------------------------------------------------


def test_every_stratum_is_sampled_and_the_weights_add_up(tmp_path, rng):
    judged, scored, _ = population(rng)
    n = audit_sample(judged, scored, tmp_path / "a.csv", share=0.02, rng=rng)
    rows = read(tmp_path / "a.csv")
    assert len(rows) == n
    everything = [
        (label, 1 + 10 * int(rank) // 1200)
        for label, rank in zip(
            np.concatenate([q.relevant for q in scored]),
            np.argsort(np.argsort(np.concatenate([q.scores for q in scored]))),
            strict=True,
        )
    ]
    for label in (True, False):
        for decile in range(1, 11):
            size = everything.count((label, decile))
            stratum = [
                row
                for row in rows
                if (row["label"] == "yes") == label and int(row["decile"]) == decile
            ]
            assert len(stratum) == math.ceil(0.02 * size)
            assert {row["stratum_size"] for row in stratum} <= {str(size)}
    assert sum(int(r["stratum_size"]) / int(r["stratum_rows"]) for r in rows) == pytest.approx(1200)
    assert len({(r["query_number"], r["snippet_number"]) for r in rows}) == n


def test_a_share_is_read_as_the_decimal_that_it_is(tmp_path, rng):
    """In floats 0.07 · 100 is above 7, and an eighth row would be drawn."""
    judged = [JudgedQuery("q", [f"s{i}" for i in range(100)], [True] * 100)]
    scored = [ScoredQuery([0.0] * 100, [True] * 100)]
    assert audit_sample(judged, scored, tmp_path / "a.csv", share=0.07, rng=rng) == 7


def test_rows_map_back_to_their_snippets(tmp_path, rng):
    judged, scored, _ = population(rng, 5)
    audit_sample(judged, scored, tmp_path / "a.csv", share=1.0, rng=rng)
    rows = read(tmp_path / "a.csv")
    assert len(rows) == 100
    for row in rows:
        q, s = int(row["query_number"]), int(row["snippet_number"])
        assert (row["query_id"], row["snippet_id"]) == (judged[q].id, judged[q].snippets[s].id)
        assert (row["query"], row["snippet"]) == (judged[q].query, judged[q].snippets[s].text)
        assert (row["label"] == "yes") == judged[q].relevant[s]
        assert float(row["score"]) == scored[q].scores[s]
        assert row["audited"] == ""


def test_the_order_of_the_rows_does_not_tell_the_labels(tmp_path, rng):
    judged, scored, _ = population(rng)
    audit_sample(judged, scored, tmp_path / "a.csv", share=0.5, rng=rng)
    labels = [row["label"] == "yes" for row in read(tmp_path / "a.csv")]
    first, second = np.mean(labels[: len(labels) // 2]), np.mean(labels[len(labels) // 2 :])
    assert abs(first - second) < 3.9 * math.sqrt(0.25 * 4 / len(labels))  # false alarm below 1e-4


def test_the_same_seed_draws_the_same_sample(tmp_path):
    judged, scored, _ = population(np.random.default_rng(1), 10)
    for name in ("a", "b"):
        audit_sample(judged, scored, tmp_path / name, rng=np.random.default_rng(2))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert key_of(tmp_path / "a").read_bytes() == key_of(tmp_path / "b").read_bytes()


def test_tied_scores_share_a_decile_and_unscorable_ones_have_their_own(tmp_path, rng):
    scores = [0.0] * 15 + [1.0] * 4 + [math.nan]
    judged = [JudgedQuery("q", [f"s{i}" for i in range(20)], [False] * 20)]
    scored = [ScoredQuery(scores, [False] * 20)]
    audit_sample(judged, scored, tmp_path / "a.csv", share=1.0, rng=rng)
    deciles = {(row["score"], row["decile"]) for row in read(tmp_path / "a.csv")}
    assert deciles == {("0.0", "1"), ("1.0", "8"), ("", "")}  # 1 + ⌊10 · 15/19⌋ = 8


def test_estimates_are_unbiased(tmp_path):
    """Over 300 samples, the mean is within 3.9 standard errors of the truth: false alarm 1e-4."""
    judged, scored, truth = population(np.random.default_rng(3), 30)
    labels = np.concatenate([q.relevant for q in scored])
    true = np.concatenate(truth)
    rng = np.random.default_rng(4)
    reports = [
        audit(judged, scored, truth, tmp_path / "a.csv", share=0.05, rng=rng) for _ in range(300)
    ]
    for name, expected in [
        ("found", np.sum(labels & true)),
        ("false_alarms", np.sum(labels & ~true)),
        ("missed", np.sum(~labels & true)),
        ("rejected", np.sum(~labels & ~true)),
    ]:
        estimates = np.array([getattr(report.estimated, name) for report in reports])
        assert estimates.std() > 0
        assert abs(estimates.mean() - expected) < 3.9 * estimates.std() / math.sqrt(300)
    miss_rate = np.mean(~labels[true])
    inside = sum(r.miss_rate.low <= miss_rate <= r.miss_rate.high for r in reports)
    assert inside >= 270  # of 95 %: false alarm 1e-4


def test_an_audit_of_everything_is_exact(tmp_path, rng):
    judged, scored, truth = population(rng, 20)
    report = audit(judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=rng)
    labels, true = np.concatenate([q.relevant for q in scored]), np.concatenate(truth)
    scores = np.concatenate([q.scores for q in scored])
    assert report.estimated == report.counts
    assert report.miss_rate.estimate == pytest.approx(np.mean(~labels[true]))
    assert report.false_alarm_rate.estimate == pytest.approx(np.mean(labels[~true]))
    assert report.coverage(0.7).estimate == pytest.approx(np.mean(scores[true] <= 0.7))
    found, missed = true & labels, true & ~labels
    mu = report.miss_rate.estimate
    parts = (1 - mu) * np.mean(scores[found] <= 0.7) + mu * np.mean(scores[missed] <= 0.7)
    assert report.coverage(0.7).estimate == pytest.approx(parts)
    assert sum(m.missed for m in report.misses) == pytest.approx(np.sum(missed))


def test_coverage_of_what_is_relevant_is_below_that_of_what_is_labelled(tmp_path, rng):
    judged, scored, truth = population(rng, 100, false_alarms=0.0)
    calibration = Calibration.from_scores(scored, alpha=0.1, guarantee="snippet", scorer="s")
    report = audit(judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=rng)
    assert report.labelled_coverage(calibration.threshold()).estimate >= 0.9
    assert report.coverage(calibration.threshold()).high < 0.9


# --- the file -------------------------------------------------------------------------------------


@given(
    st.text(max_size=50)
    | st.text(st.sampled_from("=+-@'\"\t\r\n,;＝ \x00\ud800﻿1"), max_size=20)
    | st.builds("{}{}".format, st.sampled_from(list("=+-@'\t\r\n ＝＋－＠")), st.text(max_size=9)),
)
def test_no_text_is_a_formula_and_every_text_can_be_had_back(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("audit") / "a.csv"
    judged = [JudgedQuery(text, [text, "other"], [True, False], id=text)]
    scored = [ScoredQuery([0.5, -1.5], [True, False], id=text)]
    audit_sample(judged, scored, path, share=1.0, rng=np.random.default_rng(0))
    rows = read(path)
    assert len(rows) == 2
    for row in rows:
        for cell in (row["query"], row["query_id"]):
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠"))
            back = cell[1:] if cell.startswith("'") else cell
            expected = text.replace("\0", "␀").encode("utf-8", "backslashreplace").decode()
            assert back == expected
    assert {row["score"] for row in rows} == {"0.5", "-1.5"}


def test_a_text_that_no_cell_holds_is_cut_visibly(tmp_path, rng):
    judged = [JudgedQuery("q", ["=" * 200_000], [True])]
    audit_sample(judged, [ScoredQuery([0.0], [True])], tmp_path / "a.csv", rng=rng)
    [row] = read(tmp_path / "a.csv")
    assert len(row["snippet"]) < 32_767
    assert row["snippet"].endswith("… [cut]")


def test_an_audit_is_not_overwritten(tmp_path, rng):
    judged, scored, _ = population(rng, 2)
    audit_sample(judged, scored, tmp_path / "a.csv", rng=rng)
    before = (tmp_path / "a.csv").read_bytes()
    with pytest.raises(FileExistsError, match="may hold an audit"):
        audit_sample(judged, scored, tmp_path / "a.csv", rng=rng)
    assert (tmp_path / "a.csv").read_bytes() == before
    (tmp_path / "a.csv").unlink()
    key = key_of(tmp_path / "a.csv")
    with pytest.raises(FileExistsError, match=r"a\.csv\.key exists.*no a\.csv; .*remove the key"):
        audit_sample(judged, scored, tmp_path / "a.csv", rng=rng)
    assert key.exists()
    key.unlink()
    audit_sample(judged, scored, tmp_path / "a.csv", rng=rng)


def test_a_spreadsheet_recognises_the_encoding(tmp_path, rng):
    audit_sample(
        [JudgedQuery("Où?", ["là"], [True])], [ScoredQuery([0], [True])], tmp_path / "a", rng=rng
    )
    assert (tmp_path / "a").read_bytes().startswith(b"\xef\xbb\xbfaudited,")


@pytest.mark.parametrize("share", [0, -1, 1.01, math.nan])
def test_a_share_that_is_none_is_an_error(tmp_path, rng, share):
    with pytest.raises(ValueError, match=f"share is {share}"):
        audit_sample(*population(rng, 2)[:2], tmp_path / "a.csv", share=share, rng=rng)


def test_queries_that_differ_are_an_error(tmp_path, rng):
    judged, scored, _ = population(rng, 3)
    with pytest.raises(ValueError, match="3 judged queries but 2 scored ones"):
        audit_sample(judged, scored[:2], tmp_path / "a.csv", rng=rng)
    with pytest.raises(ValueError, match=r"judged\[0\] and scored\[0\] differ"):
        audit_sample(judged, scored[::-1], tmp_path / "a.csv", rng=rng)
    nameless = [ScoredQuery(q.scores, q.relevant) for q in scored]
    with pytest.raises(ValueError, match=r"judged\[0\] and scored\[0\] differ"):
        audit_sample(judged, nameless, tmp_path / "a.csv", rng=rng)
    other = ScoredQuery(scored[1].scores, ~scored[1].relevant, id=scored[1].id)
    with pytest.raises(ValueError, match=r"judged\[1\] and scored\[1\] differ"):
        audit_sample(judged, [scored[0], other, scored[2]], tmp_path / "a.csv", rng=rng)
    with pytest.raises(ValueError, match="have no snippets"):
        audit_sample([JudgedQuery("q", [], [])], [ScoredQuery([], [])], tmp_path / "a", rng=rng)


@pytest.mark.parametrize("said", ["yes", " Yes ", "TRUE", "1", "y", "relevant"])
def test_yes_may_be_said_in_several_ways(by_hand, said):
    by_hand.write_text(by_hand.read_text().replace("yes,q", f"{said},q"))
    assert audit_report(by_hand).counts == (1, 1, 1, 3)


@pytest.mark.parametrize("said", ["no", "NO ", "FALSE", "0", "n", "irrelevant"])
def test_no_may_be_said_in_several_ways(by_hand, said):
    by_hand.write_text(by_hand.read_text().replace("no,q", f"{said},q"))
    assert audit_report(by_hand).counts == (1, 1, 1, 3)


def test_bad_rows_are_named_by_line(by_hand):
    text = by_hand.read_text()
    text = text.replace("yes,q,s,sc", ',"a\nquery of\n3 lines",s,sc')
    text = text.replace("no,q,s,se", "maybe,q,s,se")
    text = text.replace("yes,q,s,sa", "?,q,s,sa")
    by_hand.write_text(text)
    with pytest.raises(ValueError, match="3 faults") as raised:
        audit_report(by_hand)
    assert "line 2 (row 2): audited is '?'" in str(raised.value)
    assert "line 4 (row 4): audited is ''; write yes or no" in str(raised.value)
    assert "line 8 (row 6): audited is 'maybe'; write yes or no" in str(raised.value)


def test_of_many_faults_ten_are_shown(tmp_path, rng):
    judged, scored, _ = population(rng, 2)
    n = audit_sample(judged, scored, tmp_path / "a.csv", share=1.0, rng=rng)
    with pytest.raises(ValueError, match=f"{n} faults") as raised:
        audit_report(tmp_path / "a.csv")
    assert str(raised.value).count("write yes or no") == 10
    assert str(raised.value).endswith(f"and {n - 10} more")
    audit_sample(judged[:1], scored[:1], tmp_path / "b.csv", share=0.5, rng=rng)
    rows = read(tmp_path / "b.csv")[:10]
    write(tmp_path / "b.csv", rows)
    with pytest.raises(ValueError, match=f"{len(rows)} faults") as raised:
        audit_report(tmp_path / "b.csv")
    assert str(raised.value).endswith("write yes or no")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("no,q,s,sf\n", "", "has 5 rows, but 6 were sampled: sf are missing"),
        ("yes,q,s,sc", "yes,q,s,sd", "line 5 .*repeats id sd"),
        ("q,s,sd", "q,s,other", r"line 5 .*'other' is not in audit\.csv\.key"),
        ("no,q,s,sd", "no", "line 5 .*id '' is not in"),
        ("audited,", "checked,", "columns audited are missing"),
        ("no,q,s,sd", 'no,"q,s,sd', "no complete CSV"),
        ("no,q,s,sd", "no,q,other,sd", "line 5 .*texts are not those .* id sd; restore"),
        ("no,q,s,sd", "no,s,q,sd", "line 5 .*texts are not those"),
        ("no,q,s,sd", "no,q,t?,sd", "line 5 .*texts are not those"),
        ("audited,query", "audited,audited,query", "several columns 'audited'; remove"),
        ("snippet,", "", "columns snippet are missing"),
    ],
)
def test_a_file_that_was_damaged_is_an_error(by_hand, old, new, message):
    by_hand.write_text(by_hand.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        audit_report(by_hand)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.6", "high", r"audit\.csv\.key, id sd: .*could not convert"),
        ("no,0.6", "perhaps,0.6", "id sd: .*perhaps"),
        ("sd,2,", "sd,,", "id sd: .*invalid literal"),
        ("0.6,3,4,2", "0.6,3,4,0", "id sd: .*stratum_rows is 0, not from 1 to 4.*; restore what"),
        ("0.6,3,4,2", "0.6,3,4,-2", "id sd: .*stratum_rows is -2"),
        ("0.6,3,4,2", "0.6,3,4,5", "id sd: .*stratum_rows is 5"),
        ("0.6,3,4,2", "0.6,3,-4,2", "id sd: .*stratum_size is -4"),
        ("0.6,3,4,2", "0.6,11,4,2", "id sd: .*decile is 11, not from 1 to 10"),
        ("sd,2,", "sd,-2,", "id sd: .*query_number is -2"),
        ("sd,2,", f"sd,{10**12},", "id sd: .*query_number is 10+, not"),
        ("sd,2,", "sc,2,", r"audit\.csv\.key, line .*repeats id sc; restore"),
        ("sd,2,0,,,no,0.6,3,4,2", "sd,2,0,,,no,0.6", "id sd: .*invalid literal"),
        (f"sd,2,0,,,no,0.6,3,4,2,{TEXTS}\n", "", "'sd' is not in"),
        ("decile,", "", "columns decile are missing"),
    ],
)
def test_a_key_that_was_damaged_is_an_error(by_hand, old, new, message):
    key = key_of(by_hand)
    key.write_text(key.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        audit_report(by_hand)


def test_a_file_without_rows_or_key_is_an_error(by_hand):
    by_hand.write_text(by_hand.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match="has 0 rows"):
        audit_report(by_hand)
    key = key_of(by_hand)
    key.write_text(key.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match="has 0 rows; restore"):
        audit_report(by_hand)
    key.unlink()
    with pytest.raises(FileNotFoundError, match=r"key .*audit\.csv\.key is missing.*put it there"):
        audit_report(by_hand)
    by_hand.unlink()
    with pytest.raises(FileNotFoundError, match=r"no audit .*audit\.csv; give the path"):
        audit_report(by_hand)


def test_what_a_spreadsheet_changes_of_a_text_is_no_fault(tmp_path, rng):
    texts = ["true\r\nand “so”  on ", "'=naïve", "\udc80 text", "\ufb01re 日本語", "日本"]
    judged = [JudgedQuery("query", texts, [True] * 5)]
    scored = [ScoredQuery(np.arange(5.0), [True] * 5)]
    path = tmp_path / "a.csv"
    expected = audit(judged, scored, [[True] * 5], path, share=1.0, rng=rng)
    rows = read(path)
    for row in rows:
        text = row["snippet"].upper().replace("\r\n", " ").replace("“", '"').strip(" '")
        row["snippet"] = unicodedata.normalize("NFKC", text)
    write(path, rows)
    assert audit_report(path) == expected
    rows[0]["snippet"] = rows[0]["snippet"] + " more"
    write(path, rows)
    with pytest.raises(ValueError, match="1 faults"):
        audit_report(path)
    for row in rows:
        row["snippet"] = "漢字"
    write(path, rows)
    with pytest.raises(ValueError, match="5 faults"):
        audit_report(path)


def test_a_question_mark_alone_is_no_sign_of_lost_letters(tmp_path, rng):
    judged = [JudgedQuery("query?", ["Is 東京 large?"], [True])]
    path = tmp_path / "a.csv"
    scored = [ScoredQuery(np.zeros(1), [True])]
    expected = audit(judged, scored, [[True]], path, share=1.0, rng=rng)
    (row,) = read(path)
    write(path, [{**row, "snippet": "Is ?? large?"}])  # as an encoding without these letters
    assert audit_report(path) == expected
    write(path, [{**row, "snippet": "Is 大阪 large?"}])
    with pytest.raises(ValueError, match="texts are not those"):
        audit_report(path)


def test_the_person_sees_neither_label_nor_score(tmp_path, rng):
    judged, scored, _ = population(rng, 5)
    audit_sample(judged, scored, tmp_path / "a.csv", share=1.0, rng=rng)
    rows = table(tmp_path / "a.csv")
    assert {tuple(row) for row in rows} == {("audited", "query", "snippet", "id")}
    for row in rows:  # nor does the id tell them: it begins with s, and hexadecimal digits follow
        assert re.fullmatch("s[0-9a-f]{12}-[0-9a-f]{12}", row["id"])
    assert len({row["id"].partition("-")[2] for row in rows}) == 1  # of the audit, not of a row
    other = [JudgedQuery(q.query, q.snippets, [not r for r in q.relevant]) for q in judged]
    negated = [ScoredQuery(-q.scores, ~q.relevant) for q in scored]
    audit_sample(other, negated, tmp_path / "b.csv", share=1.0, rng=rng)
    same = [
        {r["id"].partition("-")[0] for r in table(tmp_path / name)} for name in ("a.csv", "b.csv")
    ]
    assert same[0] == same[1]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path, rng, delimiter, encoding):
    judged, scored, truth = population(rng, 5)
    judged[0] = JudgedQuery("Où, où; où\n?", judged[0].snippets, judged[0].relevant, id="0")
    expected = audit(judged, scored, truth, tmp_path / "a.csv", share=0.5, rng=rng)
    write(tmp_path / "a.csv", read(tmp_path / "a.csv"), delimiter, encoding)
    assert audit_report(tmp_path / "a.csv") == expected


OTHERS = {
    "texts": lambda q, scores: (
        JudgedQuery(q.query, [f"other {i}" for i in range(20)], q.relevant, id=q.id),
        scores,
    ),
    "labels": lambda q, scores: (
        JudgedQuery(q.query, q.snippets, [not r for r in q.relevant], id=q.id),
        scores,
    ),
    "scores": lambda q, scores: (q, -scores),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_an_audit_is_read_with_its_own_key(tmp_path, rng, change):
    """Of the same snippets too, labelled or scored otherwise: it would speak of another labeler."""
    judged, scored, truth = population(rng, 5)
    expected = audit(judged, scored, truth, tmp_path / "a.csv", share=1.0, rng=rng)
    changed = [change(q, s.scores) for q, s in zip(judged, scored, strict=True)]
    others = [q for q, _ in changed]
    rescored = [ScoredQuery(scores, q.relevant, id=q.id) for q, scores in changed]
    audit(others, rescored, truth, tmp_path / "b.csv", share=1.0, rng=rng)
    own = key_of(tmp_path / "a.csv").read_bytes()
    key_of(tmp_path / "b.csv").replace(key_of(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=r"a\.csv\.key is not the key of .*put the key there that"):
        audit_report(tmp_path / "a.csv")
    key_of(tmp_path / "a.csv").write_bytes(own)
    assert audit_report(tmp_path / "a.csv") == expected


# --- what is stored -------------------------------------------------------------------------------


def test_the_report_goes_into_the_calibration(by_hand, tmp_path):
    report = audit_report(by_hand)
    scored = [ScoredQuery([0.1, 0.2], [True, False])]
    labels = {"source": "LLM", **report.labels}
    calibration = Calibration.from_scores(scored, alpha=0.5, scorer="s", labels=labels)
    calibration.save(tmp_path / "c.json")
    stored = Calibration.load(tmp_path / "c.json").labels["audit"]
    assert (stored["audited"], stored["of"]) == (6, 20)
    assert stored["counts"] == {"found": 1, "false_alarms": 1, "missed": 1, "rejected": 3}
    assert stored["miss_rate"] == list(report.miss_rate)
    assert stored["kappa"] == report.kappa


def test_where_nothing_is_relevant_nothing_is_known_of_misses(by_hand):
    by_hand.write_text(by_hand.read_text().replace("yes,q", "no,q"))
    report = audit_report(by_hand)
    assert math.isnan(report.miss_rate.estimate)
    assert "nothing is known of misses" in report.statement
    assert json.loads(json.dumps(report.labels, allow_nan=False))["audit"]["miss_rate"] == [
        None,
        0.0,
        1.0,
    ]


def test_where_none_is_missed_the_statement_says_how_many_may_be(by_hand):
    by_hand.write_text(by_hand.read_text().replace("yes,q,s,sc", "no,q,s,sc"))
    report = audit_report(by_hand)
    assert report.counts.missed == 0
    assert "none was found" in report.statement
    assert f"up to {report.miss_rate.high:.1%} of them" in report.statement


def test_kappa_is_nan_where_all_is_one_class(by_hand):
    by_hand.write_text(by_hand.read_text().replace("yes,q", "no,q"))
    key_of(by_hand).write_text(key_of(by_hand).read_text().replace(",yes,", ",no,"))
    assert math.isnan(audit_report(by_hand).kappa)
    assert audit_report(by_hand).labels["audit"]["kappa"] is None
