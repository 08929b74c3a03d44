"""The sentences that a package prints, in its `wording.txt`, where they read as prose.

A paragraph of that file is `name: sentence`, with {facts} in the sentence, or a # comment. It is
read when the first of its sentences is needed.
"""

from collections.abc import Callable
from functools import cache
from importlib.resources import files


@cache
def sentences_of(package: str) -> dict[str, str]:
    """Return the sentences of a package by name, each in one line."""
    text = files(package).joinpath("wording.txt").read_text(encoding="utf-8")
    paragraphs = (part for part in text.strip().split("\n\n") if not part.startswith("#"))
    named = (part.partition(":") for part in paragraphs)
    return {name: " ".join(sentence.split()) for name, _, sentence in named}


def wording(package: str) -> Callable[..., str]:
    """Return what writes a sentence of a package, from its name and its facts.

    >>> say = wording("conformal_retrievers.evaluation")
    >>> say("chance", explains="can explain", p=0.21)
    'Chance, in these queries and in those that calibrate, can explain the difference (p = 0.21)'
    """

    def say(name: str, /, **facts: object) -> str:
        return sentences_of(package)[name].format(**facts)

    return say


say = wording(__package__)
