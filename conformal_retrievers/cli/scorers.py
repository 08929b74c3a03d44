"""The scorers that the commands can make, by the name in a calibration."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from conformal_retrievers.data.beir import read_corpus
from conformal_retrievers.extras import require
from conformal_retrievers.scoring import EmbeddingScorer, RetrievalScorer, Scorer


def scorer_named(name: str, *, model: str | None, corpus: Path | None, judged: Path) -> Scorer:
    """Return the scorer of a name, such as a calibration has.

    Raises ValueError for a scorer that only Python can make; exits with 2 if bm25 has no corpus.
    """
    if match := re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name):
        return RetrievalScorer(match[1], higher_is_better=match[2] == "higher")
    if match := re.fullmatch(r"cosine\((.*)\)", name):
        return embedding_scorer(model or match[1], name)
    if name.startswith("bm25s("):
        if corpus is None and not judged.is_dir():
            raise typer.BadParameter("the scorer bm25 needs a corpus; give it with --corpus FILE")
        from conformal_retrievers.scoring.bm25 import BM25Scorer

        return BM25Scorer(read_corpus(corpus or judged).values())
    raise ValueError(
        f"the calibration has scorer {name!r}, which the command line cannot make; evaluate in "
        "Python: evaluate(calibration, score_queries(scorer, judged))"
    )


def embedding_scorer(model: str, name: str) -> EmbeddingScorer:
    """Return the cosine scorer of a sentence-transformers model, under a name.

    The model is in a folder, the local cache or the hub; ValueError if it is nowhere.
    """
    require("embedding", "sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    try:
        encoder = SentenceTransformer(model, trust_remote_code=False)
    except Exception as error:  # whatever the client of the hub raises
        raise ValueError(
            f"model {model!r} cannot be loaded ({type(error).__name__}); give with --model the "
            "folder of a sentence-transformers model, or its name on the hub"
        ) from error
    return EmbeddingScorer(lambda texts: encoder.encode(texts, show_progress_bar=False), name)
