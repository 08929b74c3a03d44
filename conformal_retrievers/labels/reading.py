"""Questions with what was retrieved for them, not judged yet, as lines of JSON."""

from conformal_retrievers.data.jsonl import Row, SnippetRow, row_of, snippet_of
from conformal_retrievers.labels.labeling import AnsweredQuery


class _SnippetRow(SnippetRow):
    relevant: None = None


class _QueryRow(Row):
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
    try:
        snippets = [snippet_of(snippet) for snippet in row.snippets]
        return AnsweredQuery(row.query, snippets, **row.model_dump(exclude={"query", "snippets"}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from None
