"""The tables of a real model's answers and ratings follow from what is in the repository of it."""

import pytest
from rich.console import Console

from benchmarks import answers, ratings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("sections", "replies", "tables"),
    [
        (answers.sections, answers.REPLIES, answers.TABLES),
        (ratings.sections, ratings.RATINGS, ratings.TABLE),
    ],
    ids=["answers", "ratings"],
)
def test_the_tables_are_those_of_the_replies(sections, replies, tables):
    console = Console(record=True, width=160)
    for part in sections(answers.read_rows(replies)):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    text = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert text.strip() == tables.read_text(encoding="utf-8").strip()
