"""docs/start.md in a new process, as its reader runs it: each block, the command, what is printed.

A process of its own, because other libraries change docstrings, the text of the page.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from test_readme import BLOCK, assert_prints

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parent.parent / "docs" / "start.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"(?:^    (?!pip |conformal-retrievers ).+\n)+", re.M)
COMMAND = re.compile(r"^    conformal-retrievers (.+)$", re.M)
RULE = re.compile("─+")  # as wide as its numbers


def test_a_new_user_gets_a_filter_in_both_frameworks_its_evaluation_and_its_report(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("page.py").write_text("\n".join(block[2] for block in BLOCK.finditer(PAGE)), "utf-8")
    ran = subprocess.run([sys.executable, "page.py"], stdout=subprocess.PIPE, check=True)
    printed = ran.stdout.decode()
    assert all(0 < int(n) < 20 for n in re.findall(r"(\d+) of 20 (?:snippets|nodes)", printed))
    shown = SHOWN.findall(BLOCK.sub("", PAGE))
    assert len(shown) > 1
    if sys.version_info[:2] == (3, 11):  # other docstrings, other numbers
        for text in shown:
            assert_prints(f"… {RULE.sub('─', text)} …", RULE.sub("─", printed))
    (diagnosing,) = COMMAND.findall(PAGE)
    run(*shlex.split(diagnosing))
    assert "<html" in Path("report.html").read_text(encoding="utf-8")
