"""docs/start.md in a new interpreter's names: each block, the command, and what the page prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from commands import run

PAGE = (Path(__file__).parent.parent / "docs" / "start.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
SHOWN = re.compile(r"^    (?!pip |conformal-retrievers |…)(.*)$", re.M)
COMMAND = re.compile(r"^    conformal-retrievers (.+)$", re.M)


def words(text):
    """The words of a text without its numbers, which vary with the version of Python."""
    return re.sub(r"[-+]?\d[\d.,]*|─+", "#", " ".join(text.split()))  # a rule is as wide as they


@pytest.mark.slow
def test_a_new_user_gets_a_filter_in_both_frameworks_its_evaluation_and_its_report(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in PYTHON.findall(PAGE):
        exec(block, names)
    printed = words(capsys.readouterr().out)
    shown = [words(line) for line in SHOWN.findall(PYTHON.sub("", PAGE))]
    assert len(shown) > 5
    assert [line for line in shown if line not in printed] == []
    assert 0 < len(names["filtered"].invoke(names["question"])) < 20
    assert 0 < len(names["answer"].source_nodes) < 20
    (diagnosing,) = COMMAND.findall(PAGE)
    run(*shlex.split(diagnosing))
    assert "<html" in Path("report.html").read_text(encoding="utf-8")
