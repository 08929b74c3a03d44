"""Each test that docs/statisticians.md names is there, under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "statisticians.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/\S+?\.py)::(test_\w+)`", PAGE)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_is_there(file, name):
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_the_page_names_tests():
    assert len(NAMED) > 10
