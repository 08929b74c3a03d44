"""The conformal filter around a LangChain retriever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from pydantic import ConfigDict

from conformal_retrievers import ConformalFilter, Scorer
from langchain_conformal.documents import kept_documents, to_snippets
from langchain_conformal.scorers import load_filter


class ConformalRetriever(BaseRetriever):
    """Retrieves with another retriever and drops what the filter drops.

    `retriever` is any runnable from a query to documents, at the depth that it was calibrated at.
    Keyword arguments of `invoke` go to it. Documents come back in its order, as copies whose
    metadata carries <metadata_prefix>score and <metadata_prefix>p_value (None: metadata as it is).
    """

    retriever: RetrieverLike
    filter: ConformalFilter
    metadata_prefix: str | None = "conformal_"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @classmethod
    def from_calibration(
        cls,
        path: str | Path,
        *,
        retriever: RetrieverLike,
        embeddings: Embeddings | None = None,
        llm: BaseChatModel | None = None,
        scorer: Scorer | None = None,
        metadata_prefix: str | None = "conformal_",
    ) -> ConformalRetriever:
        """Return the filtered retriever of a calibration file and the model calibrated with."""
        conformal_filter = load_filter(path, embeddings=embeddings, chat_model=llm, scorer=scorer)
        return cls(retriever=retriever, filter=conformal_filter, metadata_prefix=metadata_prefix)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        documents = self.retriever.invoke(
            query, config={"callbacks": run_manager.get_child()}, **kwargs
        )
        filtered = self.filter(query, to_snippets(documents))
        return kept_documents(documents, filtered, self.metadata_prefix)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        documents = await self.retriever.ainvoke(
            query, config={"callbacks": run_manager.get_child()}, **kwargs
        )
        filtered = await self.filter.acall(query, to_snippets(documents))
        return kept_documents(documents, filtered, self.metadata_prefix)
