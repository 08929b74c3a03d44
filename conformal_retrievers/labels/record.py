"""Where the judgements of a file come from, in a file beside it: judged.jsonl, judged.labels.json.

The record is bound to the judged queries by a checksum, so that it never speaks of others.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import JsonValue

from conformal_retrievers.data.files import Kind, cannot_read, read_envelope, write_envelope
from conformal_retrievers.data.jsonl import write_jsonl
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.labels.wording import say

KIND = Kind("conformal-retrievers/labels", 1, "write_labelled", "record of labels")


def beside(path: str | Path, ending: str) -> Path:
    """Return the path of a file that belongs to judged queries.

    >>> beside("folder/judged.jsonl", "labels.json").name
    'judged.labels.json'
    >>> beside("folder/judged.jsonl.gz", "labels.json").name
    'judged.jsonl.gz.labels.json'
    """
    return Path(path).with_name(f"{Path(path).name.removesuffix('.jsonl')}.{ending}")


def write_labelled(
    judged: Iterable[JudgedQuery],
    labels: Mapping[str, JsonValue],
    path: str | Path,
    *,
    seen: Iterable[Mapping[str, JsonValue]] = (),
) -> None:
    """Write judged queries as `write_jsonl` does, and beside them where their labels come from.

    Queries and labels are such as `Labelled.judged` and `.labels`; the file of the labels has the
    ending .labels.json. `seen` is what a person saw of each query, see
    `conformal_retrievers.labels.judging`. Raises ValueError and OSError as `write_jsonl`.
    """
    write_jsonl(judged, path)
    fields = {"judged": _digest(path), "labels": dict(labels), "seen": [*map(dict, seen)]}
    write_envelope(beside(path, "labels.json"), fields, KIND, rows="seen")


def read_labels(path: str | Path) -> dict[str, JsonValue] | None:
    """Return where the labels of a file of judged queries come from, for `calibrate(labels=)`.

    Returns None if nothing is beside the file. Raises ValueError if what is beside it is about
    other queries, or is damaged.
    """
    record = beside(path, "labels.json")
    if Path(path).is_dir() or not record.exists():
        return None
    fields = read_envelope(record, KIND)
    if fields["judged"] != _digest(path):
        raise ValueError(say("other judgements", record=record, path=path))
    labels: dict[str, JsonValue] = fields["labels"]
    return labels


def _digest(path: str | Path) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        cannot_read("judged queries", path, error)
