"""The tables of a real model's answers follow from its replies, which are in the repository."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.answers import REPLIES, TABLES, read_rows, sections


@pytest.mark.slow
def test_the_tables_are_those_of_the_replies():
    console = Console(record=True, width=120)
    for part in sections(read_rows(REPLIES)):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    text = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert text.strip() == TABLES.read_text(encoding="utf-8").strip()
