"""The demo, run once as a user runs it, and its corpus."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli.docstrings import docstring_corpus, split_summary


@pytest.mark.slow
def test_the_demo_calibrates_filters_and_fits_into_80_columns(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "conformal_retrievers", "demo"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80", "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    calibration = Calibration.load(tmp_path / "calibration.json")
    assert (calibration.alpha, calibration.guarantee, calibration.k) == (0.1, "query-recall", 20)
    assert " ".join(calibration.statement.split()) in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    kept, total = re.search(r"keep the same ([\d,]+) of ([\d,]+) snippets", done.stdout).groups()
    assert 0 < int(kept.replace(",", "")) < int(total.replace(",", ""))
    share = r"\d+\.\d \[\d+\.\d, \d+\.\d\]"
    for target in ("95", "90", "80"):
        section = done.stdout[done.stdout.index(f"target {target} %") :]
        for name in ("conformal", r"top \d+"):
            assert re.search(rf"{name} +{share} +{share} +{share}", section)
    assert re.search(r"kept +yes +-?\d+\.\d\d +\d\.\d\d\d ", done.stdout)
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        ("Return the sum.\n\nOf two numbers.", "Return the sum."),
        ("Return the\nsum as math.fsum does.\n\nMore.", "Return the sum as math.fsum does."),
        ("Return it. Then stop.\n\nMore.", ""),
        ("No full stop\n\nMore.", ""),
    ],
)
def test_a_summary_is_a_first_paragraph_of_one_sentence(docstring, summary):
    assert split_summary(docstring)[0] == summary


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
