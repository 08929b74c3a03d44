"""The Python code of the README, of docs/ and of the packages' READMEs runs as it stands.

A block that cannot run here has a comment on the line before it: `<!-- not run: why -->`. One with
`<!-- run first -->` runs before the others: it makes what a reader has already.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import langchain_huggingface
import pytest
from langchain_core.embeddings import Embeddings
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("integrations/*/README.md")])
BLOCK = re.compile(r"^(?:<!-- (not run: .+|run first) -->\n)?```python\n(.*?)^```", re.S | re.M)


def run(page: Path, names: dict[str, object]) -> dict[str, object]:
    """Run the blocks of a page one after the other, and return the names that they leave."""
    text = page.read_text(encoding="utf-8")
    for block in sorted(BLOCK.finditer(text), key=lambda block: block[1] != "run first"):
        if not (block[1] or "").startswith("not run"):
            above = "\n" * (text.count("\n", 0, block.start(2)))  # for the lines of a traceback
            exec(compile(above + block[2], str(page), "exec", dont_inherit=True), names)
    return names


class MiniLM(BaseEmbedding):
    """The model of the README, for pages that take an index for granted."""

    model_name: str = "all-MiniLM-L6-v2"
    _embeddings: Embeddings = PrivateAttr()

    def __init__(self, embeddings):
        super().__init__()
        self._embeddings = embeddings

    def _get_text_embedding(self, text):
        return self._embeddings.embed_query(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class Remembering(HuggingFaceEmbeddings):
    """The embeddings of the README; the pages embed the same texts again and again."""

    _known: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    def embed_documents(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, super().embed_documents(new), strict=True) if new else ())
        return [self._known[text] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


def in_llama_index(names):
    """What a LlamaIndex user has already."""
    embed_model = MiniLM(names["embeddings"])
    nodes = [TextNode(text=s.text, id_=s.id) for s in names["snippets"]]
    index = VectorStoreIndex(nodes, embed_model=embed_model)
    return {"embed_model": embed_model, "index": index}


@pytest.fixture(autouse=True, scope="module")
def _handlers_stay_here():
    root = get_dispatcher()
    before = list(root.event_handlers)
    yield
    root.event_handlers = before


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """The names that the README's code leaves, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(langchain_huggingface, "HuggingFaceEmbeddings", Remembering)
        names = run(README, {})
    names["embeddings"].model_name = "all-MiniLM-L6-v2"  # not a path, as a reader's own
    return names, folder


@pytest.mark.slow
def test_the_code_of_the_readme_keeps_some_snippets_and_drops_others(readme):
    names, folder = readme
    assert (folder / "calibration.json").exists()
    kept, dropped = names["result"].kept, names["result"].dropped
    assert 0 < len(kept) < len(kept) + len(dropped) == len(names["retrieved"].snippets)
    assert set(names["retrieved"].hits) == {"dense", "bm25"}


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
    left = run(page, names | in_llama_index(names))
    for instrumentor in ("LlamaIndexInstrumentor", "LangChainInstrumentor"):
        if instrumentor in left:  # they would trace the other pages too
            left[instrumentor]().uninstrument()


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert all((page.parent / link).exists() for link in inside), inside
