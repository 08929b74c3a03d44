"""Questions with what was retrieved for them, not judged yet, as lines of JSON."""

from pydantic import BaseModel, ConfigDict

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.jsonl import row_of
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.labels.labeling import AnsweredQuery


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)


class _SnippetRow(_Row):
    text: str
    id: str | None = None
    document: str | None = None
    position: int | None = None
    retrieval_score: float | None = None
    hits: tuple[Hit, ...] = ()


class _QueryRow(_Row):
    id: str | None = None
    query: str
    answer: str | None = None
    group: str | None = None
    snippets: list[_SnippetRow]


def answered_query(place: str, line: bytes) -> AnsweredQuery:
    """Return the query of a line; raise ValueError, naming place and field, for a malformed one.

    >>> query = answered_query("line 1", b'{"query": "Who?", "snippets": [{"text": "Ann."}]}')
    >>> query.snippets[0].text
    'Ann.'
    """
    row = row_of(place, line.decode(), _QueryRow)
    if not (row.query if row.answer is None else row.answer).strip():
        raise ValueError(f"{place}: query or answer is blank; give the fact to be supported")
    snippets = [Snippet(**dict(snippet)) for snippet in row.snippets]
    try:
        return AnsweredQuery(row.query, snippets, **row.model_dump(exclude={"query", "snippets"}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from None
