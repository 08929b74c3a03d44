"""Tables with a row for each judged snippet of a query: pandas frames in long form, and CSV files.

    query      the text of the query            relevant   true or false, 1 or 0
    query_id   its id                           rank       the place that a retriever gave it
    id, text   of the snippet, one of them      score      the retriever's own
    group      of the query
    document   that the snippet was cut from    position   of its first character there

`query` and `relevant`, and `id` or `text`, are required. A row with a rank in other rows and none
of its own was not retrieved: if it is relevant, it is missed. Without text, rank and score nothing
was retrieved, and queries have the ids of their relevant snippets.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.readers.documents import check_unfiltered, made
from conformal_retrievers.data.readers.records import Record, as_relevant, columns, records_of
from conformal_retrievers.data.wording import say


def fits(names: set[str]) -> bool:
    """Return whether columns are those of a table in long form."""
    return "query" in names and bool({"id", "text"} & names) and "snippets" not in names


def read_frame(
    frame: Any, *, query: str = "query", relevant: str = "relevant", min_score: float | None = None
) -> list[JudgedQuery]:
    """Read judged queries from a table with a row for each snippet of a query.

    The table is anything with `columns` and `to_dict("records")`, a list of rows, or the path of a
    file. `query` and `relevant` are the columns with the text of the query and with the judgement,
    and `min_score` is the value of `relevant` from which on a snippet is, where it is not 1 or 0.
    Queries have the order of their first rows. With ranks, which count from 0 or from 1, snippets
    have hits and their order.

    >>> class Frame:  # as a pandas frame is
    ...     columns = ["query", "text", "relevant", "rank"]
    ...     def to_dict(self, orient):
    ...         rows = [("Who?", "Ann did.", True, 1), ("Who?", "It rains.", False, 2)]
    ...         return [dict(zip(self.columns, row)) for row in rows]
    >>> [one] = read_frame(Frame())
    >>> one.relevant, one.snippets[1].hits
    ((True, False), (Hit(retriever='retriever', rank=1, score=None),))

    Raises ValueError for a row without a judgement or a query, or one that a conformal filter kept;
    for rows of one query that contradict each other; for a rank that occurs twice.
    """
    records = records_of(frame)
    given = {query: "query", relevant: "relevant"}
    rows = [
        replace(row, fields={given.get(name, name): cell for name, cell in row.fields.items()})
        for row in records
    ]
    known = columns(rows)
    if "relevant" not in known:
        raise rows[0].fault(relevant, "give a column that says which snippets are relevant")
    ranks = [rank for row in rows if (rank := row.number("rank")) is not None]
    first = 0 if 0 in ranks or not ranks else 1
    of_query: dict[str, list[Record]] = {}
    for row in rows:
        text = row.text("query", "give the text of the query")
        if "query_id" in known and row.name("query_id") is None:
            raise row.fault("query_id", "give it in all rows, or in none")
        of_query.setdefault(row.name("query_id") or text, []).append(row)
    for all_of in of_query.values():
        for name in ("query", "group"):
            if len({row.name(name) for row in all_of}) > 1:
                raise all_of[-1].fault(name, "give the same in all rows of a query")
    known_missed = "rank" in known and len(ranks) < len(rows)
    each = of_query.values()
    queries = [_query(all_of, first, known, known_missed, min_score) for all_of in each]
    blank = sum(not s.text for query in queries for s in query.snippets)
    if "text" in known and blank:
        warnings.warn(say("no texts", n=blank, of=len(rows)), stacklevel=4)
    return queries


def _query(
    rows: Sequence[Record], first: int, known: set[str], known_missed: bool, min_score: float | None
) -> JudgedQuery:
    query, id = rows[0].text("query"), rows[0].name("query_id")
    if not known & {"text", "rank", "score"}:  # qrels as a table
        ids = [row.name("id") or "" for row in rows if _relevant(row, min_score)]
        return made(rows[0], JudgedQuery.from_ids, query, ids, id=id)
    retrieved = dict[float, tuple[Snippet, bool]]()  # by rank, or by place without ranks
    missed = 0
    for i, row in enumerate(rows):
        relevant, rank = _relevant(row, min_score), row.number("rank")
        if rank is None and "rank" in known:
            missed += relevant
            continue
        snippet = _snippet(row)
        if rank is not None:
            if rank % 1 or rank < first or rank in retrieved:
                raise row.fault("rank", "give whole numbers, each once for a query")
            hit = Hit(RETRIEVER, int(rank) - first, snippet.retrieval_score)
            snippet = replace(snippet, hits=(hit,))
        retrieved[i if rank is None else rank] = snippet, relevant
    ordered = [retrieved[place] for place in sorted(retrieved)]
    snippets, marks = [snippet for snippet, _ in ordered], [relevant for _, relevant in ordered]
    n_missed = missed if known_missed else None
    return made(rows[0], JudgedQuery, query, snippets, marks, id=id, missed=n_missed)


def _relevant(row: Record, min_score: float | None) -> bool:
    check_unfiltered(row.place, row.fields)
    grade = row.get("relevant")
    grade = grade.replace(row.decimal, ".") if isinstance(grade, str) else grade
    return as_relevant(f"{row.place}: relevant", grade, min_score)


def _snippet(row: Record) -> Snippet:
    text, position = row.get("text"), row.number("position")
    if not isinstance(text, str) and (text is not None or row.name("id") is None):
        raise row.fault("text", "give the text of the snippet, or its id")
    if position is not None and (position % 1 or position < 0):
        raise row.fault("position", "give a whole number, 0 or more")
    return Snippet(
        text or "",
        id=row.name("id"),
        document=row.name("document"),
        position=None if position is None else int(position),
        retrieval_score=row.number("score"),
    )
