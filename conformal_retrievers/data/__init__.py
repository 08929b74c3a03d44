"""What users bring: judged and scored queries, and their files."""

from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.hits import Hit, fuse
from conformal_retrievers.data.jsonl import iter_jsonl, read_jsonl, write_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet, as_scores
from conformal_retrievers.data.ranges import Evidence
from conformal_retrievers.data.readers.langsmith import read_langsmith
from conformal_retrievers.data.readers.openinference import read_openinference
from conformal_retrievers.data.readers.ragas import read_ragas
from conformal_retrievers.data.readers.reading import read
from conformal_retrievers.data.readers.table import read_frame
from conformal_retrievers.data.readers.trec import read_trec
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.data.snippets import with_hits
from conformal_retrievers.data.unanswerable import without_relevant

__all__ = [
    "Evidence",
    "Hit",
    "JudgedQuery",
    "ScoredQuery",
    "Snippet",
    "as_scores",
    "by_sentence",
    "fuse",
    "iter_jsonl",
    "read",
    "read_beir",
    "read_frame",
    "read_jsonl",
    "read_langsmith",
    "read_openinference",
    "read_ragas",
    "read_trec",
    "with_hits",
    "without_relevant",
    "write_jsonl",
]
