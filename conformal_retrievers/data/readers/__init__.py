"""Readers of judged queries in the files of other tools, one module a format."""

from conformal_retrievers.data.readers.langsmith import read_langsmith
from conformal_retrievers.data.readers.openinference import read_openinference
from conformal_retrievers.data.readers.ragas import read_ragas
from conformal_retrievers.data.readers.reading import read
from conformal_retrievers.data.readers.table import read_frame
from conformal_retrievers.data.readers.trec import read_trec

__all__ = ["read", "read_frame", "read_langsmith", "read_openinference", "read_ragas", "read_trec"]
