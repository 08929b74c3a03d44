"""`conformal-retrievers demo`: the whole path from text to a filter, in both frameworks.

BM25 retrieves K snippets of docstrings for each question. Half of the questions calibrate, and both
frameworks filter the other half with the same calibration file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import numpy as np
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode

from conformal_retrievers.calibration.calibrating import calibrate
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.terminal import print_table, say
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.evaluation import evaluate, top_k
from conformal_retrievers.evaluation.report import write
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.scoring import Scorer, score_queries
from conformal_retrievers.scoring.bm25 import BM25Scorer
from langchain_conformal import ConformalCompressor
from llama_index.postprocessor.conformal import ConformalPostprocessor

K = 20


def run(alpha: float) -> None:
    """Run the demo; raise RuntimeError if the two frameworks keep different snippets."""
    file, page = Path("calibration.json"), Path("report.html")
    say("1 Read the docstrings of Python's standard library")
    corpus = docstring_corpus()
    say(
        f"They give {len(corpus.snippets):,} snippets. The first sentences of "
        f"{len(corpus.questions)} are the questions; the text after them is relevant."
    )
    say(f"\n2 Retrieve {K} snippets for each question with BM25")
    by_text = {snippet.text: snippet for snippet in corpus.snippets}
    scorer = BM25Scorer(by_text)
    judged = [
        query.retrieved_as(retrieved(query.query, scorer, by_text), retriever=scorer.name, k=K)
        for query in corpus.questions
    ]
    order = np.random.default_rng(0).permutation(len(judged))
    half, other_half = ([judged[i] for i in part] for part in np.array_split(order, 2))

    say(f"\n3 Calibrate on {len(half)} of the questions\n")
    calibration = calibrate(
        half,
        scorer,
        alpha=alpha,
        retrieval={"chunking": "500 characters, 100 shared"},
        labels={"source": "the docstring that the question comes from"},
    )
    calibration.save(file)
    say(calibration.statement)

    say(f"\n4 Filter the snippets of the other {len(other_half)} questions")
    kept = kept_in_both_frameworks(file, scorer, other_half)
    say(f"LangChain and LlamaIndex keep the same {kept:,} of {K * len(other_half):,} snippets.")
    scored = score_queries(scorer, other_half)
    result = evaluate(calibration, scored)
    say(
        f"Guaranteed: {100 * (1 - alpha):.4g} % of a question's relevant snippets on average\n"
        f"Kept:       {result.coverage['query-recall']}\n"
        f"Retrieved:  {result.recall_at_k} of all relevant snippets; the others are lost\n\n"
        "Relevant snippets kept and all snippets removed, % [95 % interval]:\n"
    )
    print_table(["", "kept, by query", "kept, pooled", "removed"], _comparison(calibration, scored))
    say(
        "\nThe top k is chosen with hindsight, to remove about as much. It has no guarantee: how "
        "much it keeps is known only once it is measured.\n"
    )
    say("5 Look at one question")
    _print_example(ConformalFilter(scorer, calibration), other_half)
    write(page, calibration, scored, sources={"calibration": file.name})
    say(f"Saved as {file}, with figures in {page}")


def retrieved(query: str, bm25: BM25Scorer, by_text: Mapping[str, Snippet]) -> list[Snippet]:
    """Return the K snippets with the highest BM25, best first, ties in the order of the corpus."""
    similarities = bm25.similarities(query)
    return [
        replace(by_text[bm25.corpus[i]], retrieval_score=float(similarities[i]))
        for i in np.argsort(-similarities, kind="stable")[:K]
    ]


def kept_in_both_frameworks(path: Path, scorer: Scorer, judged: Sequence[JudgedQuery]) -> int:
    """Return how many snippets both frameworks keep; raise RuntimeError if they keep others."""
    langchain = ConformalCompressor.from_calibration(path, scorer=scorer)
    llama_index = ConformalPostprocessor.from_calibration(path, scorer=scorer)
    n_kept = 0
    for query in judged:
        text, snippets = query.query, query.snippets
        documents = [Document(s.text, id=s.id) for s in snippets]
        nodes = [NodeWithScore(node=TextNode(text=s.text, id_=str(s.id))) for s in snippets]
        kept = [d.id for d in langchain.compress_documents(documents, text)]
        other = [n.node_id for n in llama_index.postprocess_nodes(nodes, query_str=text)]
        if kept != other:
            raise RuntimeError(f"query {text!r}: LangChain keeps {kept}, LlamaIndex keeps {other}")
        n_kept += len(kept)
    return n_kept


def _comparison(calibration: Calibration, scored: Sequence[ScoredQuery]) -> Iterator[list[str]]:
    """Yield a row for each alpha, for the filter, and for the top k that keep about as many."""
    for alpha in sorted({0.05, 0.1, 0.2, calibration.alpha}):
        at = calibration.at(alpha)
        number = sum(int(at.keep(query.scores).sum()) for query in scored)
        k = max(1, round(number / len(scored)))
        yield [f"target {100 * (1 - alpha):g} %, α = {alpha:g}", "", "", ""]
        for name, found in ("conformal", evaluate(at, scored)), (f"top {k}", top_k(scored)[k]):
            shares = (found.coverage["query-recall"], found.coverage["snippet"], found.removal)
            yield [f"  {name}", *(share.interval.written(unit="") for share in shares)]


def _print_example(conformal: ConformalFilter, judged: Sequence[JudgedQuery]) -> None:
    """Print the lowest scores of a query that keeps about four snippets, a relevant one too."""
    decided = [(query, conformal(query.query, query.snippets)) for query in judged]
    good = [d for d in decided if np.take(d[0].relevant, d[1].kept).any()]
    query, filtered = min(good or decided, key=lambda d: abs(len(d[1].kept) - 4))
    say(f"“{query.query}”\n")
    print_table(
        ["", "relevant", "score", "p", "snippet".ljust(42)],
        (
            [
                "kept" if filtered.keeps[i] else "dropped",
                "yes" if query.relevant[i] else "",
                f"{filtered.scores[i]:.2f}",
                f"{filtered.p_values[i]:.3f}",
                shorten(query.snippets[i].text, 42, placeholder=" …").ljust(42),
            ]
            for i in np.argsort(filtered.scores)[: len(filtered.kept) + 4]
        ),
    )
    say(
        f"\nKept: {len(filtered.kept)} of {len(query.snippets)} snippets, those with p > "
        f"{filtered.calibration.alpha:g}. A lower score is more relevant.\n"
    )
