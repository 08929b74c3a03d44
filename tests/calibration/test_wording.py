"""The sentences of the packages: each stands once in its file, and is used."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import conformal_retrievers
from conformal_retrievers.data.wording import sentences_of

ROOT = Path(conformal_retrievers.__file__).parent
PACKAGES = [f"conformal_retrievers.{file.parent.name}" for file in ROOT.glob("*/wording.txt")]
PACKAGES += ["langchain_conformal", "llama_index.postprocessor.conformal"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_sentence_stands_once_and_is_used(package):
    folder = Path(import_module(package).__file__).parent
    text = (folder / "wording.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100
    names = re.findall(r"(?:^|\n\n)([^#\n][^:\n]*):", text)
    assert len(names) == len(set(names)) == len(sentences_of(package))
    files = [*folder.rglob("*.py"), *ROOT.glob("*.py")]  # which read those of calibration
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    for name in names:
        words = name.split()  # the first may be a subject, and the last a guarantee
        ways = [f'"{way}"' for way in (name, " ".join(words[1:]))] + [f'"{words[-2:][0]} {{']
        assert any(way in source or way.replace('"', "'") in source for way in ways), name
