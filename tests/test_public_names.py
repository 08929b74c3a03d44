"""What can be imported, what importing costs, and who imports whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.postprocessor import conformal as llama_index_conformal

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
            "Agreement AnnotatedAnswer AnswerFilter Cache CachedScorer Calibration "
            "CalibrationMismatch Cascade ClaimCalibration ClaimEvaluation ClaimFilter "
            "ClaimRelevance ClaimScorer ConformalFilter CrossEncoderScorer Diagnosis "
            "EmbeddingScorer Evaluation FilterLog Filtered FilteredAnswer FilteredClaims "
            "JudgedQuery LLM LLMScorer LearnedScorer Monitor NothingKept QueryZScore "
            "RetrievalScorer ScoredQuery Scorer SelfConfidence Snippet TieBreak YesScorer "
            "__version__ annotate calibrate calibrate_claims certify claim_relevance compare "
            "coverage_curve decompose diagnose evaluate evaluate_claims fixed_thresholds "
            "iter_jsonl merge openai_options plan promise read_beir read_jsonl read_log "
            "score_queries threshold_for_budget top_k track write_jsonl",
        ),
        (
            langchain_conformal,
            "ConformalCallbackHandler ConformalCompressor ConformalRetriever "
            "answer_filter_runnable as_llm cross_encoder_scorer embedding_scorer "
            "judge_retriever llm_scorer",
        ),
        (
            llama_index_conformal,
            "ConformalEventHandler ConformalFilterEvent ConformalPostprocessor "
            "ConformalQueryEngine as_llm embedding_scorer judge_retriever llm_scorer",
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
        "bm25s jinja2 langchain_core llama_index matplotlib openai pydantic rapidfuzz regex rich "
    )
    heavy += "scipy sentence_transformers sklearn torch transformers typer"
    assert "numpy" in loaded
    assert not set(heavy.split()) & set(loaded)


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
        r"conformal_retrievers|pydantic|typing_extensions|"
        r"__future__|asyncio|collections\.abc|contextlib|copy|dataclasses|json|logging|math|numbers|"
        r"numpy|pathlib|typing|uuid|warnings"
    )
    for package, pattern in allowed.items():
        for path in PACKAGES[package].rglob("*.py"):
            for module in imports_of(path):
                assert re.fullmatch(f"{pattern}|{outside}", module), (path, module)


def test_the_core_knows_its_neighbours_only():
    """An arrow that is not here is a change of the design."""
    may_import = {
        "conformal": set(),
        "extras": set(),
        "atomic": set(),
        "judged": {"atomic", "rows"},
        "rows": set(),
        "beir": {"judged"},
        "snippets": {"judged", "extras"},
        "labeling": {"cache", "extras", "judged", "llm"},
        "audit": {"atomic", "conformal", "judged"},
        "calibration_file": {"atomic", "rows"},
        "claims": {"calibration", "claims_file", "conformal", "entry", "judged"},
        "claims_file": {"calibration_file", "claims", "judged", "rows"},
        "claims_demo": {
            *("answer_filter", "calibration", "claim_evaluation", "claim_filter", "claim_llm"),
            *("claim_scores", "claims", "docstrings", "filtering", "judged", "llm"),
            "scoring.embedding",
        },
        "claim_evaluation": {"claims", "conformal"},
        "claim_llm": {"cache", "judged", "llm"},
        "claim_scores": {"cache", "claim_llm", "judged", "llm", "scoring.embedding"},
        "answer_filter": {"cache", "claim_filter", "claim_llm", "judged", "llm"},
        "claim_filter": {"claims", "filtering", "judged"},
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
        "filter_log": {"extras", "filtering", "judged", "monitor"},
        "monitor": {"atomic", "calibration", "certify", "guarantees", "judged", "tolerance"},
        "tracking": {"calibration", "judged"},
        "measures": {"conformal", "guarantees"},
        "verdict": {"calibration", "certify", "conformal", "guarantees", "measures", "tolerance"},
        "evaluation": {
            *("calibration", "filtering", "guarantees", "judged", "measures", "verdict"),
            "scoring.scorer",
        },
        "comparison": {"calibration", "evaluation", "filtering", "judged", "measures"},
        "nuggets": {"cache", "comparison", "conformal", "llm"},
        "lookback": {"atomic", "extras"},
        "flagging": {"calibration", "conformal", "filtering", "judged", "lookback"},
        "huggingface": {"extras", "lookback"},
        "consistency": {"cache", "llm"},
        "cache": set(),
        "llm": {"cache", "extras"},
        "openai_llm": {"extras", "llm"},
        "scoring.cached": {"cache", "judged", "scoring.retrieval", "scoring.scorer"},
        "scoring.rating": {"cache", "judged", "llm"},
        "exchangeability": set(),
        "findings": {"conformal", "diagnostics"},  # diagnostics for its types only
        "diagnostics": {
            *("calibration", "certify", "conformal", "exchangeability", "filtering", "findings"),
            *("guarantees", "judged", "tolerance"),
        },
        "figures": {"diagnostics", "extras"},
        "report": {
            *("atomic", "calibration", "conformal", "diagnostics", "extras", "figures"),
            *("filtering", "findings", "judged"),
        },
        "scoring.scorer": {"judged", "extras"},
        "scoring.embedding": {"judged"},
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
