"""The mutants of benchmarks/mutants.py fit the library as it is; running them is up to a person."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_every_mutant_fits_one_place_of_its_file():
    mutants = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks/mutants.py"))
    fits, one = mutants["fits"], mutants["Mutant"]
    rows = [one(file, *row) for file, rows in mutants["MUTANTS"].items() for row in rows]
    assert [mutant for mutant in rows if not fits(mutant)] == []
