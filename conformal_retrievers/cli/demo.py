"""`conformal-retrievers demo`: the whole path from text to a filter, in both frameworks.

Two searches return K snippets each for every question about docstrings. Half of the questions
calibrate, and both frameworks filter the other half with the same calibration file.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np

from conformal_retrievers.calibration import calibrate
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.searches import (
    DocumentRetriever,
    K,
    NodeRetriever,
    a_third,
    minilm_is_installed,
    searches_in,
)
from conformal_retrievers.cli.terminal import print_table, say, worded
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation import evaluate
from conformal_retrievers.evaluation.report import write
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.scoring import score_queries
from langchain_conformal import ConformalRetriever, HybridRetriever, judge_retriever
from llama_index.postprocessor.conformal import ConformalPostprocessor
from llama_index.postprocessor.conformal import HybridRetriever as HybridNodeRetriever

FILE, PAGE = Path("demo-calibration.json"), Path("demo-report.html")


def run(alpha: float) -> None:
    """Run the demo; raise RuntimeError if the two frameworks keep different snippets."""
    say("1 Read the docstrings of Python's standard library")
    corpus = docstring_corpus()
    if minilm_is_installed():
        corpus = a_third(corpus)
    say(worded("demo corpus", snippets=len(corpus.snippets), questions=len(corpus.questions)))
    searches = searches_in(corpus)
    first, other = searches
    say(f"\n2 Ask two retrievers for {K} snippets per question: {first} and {other}")
    say(worded(f"demo {first}"))
    hybrid = HybridRetriever({name: DocumentRetriever(search=s) for name, s in searches.items()})
    judged = judge_retriever(hybrid, corpus.questions)
    shares = [_found(judged, *names) for names in ((first,), (other,), (first, other))]
    say(worded("demo found", first=first, other=other, found=shares))
    order = np.random.default_rng(0).permutation(len(judged))
    half, other_half = ([judged[i] for i in part] for part in np.array_split(order, 2))

    say(f"\n3 Calibrate on {len(half)} of the questions\n")
    calibration = calibrate(
        half,
        alpha=alpha,
        retrieval={"chunking": "500 characters, 100 shared"},
        labels={"source": "the docstring that the question comes from"},
    )
    calibration.save(FILE)
    say(f"{calibration.statement}\n\n{worded('demo words')}")

    say(f"\n4 Filter what is retrieved for the other {len(other_half)} questions")
    in_llama_index = HybridNodeRetriever({n: NodeRetriever(s) for n, s in searches.items()})
    kept = kept_in_both_frameworks(FILE, hybrid, in_llama_index, other_half)
    retrieved = sum(len(query.snippets) for query in other_half)
    say(f"LangChain and LlamaIndex keep the same {kept:,} of {retrieved:,} snippets.\n")
    conformal = ConformalFilter.of(calibration)
    scored = score_queries(conformal.scorer, other_half)
    result = evaluate(calibration, scored)
    say(result.equal_recall)
    say(
        f"\nGuaranteed: {100 * (1 - alpha):.4g} % of a question's relevant retrieved snippets, on "
        f"average\nKept:       {result.coverage['query-recall']}\n"
        f"Retrieved:  {result.recall_at_k} of all relevant snippets; the others are lost\n"
    )
    say("5 Look at one question")
    _print_example(conformal, other_half)
    write(PAGE, calibration, scored, sources={"calibration": FILE.name}, judged=other_half)
    say(f"Saved as {FILE}, with figures in {PAGE}")


def _found(judged: Sequence[JudgedQuery], *names: str) -> float:
    """Return the mean share of a query's relevant snippets that retrievers found, in percent."""
    shares = []
    for query in judged:
        relevant = [s for s, r in zip(query.snippets, query.relevant, strict=True) if r]
        n = sum(any(hit.retriever in names for hit in s.hits) for s in relevant)
        shares.append(n / (len(relevant) + (query.missed or 0)))
    return 100 * float(np.mean(shares))


def kept_in_both_frameworks(
    file: Path,
    hybrid: HybridRetriever,
    in_llama_index: HybridNodeRetriever,
    judged: Sequence[JudgedQuery],
) -> int:
    """Return how many snippets both frameworks keep; raise RuntimeError if they keep others."""
    filtered = ConformalRetriever.from_calibration(file, retriever=hybrid)
    postprocessor = ConformalPostprocessor.from_calibration(file)
    n_kept = 0
    for text in (query.query for query in judged):
        kept = [document.id for document in filtered.invoke(text)]
        nodes = in_llama_index.retrieve(text)
        other = [n.node_id for n in postprocessor.postprocess_nodes(nodes, query_str=text)]
        if kept != other:
            raise RuntimeError(f"query {text!r}: LangChain keeps {kept}, LlamaIndex keeps {other}")
        n_kept += len(kept)
    return n_kept


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
            for i in np.argsort(filtered.scores, kind="stable")[: len(filtered.kept) + 4]
        ),
    )
    facts = {"kept": len(filtered.kept), "n": len(query.snippets), "c": filtered.calibration}
    say(f"\n{worded('demo example', **facts)}\n")
