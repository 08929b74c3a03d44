"""The demo and the command line, run as a user runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformal_retrievers import Calibration
from conformal_retrievers.cli.docstrings import docstring_corpus, split_summary

COMMAND = Path(sys.executable).parent / "conformal-retrievers"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments],
        cwd=folder,
        env={"COLUMNS": "80", "PATH": "", "HOME": str(folder), "MPLCONFIGDIR": str(folder)},
        capture_output=True,
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_demo_saves_a_calibration_and_prints_its_statement(demo):
    folder, printed = demo
    calibration = Calibration.load(folder / "calibration.json")
    assert (calibration.alpha, calibration.guarantee) == (0.1, "query-recall")
    assert (
        calibration.statement.split()
        == re.search(r"(?s)Of the relevant.*?(?=\n\n4 )", printed).group().split()
    )
    assert calibration.retrieval["k"] == 20


def test_both_frameworks_keep_the_same_snippets_in_the_demo(demo):
    _, printed = demo
    kept, total = re.search(r"keep the same ([\d,]+) of ([\d,]+) snippets", printed).groups()
    assert 0 < int(kept.replace(",", "")) < int(total.replace(",", ""))


def test_the_demo_prints_every_measure_with_its_interval(demo):
    _, printed = demo
    share = r"\d+\.\d \[\d+–\d+\]"
    for alpha, target in (("0.05", "95"), ("0.1", "90"), ("0.2", "80")):
        section = printed[printed.index(f"alpha {alpha}, target {target} %") :]
        for filter_ in ("conformal", r"top \d+", r"BM25 ≥ \d+\.\d", r"BM25 ≥ 0\.\d\d of best"):
            assert re.search(rf"{filter_} +{share} +{share} +{share}", section)
    assert re.search(r"alpha +m1 +m2 +recall@20", printed)
    assert re.search(rf"0\.1 +{share} +{share} +{share}", printed)
    assert re.search(r"kept +(yes )? *-?\d+\.\d\d +\d\.\d\d\d ", printed)
    assert "dropped" in printed


def test_the_demo_fits_into_eighty_columns(demo):
    _, printed = demo
    assert max(map(len, printed.splitlines())) <= 80


def test_the_demo_draws_a_picture(demo):
    folder, _ = demo
    assert (folder / "coverage.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_gives_the_same_numbers_twice(demo, tmp_path):
    folder, printed = demo
    again = run("demo", folder=tmp_path)
    assert again.stdout == printed
    files = [json.loads((f / "calibration.json").read_text()) for f in (folder, tmp_path)]
    for fields in files:
        del fields["created"], fields["sha256"]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--alpha", "1.5"], "strictly between 0 and 1"),
        (["demo", "--alpha", "nan"], "strictly between 0 and 1"),
        (["demo", "--scorer", "embedding"], "together"),
        (["demo", "--model", "x"], "together"),
        (["demo", "--folder", "missing"], "does not exist"),
        (["dmeo"], "No such command"),
    ],
)
def test_a_command_that_is_not_understood_says_why_and_exits_with_2(arguments, said, tmp_path):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_printed(tmp_path):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("--version", folder=tmp_path).stdout)


# --- the questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        ("Return the sum.\n\nOf two numbers.", "Return the sum."),
        ("Return the\nsum as math.fsum does.\n\nMore.", "Return the sum as math.fsum does."),
        ("Return it. Then stop.\n\nMore.", ""),
        ("sum(a, b) -> c\n\nMore.", ""),
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
        assert 5 <= len(question.text.split()) <= 30
        assert question.relevant
        for snippet in question.relevant:
            assert texts[snippet.id] == snippet.text
            assert not " ".join(snippet.text.split()).startswith(question.text)
    starts = {" ".join(s.text.split()) for s in corpus.snippets}
    asked = tuple(question.text for question in corpus.questions)
    assert not [start for start in starts if start.startswith(asked)]
