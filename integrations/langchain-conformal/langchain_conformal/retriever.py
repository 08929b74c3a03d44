"""The conformal filter around a LangChain retriever."""

import warnings
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from pydantic import ConfigDict, field_validator

from conformal_retrievers.calibration import Gate
from conformal_retrievers.data.retrieval import Retrieval, difference
from conformal_retrievers.filtering import RetrievalFilter
from langchain_conformal.around import Around, Configurable, check_taken, with_scores
from langchain_conformal.events import FilterRun, filter_run
from langchain_conformal.judge import check_hits, check_retriever, check_unfiltered, retrieval_of
from langchain_conformal.scorers import FromCalibration
from langchain_conformal.wording import say


class ConformalRetriever(FromCalibration, Around):
    """Retrieves with another retriever and drops the documents that the filter drops.

    The others come back in order, as copies whose metadata has <metadata_prefix>score and
    <metadata_prefix>p_value, which replace fields of the same name (None: metadata unchanged).
    `retriever` is any runnable from a query to documents, at the depth that was calibrated at. It
    receives the keyword arguments of `invoke` and what is `configurable` in its config. `alpha` is
    another risk than the calibration's, which `configurable_fields(alpha=…)` opens to callers.
    Sentences, a `gate` and `shadow` are as in `ConformalCompressor`.

    Warns if the retriever is asked for fewer documents than the calibration's k, is known not to be
    the calibrated one, or filters by metadata and the calibrated one did not, or the other way.
    Raises TypeError for anything but a retriever, and ValueError for an alpha outside (0, 1), for
    another gate than the filter was calibrated with, for a retriever that filters already, and for
    one that lacks the hits of a retriever that a score needs.
    """

    retriever: RetrieverLike
    filter: RetrievalFilter[Any]
    gate: Gate | None = None
    metadata_prefix: str | None = "conformal_"
    alpha: float | None = None

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @field_validator("retriever", mode="before")
    @classmethod
    def _check_retriever(cls, retriever: object) -> object:
        check_retriever(retriever)
        return retriever

    def model_post_init(self, context: Any, /) -> None:
        """Raise ValueError for an invalid alpha, gate or retriever."""
        super().model_post_init(context)
        check_unfiltered(self.retriever)
        for own in self._filter().deciding:
            check_hits(own.scorer, self.retriever)

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, configurable: Configurable = None, **kwargs: Any
    ) -> list[Document]:
        retriever = self._configured(configurable, kwargs)
        documents = retriever.invoke(query, {"callbacks": run_manager.get_child()})
        return self._run(query, documents, run_manager.get_child()).decide()

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, configurable: Configurable = None, **kwargs: Any
    ) -> list[Document]:
        retriever = self._configured(configurable, kwargs)
        documents = await retriever.ainvoke(query, {"callbacks": run_manager.get_child()})
        return await self._run(query, documents, run_manager.get_child()).adecide()

    def _run(
        self, query: str, found: list[Document], callbacks: Callbacks
    ) -> FilterRun[list[Document]]:
        return filter_run(self._filter(), query, found, callbacks, self.metadata_prefix)

    def _filter(self) -> RetrievalFilter[Any]:
        at_alpha = self.filter if self.alpha is None else self.filter.at(self.alpha)
        return at_alpha.with_gate(self.gate)

    def _configured(
        self, configurable: Configurable, kwargs: dict[str, Any]
    ) -> Runnable[str, list[Document]]:
        """Return the retriever as a caller asks it; warn if another was calibrated."""
        retriever = self.retriever
        check_taken(retriever, kwargs, "the retriever")
        for name in {"alpha", "group"} & kwargs.keys():  # which some stores take, too
            warnings.warn(say(f"given {name}"), stacklevel=1)
        if configurable or kwargs:
            config = RunnableConfig(configurable=configurable or {})
            retriever = RunnableBinding(bound=retriever, kwargs=kwargs, config=config)
        calibrations = [own.calibration for own in self._filter().deciding]
        asked = retrieval_of(retriever)
        for calibrated in {Retrieval(c.retriever or "", c.k) for c in calibrations}:
            if text := difference(asked, calibrated):
                warnings.warn(text, stacklevel=1)  # Python shows a repeated warning once
        return with_scores(retriever)
