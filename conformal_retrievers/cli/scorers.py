"""Scorers as the commands name them: from options, or from the name in a calibration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import typer

from conformal_retrievers.data.beir import read_corpus
from conformal_retrievers.extras import require
from conformal_retrievers.scoring import EmbeddingScorer, RetrievalScorer, Scorer


def retrieval_scorer(retriever: str, better: Literal["higher", "lower"] | None) -> Scorer:
    """Return the scorer by the retriever's own scores; exit with 2 without their direction."""
    if better is None:
        raise typer.BadParameter(
            "the scorer retrieval needs a direction; give --better higher for similarities or "
            "--better lower for distances"
        )
    return RetrievalScorer(retriever, higher_is_better=better == "higher")


def bm25_scorer(corpus: Path | None, judged: Path) -> Scorer:
    """Return the BM25 scorer of a corpus, by default of the BEIR folder of the queries.

    Exits with 2 if there is none.
    """
    if corpus is None and not judged.is_dir():
        raise typer.BadParameter("the scorer bm25 needs a corpus; give it with --corpus FILE")
    from conformal_retrievers.scoring.bm25 import BM25Scorer

    return BM25Scorer(read_corpus(corpus or judged).values())


def embedding_scorer(model: str | None, name: str | None = None) -> EmbeddingScorer:
    """Return the cosine scorer of a sentence-transformers model; exit with 2 without one.

    `name` is the scorer's name where the model has another path now.
    """
    if model is None:
        raise typer.BadParameter(
            "the scorer embedding needs a model; give it with --model PATH_OR_NAME"
        )
    require("embedding", "sentence_transformers")
    encoder = _sentence_transformer(model)
    return EmbeddingScorer(
        lambda texts: encoder.encode(texts, show_progress_bar=False), name or f"cosine({model})"
    )


def _sentence_transformer(model: str) -> Any:
    """Return the model from a folder, the local cache or the hub; ValueError if it is nowhere."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    try:
        return SentenceTransformer(model)
    except Exception as error:  # whatever the client of the hub raises
        raise ValueError(
            f"model {model!r} cannot be loaded ({type(error).__name__}); give with --model the "
            "folder of a sentence-transformers model, or its name on the hub"
        ) from error


def scorer_named(name: str, *, model: str | None, corpus: Path | None, judged: Path) -> Scorer:
    """Return the scorer that a calibration names.

    Raises ValueError for a scorer that only Python can make.
    """
    if match := re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name):
        return RetrievalScorer(match[1], higher_is_better=match[2] == "higher")
    if match := re.fullmatch(r"cosine\((.*)\)", name):
        return embedding_scorer(model or match[1], name)
    if name.startswith("bm25s("):
        return bm25_scorer(corpus, judged)
    raise ValueError(
        f"the calibration has scorer {name!r}, which the command line cannot make; evaluate in "
        "Python: evaluate(calibration, score_queries(scorer, judged))"
    )
