"""Judged queries in files of JSON lines: one query a line, compressed if the name ends in .gz."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from conformal_retrievers.data.files import cannot_read, write_whole
from conformal_retrievers.data.queries import JudgedQuery, Snippet


def read_jsonl(path: str | Path) -> list[JudgedQuery]:
    """Read judged queries from a file of JSON lines: the list of what `iter_jsonl` yields."""
    return list(iter_jsonl(path))


def iter_jsonl(path: str | Path) -> Iterator[JudgedQuery]:
    """Yield judged queries from a file of JSON lines, one query a line, as they are read.

    A line is {"id", "query", "group", "missed", "retriever", "k", "snippets": [{"id", "text",
    "relevant", "document", "position", "retrieval_score"}]}; "query", "snippets", "text" and
    "relevant" are required. Blank lines are passed over.
    Raises ValueError naming the file, the line and the field.
    """
    from pydantic import ValidationError

    from conformal_retrievers.data.rows import NAMES, QueryRow, explain

    for number, line in numbered_lines(Path(path)):
        try:
            row = QueryRow.model_validate_json(line)
            query = JudgedQuery(
                row.query,
                [
                    Snippet(s.text, s.id, s.document, s.position, s.retrieval_score)
                    for s in row.snippets
                ],
                [cast(bool, s.relevant) for s in row.snippets],
                id=row.id,
                group=row.group,
                missed=cast(int, row.missed),
                retriever=row.retriever,
                k=cast("int | None", row.k),
            )
        except ValidationError as error:
            raise ValueError(f"{path}, line {number}: {explain(error, NAMES)}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        yield query


def write_jsonl(queries: Iterable[JudgedQuery], path: str | Path) -> None:
    """Write judged queries as JSON lines that `read_jsonl` reads back; embeddings are left out.

    Raises ValueError for a retrieval score that is not finite, which JSON does not know, and
    OSError, naming the path, where it cannot be written; then an old file stays as it was.
    """
    text = "".join(_line(query) for query in queries).encode("utf-8")
    zipped = Path(path).suffix == ".gz"
    write_whole(path, gzip.compress(text) if zipped else text, what="judged queries")


def _line(query: JudgedQuery) -> str:
    from conformal_retrievers.data.rows import QueryRow, SnippetRow

    for i, snippet in enumerate(query.snippets):
        if snippet.retrieval_score is not None and not math.isfinite(snippet.retrieval_score):
            raise ValueError(
                f"{query.name}: snippets[{i}].retrieval_score is "
                f"{snippet.retrieval_score}; give a finite number, or None"
            )
    snippets = [
        SnippetRow(
            id=s.id,
            text=s.text,
            relevant=r,
            document=s.document,
            position=s.position,
            retrieval_score=s.retrieval_score,
        )
        for s, r in zip(query.snippets, query.relevant, strict=True)
    ]
    row = QueryRow(
        id=query.id,
        query=query.query,
        group=query.group,
        missed=query.missed,
        retriever=query.retriever,
        k=query.k,
        snippets=snippets,
    )
    return row.model_dump_json(exclude_none=True) + "\n"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, .gz or not, that are not blank, with their numbers.

    Raises ValueError, naming the file, where it is no such text, and OSError where it cannot be
    read.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:  # the last is an OSError
        kind = "compressed " if path.suffix == ".gz" else ""
        raise ValueError(f"{path} is no complete {kind}UTF-8 text: {error}") from None
    except OSError as error:
        cannot_read("file", path, error)
