"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NoReturn


def write_whole(path: str | Path, content: bytes, *, what: str) -> None:
    """Write a file, replacing an old one only once the new one is complete on disk.

    Raises OSError, naming `what` is written, the path and the remedy. Whatever goes wrong, an old
    file stays as it was and nothing is left beside it. A link stays one: what it points to changes.
    """
    target = Path(os.path.realpath(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        _cannot_write(what, path, error)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            _cannot_write(what, path, error)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _cannot_write(what: str, path: str | Path, error: OSError) -> NoReturn:
    raise type(error)(
        error.errno,
        f"cannot write the {what} ({error.strerror}); save to a file in an existing folder that "
        "you may write to",
        str(path),
    ) from None
