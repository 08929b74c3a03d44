"""Files that are written whole or not at all, and the JSON envelope that saved values share.

An envelope is a JSON object for readers: one field per line, and one row per line of the one field
that may be long. Its fields `format` and `version` say what it is, and `sha256` is the checksum of
all other fields. What can be derived from other fields is checked when it is read. No pickle, no
eval.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for them
NAMES = {number: name for name, number in INFINITE.items()}

# --- written whole --------------------------------------------------------------------------------


def write_whole(path: str | Path, content: bytes, *, what: str) -> None:
    """Write a file, replacing an old one only once the new one is complete on disk.

    A link stays a link and its target changes; a file keeps its mode. Raises OSError, naming
    `what`, the path and the remedy; then an old file stays as it was and no other file is left.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        _cannot_write(what, path, OSError(None, "it is not a regular file"))
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        _cannot_write(what, path, error)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            _cannot_write(what, path, error)
        raise


def cannot_read(what: str, path: str | Path, error: OSError) -> NoReturn:
    """Raise an OSError of the same type that names `what`, the path and the remedy."""
    message = f"cannot read the {what} ({error.strerror}); give the path of a readable file"
    raise type(error)(error.errno, message, str(path)) from None


def _cannot_write(what: str, path: str | Path, error: OSError) -> NoReturn:
    message = (
        f"cannot write the {what} ({error.strerror}); give a path in an existing, writable folder"
    )
    raise type(error)(error.errno, message, str(path)) from None


# --- the envelope ---------------------------------------------------------------------------------


def write_envelope(
    path: str | Path, fields: Mapping[str, Any], *, what: str, rows: str | None = None
) -> None:
    """Write fields and their checksum as `envelope_text` lays them out.

    Parameters
    ----------
    path
        Where to write; raises OSError as `write_whole` does.
    fields
        What JSON holds, with `format` and `version`.
    what
        The saved value in error messages, such as "calibration".
    rows
        The field that has one entry per line, if there is one.
    """
    write_whole(path, envelope_text(fields, rows=rows).encode("utf-8"), what=what)


def envelope_text(fields: Mapping[str, Any], *, rows: str | None = None) -> str:
    """Return fields (with `format` and `version`) and their checksum as JSON, one field per line.

    The field named `rows`, a list, comes last with one entry per line. Infinite and NaN numbers
    raise ValueError; see `encode_infinite`.
    """
    lines = [f"  {_json(name)}: {_json(value)}" for name, value in fields.items() if name != rows]
    lines.append(f'  "sha256": {_json(checksum(fields))}')
    if rows is not None:
        entries = ",\n".join(f"    {_json(entry)}" for entry in fields[rows])
        lines.append(f"  {_json(rows)}: [\n{entries}\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def checksum(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields as JSON with sorted keys and without white space."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_envelope(
    path: str | Path, *, format: str, version: int, saved_by: str, what: str
) -> dict[str, Any]:
    """Return the fields of a file; parameters and errors are those of `parse_envelope`.

    Also raises OSError if the file cannot be read, and TypeError if `path` is not a path.
    """
    text = read_text(path, what=what)
    where = str(path)
    return parse_envelope(text, where, format=format, version=version, saved_by=saved_by, what=what)


def read_text(path: str | Path, *, what: str) -> str:
    """Return the text of a file of UTF-8; raises TypeError, OSError or ValueError, with the path.

    `what` names the saved value, such as "calibration".
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r:.60}; give the path of a {what} file as a str")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        cannot_read(what, path, error)
    except ValueError as error:  # not UTF-8, or a NUL in the path
        raise ValueError(
            f"{path} is not a complete {what} file ({error}); give the path of a saved {what}"
        ) from None


def parse_envelope(
    text: str, where: str, *, format: str, version: int, saved_by: str, what: str
) -> dict[str, Any]:
    """Return the fields of an envelope without its checksum.

    Parameters
    ----------
    text
        The content of the file.
    where
        Its name in error messages, such as the path.
    format, version
        The values that the fields `format` and `version` must have.
    saved_by
        What writes such a file, such as "Calibration.save".
    what
        The saved value, such as "calibration".

    Raises
    ------
    ValueError
        If the text is not complete JSON, repeats a field, has a number that is NaN or too large, or
        is an envelope of another format or version, or was changed after it was written.
    """
    try:
        fields = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:  # the latter for endlessly nested lists
        raise ValueError(
            f"{where} is not a complete {what} file ({error}); give a file that {saved_by} wrote"
        ) from None
    if not isinstance(fields, dict) or fields.get("format") != format:
        raise ValueError(
            f"{where} is not a {what} file: its field 'format' is not {format!r}; give a file that "
            f"{saved_by} wrote"
        )
    found = fields.get("version")
    if found != version or not isinstance(found, int):
        raise ValueError(
            f"{where} has version {found!r}, but this library reads version {version}; upgrade "
            f"conformal-retrievers, or make and save the {what} again"
        )
    stored = fields.pop("sha256", None)
    if stored != checksum(fields):
        raise ValueError(
            f"{where} was changed after it was written: its field 'sha256' is {stored!r}, but the "
            f"other fields give {checksum(fields)!r}; restore the original file, or make and save "
            f"the {what} again"
        )
    return fields


def check_derived(
    where: str | Path,
    stored: Mapping[str, Any],
    derived: Mapping[str, Any],
    *,
    rounded: Collection[str] = (),
    what: str,
) -> None:
    """Raise ValueError if a stored field does not follow from the other fields.

    Parameters
    ----------
    where
        The name of the file in error messages.
    stored
        The fields of the file.
    derived
        What some of them must be.
    rounded
        The fields that may differ by 1/1000 of their value.
    what
        The saved value in error messages, such as "calibration".
    """
    for name, follows in derived.items():
        value = stored[name]
        if value == follows or (name in rounded and math.isclose(value, follows, rel_tol=1e-3)):
            continue
        raise ValueError(
            f"{where}: its field {name!r} is {value!r}, but the other fields give {follows!r}; "
            f"make and save the {what} again"
        )


def encode_infinite(numbers: Iterable[float]) -> list[float | str]:
    """Return the numbers with "inf" and "-inf" for infinite ones, which JSON does not have.

    >>> encode_infinite([0.5, float("inf")])
    [0.5, 'inf']
    """
    return [NAMES.get(number, number) for number in numbers]


def decode_infinite(values: Iterable[Any]) -> list[Any]:
    """Return the values with numbers for "inf" and "-inf"; other values stay as they are.

    >>> decode_infinite([0.5, "inf"])
    [0.5, inf]
    """
    return [INFINITE.get(v, v) if isinstance(v, str) else v for v in values]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number} is too large")
    return float(number)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# --- errors of pydantic, for readers --------------------------------------------------------------


def explain(error: ValidationError) -> str:
    """Return in one line which fields are wrong, what they have and what is allowed."""
    errors = error.errors(include_url=False)
    more = [f"{len(errors) - 3} more errors"] if len(errors) > 3 else []
    return "; ".join([*map(_explained, errors[:3]), *more])


def _explained(error: ErrorDetails) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "the line"
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] == "extra_forbidden":
        return f"{place} is an unknown field; remove it, or correct its spelling"
    expected = error["msg"].replace("Input should", "it should")
    return f"{place} is {error['input']!r:.60}; {expected}"
