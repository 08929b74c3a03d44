"""The scores of the commands: the one that --scorer names, and those that a calibration names.

A name in a file never decides which model is loaded: that is --model's.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gate import Gate
from conformal_retrievers.calibration.scorer import needed_scorers, scorer_for
from conformal_retrievers.cli.terminal import OptionNeeded
from conformal_retrievers.data.beir import read_corpus
from conformal_retrievers.data.hits import RETRIEVER
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.extras import require
from conformal_retrievers.llm.wire import portable
from conformal_retrievers.scoring import (
    EmbeddingScorer,
    FusionScorer,
    QueryZScore,
    RankScorer,
    RetrievalScorer,
    Scorer,
    ZFusionScorer,
)
from conformal_retrievers.scoring.sources import Kind, sources_of

NAMES = ("rank", "fusion", "zfusion", "zscore", "learned", "retrieval", "embedding", "bm25")


class Models(NamedTuple):
    """What the options say of the models that score texts."""

    model: str | None
    name: str | None
    corpus: Path | None
    judged: Path

    def embedding(self) -> Scorer:
        """Return the score of --model."""
        if not self.model:
            raise OptionNeeded("the scorer embedding needs its model", "--model MODEL")
        return embedding_scorer(self.model, f"cosine({self.name or portable(self.model)})")

    def bm25(self) -> Scorer:
        """Return the score of --corpus, or of the folder's own corpus."""
        if self.corpus is None and not self.judged.is_dir():
            raise OptionNeeded("the scorer bm25 needs a corpus", "--corpus FILE")
        from conformal_retrievers.scoring.bm25 import BM25Scorer

        return BM25Scorer(read_corpus(self.corpus or self.judged).values())

    def given(self) -> list[Scorer]:
        """Return the scores of the options that are given."""
        embedding = [] if self.model is None else [self.embedding()]
        return embedding if self.corpus is None else [*embedding, self.bm25()]

    def needed(self, calibration: Calibration) -> list[Scorer]:
        """Return the scorers that a calibration names; ValueError if only Python can make one."""
        return [self._named(name) for name in needed_scorers(calibration)]

    def _named(self, name: str) -> Scorer:
        if match := re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name):
            return RetrievalScorer(match[1], higher_is_better=match[2] == "higher")
        if name.startswith("cosine("):
            if not self.model:
                reason = f"the scorer {name!r} needs its embedding model"
                raise OptionNeeded(reason, "--model MODEL")
            return embedding_scorer(self.model, name)
        if name.startswith("bm25s("):
            return self.bm25()
        raise ValueError(
            f"the calibration has scorer {name!r}, which the command line cannot make; evaluate in "
            "Python: evaluate(calibration, score_queries(scorer, judged)), or evaluate_gate"
        )


def filter_of(calibration: Calibration, models: Models) -> tuple[Scorer, Gate | None]:
    """Return the scorer of a calibration, and the gate if it holds one, from models' options."""
    given = needed_of(calibration, models)
    gate = None if calibration.gate is None else Gate.of(calibration.gate, given)
    return scorer_for(calibration, given, calibration.gate), gate


def needs_model(calibration: Calibration) -> bool:
    """Return whether a calibration, or the gate that it holds, needs an embedding model."""
    return any(name.startswith("cosine(") for name in needed_scorers(calibration))


def needed_of(calibration: Calibration, models: Models) -> list[Scorer]:
    """Return the scorers that a calibration needs; exits with 2 for a model that it does not."""
    if models.model is not None and not needs_model(calibration):
        raise typer.BadParameter(
            f"the scorer {calibration.scorer!r} needs no model; leave --model out"
        )
    return models.needed(calibration)


def score_of_hits(
    name: str, judged: Sequence[JudgedQuery], retriever: str | None, better: str | None
) -> Scorer:
    """Return a scorer that reads hits, or the retrieval scores of snippets without hits."""
    kinds = dict(sources_of(judged).retrievers)
    if name == "fusion" and kinds:
        return FusionScorer(kinds)
    if name == "zfusion" and kinds:
        return ZFusionScorer(kinds)
    if not kinds:
        if name not in ("retrieval", "zscore"):
            raise ValueError(
                f"the scorer {name} needs hits, but the snippets have none; write the file with "
                "judge_retriever and write_jsonl, or give a BEIR folder and its runs"
            )
        if better is None:
            reason = f"the scorer {name} needs --better higher, or --better lower for distances"
            raise OptionNeeded(reason, "--better higher")
        known, higher = retriever or RETRIEVER, better == "higher"
    else:
        known = _retriever(kinds, retriever)
        if name == "rank":
            return RankScorer(known)
        if kinds[known] == "rank" and better is None:
            raise ValueError(
                f"the scorer {name} needs scores that fall or rise with the rank, but the hits of "
                f"{known!r} have none; give --scorer rank"
            )
        higher = kinds[known] == "similarity" if better is None else better == "higher"
    scorer = RetrievalScorer(known, higher_is_better=higher)
    return QueryZScore(scorer) if name == "zscore" else scorer


def _retriever(kinds: dict[str, Kind], given: str | None) -> str:
    """Return the retriever that is given, or the only one that there is."""
    known = ", ".join(kinds)
    if given is None and len(kinds) > 1:
        reason = f"the snippets have hits of {known}; choose one"
        raise OptionNeeded(reason, f"--retriever {next(iter(kinds))}")
    if given is not None and given not in kinds:
        raise typer.BadParameter(f"{given!r} is not one of {known}", param_hint="--retriever")
    return given or next(iter(kinds))


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
        raise ValueError(
            f"model {model!r} cannot be loaded ({type(error).__name__}); give with --model the "
            "folder of a sentence-transformers model, or its name on the hub"
        ) from error
    return EmbeddingScorer(lambda texts: encoder.encode(texts, show_progress_bar=False), name)
