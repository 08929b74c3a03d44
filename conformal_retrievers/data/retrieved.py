"""Whether judged queries are retrieved: they have what a retriever returned for them."""

from collections.abc import Iterable, Sequence

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import JudgedQuery

REMEDY = (
    "give the result of judge_retriever(retriever, judged) of langchain_conformal or "
    "llama_index.postprocessor.conformal, or of query.retrieved_as(snippets)"
)


def queries_to_judge(judged: Iterable[JudgedQuery], name: str = "judged") -> list[JudgedQuery]:
    """Return the queries; TypeError for anything but a JudgedQuery, ValueError for a blank text."""
    queries = all_of(JudgedQuery, judged, name)
    for i, query in enumerate(queries):
        if not query.query.strip():
            raise ValueError(f"{name}[{i}]: query is {query.query!r}; give the text of the query")
    return queries


def check_retrieved(judged: Sequence[JudgedQuery]) -> None:
    """Raise ValueError for a query of `from_ids` that is not retrieved yet, naming it."""
    for query in judged:
        if query.relevant_ids:
            raise ValueError(
                f"{query.name} is not retrieved yet: it has relevant_ids such as "
                f"{query.relevant_ids[0]!r}, and no snippets; {REMEDY}"
            )


def check_not_only_relevant(judged: Sequence[JudgedQuery]) -> None:
    """Raise ValueError if every snippet is relevant, and nothing tells that it was retrieved.

    What tells it are hits, retrieval scores, the retriever's name, or the k that it was asked for.
    """
    marks = [mark for query in judged for mark in query.relevant]
    told = any(
        query.retriever is not None
        or query.k is not None
        or any(s.hits or s.retrieval_score is not None for s in query.snippets)
        for query in judged
    )
    if marks and all(marks) and not told:
        raise ValueError(
            f"relevant is True for each of the {len(marks)} snippets of the judged queries, so "
            f"they look not retrieved yet; {REMEDY}, or k= with each query if a retriever was "
            "asked for so many"
        )
