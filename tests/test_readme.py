"""The code of README.md and docs/ runs as it stands, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from conformal_retrievers import Calibration

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"
GO_ON = ("operation", "promise", "claims")  # pages whose code goes on from the README's


def test_the_readmes_code_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [
        block
        for page in (README, *(DOCS / f"{name}.md" for name in GO_ON))
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
        if "Instrumentor" not in block  # for a process of its own: test_llama_index_tracing.py
    ]
    assert len(blocks) == 14
    torch.set_num_threads(1)  # many short texts on a busy machine: threads wait for one another
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    calibration = Calibration.load(tmp_path / "calibration.json")
    assert not {query.id for query in names["new"]} & calibration.ids
    assert names["followed"].judged > 0
    printed = capsys.readouterr().out
    assert "query-recall coverage is " in printed
    assert "coverage 1.000 on" in printed or "coverage 0." in printed
    assert "guarantee 'query-recall', alpha = 0.1" in printed
    assert re.search(r"\d+ of 10 snippets kept", printed)
    kept = len(names["result"].kept)
    assert kept + len(names["result"].dropped) == 10
    assert 0 < kept < 10
    assert f"{kept} of 10 snippets kept" in printed
    in_langchain = printed.partition(f"{kept} of 10 snippets kept")[0]
    assert len(re.findall(r"^0\.\d{4,} \S", in_langchain, re.M)) == kept

    claims, wrong = names["filtered"].claims, names["wrong"][1]
    removed = [claims.claims[i] for i in claims.dropped]
    assert claims.kept_claims
    assert removed[-1] in wrong  # which the page's answer ends with
    assert names["message"].text == names["filtered"].text
    assert not names["filtered"].guaranteed
    assert names["response"].metadata["conformal_claims"]["kept"]


def test_the_page_of_modules_names_every_module():
    text = (DOCS / "modules.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert all((page.parent / link).exists() for link in inside), inside


def test_the_readme_leads_to_every_page():
    text = README.read_text(encoding="utf-8")
    assert all(f"(docs/{page.name})" in text for page in DOCS.glob("*.md"))


@pytest.mark.parametrize(
    ("folder", "n_imports"),
    [("langchain-conformal", 14), ("llama-index-postprocessor-conformal", 10)],
)
def test_the_readmes_of_the_integrations_name_what_exists(folder, n_imports):
    text = (README.parent / "integrations" / folder / "README.md").read_text(encoding="utf-8")
    imports = re.findall(r"^from \S+ import (?:\([^)]*\)|[^\n(]*)", text, re.M)
    assert len(imports) == n_imports
    for statement in imports:
        exec(statement)
