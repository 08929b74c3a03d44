"""The mutants of benchmarks/mutants.py, which are tried by hand, fit the library as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_what_a_mutant_changes_stands_once_in_its_file():
    mutants = runpy.run_path(str(ROOT / "benchmarks/mutants.py"))
    texts = {file: mutants["source"](ROOT, file).read_text("utf-8") for file in mutants["TESTS"]}
    misfits = [m for m in mutants["MUTANTS"] if texts[m.file].count(m.old) != 1]
    assert misfits == []
