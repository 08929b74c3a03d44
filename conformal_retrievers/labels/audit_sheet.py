"""The files of an audit: the sheet that a person fills in, and its key, not for their eyes.

The sheet, a CSV file, holds query and snippet of each row, and an id. Labels and scores, which
would sway the person, are in <path>.key under that id. Spreadsheets change what they save: white
space, quotes and case, separators, encodings. That is allowed for; another text, another judgement
than yes or no, a lost row or another audit's key are not.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.queries import JudgedQuery

SHEET = ("audited", "query", "snippet", "id")
KEY = (
    *("id", "query_number", "snippet_number", "query_id", "snippet_id", "label", "score"),
    *("decile", "stratum_size", "stratum_rows", "text", "ascii_text"),
)
YES = frozenset(["yes", "y", "true", "1", "relevant"])
NO = frozenset(["no", "n", "false", "0", "irrelevant"])

# --- writing --------------------------------------------------------------------------------------


class SampledSnippet(NamedTuple):
    """A snippet that was drawn: its places among the queries and in its query, what the labeler
    said, its score (NaN for none) with its decile (0), and how many of its stratum were drawn."""

    query: int
    snippet: int
    label: bool
    score: float
    decile: int
    stratum_size: int
    stratum_rows: int


def write_audit(
    path: str | Path,
    judged: Sequence[JudgedQuery],
    sampled: Iterable[SampledSnippet],
    rng: np.random.Generator,
) -> None:
    """Write the sheet, its rows shuffled, and its key.

    A cell that a spreadsheet would read as a formula begins with an apostrophe.
    """
    sheet, key = [], []
    for one in sampled:
        query = judged[one.query]
        snippet = query.snippets[one.snippet]
        row = _row_id((one.query, one.snippet))
        cells = (_cell(query.query), _cell(snippet.text))
        sheet.append(["", *cells, row])
        key.append(
            [
                *(row, one.query, one.snippet),
                *(_cell(query.id), _cell(snippet.id)),
                "yes" if one.label else "no",
                "" if math.isnan(one.score) else repr(one.score),
                one.decile or "",
                *(one.stratum_size, one.stratum_rows),
                *_digests(*cells),
            ]
        )
    audit = _digest(repr(key))  # the same in all rows, so that it tells the label of none
    for shown, hidden in zip(sheet, key, strict=True):
        shown[-1] = hidden[0] = f"{hidden[0]}-{audit}"
    rng.shuffle(sheet)  # in the order of their strata, they would tell their labels
    _write_csv(key_of(path), [KEY, *key], what="key of an audit")
    _write_csv(path, [SHEET, *sheet], what="audit")


def key_of(path: str | Path) -> Path:
    """Return where the labels and scores of an audit's rows are."""
    return Path(f"{path}.key")


def check_free(sheet: Path) -> None:
    """Raise FileExistsError where a sheet or its key is there already."""
    key = key_of(sheet)
    if sheet.exists():
        raise FileExistsError(f"{sheet} exists and may hold an audit; give another path")
    if key.exists():
        raise FileExistsError(
            f"{key} exists, the key of an audit, though there is no {sheet.name}; put that audit "
            "back beside it, or remove the key if there is none, or give another path"
        )


def _row_id(places: tuple[int, int]) -> str:
    # Begins with a letter that no number has: spreadsheets would make 1e5 or 3-4 another cell. The
    # place itself may be a rank, which would tell something of the score.
    return f"s{_digest(repr(places))}"


_LONGEST = 32_000  # characters: spreadsheets cut a cell at 32,767 without a word
_FORMULA = r"[\s'=+\-@＝＋－＠]"


def _cell(text: str | None) -> str:
    """Return the text as no formula, not too long, without NUL, which csv cannot always read."""
    cell = (text or "").replace("\0", "␀")
    if len(cell) > _LONGEST:
        cell = f"{cell[:_LONGEST]}… [cut]"
    return f"'{cell}" if re.match(_FORMULA, cell) else cell


def _digests(query: str, snippet: str) -> tuple[str, str]:
    """Return what tells the texts of a row again: by letters and digits, and by those of ASCII.

    Spreadsheets change white space, quotes and case ("TRUE"), and some write what their encoding
    does not hold as "?".
    """
    written = f"{query}\0{snippet}".encode("utf-8", "backslashreplace").decode("utf-8")
    words = re.sub(r"[^\w\0]", "", unicodedata.normalize("NFKC", written).casefold())
    return _digest(words), _digest(re.sub(r"[^a-z0-9\0]", "", written.lower()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def _write_csv(path: str | Path, rows: Iterable[Sequence[object]], what: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    # Spreadsheets take a file without the mark for one of another encoding.
    write_whole(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"), what=what)


# --- reading --------------------------------------------------------------------------------------


class AuditedSnippet(NamedTuple):
    """A row of an audit: whose snippet it is, what the labeler and what the person said.

    `query` and `snippet` are its places in the sampled `judged` and in that query's snippets.
    `score` is NaN and `decile` None where it has none. It stands for `weight` snippets.
    """

    query: int
    snippet: int
    label: bool
    audited: bool
    score: float
    decile: int | None
    weight: float


def read_audit(path: str | Path) -> list[AuditedSnippet]:
    """Return the rows of an audit that a person filled in.

    Raises ValueError, naming lines and column, for all that is at fault in it, and
    FileNotFoundError without the file or its key.
    """
    _check_there(Path(path))
    key = _key(key_of(path))
    sheet = list(_rows(Path(path), SHEET))
    _check_same_audit(Path(path), [row["id"] for _, row in sheet], key)
    rows: list[AuditedSnippet] = []
    faults: list[str] = []
    seen: set[str] = set()
    for place, row in sheet:
        audited, of_key = row["audited"].strip().lower(), key.get(row["id"].strip())
        if of_key is None:
            faults.append(f"{place}: id {row['id']!r} is not in {key_of(path).name}; restore it")
        elif of_key["id"] in seen:
            faults.append(f"{place}: repeats id {of_key['id']}; remove it")
        elif audited not in YES | NO:
            faults.append(f"{place}: audited is {row['audited']!r}; write yes or no")
        else:
            rows.append(_audited(key_of(path), of_key, audited in YES))
            if not _same_texts(row, of_key):
                faults.append(
                    f"{place}: its texts are not those that were sampled with id {of_key['id']}; "
                    "restore query and snippet"
                )
        seen.update([] if of_key is None else [of_key["id"]])
    if faults:
        more = f"\nand {len(faults) - 10} more" if len(faults) > 10 else ""
        raise ValueError(f"{path} has {len(faults)} faults:\n" + "\n".join(faults[:10]) + more)
    if lost := [row for row in key if row not in seen]:
        raise ValueError(
            f"{path} has {len(rows)} rows, but {len(key)} were sampled: {', '.join(lost[:10])} "
            "are missing; restore the rows"
        )
    if not rows:
        raise ValueError(f"{path} has 0 rows; restore what audit_sample wrote")
    return rows


def _key(path: Path) -> dict[str, dict[str, str]]:
    key: dict[str, dict[str, str]] = {}
    for place, row in _rows(path, KEY):
        if row["id"] in key:
            raise ValueError(f"{path}, {place}: repeats id {row['id']}; {_RESTORE}")
        key[row["id"]] = row
    return key


_RESTORE = "restore what audit_sample wrote"


def _check_there(sheet: Path) -> None:
    if not sheet.exists():
        raise FileNotFoundError(
            f"there is no audit {sheet}; give the path of the file that audit_sample wrote"
        )
    if not key_of(sheet).exists():
        raise FileNotFoundError(
            f"the key {key_of(sheet)} is missing, which audit_sample wrote beside the file; put it "
            "there, under that name"
        )


def _check_same_audit(path: Path, rows: Iterable[str], key: Iterable[str]) -> None:
    """Raise ValueError where ids end in the digest of another audit's labels and scores."""
    sampled = {id.strip().partition("-")[2] for id in rows} - {""}
    known = {id.partition("-")[2] for id in key}
    if sampled and sampled.isdisjoint(known):
        raise ValueError(
            f"{key_of(path)} is not the key of {path}: its texts, labels or scores are others; put "
            "the key there that audit_sample wrote with that file"
        )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    raw = path.read_bytes()
    utf_16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # Ids and judgements are the same in whatever encoding a spreadsheet writes.
    text = raw.decode("utf-16" if utf_16 else "utf-8-sig", errors="replace")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        absent = [name for name in columns if name not in (reader.fieldnames or ())]
        if absent:
            raise ValueError(
                f"{path}: the columns {', '.join(absent)} are missing; save the file with all "
                "columns as CSV"
            )
        twice = [name for name in columns if list(reader.fieldnames or ()).count(name) > 1]
        if twice:
            raise ValueError(
                f"{path}: there are several columns {twice[0]!r}; remove all of them but one"
            )
        line = reader.line_num + 1
        for number, row in enumerate(reader, start=2):
            yield f"line {line} (row {number})", {k: v or "" for k, v in row.items() if k}
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path} is no complete CSV file: {error}") from None


def _same_texts(row: Mapping[str, str], of_key: Mapping[str, str]) -> bool:
    texts = (row["query"], row["snippet"])
    words, ascii_words = _digests(*texts)
    marked = any(lost in text for text in texts for lost in "?\N{REPLACEMENT CHARACTER}")
    # An encoding that loses letters leaves none that are not of ASCII, or none that is read so.
    recoded = marked and not any(c.isalnum() and not c.isascii() for text in texts for c in text)
    return words == of_key["text"] or (recoded and ascii_words == of_key["ascii_text"])


def _audited(path: Path, row: Mapping[str, str], audited: bool) -> AuditedSnippet:
    def number(name: str, low: int, high: int = 2**31) -> int:
        found = int(row[name])
        if not low <= found <= high:
            raise ValueError(f"{name} is {found}, not from {low} to {high}")
        return found

    try:
        size = number("stratum_size", 1)
        return AuditedSnippet(
            number("query_number", 0),
            number("snippet_number", 0),
            {"yes": True, "no": False}[row["label"]],
            audited,
            float(row["score"] or "nan"),
            number("decile", 1, 10) if row["decile"] else None,
            size / number("stratum_rows", 1, size),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}, id {row['id']}: {error!r}; {_RESTORE}") from None
