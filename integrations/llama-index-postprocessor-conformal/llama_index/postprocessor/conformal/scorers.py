"""LlamaIndex models as scorers."""

from __future__ import annotations

from llama_index.core.base.embeddings.base import BaseEmbedding

from conformal_retrievers import EmbeddingScorer


def embedding_scorer(embed_model: BaseEmbedding, *, name: str | None = None) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of a LlamaIndex embedding model, synchronous and asynchronous.

    Its name is "cosine(<model>)" with the model's `model_name`, so that the same model has the same
    name in LangChain. Raises ValueError where that is unknown and no `name` is given.
    """
    return EmbeddingScorer(
        embed_model.get_text_embedding_batch,
        name or f"cosine({_model_name(embed_model)})",
        embed_query=embed_model.get_query_embedding,
        aembed=embed_model.aget_text_embedding_batch,
        aembed_query=embed_model.aget_query_embedding,
    )


def _model_name(embed_model: BaseEmbedding) -> str:
    if embed_model.model_name in ("", "unknown"):  # "unknown" is the field's default
        raise ValueError(
            f"{type(embed_model).__name__} has no model_name, which identifies the scorer: give "
            "embedding_scorer(embed_model, name='…')"
        )
    return embed_model.model_name
