"""What can be imported, what importing costs, and who imports whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from llama_index.postprocessor import conformal as llama_index_conformal
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import conformal_retrievers
import langchain_conformal

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "conformal_retrievers": ROOT / "conformal_retrievers",
    "langchain_conformal": ROOT / "integrations/langchain-conformal/langchain_conformal",
    "llama_index": ROOT / "integrations/llama-index-postprocessor-conformal/llama_index",
}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            conformal_retrievers,
            "AnnotatedAnswer AnswerFilter Cache CachedScorer Calibration "
            "CalibrationMismatch Cascade ClaimCalibration ClaimEvaluation ClaimFilter "
            "ClaimRelevance ClaimScorer ConformalFilter CrossEncoderScorer Diagnosis "
            "EmbeddingScorer Evaluation FilterLog Filtered FilteredAnswer FilteredClaims "
            "FunctionScorer JudgedQuery LLM LLMScorer LearnedScorer Monitor NothingKept "
            "QueryZScore Refused RetrievalScorer ScoredQuery Scorer Snippet "
            "TieBreak Unscorable YesScorer __version__ annotate calibrate calibrate_claims certify "
            "claim_relevance compare coverage_curve decompose diagnose evaluate evaluate_claims "
            "fixed_thresholds iter_jsonl merge openai_options plan promise read_beir read_jsonl "
            "read_log score_queries threshold_for_budget top_k track write_jsonl",
        ),
        (
            langchain_conformal,
            "ConformalCallbackHandler ConformalCompressor ConformalRetriever "
            "answer_filter_runnable as_llm as_scorer compressor_scorer cross_encoder_scorer "
            "decision_scorer embedding_scorer judge_retriever llm_scorer",
        ),
        (
            llama_index_conformal,
            "ConformalClaimsEvent ConformalClaimsStartEvent ConformalEventHandler "
            "ConformalFilterEvent ConformalPostprocessor ClaimFilterQueryEngine as_llm "
            "embedding_scorer judge_retriever llm_scorer",
        ),
    ],
)
def test_the_public_names_are_these(module, names):
    assert sorted(module.__all__) == sorted(names.split())
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("folder", PACKAGES.values(), ids=PACKAGES)
def test_every_package_ships_its_types(folder):
    assert len(list(folder.rglob("py.typed"))) == 1


def test_the_llama_index_namespace_has_no_init_above_the_leaf():
    inits = sorted(PACKAGES["llama_index"].rglob("__init__.py"))
    assert [path.parent.name for path in inits] == ["conformal"]


def test_the_core_imports_numpy_and_nothing_heavier():
    code = (
        "import sys, conformal_retrievers; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = (
        "asyncio sqlite3 ssl "
        "bm25s jinja2 langchain_core llama_index matplotlib openai pydantic rapidfuzz regex rich "
    )
    heavy += "scipy sentence_transformers sklearn torch transformers typer"
    assert "numpy" in loaded
    assert not set(heavy.split()) & set(loaded)


@pytest.mark.parametrize(
    "module", ["lookback", "flagging", "rag_prompt", "consistency", "cli.show"]
)
def test_what_is_computed_from_attention_needs_neither_torch_nor_transformers(module):
    code = f"import sys, conformal_retrievers.{module}; print('torch' in sys.modules, "
    code += "'transformers' in sys.modules, 'scipy' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.split() == ["False", "False", "False"]


@pytest.mark.parametrize("package", ["conformal_retrievers", "conformal_retrievers.scoring"])
def test_names_that_are_loaded_when_they_are_used_are_those_that_type_checkers_see(package):
    path = ROOT / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    code = f"import {package} as p; print(*(n for n in p.__all__ if getattr(p, n)), '|', *dir(p))"
    loaded, listed = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        .stdout.strip()
        .split("|")
    )
    assert set(loaded.split()) == seen - {"TYPE_CHECKING", "lazy_names"}
    assert set(loaded.split()) <= set(listed.split())


def test_a_name_is_the_same_whatever_was_loaded_before():
    """A module that has the name of a function would stand in its place, once it is loaded."""
    code = (
        "import pkgutil, importlib, conformal_retrievers as p\n"
        "for m in ('monitor', 'diagnostics', 'evaluation', 'certify', 'scoring.cached'):\n"
        "    importlib.import_module(f'conformal_retrievers.{m}')\n"
        "modules = {m.name for m in pkgutil.iter_modules(p.__path__)}\n"
        "print(*(n for n in p.__all__ if n in modules), callable(p.certify))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "certify True\n"
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        conformal_retrievers.no_such_name  # noqa: B018


def imports_of(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    return modules


def test_the_integrations_use_public_names_and_their_frameworks_core_alone():
    allowed = {
        "langchain_conformal": r"langchain_core(\..*)?|langchain_conformal\..*",
        "llama_index": r"llama_index\.(core|postprocessor\.conformal)(\..*)?",
    }
    outside = (
        r"conformal_retrievers|pydantic(_core)?|typing_extensions|"
        r"__future__|asyncio|collections\.abc|contextlib|copy|dataclasses|inspect|json|logging|math|"
        r"numbers|numpy|pathlib|sys|typing|uuid|warnings"
    )
    of_tests = r"concurrent\.futures|json|pickle|pytest|threading|types"
    for package, pattern in allowed.items():
        for path in PACKAGES[package].rglob("*.py"):
            others = f"{outside}|{of_tests}" if path.name == "testing.py" else outside
            for module in imports_of(path):
                assert re.fullmatch(f"{pattern}|{others}", module), (path, module)


CALIBRATED = """
from pathlib import Path
import numpy as np
from conformal_retrievers import Calibration, ConformalFilter, FunctionScorer, JudgedQuery
from conformal_retrievers import Snippet, calibrate

texts = [f"{place} thousand" for place in range(20)]
judged = [JudgedQuery(t, [Snippet(t, id=t)], [True]) for t in texts]  # each is its own answer

def vector(text):
    return np.random.default_rng(int(text.split()[0])).normal(size=8).tolist()
"""
ALONE = {
    "conformal-retrievers": """
scorer = FunctionScorer(lambda query, given: [float(query != t) for t in given], "same")
calibrate(judged, scorer, alpha=0.1).save("calibration.json")
conformal = ConformalFilter(scorer, Calibration.load("calibration.json"))
kept = [texts[i] for i in conformal(texts[3], texts).kept]
""",
    "langchain-conformal": """
import langchain_conformal as ours
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

class Vectors(Embeddings):
    model_name = "vectors"
    embed_query = staticmethod(vector)

    def embed_documents(self, texts):
        return [vector(text) for text in texts]

store = InMemoryVectorStore.from_texts(texts, Vectors())
retriever = store.as_retriever(search_kwargs={"k": 5})
scorer = ours.embedding_scorer(Vectors())
found = ours.judge_retriever(retriever, judged)
calibrate(found, scorer, alpha=0.1).save("calibration.json")
filtered = ours.ConformalRetriever.from_calibration(
    "calibration.json", retriever=retriever, embeddings=Vectors()
)
handler = ours.ConformalCallbackHandler()
documents = filtered.invoke(texts[3], {"callbacks": [handler]})
kept = [document.page_content for document in documents]
assert len(handler.observer.counts) == 1
""",
    "llama-index-postprocessor-conformal": """
import llama_index.postprocessor.conformal as ours
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

class Vectors(BaseEmbedding):
    model_name: str = "vectors"

    def _get_text_embedding(self, text):
        return vector(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return vector(query)

index = VectorStoreIndex([TextNode(text=t, id_=t) for t in texts], embed_model=Vectors())
found = ours.judge_retriever(index.as_retriever(similarity_top_k=5), judged)
calibrate(found, ours.embedding_scorer(Vectors()), alpha=0.1).save("calibration.json")
filtered = ours.ConformalPostprocessor.from_calibration("calibration.json", embed_model=Vectors())
engine = index.as_query_engine(
    llm=MockLLM(), similarity_top_k=5, node_postprocessors=[filtered]
)
kept = [node.text for node in engine.query(texts[3]).source_nodes]
""",
}


@pytest.mark.parametrize("name", ALONE)
def test_a_package_filters_with_nothing_installed_but_what_it_requires(name, tmp_path):
    required = required_by(name)
    others = [
        re.escape(module)
        for module, found in metadata.packages_distributions().items()
        if required.isdisjoint(map(canonicalize_name, found))
    ]
    others.append(r"llama_index\.(?!core|postprocessor)\w+")
    absent = f"({'|'.join(others)})(\\..*)?"
    code = f"""
import re, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if re.fullmatch({absent!r}, name):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{CALIBRATED}
{ALONE[name]}
assert kept == [texts[3]], kept
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def required_by(distribution: str) -> set[str]:
    """Return the names of a distribution and of all that pip installs with it."""
    found: set[str] = set()
    asked = [Requirement(distribution)]
    while asked:
        requirement = asked.pop()
        found.add(name := canonicalize_name(requirement.name))
        for each in map(Requirement, metadata.requires(name) or []):
            extras = ("", *requirement.extras)
            wanted = each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)
            if wanted and canonicalize_name(each.name) not in found:
                asked.append(each)
    return found


def test_the_core_knows_its_neighbours_only():
    """An arrow that is not here is a change of the design."""
    may_import = {
        "conformal": set(),
        "extras": set(),
        "lazy": set(),
        "atomic": set(),
        "judged": set(),
        "jsonl": {"atomic", "judged", "rows"},
        "rows": set(),
        "beir": {"jsonl", "judged"},
        "snippets": {"judged", "extras"},
        "labeling": {"cache", "extras", "judged", "llm", "llm_verdicts"},
        "audit": {"audit_sheet", "conformal", "judged"},
        "audit_sheet": {"atomic", "judged"},
        "calibration_file": {"atomic", "calibration", "judged", "rows"},
        "claims.answers": {"conformal"},
        "claims.statement": {"claims.calibration", "conformal"},  # the former for its type only
        "claims.calibration": {
            *("calibration", "calibration_file", "claims.answers", "claims.file"),
            *("claims.statement", "conformal", "entry", "judged"),
        },
        "claims.file": {"atomic", "calibration_file", "claims.answers", "jsonl", "rows"},
        "claims.texts": {"judged"},
        "claims.filter": {"claims.calibration", "claims.texts", "filtering", "judged"},
        "claims.evaluation": {
            *("claims.answers", "claims.calibration", "conformal", "measures", "verdict"),
        },
        "claims.relevance": {"claims.texts", "judged", "scoring.embedding"},
        "claims.confidence": {"cache", "judged", "llm", "prompt", "reply"},
        "claims.dividing": {"cache", "claims.texts", "llm", "prompt", "reply"},
        "claims.annotating": {"cache", "claims.texts", "judged", "llm", "prompt", "reply"},
        "claims.merging": {"cache", "claims.texts", "llm", "prompt", "reply"},
        "claims.answer_filter": {
            *("cache", "claims.calibration", "claims.dividing", "claims.filter", "claims.merging"),
            *("claims.texts", "events", "filtering", "judged", "llm"),
        },
        "claims.events": {"claims.answer_filter", "events"},
        "claims.demo": {
            *("calibration", "claims.annotating", "claims.answer_filter", "claims.answers"),
            *("claims.calibration", "claims.dividing", "claims.evaluation", "claims.filter"),
            *("claims.relevance", "docstrings", "filtering", "judged", "llm"),
            "scoring.embedding",
        },
        "entry": {"judged"},
        "tolerance": {"conformal"},
        "guarantees": {"conformal", "judged", "tolerance"},
        "calibration": {
            *("calibration_file", "conformal", "entry", "guarantees", "judged", "statement"),
            "version",
            "scoring.scorer",
        },
        "planning": {"conformal", "guarantees", "tolerance"},
        "certify": {"calibration", "conformal", "guarantees", "judged", "tolerance"},
        "choosing": {"calibration", "conformal", "guarantees", "tolerance"},
        "filtering": {"calibration", "judged", "scoring.scorer"},
        "events": {"filtering"},
        "filter_log": {"events", "extras"},
        "observing": {"events", "filter_log", "monitor"},
        "monitor": {"atomic", "calibration", "certify", "guarantees", "judged", "tolerance"},
        "tracking": {"calibration", "guarantees", "judged"},
        "measures": {"conformal", "guarantees"},
        "verdict": {"calibration", "certify", "conformal", "guarantees", "measures", "tolerance"},
        "evaluation": {
            *("calibration", "conformal", "filtering", "guarantees", "judged", "measures"),
            *("scoring.scorer", "verdict"),
        },
        "comparison": {
            *("calibration", "conformal", "evaluation", "filtering", "judged", "measures"),
        },
        "nuggets": {"cache", "comparison", "conformal", "llm", "llm_verdicts"},
        "ratios": set(),
        "lookback": {"conformal", "extras", "lookback_file", "ratios"},
        "lookback_file": {"atomic"},
        "statement": {"calibration", "conformal", "flag_statement"},  # the first for its type only
        "flag_statement": {"calibration", "conformal"},  # the former for its type only
        "flagging": {
            *("calibration", "conformal", "filtering", "flag_statement", "judged", "lookback"),
            "ratios",
        },
        "rag_prompt": set(),
        "attention": {"extras", "rag_prompt"},
        "huggingface": {"attention", "extras", "lookback", "rag_prompt", "ratios"},
        "consistency": {"cache", "llm", "llm_verdicts"},
        "cache": set(),
        "prompt": set(),
        "reply": set(),
        "llm": {"cache", "extras", "prompt", "reply"},
        "llm_verdicts": {"cache", "llm", "reply"},
        "servers": {"prompt", "reply"},
        "model_names": {"prompt", "servers"},
        "openai_llm": {"extras", "llm", "servers"},
        "scoring.cached": {"cache", "judged", "scoring.retrieval", "scoring.scorer"},
        "scoring.ratings": {"judged", "llm"},
        "scoring.rating": {"cache", "judged", "llm", "prompt", "reply", "scoring.ratings"},
        "scoring.yes": {"cache", "judged", "llm", "prompt", "reply", "scoring.ratings"},
        "exchangeability": set(),
        "findings": {
            *("conformal", "measures", "statement", "verdict"),
            "diagnostics",  # for its types only
        },
        "columns": {"calibration", "filtering", "judged", "measures"},
        "sweeps": {"calibration", "columns", "conformal", "exchangeability", "measures"},
        "diagnostics": {
            *("calibration", "columns", "conformal", "exchangeability", "filtering", "findings"),
            *("judged", "measures", "sweeps", "verdict"),
        },
        "figures": {"diagnostics", "extras", "sweeps"},
        "report": {
            *("atomic", "calibration", "conformal", "diagnostics", "extras", "figures"),
            *("filtering", "findings", "judged", "sweeps"),
        },
        "scoring.scorer": {"judged", "extras"},
        "scoring.embedding": {"judged"},
        "scoring.function": {"judged"},
        "scoring.retrieval": {"judged"},
        "scoring.bm25": {"judged", "extras"},
        "scoring.cross_encoder": {"judged"},
        "scoring.combine": {"judged", "scoring.scorer"},
        "scoring.features": {"judged", "scoring.combine"},
        "scoring.learned": {"judged", "extras", "scoring.features", "scoring.scorer"},
    }
    for name, neighbours in may_import.items():
        path = PACKAGES["conformal_retrievers"] / f"{name.replace('.', '/')}.py"
        own = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
                "conformal_retrievers"
            ):
                inner = str(node.module).removeprefix("conformal_retrievers").removeprefix(".")
                own |= {inner} if inner else {alias.name for alias in node.names}
        assert own <= neighbours, (name, own - neighbours)


def test_a_missing_extra_is_named():
    from conformal_retrievers.extras import require

    with pytest.raises(ModuleNotFoundError, match=r"no_such_module not found.*\[cli\]"):
        require("cli", "rich", "no_such_module")
