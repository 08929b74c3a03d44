"""Writing a file whole or not at all, and saying what to do where one cannot be read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NoReturn


def write_whole(path: str | Path, content: bytes, *, what: str) -> None:
    """Write a file, replacing an old one only once the new one is complete on disk.

    Raises OSError, naming `what` is written, the path and the remedy. Whatever goes wrong, an old
    file stays as it was and nothing is left beside it. A link stays one: what it points to changes.
    A file keeps its mode.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        _cannot_write(what, path, OSError(None, "it is no regular file"))
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
    """Raise an OSError of the same kind that names `what` was to be read, the path and a remedy."""
    remedy = "give the path of a file that is there and that you may read"
    message = f"cannot read the {what} ({error.strerror}); {remedy}"
    raise type(error)(error.errno, message, str(path)) from None


def _cannot_write(what: str, path: str | Path, error: OSError) -> NoReturn:
    raise type(error)(
        error.errno,
        f"cannot write the {what} ({error.strerror}); save to a file in an existing folder that "
        "you may write to",
        str(path),
    ) from None
