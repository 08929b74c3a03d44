"""`conformal-retrievers demo`: the whole way from text to a filter, in both frameworks.

Docstrings are cut into snippets, BM25 retrieves K = 20 for each question, half of the questions
calibrate, and the other half goes through a LangChain retriever and a LlamaIndex query engine that
load the same calibration file. What they keep is measured against what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration import Calibration, calibrate
from conformal_retrievers.cli.docstrings import DocstringCorpus, docstring_corpus
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.evaluation.evaluate import Evaluation, evaluate, measure
from conformal_retrievers.evaluation.measures import Share
from conformal_retrievers.extras import require
from conformal_retrievers.filtering import ConformalFilter, Filtered
from conformal_retrievers.scoring import EmbeddingScorer, Scorer, score_queries
from conformal_retrievers.scoring.bm25 import BM25Scorer

require("demo", "langchain_conformal", "llama_index", "matplotlib", "rich")
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from langchain_conformal import ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor

K = 20
ALPHAS = (0.05, 0.1, 0.2)
SHOWN = 4  # dropped snippets of the one query
INDENT = " " * 13
Item = TypeVar("Item")
Mask = NDArray[np.bool_]


def run(*, alpha: float, embedding: EmbeddingScorer | None, folder: Path, console: Console) -> None:
    """Run the demo, write calibration.json and coverage.png into `folder`, print what comes out.

    Snippets are scored by BM25, or by `embedding` where it is given. Raises RuntimeError if the two
    frameworks keep different snippets.
    """
    with console.status("Reading the standard library's docstrings"):
        corpus = docstring_corpus()
    _print_corpus(corpus, console)

    with console.status("Indexing"):
        index = Index(corpus.snippets)
    judged = [
        JudgedQuery(q.text, q.relevant, [True] * len(q.relevant), id=q.id).retrieved_as(
            index.search(q.text)
        )
        for q in _tracked("Retrieving", corpus.questions, console)
    ]
    console.print(f"[bold]2 Retrieve[/]   BM25 finds K = {K} snippets for each question")

    with console.status("Scoring"):
        scorer = index.bm25 if embedding is None else embedded_once(embedding, judged)
    order = np.random.default_rng(0).permutation(len(judged))
    half, other_half = ([judged[i] for i in part] for part in np.array_split(order, 2))
    calibration = calibrate(
        half,
        scorer,
        alpha=alpha,
        retrieval={"retriever": index.bm25.name, "k": K, "chunking": "500 characters, 100 shared"},
        labels={"source": "relevant: the windows of the docstring that the question comes from"},
        progress=console.is_terminal,
    )
    path = folder / "calibration.json"
    calibration.save(path)
    console.print(f"[bold]3 Calibrate[/]  on {len(half)} of the questions; saved as {path}\n")
    console.print(Text(calibration.statement, style="italic"))

    console.print(f"\n[bold]4 Filter[/]     for the other {len(other_half)} questions")
    compare_frameworks(index, scorer, path, other_half, console)
    scored = score_queries(scorer, other_half, progress=console.is_terminal)
    _print_measurements(calibration, other_half, scored, console)

    console.print("[bold]5 Look at one[/]")
    _print_query(ConformalFilter(scorer, calibration), other_half, console)

    plot = folder / "coverage.png"
    coverage_figure(calibration, scored).savefig(plot, dpi=150)
    console.print(f"Written: {path}, {plot}")


class Index:
    """A BM25 index that returns the K best snippets for a query, equals in the order of the corpus.

    The similarity is the snippet's `retrieval_score`.
    """

    def __init__(self, snippets: Sequence[Snippet]) -> None:
        self.snippets = {snippet.text: snippet for snippet in snippets}
        self.bm25 = BM25Scorer(self.snippets)

    def search(self, query: str) -> list[Snippet]:
        """Return the K snippets of highest BM25, best first."""
        similarities = self.bm25.similarities(query)
        found = []
        for i in np.argsort(-similarities, kind="stable")[:K]:
            s = self.snippets[self.bm25.corpus[i]]
            found.append(Snippet(s.text, s.id, s.document, s.position, float(similarities[i])))
        return found


def embedded_once(scorer: EmbeddingScorer, judged: Sequence[JudgedQuery]) -> EmbeddingScorer:
    """Return the scorer with each text of the judged queries embedded once, now."""
    texts = sorted({q.query for q in judged} | {s.text for q in judged for s in q.snippets})
    vectors = dict(zip(texts, np.asarray(scorer.embed(texts)), strict=True))
    return EmbeddingScorer(lambda wanted: np.array([vectors[t] for t in wanted]), scorer.name)


# --- the two frameworks ---------------------------------------------------------------------------


class LangChainBM25(LangChainRetriever):
    """An ordinary LangChain retriever over the index."""

    index: Any

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(s.text, id=s.id, metadata={"source": s.document})
            for s in self.index.search(query)
        ]


class LlamaIndexBM25(LlamaIndexRetriever):
    """An ordinary LlamaIndex retriever over the index."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self.index = index

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=TextNode(text=s.text, id_=str(s.id)), score=s.retrieval_score)
            for s in self.index.search(query_bundle.query_str)
        ]


def compare_frameworks(
    index: Index, scorer: Scorer, path: Path, queries: Sequence[JudgedQuery], console: Console
) -> None:
    """Ask both frameworks every question, and check that they keep the same snippets."""
    retriever = ConformalRetriever.from_calibration(
        path, retriever=LangChainBM25(index=index), scorer=scorer
    )
    engine = RetrieverQueryEngine.from_args(
        LlamaIndexBM25(index),
        llm=MockLLM(),
        node_postprocessors=[ConformalPostprocessor.from_calibration(path, scorer=scorer)],
    )
    kept = 0
    for query in _tracked("Asking LangChain and LlamaIndex", queries, console):
        documents = [document.id for document in retriever.invoke(query.query)]
        nodes = [node.node_id for node in engine.query(query.query).source_nodes]
        if documents != nodes:
            raise RuntimeError(
                f"query {query.query!r}: LangChain keeps {documents}, LlamaIndex keeps {nodes}"
            )
        kept += len(documents)
    total = sum(len(query.snippets) for query in queries)
    console.print(
        f"             LangChain and LlamaIndex keep the same {kept:,} of {total:,} snippets"
    )


# --- what is printed ------------------------------------------------------------------------------


def _print_corpus(corpus: DocstringCorpus, console: Console) -> None:
    console.print(
        f"[bold]1 Read[/]       {corpus.n_docstrings:,} docstrings of Python's standard library "
        f"({corpus.n_characters / 1e6:.1f} MB),\n"
        f"{INDENT}cut into {len(corpus.snippets):,} snippets; the first sentences of "
        f"{len(corpus.questions)}\n{INDENT}are the questions, and what follows them the answers"
    )


def _print_measurements(
    calibration: Calibration,
    queries: Sequence[JudgedQuery],
    scored: Sequence[ScoredQuery],
    console: Console,
) -> None:
    coverage = _table("", "kept, by query", "kept, pooled", "removed")
    signs = _table("alpha", "m1", "m2", f"recall@{K}")
    for alpha in sorted({*ALPHAS, calibration.alpha}):
        at = calibration.at(alpha)
        here = evaluate(at, scored)
        coverage.add_row(f"[bold]alpha {alpha:g}, target {100 * (1 - alpha):g} %[/]")
        coverage.add_row("conformal", *_shares(here), style="bold")
        masks = [at.keep(query.scores) for query in scored]
        for name, baseline in baselines(queries, scored, masks).items():
            coverage.add_row(name, *_shares(baseline))
        coverage.add_section()
        signs.add_row(f"{alpha:g}", *map(_percent, (here.m1, here.m2, here.recall_at_k)))
    promised, own = 1 - calibration.alpha, evaluate(calibration, scored).coverage["query-recall"]
    console.print(
        f"{INDENT}promised: {promised:.4g} of a question's relevant snippets on average;\n"
        f"{INDENT}kept: {own.estimate:.3f}"
    )
    console.print("\nRelevant snippets kept and all snippets removed, % \\[95 % interval]")
    console.print(coverage)
    console.print(
        "The filters below each conformal one are set to remove about as much. Which k or which "
        "fixed threshold keeps how much is not known before it is measured; a fixed threshold on "
        "the calibrated score itself is the same cut, and calibrating is how to find it.\n"
    )
    console.print("Diagnostics of the conformal filter, % \\[95 % interval]")
    console.print(signs)
    console.print(
        f"m1: questions of which anything is kept. m2: mean share kept. recall@{K}: the relevant "
        f"snippets that are among the {K} retrieved; what is not, no filter can keep.\n"
    )


def _shares(e: Evaluation) -> Iterator[str]:
    return map(_percent, (e.coverage["query-recall"], e.coverage["snippet"], e.removal))


def _table(*heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", no_wrap=True)
    return table


def baselines(
    queries: Sequence[JudgedQuery], scored: Sequence[ScoredQuery], kept: Sequence[Mask]
) -> dict[str, Evaluation]:
    """Measure the top k and fixed thresholds on the retriever's similarity that remove as much.

    One threshold is a similarity, the other a share of the query's best similarity.
    """
    number = int(sum(mask.sum() for mask in kept))
    similarities = [np.array([s.retrieval_score for s in query.snippets]) for query in queries]
    k = max(1, round(number / len(queries)))
    shares = [similarity / similarity.max() for similarity in similarities]
    threshold, share = (np.sort(np.concatenate(v))[-number] for v in (similarities, shares))
    masks = {
        f"top {k}": [np.arange(len(s)) < k for s in similarities],
        f"BM25 ≥ {threshold:.1f}": [s >= threshold for s in similarities],
        f"BM25 ≥ {share:.2f} of best": [s >= share for s in shares],
    }
    return {name: measure(scored, mask) for name, mask in masks.items()}


def _print_query(
    conformal_filter: ConformalFilter, queries: Sequence[JudgedQuery], console: Console
) -> None:
    query, filtered = _telling(conformal_filter, queries)
    table = _table("", "relevant", "score", "p", "snippet")
    table.columns[-1].justify = "left"
    nearest = sorted(filtered.dropped, key=lambda i: float(filtered.scores[i]))[:SHOWN]
    for i in [*filtered.kept, *nearest]:
        kept = bool(filtered.keeps[i])
        table.add_row(
            "kept" if kept else "dropped",
            "yes" if query.relevant[i] else "",
            f"{filtered.scores[i]:.2f}",
            f"{filtered.p_values[i]:.3f}",
            Text(shorten(query.snippets[i].text, 38, placeholder=" …")),
            style="" if kept else "dim",
        )
    console.print(f"“{query.query}”")
    console.print(table)
    console.print(
        f"{len(filtered.kept)} of {len(query.snippets)} snippets are kept: those with a score of "
        f"at most {filtered.threshold:.2f}, which is where p > {filtered.calibration.alpha:g}. A "
        f"score is a distance from the question: lower is more relevant."
        + (f" Of the dropped, the nearest {len(nearest)} are shown.\n" if len(nearest) else "\n")
    )


def _telling(
    conformal_filter: ConformalFilter, queries: Iterable[JudgedQuery]
) -> tuple[JudgedQuery, Filtered]:
    """Return the first query of which a relevant snippet is kept among a handful, or the first."""
    decided = [(query, conformal_filter(query.query, query.snippets)) for query in queries]
    return next(
        (
            (query, filtered)
            for query, filtered in decided
            if 2 <= len(filtered.kept) <= 6 and any(query.relevant[i] for i in filtered.kept)
        ),
        decided[0],
    )


def _percent(share: Share) -> str:
    value, low, high = (100 * part for part in share.interval)
    return f"{value:.1f} \\[{low:.0f}–{high:.0f}]"


def _tracked(description: str, items: Sequence[Item], console: Console) -> Iterable[Item]:
    if not console.is_terminal:
        return items
    return track(items, description=description, console=console, transient=True)


# --- the picture ----------------------------------------------------------------------------------


def coverage_figure(calibration: Calibration, scored: Sequence[ScoredQuery]) -> Figure:
    """Draw coverage against target with the ideal line, and the share removed below it."""
    alphas = np.round(np.arange(0.02, 0.41, 0.02), 2)
    targets = 1 - alphas
    at = [evaluate(calibration.at(float(alpha)), scored) for alpha in alphas]
    figure = Figure(figsize=(6, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(targets, targets, color="0.4", linestyle="--", label="ideal: coverage = target")
    _draw(
        above, targets, [e.coverage["query-recall"].interval for e in at], "C0", "mean over queries"
    )
    _draw(
        above, targets, [e.coverage["snippet"].interval for e in at], "C1", "pooled over snippets"
    )
    above.set_ylabel("relevant snippets kept")
    above.set_title(
        f"{len(scored)} held-out queries, guarantee {calibration.guarantee!r}\n"
        f"{calibration.scorer}",
        fontsize="medium",
    )
    above.legend(loc="upper left", frameon=False, title="shaded: 95 % interval over queries")
    _draw(below, targets, [e.removal.interval for e in at], "C2", "removed")
    below.set_ylabel("snippets removed")
    below.set_xlabel("target coverage, 1 − alpha")
    below.set_ylim(0, 1)
    for axes in (above, below):
        axes.axvline(1 - calibration.alpha, color="0.8", linewidth=4, zorder=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw(
    axes: Any, x: NDArray[np.float64], intervals: Sequence[Sequence[float]], color: str, label: str
) -> None:
    estimate, low, high = np.array(intervals).T
    axes.plot(x, estimate, color=color, marker="o", markersize=3, label=label)
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
