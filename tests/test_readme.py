"""The README's code runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"


def test_the_readmes_code_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 6
    torch.set_num_threads(1)  # many short texts on a busy machine: threads wait for one another
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "calibration.json").exists()
    printed = capsys.readouterr().out
    assert "guarantee 'query-recall', alpha = 0.1" in printed
    assert re.search(r"\d+ of 10 snippets kept", printed)
    kept = len(names["result"].kept)
    assert kept + len(names["result"].dropped) == 10
    assert 0 < kept < 10
    assert f"{kept} of 10 snippets kept" in printed
    assert len(re.findall(r"^0\.\d{4,} \S", printed, re.M)) == kept  # the LangChain loop


def test_the_readme_names_every_module():
    text = README.read_text(encoding="utf-8")
    modules = {path.name for path in (README.parent / "conformal_retrievers").glob("*.py")}
    told = {name for name in modules if name in text}
    assert modules - told <= {
        "__init__.py",
        "__main__.py",
        "atomic.py",
        "extras.py",
        "lazy.py",
        "version.py",
    }


@pytest.mark.parametrize(
    ("folder", "n_imports"),
    [("langchain-conformal", 9), ("llama-index-postprocessor-conformal", 10)],
)
def test_the_readmes_of_the_integrations_name_what_exists(folder, n_imports):
    text = (README.parent / "integrations" / folder / "README.md").read_text(encoding="utf-8")
    imports = re.findall(r"^from \S+ import (?:\([^)]*\)|[^\n(]*)", text, re.M)
    assert len(imports) == n_imports
    for statement in imports:
        exec(statement)
