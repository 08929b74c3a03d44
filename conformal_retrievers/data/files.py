"""Files that are written whole or not at all, and the JSON envelope that saved values share.

An envelope is a JSON object for readers: one field per line, and one row per line of the one field
that may be long. Its fields `format` and `version` say what it is, and `sha256` is the checksum of
all other fields. No pickle, no eval.
"""

import contextlib
import gzip
import hashlib
import json
import math
import os
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from conformal_retrievers.data.text import visible
from conformal_retrievers.data.wording import say

T = TypeVar("T")
# Errors of pydantic about a value that is not a JSON object.
NO_OBJECT = ("arguments_type", "dataclass_type", "dict_type", "model_type", "named_tuple_type")
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)  # of a .gz file
STALE = 600.0  # seconds: writing a file takes less


def write_whole(
    path: str | Path, content: bytes | Callable[[BinaryIO], object], *, what: str
) -> None:
    """Write a file, replacing an old one only once the new one is complete on disk.

    The content may be a function that writes it to the open file. A link stays a link and its
    target changes; a file keeps its mode. Raises OSError, naming `what`, the path and the remedy;
    then an old file stays as it was and no other file is left.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".conformal-{secrets.token_hex(8)}.tmp")
    try:
        if target.exists() and not target.is_file():
            raise OSError(None, "it is a folder, or no regular file")
        _remove_left_over(target.parent)
        mode = 0o600 if target.exists() else 0o666  # the old one may be private
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content) if isinstance(content, bytes) else content(file)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                os.chmod(temporary, target.stat().st_mode & 0o7777)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        message = f"cannot write the {what} ({error.strerror}); give a path in a writable folder"
        raise type(error)(error.errno, message, str(path)) from None


def _remove_left_over(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote."""
    for file in folder.glob(".conformal-*.tmp"):
        with contextlib.suppress(OSError):  # another process removed it, or another user's
            if time.time() - file.stat().st_mtime > STALE:
                file.unlink()


def cannot_read(what: str, path: str | Path, error: OSError) -> NoReturn:
    """Raise an OSError of the same type that names `what`, the path and the remedy."""
    message = f"{path}: cannot read the {what} ({error.strerror or error}); give a readable file"
    raised = type(error)(message)
    raised.errno = error.errno
    raise raised from None


class Kind(NamedTuple):
    """A kind of envelope."""

    format: str  # the values that its fields `format` and `version` have
    version: int
    saved_by: str  # what writes it, such as "Calibration.save"
    what: str  # the saved value in error messages, such as "calibration"


def write_envelope(
    path: str | Path, fields: Mapping[str, Any], kind: Kind, *, rows: str | None = None
) -> None:
    """Write the `envelope_text` of a kind as `write_whole` does, which raises OSError."""
    text = envelope_text({"format": kind.format, "version": kind.version, **fields}, rows=rows)
    write_whole(path, text.encode("utf-8"), what=kind.what)


def envelope_text(fields: Mapping[str, Any], *, rows: str | None = None) -> str:
    """Return fields (with `format` and `version`) and their checksum as JSON, one field per line.

    The field named `rows`, a sequence, comes last with one entry per line. Infinite and NaN numbers
    raise ValueError.
    """
    lines = [f"  {_json(name)}: {_json(value)}" for name, value in fields.items() if name != rows]
    lines.append(f'  "sha256": {_json(checksum(fields))}')
    if rows is not None:
        entries = ",\n".join(f"    {_json(row)}" for part in _parts(fields[rows]) for row in part)
        lines.append(f"  {_json(rows)}: [\n{entries}\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def short_hash(value: object) -> str:
    """Return the first twelve hexadecimal digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def checksum(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields as JSON with sorted keys and without white space."""
    digest = hashlib.sha256(b"{")
    for place, name in enumerate(sorted(fields)):
        digest.update(f"{',' if place else ''}{_compact(name)}:".encode())
        value = fields[name]
        if isinstance(value, Sequence) and not isinstance(value, str):  # many may be long
            digest.update(b"[")
            for i, part in enumerate(_parts(value)):
                digest.update(f"{',' if i else ''}{_compact(part)[1:-1]}".encode())
            digest.update(b"]")
        else:
            digest.update(_compact(value).encode())
    digest.update(b"}")
    return digest.hexdigest()


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + 1000] for start in range(0, len(values), 1000))


_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def read_envelope(path: str | Path, kind: Kind) -> dict[str, Any]:
    """Return the fields of a file as `parse_envelope` does; raises OSError if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        cannot_read(kind.what, path, error)
    except ValueError as error:  # not UTF-8, or a NUL in the path
        raise _incomplete(path, kind, error) from None
    return parse_envelope(text, str(path), kind)


def read_value(path: str | Path, kind: Kind, value: type[T]) -> T:
    """Return a file of `write_envelope` as a value of a type, which pydantic checks.

    Raises ValueError and OSError as `read_envelope`, and ValueError for fields that do not fit.
    """
    fields = read_envelope(path, kind)
    del fields["format"], fields["version"]
    try:
        return TypeAdapter(value).validate_json(json.dumps(fields))
    except ValidationError as error:
        remedy = f"make and save the {kind.what} again"
        raise ValueError(f"{path}: {explain(error)}; {remedy}") from None


def parse_envelope(text: str, where: str, kind: Kind) -> dict[str, Any]:
    """Return the fields of an envelope without its checksum. Errors name the text `where`.

    Raises ValueError if the text is not complete JSON, repeats a field, has a number that is NaN or
    too large, is an envelope of another format or version, or was changed after it was written.
    """
    try:
        fields = json.loads(
            text, object_pairs_hook=without_repetition, parse_constant=_finite, parse_float=_finite
        )
        stored = fields.pop("sha256", None) if isinstance(fields, dict) else None
        actual = checksum(fields) if isinstance(fields, dict) else None
    except (ValueError, RecursionError) as error:  # the latter for endlessly nested lists
        raise _incomplete(where, kind, error) from None
    if not isinstance(fields, dict) or fields.get("format") != kind.format:
        raise ValueError(say("other format", where=where, kind=kind))
    version = fields.get("version")
    if type(version) is not int or version != kind.version:
        raise ValueError(say("other version", where=where, kind=kind, version=version))
    if stored != actual:
        raise ValueError(say("changed", where=where, kind=kind, stored=stored, actual=actual))
    return fields


def _incomplete(where: str | Path, kind: Kind, error: Exception) -> ValueError:
    return ValueError(
        f"{where} is not a complete {kind.what} file ({error}); give a file that {kind.saved_by} "
        "wrote"
    )


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError, naming the field, for one that occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"field {twice!r:.60} occurs twice")
    return fields


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number:.60} is not a finite number")
    return value


def explain(error: ValidationError) -> str:
    """Return in one line which fields are wrong, what they have and what is allowed."""
    errors = error.errors(include_url=False)
    more = [f"{len(errors) - 3} more errors"] if len(errors) > 3 else []
    return "; ".join([*map(_explained, errors[:3]), *more])


def _explained(error: ErrorDetails) -> str:
    place = visible(".".join(str(part) for part in error["loc"])[:80]) or "the line"
    if error["type"] in ("missing", "missing_argument"):  # the second of a hit, in older pydantic
        return f"{place} is missing"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place} is an unknown field; remove it, or correct its spelling"
    if error["type"] in NO_OBJECT:
        of_snippet = error["loc"][:1] == ("snippets",) and len(error["loc"]) == 2
        like = ' {"text": "…", "relevant": true}' if of_snippet else ""
        return f"{place} is {error['input']!r:.60}; give a JSON object{like}"
    expected = error["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    return f"{place} is {error['input']!r:.60}; {expected}"
