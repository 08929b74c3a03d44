"""Write docs/assets/slider.json, the data of the first page: python docs/slider.py

The docstrings of Python's standard library, searched by BM25 as in `conformal-retrievers demo`:
half of the questions calibrate, the others are held out. Scores have two decimals.
"""

import json
import platform
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten

import numpy as np

from conformal_retrievers import (
    Calibration,
    JudgedQuery,
    ScoredQuery,
    calibrate,
    evaluate,
    score_queries,
)
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.searches import DocumentRetriever, word_searches
from conformal_retrievers.sentence_filter import open_filter
from langchain_conformal import HybridRetriever, judge_retriever

FILE = Path(__file__).parent / "assets" / "slider.json"
ALPHAS = [n / 100 for n in range(1, 51)]
EVERY = 4  # of the snippets in order of score, beside the relevant ones
QUESTIONS = (  # picked by hand: few and many relevant snippets, found early and late
    "typing.get_type_hints",
    "statistics.variance",
    "threading.Condition.wait",
    "difflib.get_close_matches",
    "subprocess.check_output",
)


def at(alpha: float, relevant: Iterable[list[float]], held_out: Iterable[dict]) -> dict:
    """Return what the page shows at alpha, from the relevant scores of calibration queries."""
    scored = [ScoredQuery(scores, [True] * len(scores)) for scores in relevant]
    calibration = Calibration.from_scores(scored, alpha=alpha, scorer="learned")
    queries = [
        ScoredQuery(q["scores"], np.isin(range(len(q["scores"])), q["relevant"])) for q in held_out
    ]
    result = evaluate(calibration, queries)
    return {
        "alpha": alpha,
        "threshold": calibration.threshold(),
        "coverage": str(result.coverage["query-recall"]),
        "removal": str(result.removal),
        "kept": round(float(result.coverage["query-recall"].estimate), 4),
        "removed": round(float(result.removal.estimate), 4),
    }


def shown(query: JudgedQuery, scores: Iterable[float]) -> dict:
    """Return a question with some of its snippets, over all scores, and all relevant ones."""
    order = np.argsort(scores, kind="stable")
    some = [i for place, i in enumerate(order) if place % EVERY == 0 or query.relevant[i]]
    return {
        "question": query.query,
        "n": len(query.snippets),
        "scores": sorted(scores),
        "snippets": [
            {
                "document": query.snippets[i].document,
                "text": shorten(query.snippets[i].text, 120, placeholder=" …"),
                "score": scores[i],
                "relevant": bool(query.relevant[i]),
            }
            for i in some
        ],
    }


def main() -> None:
    """Search, calibrate, score, and write the file."""
    corpus = docstring_corpus()
    searches = word_searches(corpus)
    hybrid = HybridRetriever({name: DocumentRetriever(search=s) for name, s in searches.items()})
    judged = judge_retriever(hybrid, corpus.questions)
    order = np.random.default_rng(0).permutation(len(judged))
    half, others = ([judged[i] for i in part] for part in np.array_split(order, 2))
    calibration = calibrate(half, alpha=0.1)
    relevant = [np.round(q.scores, 2).tolist() for q in calibration.queries if len(q.scores)]
    scores = [
        np.round(q.scores, 2).tolist()
        for q in score_queries(open_filter(calibration).scorer, others)
    ]
    held_out = [
        {"scores": s, "relevant": np.flatnonzero(q.relevant).tolist()}
        for q, s in zip(others, scores, strict=True)
    ]
    by_id = {q.id: (q, s) for q, s in zip(others, scores, strict=True)}
    data = {
        "python": platform.python_version(),
        "alphas": [at(alpha, relevant, held_out) for alpha in ALPHAS],
        "questions": [shown(*by_id[name]) for name in QUESTIONS],
        "calibration": relevant,
        "held_out": held_out,
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    FILE.write_text(text.replace("<", "\\u003c").replace("},{", "},\n{") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
