"""The report: the same for the same input, escaped, self-contained, and readable in a browser."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from chromium import needs_chromium
from drawn import calibrated, draw, unjudged
from gates import FIRST, LAST, gate_of, query, unanswerable
from gates import drawn as drawn_judged

from conformal_retrievers import calibrate, calibrate_gate, diagnose, score_queries
from conformal_retrievers.data import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.evaluation import evaluate_gate, report
from conformal_retrievers.evaluation.dropped import dropped
from conformal_retrievers.theory.intervals import percent

HOSTILE = "<script>alert('x')</script> & \"all\" {{ 7 * 7 }} </title>"


class Page(HTMLParser):
    """The tags, the alternative texts and the text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.images, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))

    def handle_data(self, data):
        self.text += data

    @property
    def words(self):
        return " ".join(self.text.split())


@pytest.fixture
def calibration(rng):
    queries = [replace(q, group=HOSTILE if i % 3 else "plain") for i, q in enumerate(draw(rng, 90))]
    made = calibrated(queries, scorer=HOSTILE, retrieval={"retriever": HOSTILE, "k": 10})
    return replace(made, created="2026-01-01T00:00:00+00:00")


@pytest.fixture
def queries(rng):
    drawn = draw(rng, 70, relevant=0.8)
    return [replace(q, group=HOSTILE if i % 3 else "plain") for i, q in enumerate(drawn)]


def html_of(calibration, queries, *, reference=None, **options):
    return report.html(diagnose(calibration, queries, reference=reference), queries, **options)


def test_the_report_contains_what_the_diagnosis_found(calibration, queries):
    d, page = diagnose(calibration, queries), Page(html_of(calibration, queries))
    for part in (d.paragraph, *(f.sentence for f in d.findings), calibration.statement):
        assert " ".join(part.split()) in page.words
    assert percent(d.evaluation.removal.estimate) in page.words
    assert calibration.checksum in page.words
    assert f"{calibration.threshold():.4g}" in page.words
    for point in d.sweep:
        assert point.coverage.written(unit="") in page.words
    assert "90 % (α = 0.1): the mean share of a query's relevant snippets" in page.words
    named = Page(html_of(calibration, queries, sources={"judged queries": "new.jsonl"}))
    assert "judged queries" in named.words
    assert "new.jsonl" in named.words
    assert len(page.images) == 4
    assert all(len(image["alt"]) > 40 for image in page.images)


def test_the_report_leads_with_what_reaches_the_model_at_equal_recall(calibration, queries):
    d, page = diagnose(calibration, queries), Page(html_of(calibration, queries))
    table, too_shallow = d.evaluation.equal_recall, d.evaluation.too_shallow  # 80 % is retrieved
    parts = (d.summary, too_shallow, "What reaches the model", "Findings")
    places = [page.words.index(part) for part in parts]
    assert places == sorted(places)  # not failure, then success
    for row in table.rows:
        assert row.name in page.words
        for scale in table.scales:
            assert scale.written(row.measured) in page.words
            if scale.measure != "recall" and row.name != table.filter.name:
                assert " ".join(scale.parts(table.more(row), "+")) in page.words
    assert table.comparison in page.words
    assert "more 1,000" not in page.words
    for note in table.notes:
        assert note in page.words


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(calibration, queries, tmp_path):
    first = html_of(calibration, queries)
    assert html_of(calibration, queries) == first
    d = report.write(tmp_path / "report.html", calibration, iter(queries))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == first
    assert d.paragraph == diagnose(calibration, queries).paragraph
    with pytest.raises(OSError, match="cannot write the report"):
        report.write(tmp_path / "none" / "report.html", calibration, queries)


EXTREME = [[0.1, np.nextafter(0.1, 1)], [0, 5e-324], [0, 0], [1e17, 1e17 + 16]]


@pytest.mark.slow
@pytest.mark.parametrize("scores", EXTREME)
def test_extreme_scores_have_a_histogram(scores):
    queries = [ScoredQuery(scores, [True, False])] * 30
    made = calibrated(queries)
    for new in (queries, unjudged(queries)):
        page = Page(html_of(made, new))
        shown = [image for image in page.images if image["alt"].startswith("Histograms")]
        svg = base64.b64decode(shown[0]["src"].partition(",")[2]).decode("utf-8")
        assert "nan" not in svg
        assert "threshold" in svg


def test_text_of_the_data_is_escaped(calibration, queries):
    html = html_of(calibration, queries, sources={HOSTILE: HOSTILE})
    assert "<script" not in html
    page = Page(html)
    assert page.tags.count("title") == 1
    assert page.text.count(HOSTILE) >= 5  # sources, scorer, group, provenance


def test_the_page_and_its_pictures_need_no_network_and_have_no_date(calibration, queries):
    html = html_of(calibration, queries)
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', html)
    assert len(sources) == 5
    assert all(source.startswith("data:") for source in sources)
    assert "url(" not in html
    assert "@import" not in html
    for image in Page(html).images:
        svg = base64.b64decode(image["src"].partition(",")[2]).decode("utf-8")
        assert ElementTree.fromstring(svg).get("viewBox")
        assert "<dc:date>" not in svg
        assert set(re.findall(r'xlink:href="(.)', svg)) == {"#"}


def test_without_judgements_there_is_no_coverage(calibration, rng):
    page = Page(html_of(calibration, unjudged(draw(rng, 70))))
    assert len(page.images) == 3
    assert "Coverage is" not in page.words
    assert "Recall@K" not in page.words
    assert "not judged" in page.words
    assert "What reaches the model" not in page.words


def lost(scores):
    return ScoredQuery(scores, np.zeros(len(scores), bool))


UNSCORED = [lost([np.nan, np.nan]), lost([])]


@pytest.mark.parametrize(
    ("options", "changed", "words", "absent"),
    [
        ({"alpha": 0.005}, list, "none, everything is kept", "nan"),
        ({"alpha": 0.2, "by_group": True}, list, "threshold, plain", "nan"),
        ({"alpha": 0.2, "delta": 0.1, "guarantee": "all"}, list, "δ = 0.1", "nan"),
        ({}, lambda new: new[:1], "1 query with 10 snippets", "nan"),
        ({}, lambda new: UNSCORED, "100.0 % of the snippets could", "nan"),
        ({}, lambda new: [replace(lost(q.scores), missed=1) for q in new], "", "nan"),
        ({}, lambda new: [replace(q, missed=None) for q in new], "unknown", "End to end"),
    ],
    ids=["keeps all", "groups", "delta", "one query", "no score", "all missed", "missed unknown"],
)
def test_every_calibration_and_every_set_of_queries_has_a_report(
    options, changed, words, absent, calibration, queries
):
    own = list(calibration.queries)
    made = calibrated(own, **options)
    page = Page(html_of(made, changed(queries), reference=own if made.by_group else None))
    assert words in page.words
    assert absent not in page.words


@pytest.fixture(scope="module")
def behind_a_gate():
    """A calibration behind a gate, queries scored with it, and the gate's evaluation."""
    rng = np.random.default_rng(3)

    def source(name, mean):
        scores = rng.normal(mean, 1, 60).tolist()
        return [unanswerable(f"{HOSTILE} {name} {i}", score) for i, score in enumerate(scores)]

    known = {"$x_1$ removed": source("r", 1), "_other": source("o", 4)}
    own = drawn_judged(rng, 90, "own")
    gate = calibrate_gate(own, known, FIRST, alpha=0.1)
    new = drawn_judged(rng, 90, "new", answerable=0.7)
    measured = evaluate_gate(gate, new, {"$x_1$ removed": source("n", 1), "_other": source("m", 4)})
    return calibrate(own, LAST, alpha=0.2, gate=gate), score_queries(LAST, new, gate=gate), measured


def test_a_gate_has_a_section_with_both_errors_a_curve_and_the_worst_queries(behind_a_gate):
    calibration, scored, gate = behind_a_gate
    html = html_of(calibration, scored, gate=gate)
    page = Page(html)
    assert gate.comparison in page.words
    assert str(gate.verdict) in page.words
    for name, of in gate.kinds:
        assert name.strip() in page.words
        for share in (of.silent, of.speaks):
            assert share.interval.written(unit="") in page.words
        for one in of.worst[:5]:
            assert one.query in page.words
    silent = diagnose(calibration, scored).evaluation.silent
    assert f"Silent{percent(silent.estimate)}" in page.words
    assert len(page.images) == 5
    assert "1 of 1 dropped by the gate: snippet 1" in page.words
    assert "<script" not in html
    assert not re.search(r"\bnan\b", page.words)
    svg = base64.b64decode(page.images[0]["src"].partition(",")[2]).decode("utf-8")
    assert "$x_1$ removed" in svg  # not as mathematics
    assert "_other" in svg
    without = Page(html_of(calibration, scored))
    assert "the gate" not in without.words.replace("The gate", "").replace("by the gate", "")
    assert len(without.images) == 4


def test_a_gate_without_unanswerable_queries_has_no_curve(behind_a_gate):
    calibration, scored, _ = behind_a_gate
    measured = evaluate_gate(gate_of([0.1, 0.2, 0.3, 0.4]), [query("new", 0.2)])
    page = Page(html_of(calibration, scored, gate=measured))
    assert measured.comparison in page.words
    assert len(page.images) == 4


SEEN = """(root => ({
  scrolls: root.scrollWidth - root.clientWidth,
  images: [...document.images].filter(i => i.complete && i.naturalWidth > 0).length,
  beyond: [...document.querySelectorAll("p, li, img, h1, h2, dl, figure, table, td")].filter(
    e => e.getBoundingClientRect().right > root.clientWidth + 0.5).length,
  broken: [...document.querySelectorAll(".stacked td, thead th, tbody th[data-name]")].filter(
    e => [...e.childNodes, ...[...e.children].flatMap(c => [...c.childNodes])].some(n => {
      if (n.nodeType != 3 || !n.textContent.trim()) return false
      const range = document.createRange(); range.selectNodeContents(n)
      return new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1
    })).map(e => e.textContent.trim())}))(document.documentElement)"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("gated", [False, True])
def test_a_browser_shows_it_without_scrolling_sideways(
    gated, calibration, queries, behind_a_gate, browser, tmp_path
):
    path = tmp_path / "report.html"
    if gated:
        made, scored, gate = behind_a_gate
        report.write(path, made, scored, gate=gate)
    else:
        own = list(calibration.queries)  # with a reference there are bands of m1 and m2 to show
        report.write(path, calibration, queries, reference=own)
    for width in (400, 1280):
        browser.size(width, 900)
        browser.open(path.as_uri())
        # No word or number of a table goes over lines, either.
        assert browser.js(SEEN) == {"scrolls": 0, "images": 4 + gated, "beyond": 0, "broken": []}
    assert {u for u in browser.requested if not u.startswith("data:")} == {path.as_uri()}
    assert browser.problems == []


def test_the_report_names_what_was_dropped(calibration, queries):
    judged = []
    for i, q in enumerate(queries):
        snippets = [Snippet("text", id=f"{i}-{j}") for j in range(10)]
        judged.append(JudgedQuery(f"Question {i}?", snippets, q.relevant, id=f"n{i}"))
    new = [replace(q, id=f"n{i}") for i, q in enumerate(queries)]
    lose = [q.id for q in new if (q.relevant & (q.scores > calibration.threshold())).any()]
    found = dropped(calibration, new, judged)
    assert sorted(one.id for one in found) == sorted(lose)
    page = Page(html_of(calibration, new, judged=judged))
    assert f"{len(lose)} of 70 queries lose a relevant snippet" in page.words
    for one in found:
        place = int(np.flatnonzero(new[int(one.id[1:])].relevant)[0])
        score = f"{new[int(one.id[1:])].scores[place]:.4g}"
        shown = f"1 of 1 dropped, by a score above {calibration.threshold():.4g}:"
        assert f"Question {one.id[1:]}? {shown} {one.id[1:]}-{place} ({score})" in page.words
    assert "None: each query keeps" in Page(html_of(calibration.at(0.001), new)).words


def test_who_lost_most_comes_first_and_then_the_worst_score():
    own = [ScoredQuery([s], [True], group=g) for g, s in (("a", 0.5), ("b", 0.55))]
    queries = [
        ScoredQuery([0.1, 0.6], [True, True], id="one", group="a"),
        ScoredQuery([0.7, 0.9, 0.8], [True, True, False], group="b"),
        ScoredQuery([0.6], [True], id="alone", group="b"),
        ScoredQuery([0.2, 0.9], [True, False], group="a"),
    ]
    judged = [
        JudgedQuery("Which?", [Snippet("x", id="x"), "y"], [True, True], id="one"),
        JudgedQuery("Without an id", ["z"] * 3, [True] * 3),
    ]
    found = dropped(calibrated(own, 0.5, by_group=True), queries, judged)
    assert [(q.query, q.id, q.relevant, q.threshold, q.silenced) for q in found] == [
        ("query 2", None, 2, 0.55, False),
        ("alone", "alone", 1, 0.55, False),
        ("Which?", "one", 2, 0.5, False),
    ]
    assert [[(lost.snippet, lost.score) for lost in q.lost] for q in found] == [
        [("snippet 2", 0.9), ("snippet 1", 0.7)],
        [("snippet 1", 0.6)],
        [("snippet 2", 0.6)],
    ]
