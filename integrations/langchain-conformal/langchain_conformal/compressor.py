"""The conformal filter as a LangChain document compressor."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict

from conformal_retrievers.calibration import Gate
from conformal_retrievers.filtering import RetrievalFilter
from langchain_conformal.events import FilterRun, filter_run
from langchain_conformal.scorers import FromCalibration


class ConformalCompressor(FromCalibration, BaseDocumentCompressor):
    """Drops the documents that the filter drops, and returns copies of the others in their order.

    Give it documents in the order in which the retriever returns them: their order is their rank.
    It sees no scores of a plain vector store, which `ConformalRetriever` does, and does not know
    which retriever is asked, so that it cannot warn of another one.

    Copies have <metadata_prefix>score and <metadata_prefix>p_value in their metadata, which replace
    fields of the same name; a prefix of None leaves metadata unchanged. The guarantee is about
    what the calibrated retriever returns: put the compressor directly behind it.

    If its gate is silent on a query, the filter returns no documents. `gate` replaces the filter's
    own, and metadata gain <metadata_prefix>gate_p_value, its p-value of the query.

    A filter of sentences (`from_calibration(…, split="sentences")`) returns the documents with a
    kept sentence. Their text is what is kept, <metadata_prefix>ranges has its characters in the
    text before, [[start, end], …], and score and p-value are those of the best kept sentence.

    A filter in shadow (`from_calibration(…, shadow=True)`) returns all documents, with
    <metadata_prefix>kept, whether it would be kept.
    """

    filter: RetrievalFilter[Any]
    gate: Gate | None = None
    metadata_prefix: str | None = "conformal_"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    def model_post_init(self, context: Any, /) -> None:
        """Raise ValueError for another gate than the one that the filter was calibrated with."""
        self.filter.with_gate(self.gate)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return copies of the documents that are kept for the query."""
        return self._run(documents, query, callbacks).decide()

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return what `compress_documents` returns, without blocking the event loop."""
        return await self._run(documents, query, callbacks).adecide()

    def _run(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks
    ) -> FilterRun[list[Document]]:
        gated = self.filter.with_gate(self.gate)
        return filter_run(gated, query, documents, callbacks, self.metadata_prefix)
