"""LangChain models as scorers."""

from __future__ import annotations

from pathlib import Path

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    CrossEncoderScorer,
    EmbeddingScorer,
    Scorer,
)


def embedding_scorer(embeddings: Embeddings, *, name: str | None = None) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of LangChain embeddings, synchronous and asynchronous.

    Its name is "cosine(<model>)" with the model's name as the embeddings tell it, so that the same
    model has the same name in LlamaIndex. Raises ValueError where they do not tell it and no `name`
    is given.
    """
    return EmbeddingScorer(
        embeddings.embed_documents,
        name or f"cosine({_model_name(embeddings)})",
        embed_query=embeddings.embed_query,
        aembed=embeddings.aembed_documents,
        aembed_query=embeddings.aembed_query,
    )


def cross_encoder_scorer(
    cross_encoder: BaseCrossEncoder, *, name: str | None = None
) -> CrossEncoderScorer:
    """Return the scorer −score of a LangChain cross-encoder.

    Its name is "cross-encoder(<model>)" with the model's name as the cross-encoder tells it. Raises
    ValueError where it does not tell it and no `name` is given. A cross-encoder that returns
    probabilities instead of logits may round the highest ones to 1, so that they tie.
    """
    return CrossEncoderScorer(
        cross_encoder.score, name or f"cross-encoder({_model_name(cross_encoder)})"
    )


def load_filter(
    path: str | Path, *, embeddings: Embeddings | None = None, scorer: Scorer | None = None
) -> ConformalFilter:
    """Return the filter of a calibration file and one of `embeddings` and `scorer`.

    Raises TypeError unless exactly one of them is given, `CalibrationMismatch` if it is not what
    the calibration was made with, and what `Calibration.load` raises.
    """
    if embeddings is not None and scorer is None:
        scorer = embedding_scorer(embeddings)
    elif embeddings is not None or scorer is None:
        raise TypeError("give either embeddings= or scorer=, the one that was calibrated with")
    return ConformalFilter(scorer, Calibration.load(path))


def _model_name(model: Embeddings | BaseCrossEncoder) -> str:
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name:
            return name
    raise ValueError(
        f"{type(model).__name__} does not tell its model's name (model_name or model), which "
        "identifies the scorer: give name='…' too"
    )
