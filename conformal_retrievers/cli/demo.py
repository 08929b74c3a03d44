"""`conformal-retrievers demo`: the whole path from text to a filter, in both frameworks.

The docstrings of the standard library are cut into snippets, and BM25 retrieves K = 20 of them for
each question. Half of the questions calibrate. The other half is filtered by a LangChain compressor
and a LlamaIndex postprocessor that load the same calibration file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibrate import calibrate
from conformal_retrievers.cli import options
from conformal_retrievers.cli.demo_output import (
    INDENT,
    K,
    print_corpus,
    print_measurements,
    print_query,
)
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.terminal import bad_data_in_one_line, tracked
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.scoring import Scorer, score_queries


def demo(
    alpha: options.Alpha = 0.1,
    folder: Annotated[
        Path,
        typer.Option(
            help="The folder for calibration.json and report.html.",
            exists=True,
            file_okay=False,
            metavar="FOLDER",
        ),
    ] = Path(),
) -> None:
    """Calibrate and filter the docstrings of Python's standard library, in both frameworks."""
    with bad_data_in_one_line():
        require("demo", "bm25s", "langchain_conformal", "llama_index", "matplotlib", "regex")
        run(alpha, folder, Console(highlight=False))


def run(alpha: float, folder: Path, console: Console) -> None:
    """Run the demo, print its results, and write calibration.json and report.html into `folder`.

    Raises RuntimeError if the two frameworks keep different snippets.
    """
    from conformal_retrievers.evaluation.report import write

    with console.status("Reading the standard library's docstrings"):
        corpus = docstring_corpus()
    print_corpus(corpus, console)

    with console.status("Indexing"):
        index = Index(corpus.snippets)
    judged = [
        JudgedQuery(q.text, q.relevant, [True] * len(q.relevant), id=q.id).retrieved_as(
            index.search(q.text)
        )
        for q in tracked(corpus.questions, "Retrieving")
    ]
    console.print(f"[bold]2 Retrieve[/]   {K} snippets for each question with BM25")

    scorer = index.bm25
    order = np.random.default_rng(0).permutation(len(judged))
    half, other_half = ([judged[i] for i in part] for part in np.array_split(order, 2))
    path, page = folder / "calibration.json", folder / "report.html"
    calibration = calibrate(
        half,
        scorer,
        alpha=alpha,
        retrieval={"retriever": index.bm25.name, "k": K, "chunking": "500 characters, 100 shared"},
        labels={"source": "relevant: the windows of the docstring that the question comes from"},
    )
    calibration.save(path)
    console.print(f"[bold]3 Calibrate[/]  on {len(half)} of the questions; saved as {path}\n")
    console.print(Text(calibration.statement, style="italic"))

    console.print(f"\n[bold]4 Filter[/]     for the other {len(other_half)} questions")
    kept = kept_in_both_frameworks(path, scorer, other_half)
    console.print(
        f"{INDENT}LangChain and LlamaIndex keep the same {kept:,} of "
        f"{K * len(other_half):,} snippets"
    )
    scored = score_queries(scorer, other_half)
    print_measurements(calibration, other_half, scored, console)

    console.print("[bold]5 Look at one question[/]")
    print_query(ConformalFilter(scorer, calibration), other_half, console)
    write(page, calibration, scored, sources={"calibration": path.name})
    console.print(f"Saved: {path}, and figures of all this in {page}")


class Index:
    """A BM25 index that returns the K best snippets for a query, ties in the order of the corpus.

    The similarity is the snippet's `retrieval_score`.
    """

    def __init__(self, snippets: Sequence[Snippet]) -> None:
        from conformal_retrievers.scoring.bm25 import BM25Scorer

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


def kept_in_both_frameworks(path: Path, scorer: Scorer, judged: Sequence[JudgedQuery]) -> int:
    """Return how many snippets both frameworks keep; raise RuntimeError if they keep others."""
    from langchain_core.documents import Document
    from llama_index.core.schema import NodeWithScore, TextNode

    from langchain_conformal import ConformalCompressor
    from llama_index.postprocessor.conformal import ConformalPostprocessor

    compressor = ConformalCompressor.from_calibration(path, scorer=scorer)
    postprocessor = ConformalPostprocessor.from_calibration(path, scorer=scorer)
    n_kept = 0
    for query in tracked(judged, "Asking LangChain and LlamaIndex"):
        documents = [Document(s.text, id=s.id) for s in query.snippets]
        nodes = [NodeWithScore(node=TextNode(text=s.text, id_=str(s.id))) for s in query.snippets]
        kept = [document.id for document in compressor.compress_documents(documents, query.query)]
        other = [
            node.node_id for node in postprocessor.postprocess_nodes(nodes, query_str=query.query)
        ]
        if kept != other:
            raise RuntimeError(
                f"query {query.query!r}: LangChain keeps {kept}, LlamaIndex keeps {other}"
            )
        n_kept += len(kept)
    return n_kept
