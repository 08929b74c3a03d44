"""`python -m conformal_retrievers`, and where the command `conformal-retrievers` begins."""

import sys
from contextlib import suppress
from io import TextIOWrapper

from conformal_retrievers.extras import require


def main() -> None:
    """Run the command line, or say what to install for it."""
    for stream in (sys.stdout, sys.stderr):  # Windows has another encoding for a pipe, without ≤
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    try:
        require("cli", "typer", "rich")
        from conformal_retrievers.cli import app
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app(prog_name="conformal-retrievers")
    finally:
        if sys.stdout is not None:  # it was closed before
            with suppress(OSError):  # on a full device, an error was printed before
                sys.stdout.close()


if __name__ == "__main__":
    main()
