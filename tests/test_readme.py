"""The Python code of the README, of docs/ and of the packages' READMEs runs as it stands.

`reader.py` has what a reader has already. A block that cannot run here has a comment on the line
before it: `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import reader
from llama_index.core import Settings
from llama_index.core.instrumentation import get_dispatcher

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PACKAGES = sorted(ROOT.glob("integrations/*/README.md"))
PAGES = sorted([*ROOT.glob("docs/*.md"), *PACKAGES])
BLOCK = re.compile(r"^(?:<!-- (not run: .+) -->\n)?```python\n(.*?)^```", re.S | re.M)


def run(page: Path, names: dict[str, object]) -> dict[str, object]:
    """Run the blocks of a page one after the other, and return the names that they leave."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if not block[1]:
            above = "\n" * (text.count("\n", 0, block.start(2)))  # for the lines of a traceback
            exec(compile(above + block[2], str(page), "exec", dont_inherit=True), names)
    return names


@pytest.fixture(autouse=True, scope="module")
def _handlers_stay_here():
    root = get_dispatcher()
    before = list(root.event_handlers)
    yield
    root.event_handlers = before


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """The names that a reader of the README has for the pages, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = run(README, dict(reader.before()))
        return names | reader.after(names["filtered"].retriever), folder


@pytest.mark.slow
def test_the_code_of_the_readme_keeps_some_snippets_and_drops_others_in_both_frameworks(readme):
    names, folder = readme
    kept = names["filtered"].invoke(names["question"])
    assert 0 < len(kept) < len(names["retriever"].invoke(names["question"]))
    nodes = names["engine"].query(names["question"]).source_nodes
    assert 0 < len(nodes) < reader.K
    assert {"calibration.json", "nodes.json"} <= {path.name for path in folder.iterdir()}


def test_the_first_lines_fit_on_one_screen():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    for page in PACKAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 120
    sections = re.split(r"^## ", README.read_text(encoding="utf-8"), flags=re.M)
    for framework in ("LangChain", "LlamaIndex"):
        (section,) = (text for text in sections if text.startswith(f"{framework}\n"))
        (lines,) = (block[2].splitlines() for block in BLOCK.finditer(section))
        assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [  # test_start.py runs the first page alone
        page
        for page in PAGES
        if BLOCK.search(page.read_text(encoding="utf-8")) and page.stem != "start"
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs_after_that_of_the_readme(page, readme, tmp_path, monkeypatch):
    names, folder = readme
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "_llm", names["llm"])
    left = run(page, dict(names))
    for instrumentor in ("LlamaIndexInstrumentor", "LangChainInstrumentor"):
        if instrumentor in left:  # they would trace the other pages too
            left[instrumentor]().uninstrument()


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert all((page.parent / link).exists() for link in inside), inside
