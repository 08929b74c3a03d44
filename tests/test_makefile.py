"""What make runs, with a Python that only says what it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(MAKEFILE, folder)
    for name in ("constraints.txt", "pyproject.toml", ".venv/dev"):
        (folder / name).touch()
    python = folder / ".venv/bin/python"
    python.write_text('#!/bin/sh\necho "ran $@ with $CONFORMAL_DATA"\n')
    python.chmod(0o755)
    return folder


def bench(repository, **environment):
    known = {k: v for k, v in os.environ.items() if k != "CONFORMAL_DATA"}
    done = subprocess.run(
        ["make", "-s", "bench"],
        cwd=repository,
        env=known | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="no make is installed")
def test_bench_finds_the_data_beside_the_repository_or_says_what_it_skips(repository):
    alone = bench(repository)
    assert "ran benchmarks/speed.py" in alone
    assert "ran -m benchmarks.frameworks_langchain" in alone
    assert "ran -m benchmarks.frameworks_llama_index" in alone
    assert "Skipped what two papers report" in alone
    assert "reproduction" not in alone
    (repository.parent / "shared/data").mkdir(parents=True)
    found = bench(repository)
    assert "ran -m benchmarks.reproduction --write with ../shared/data" in found
    assert "Skipped" not in found
    named = bench(repository, CONFORMAL_DATA="elsewhere")
    assert "ran -m benchmarks.reproduction --write with elsewhere" in named


def test_the_matrix_runs_each_test_of_a_framework():
    names = MAKEFILE.read_text().split("MATRIX_TESTS = ")[1].split("\n\n")[0]
    root = MAKEFILE.parent
    run = {path for name in names.replace("\\", " ").split() for path in root.glob(name)}
    needed = {
        path
        for path in root.glob("tests/test_*.py")
        if re.match("test_(langchain|llama_index)", path.name)
        or "events" in path.name
        or path.name in ("test_compressor_standards.py", "test_integrations_agree.py")
    }
    assert needed <= run
