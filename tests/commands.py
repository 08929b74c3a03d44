"""Running the command line in a test."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from conformal_retrievers.cli import app


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    lines = [line for line in done.stdout.splitlines() if "/" not in line]  # but for long paths
    assert max(map(len, lines), default=0) <= 80 or "--json" in arguments
    return done


def as_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def error_of(*arguments, code=1):
    """Run a command that fails, and return its message without line breaks."""
    done = run(*arguments, code=code)
    if code == 1:
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("Error: ")
    return " ".join(done.stderr.split())
