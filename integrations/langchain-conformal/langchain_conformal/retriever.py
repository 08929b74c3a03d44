"""The conformal filter around a LangChain retriever."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.config import ensure_config
from pydantic import ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from conformal_retrievers import Calibration, ConformalFilter, filtering
from langchain_conformal.documents import as_documents, kept_documents, to_snippets
from langchain_conformal.events import afilter_in_run, filter_in_run
from langchain_conformal.judge import check_retriever, depth_of
from langchain_conformal.scorers import AnyScorer, load_filter


class ConformalRetriever(BaseRetriever):
    """Retrieves with another retriever and drops what the filter drops.

    `retriever` is any runnable from a query to documents, at the depth that it was calibrated at.
    (One that returns an iterator is read once: here, unless a handler has read it before.)
    Keyword arguments of `invoke`, and what is `configurable` in its config, go to it. Documents
    come back in its order, as copies whose metadata carries <metadata_prefix>score and
    <metadata_prefix>p_value, in the place of what it holds under these names (None: metadata as it
    is).
    `alpha` is another risk than the calibration's, which `configurable_fields(alpha=…)` opens to
    callers; ValueError where it is not in (0, 1). Warns of a retriever that is asked for fewer
    documents than k, the depth that was calibrated at.
    """

    retriever: RetrieverLike
    filter: ConformalFilter
    metadata_prefix: str | None = "conformal_"
    alpha: float | None = None

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @field_validator("retriever", mode="before")
    @classmethod
    def _is_a_retriever(cls, retriever: object) -> object:
        check_retriever(retriever)
        return retriever

    @classmethod
    def from_calibration(
        cls,
        path: str | Path | Calibration,
        *,
        retriever: RetrieverLike,
        embeddings: Embeddings | None = None,
        llm: BaseChatModel | None = None,
        scorer: AnyScorer | None = None,
        metadata_prefix: str | None = "conformal_",
        on_empty: filtering.OnEmpty = "allow",
        on_unscorable: filtering.OnUnscorable = "keep",
    ) -> ConformalRetriever:
        """Return the filtered retriever of a calibration, or of its file, and the model used.

        `scorer` is anything that `as_scorer` takes; `on_empty` and `on_unscorable` are those of
        `ConformalFilter`.
        """
        conformal_filter = load_filter(
            path,
            embeddings=embeddings,
            chat_model=llm,
            scorer=scorer,
            on_empty=on_empty,
            on_unscorable=on_unscorable,
        )
        return cls(retriever=retriever, filter=conformal_filter, metadata_prefix=metadata_prefix)

    def model_post_init(self, context: Any, /) -> None:
        """Raise ValueError for an alpha that the calibration cannot be asked at."""
        super().model_post_init(context)
        try:
            self._filter_at_alpha()
        except ValueError as error:  # of which pydantic would say "Value error, …"
            raise PydanticCustomError("alpha", "{said}", {"said": str(error)}) from None

    def invoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the documents that are kept; what is configurable in the retriever stays so."""
        return super().invoke(input, config, **_with_configurable(config, kwargs))

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Do what `invoke` does, without blocking the event loop."""
        return await super().ainvoke(input, config, **_with_configurable(config, kwargs))

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        configurable: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        retriever = self._asked(configurable, kwargs)
        found = retriever.invoke(query, config={"callbacks": run_manager.get_child()}, **kwargs)
        documents, callbacks = as_documents(found), run_manager.get_child()
        filtered = filter_in_run(self._filter_at_alpha(), query, to_snippets(documents), callbacks)
        return kept_documents(documents, filtered, self.metadata_prefix)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        configurable: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        retriever = self._asked(configurable, kwargs)
        found = await retriever.ainvoke(
            query, config={"callbacks": run_manager.get_child()}, **kwargs
        )
        documents, callbacks = as_documents(found), run_manager.get_child()
        filtered = await afilter_in_run(
            self._filter_at_alpha(), query, to_snippets(documents), callbacks
        )
        return kept_documents(documents, filtered, self.metadata_prefix)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        of_retriever = (
            self.retriever._get_ls_params(**kwargs)
            if isinstance(self.retriever, BaseRetriever)
            else LangSmithRetrieverParams()
        )
        return {**of_retriever, **super()._get_ls_params(**kwargs)}

    def _filter_at_alpha(self) -> ConformalFilter:
        return self.filter if self.alpha is None else self.filter.at(self.alpha)

    def _asked(
        self, configurable: dict[str, Any] | None, kwargs: dict[str, Any]
    ) -> Runnable[str, list[Document]]:
        """Return the retriever as a caller configures it; warn where it returns fewer than k."""
        retriever = self.retriever
        if configurable:
            config = RunnableConfig(configurable=configurable)
            retriever = RunnableBinding(bound=retriever, config=config)
        k, calibrated = kwargs.get("k", depth_of(retriever)), self.filter.calibration.k
        if k is not None and calibrated is not None and k < calibrated:
            # One text and one place, so that Python says it once; of a larger k the filter says it.
            warnings.warn(
                f"the retriever is asked for {k} documents, but was calibrated at k = "
                f"{calibrated}: what it returns is not what the guarantee is about; retrieve "
                f"{calibrated}, or calibrate at {k}",
                stacklevel=1,
            )
        return retriever


def _with_configurable(config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with what a caller configures, which BaseRetriever does not hand on."""
    configurable = ensure_config(config).get("configurable")
    return {**kwargs, "configurable": configurable} if configurable else kwargs
