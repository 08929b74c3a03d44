"""Records of other tools: the lines of a file, the rows of a table, each with its place for errors.

A file holds JSON lines, one JSON value, or a CSV table with a header, whatever its name; .gz is
unpacked. A table is anything with `columns` and `to_dict("records")`, such as a pandas frame.
Nothing in a file is run: lists that a CSV has as Python prints them are parsed as literals.
"""

import ast
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from conformal_retrievers.data.jsonl import opened, parsed_json, placed_lines
from conformal_retrievers.data.text import number_in
from conformal_retrievers.data.wording import say

TRUE, FALSE = {"true", "yes", "relevant"}, {"false", "no", "irrelevant", "not relevant"}
FALSE |= {"unrelated", "not_relevant"}  # the first as Phoenix calls it
TRUE |= {"wahr", "vrai", "verdadero", "vero", "verdadeiro", "waar"}  # as spreadsheets write them
FALSE |= {"falsch", "faux", "falso", "onwaar"}


@dataclass(frozen=True)
class Record:
    """The fields of one record; its methods raise ValueError, naming place, field and value."""

    place: str  # such as "spans.jsonl, line 3"
    fields: Mapping[str, Any]
    decimal: str = "."  # a comma in tables with semicolons, as spreadsheets write them

    @property
    def known(self) -> dict[str, Any]:
        """The fields as JSON would have them: without NaN, and whole numbers as such."""
        return {name: whole(self.get(name)) for name in self.fields}

    def get(self, name: str) -> Any:
        """Return a field as it is, and None for one that is absent, empty in a CSV, or NaN."""
        return _known(self.fields.get(name))

    def fault(self, name: str, remedy: str) -> ValueError:
        """Return the error for a field, with its value and the remedy."""
        value = self.get(name)
        what = "is missing" if value is None else f"is {value!r:.80}"
        return ValueError(f"{self.place}: {name:.80} {what}; {remedy}")

    def text(self, name: str, remedy: str = "give a text") -> str:
        """Return a field that is a text and not blank."""
        value = self.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(name, remedy)
        return value

    def name(self, name: str) -> str | None:
        """Return a field that is a name or a number, such as an id, as a text; None without one."""
        return as_name(self, name, self.get(name))

    def items(self, name: str, remedy: str = "give a list") -> list[Any] | None:
        """Return a field that is a list, also as a CSV has it; None without one."""
        value = self._parsed(name)
        if hasattr(value, "tolist"):  # an array, as a frame read from Parquet has it
            value = value.tolist()
        if not isinstance(value, list | tuple | None):
            raise self.fault(name, remedy)
        return None if value is None else [*map(_known, value)]

    def texts(self, name: str) -> list[str] | None:
        """Return a field that is a list of texts; None without one."""
        texts = self.items(name, "give a list of texts")
        if not all(isinstance(text, str) for text in texts or ()):
            raise self.fault(name, "give a list of texts")
        return texts

    def names(self, name: str) -> list[str] | None:
        """Return a field that is a list of ids; None without one."""
        given = self.items(name, "give a list of ids")
        if given is not None and None in given:
            raise self.fault(name, "give an id for each")
        return None if given is None else [str(as_name(self, name, id)) for id in given]

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a field that is an object, also as a CSV has it; {} without one."""
        value = self._parsed(name)
        if not isinstance(value, Mapping | None):
            raise self.fault(name, "give an object")
        return {str(key): item for key, item in (value or {}).items()}

    def _parsed(self, name: str) -> Any:
        """Return a field as it is, or the list or object that its text has."""
        value = self.get(name)
        inside = literal_in(value) if isinstance(value, str) else None
        return value if inside is None else inside

    def number(self, name: str) -> float | None:
        """Return a field that is a finite number; None without one."""
        value = self.get(name)
        number = number_in(value.replace(self.decimal, ".") if isinstance(value, str) else value)
        if not math.isnan(number):
            return number
        if value is not None:
            raise self.fault(name, "give a finite number, with a decimal point")
        return None


def as_name(record: Record, name: str, value: Any) -> str | None:
    """Return a name or a whole number as a text, and None as None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(number := whole(value), int) and not isinstance(value, bool):
        return str(number)
    raise ValueError(f"{record.place}: {name:.80} has {value!r:.80}; give a text or a whole number")


def whole(value: Any) -> Any:
    """Return a whole number as one: a frame makes whole numbers floats if one is missing."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_relevant(where: str, value: Any, min_score: float | None) -> bool:
    """Return whether a judgement says relevant; ValueError if it says neither.

    It is true or false, 1 or 0, or a word such as "relevant" or "unrelated"; with `min_score`, any
    number, which is relevant from there on.
    """
    word = str(value).strip().lower()  # of a flag, too
    if word in TRUE | FALSE:
        return word in TRUE
    number = number_in(value)
    if number in (0, 1) or (min_score is not None and not math.isnan(number)):
        return number >= (1 if min_score is None else min_score)
    remedy = "" if math.isnan(number) else ", or min_score, from which on a number is relevant"
    raise ValueError(f"{where} is {value!r:.80}; give true or false, 1 or 0{remedy}")


def records_of(source: Any) -> list[Record]:
    """Return the records of a file, a table, or a list of objects such as `list_examples` gives.

    Raises ValueError if there is none.
    """
    if isinstance(source, list) and source and isinstance(source[0], Record):
        return source
    if isinstance(source, (str, Path)):
        records, where = [*_in_file(source)], source
    else:
        of_table = hasattr(source, "columns") and hasattr(source, "to_dict")
        alone = isinstance(source, Mapping) or not isinstance(source, Iterable)
        items = [source] if alone else source
        if of_table:  # of polars, or of pandas
            if hasattr(source, "reset_index"):  # of pandas, whose index may hold the ids
                source = source.reset_index([*{*source.index.names} - {None, *source}])
            rows = getattr(source, "to_dicts", None)
            items = rows() if callable(rows) else source.to_dict("records")
        place, where = "row {}" if of_table else "records[{}]", f"the {type(source).__name__}"
        records = [*placed((place.format(i), item) for i, item in enumerate(items))]
    if not records:
        raise ValueError(f"{where} has no records as JSON or CSV; give one or more")
    return records


def text_of(path: str | Path) -> str:
    """Return a UTF-8 text, unpacked if the name ends in .gz; ValueError for other files."""
    with opened(path) as file:
        return file.read().decode("utf-8-sig")


def first_line(path: str | Path) -> str:
    """Return the first line of a file that is not blank, "" if there is none."""
    return next((line for _, line in placed_lines(path)), "")


def _in_file(path: str | Path) -> Iterator[Record]:
    first = first_line(path).lstrip()
    lines = ".jsonl" in Path(path).suffixes
    if not first.startswith(("{", "[")) and not lines:
        yield from _in_csv(path)
    elif lines or _is_json(first):
        for place, line in placed_lines(path):
            yield from placed(_items(place, parsed_json(place, line)))
    else:
        yield from placed(_items(str(path), parsed_json(str(path), text_of(path))))


def _items(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a JSON value holds: the items of a list."""
    if isinstance(value, list):
        yield from ((f"{place}, item {i}", item) for i, item in enumerate(value))
    else:
        yield place, value


def placed(items: Iterable[tuple[str, Any]]) -> Iterator[Record]:
    """Yield objects as records, given after their places; raise ValueError for anything else."""
    for place, item in items:
        fields = item.model_dump(mode="json") if hasattr(item, "model_dump") else item
        if not isinstance(fields, Mapping):
            raise ValueError(f"{place} is {fields!r:.80}; give an object with named fields")
        yield Record(place, {str(name): value for name, value in fields.items()})


def _in_csv(path: str | Path) -> Iterator[Record]:
    text = text_of(path).replace("\0", "")  # which csv of Python 3.10 refuses
    header = next(io.StringIO(text, newline=""), "")
    separator = max(",\t;", key=header.count)  # spreadsheets write semicolons in some countries
    csv.field_size_limit(2**31 - 1)  # all chunks may be in one cell
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    for row in reader:
        within = sum(cell.count("\n") for cell in row.values() if isinstance(cell, str))
        place = f"{path}, line {reader.line_num - within}"
        if None in row or None in row.values():
            raise ValueError(say("other columns", place=place, n=len(reader.fieldnames or ())))
        cells = {name: cell or None for name, cell in row.items()}
        yield Record(place, cells, decimal="," if separator == ";" else ".")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def literal_in(text: str) -> Any:
    """Return a list or object in a cell, written as JSON or as Python prints it; else None."""
    if text.lstrip().startswith(("[", "{")):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return None


def _known(value: Any) -> Any:
    """Return None for what a frame has in place of a missing value: NaN, NaT, NA."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def columns(records: Sequence[Record]) -> set[str]:
    """Return the names of all fields with a value."""
    return {name for record in records for name in record.fields if record.get(name) is not None}
