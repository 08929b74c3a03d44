"""The scores of the commands: those that a calibration needs, and BM25 beside the hits.

A name in a file never decides which model is loaded: that is --model's.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.scorer import needed_scorers
from conformal_retrievers.cli.terminal import worded
from conformal_retrievers.data.beir import read_corpus
from conformal_retrievers.extras import require
from conformal_retrievers.scoring import EmbeddingScorer, RetrievalScorer, Scorer


class Models(NamedTuple):
    """What the options say of the models that score texts."""

    model: str | None
    corpus: Path | None
    judged: Path

    def bm25(self) -> Scorer:
        """Return the score of --corpus, or of the folder's own corpus."""
        if self.corpus is None and not self.judged.is_dir():
            raise typer.BadParameter("the scorer bm25 needs a corpus; give --corpus FILE")
        from conformal_retrievers.scoring.bm25 import BM25Scorer

        return BM25Scorer(read_corpus(self.corpus or self.judged).values())

    def given(self) -> list[Scorer]:
        """Return the score of --corpus, if it is given."""
        return [] if self.corpus is None else [self.bm25()]

    def needed(self, calibration: Calibration) -> list[Scorer]:
        """Return the scorers that a calibration names; ValueError if only Python can make one."""
        return [self._named(name) for name in needed_scorers(calibration)]

    def _named(self, name: str) -> Scorer:
        if match := re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name):
            return RetrievalScorer(match[1], higher_is_better=match[2] == "higher")
        if name.startswith("cosine("):
            if not self.model:
                text = f"the scorer {name!r} needs its embedding model; give --model MODEL"
                raise typer.BadParameter(text)
            return embedding_scorer(self.model, name)
        if name.startswith("bm25s("):
            return self.bm25()
        raise ValueError(worded("scorer of Python", name=name))


def needs_model(calibration: Calibration) -> bool:
    """Return whether a calibration needs an embedding model, with what it holds."""
    return any(name.startswith("cosine(") for name in needed_scorers(calibration))


@cache
def embedding_scorer(model: str, name: str) -> EmbeddingScorer:
    """Return the cosine scorer of a sentence-transformers model; ValueError if it is nowhere."""
    require("models", "sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    try:
        encoder = SentenceTransformer(model, trust_remote_code=False)
    except Exception as error:  # whatever the client of the hub raises
        raise ValueError(worded("no model", model=model, error=type(error).__name__)) from error
    return EmbeddingScorer(lambda texts: encoder.encode(texts, show_progress_bar=False), name)
