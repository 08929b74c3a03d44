"""Each test that docs/statisticians.md names is there, under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "statisticians.md").read_text(encoding="utf-8")
NAMED = [
    (file, name)
    for file, names in re.findall(r"^- `(tests/\S+\.py)`:((?:\s+`test_\w+`,?)+)", PAGE, re.M)
    for name in re.findall(r"test_\w+", names)
]


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_is_there(file, name):
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_the_page_names_tests():
    assert len(NAMED) > 10
