"""The Python code of the README, of docs/ and of the packages' READMEs runs as it stands.

A block that cannot run here has a comment on the line before it: `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core import Settings
from llama_index.core.llms import MockLLM

from conformal_retrievers import Snippet

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("integrations/*/README.md")])
BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?```python\n(.*?)^```", re.S | re.M)


def run(page: Path, names: dict[str, object]) -> dict[str, object]:
    """Run the blocks of a page one after the other, and return the names that they leave."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if block[1] is None:
            above = "\n" * (text.count("\n", 0, block.start(2)))  # for the lines of a traceback
            exec(compile(above + block[2], str(page), "exec", dont_inherit=True), names)
    return names


def by_shared_words(snippets: list[Snippet]) -> RunnableLambda[str, list[Document]]:
    """Return what a page calls `bm25`, for which LangChain's own needs another package."""

    def shared(query: str) -> list[Document]:
        words = set(query.casefold().split())
        ordered = sorted(snippets, key=lambda s: -len(words & set(s.text.casefold().split())))
        return [Document(s.text) for s in ordered[:20]]

    return RunnableLambda(shared)


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """The names that the README's code leaves, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return run(README, {}), folder


@pytest.mark.slow
def test_the_code_of_the_readme_keeps_some_snippets_and_drops_others(readme):
    names, folder = readme
    assert (folder / "calibration.json").exists()
    assert 0 < len(names["result"].kept) < 10
    assert len(names["result"].kept) + len(names["result"].dropped) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs_after_that_of_the_readme(page, readme, tmp_path, monkeypatch):
    names, folder = readme
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    run(page, names | {"queries": names["judged"], "bm25": by_shared_words(names["snippets"])})


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert all((page.parent / link).exists() for link in inside), inside
