"""Scorers as the commands name them: made from options, or from the name in a calibration."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from conformal_retrievers.data.beir import read_corpus
from conformal_retrievers.extras import require
from conformal_retrievers.scoring import EmbeddingScorer, RetrievalScorer, Scorer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def retrieval_scorer(retriever: str, better: Literal["higher", "lower"] | None) -> Scorer:
    """Return the scorer by the retriever's own numbers; exits with 2 without their direction."""
    if better is None:
        raise typer.BadParameter(
            "say which of the retriever's numbers are better: --better higher for similarities, "
            "--better lower for distances"
        )
    return RetrievalScorer(retriever, higher_is_better=better == "higher")


def bm25_scorer(corpus: Path | None, judged: Path) -> Scorer:
    """Return the BM25 scorer of a corpus, by default that of the BEIR folder of the queries.

    Exits with 2 where there is none.
    """
    if corpus is None and not judged.is_dir():
        raise typer.BadParameter("bm25 weighs words by a corpus; name it with --corpus FILE")
    from conformal_retrievers.scoring.bm25 import BM25Scorer

    return BM25Scorer(read_corpus(corpus or judged).values())


def embedding_scorer(model: str | None, name: str | None = None) -> EmbeddingScorer:
    """Return the cosine scorer of a sentence-transformers model; exits with 2 without one.

    `name` is what the scorer is called where the model lies under another path now.
    """
    if model is None:
        raise typer.BadParameter("embedding needs a model; name it with --model PATH_OR_NAME")
    require("embedding", "sentence_transformers")
    if name is None and Path(model).exists():
        warnings.warn(
            f"the calibration names its scorer 'cosine({model})', by a path, and a chain whose "
            "model has another name will refuse it; say with --name what the model is called "
            "there, such as all-MiniLM-L6-v2",
            UserWarning,
            stacklevel=2,
        )
    encoder = _sentence_transformer(model)
    return EmbeddingScorer(
        lambda texts: encoder.encode(texts, show_progress_bar=False), name or f"cosine({model})"
    )


def _sentence_transformer(model: str) -> SentenceTransformer:
    """Return the model from a folder, the cache or the hub; raises ValueError if in neither."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    if Path(model).exists():
        return SentenceTransformer(model, local_files_only=True)
    try:
        return SentenceTransformer(model, local_files_only=True)
    except (OSError, ValueError) as error:
        missing = error
    why = "there is no such folder, and the Hugging Face hub has no such model"
    for name in (model,) if "/" in model else (f"sentence-transformers/{model}", model):
        try:  # asked once, so that a misspelt name or a hub out of reach is told at once
            HfApi().model_info(name, timeout=10)
        except HFValidationError:
            why = "there is no such folder"
        except RepositoryNotFoundError:
            continue
        except Exception:  # whatever its client raises where it cannot connect
            why = "there is no such folder nor downloaded model, and the hub cannot be reached"
        else:
            return SentenceTransformer(model)
    raise ValueError(
        f"model {model!r} cannot be loaded: {why}; give with --model the folder of a "
        "sentence-transformers model, or its name on the hub"
    ) from missing


def scorer_named(name: str, *, model: str | None, corpus: Path | None, judged: Path) -> Scorer:
    """Return the scorer that a calibration names, from its name and what it cannot say.

    Raises ValueError for a scorer that is made in Python only.
    """
    retrieval = re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name)
    if retrieval:
        return RetrievalScorer(retrieval[1], higher_is_better=retrieval[2] == "higher")
    cosine = re.fullmatch(r"cosine\((.*)\)", name)
    if cosine:
        return embedding_scorer(model or cosine[1], name)
    if name.startswith("bm25s("):
        return bm25_scorer(corpus, judged)
    raise ValueError(
        f"the calibration was made with scorer {name!r}, which the command line cannot make; "
        "evaluate in Python: evaluate(ConformalFilter(scorer, calibration), judged)"
    )
