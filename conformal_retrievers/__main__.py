"""`python -m conformal_retrievers`, and where the command `conformal-retrievers` begins."""

import sys


def main() -> None:
    """Run the command line, or say what to install for it; Ctrl-C while it loads ends quietly."""
    try:
        import signal
        from contextlib import suppress

        from conformal_retrievers.extras import require

        # Not by a KeyboardInterrupt, which code in C drops or makes another error of.
        if at_once := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        require("cli", "typer", "rich")
        from conformal_retrievers.cli import app

        if at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
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
