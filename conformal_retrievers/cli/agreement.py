"""`conformal-retrievers agreement`: where two people who judged the same snippets differ."""

import math
from pathlib import Path
from typing import Annotated

from conformal_retrievers.cli import options
from conformal_retrievers.cli.terminal import print_json, say
from conformal_retrievers.labels import agreement as agreement_of

_File = Annotated[Path, options.path("JUDGED", "A file that judge wrote.", dir_okay=False)]


def agreement(one: _File, other: _File, as_json: options.Json = False) -> None:
    """List where the judgements of two people differ, and how much."""
    found = agreement_of(one, other)
    if as_json:
        print_json(found)
        return
    first, second = found.names
    kappa = f"is {found.kappa:.2f}"
    if math.isnan(found.kappa):
        kappa = "is undefined, since both judge all of them the same"
    say(
        f"{first} and {second} agree on {found.alike} of {found.snippets} snippets. Cohen's kappa "
        f"{kappa}. Queries that both judged: {found.queries}; only one: {found.only_one}."
    )
    query = None
    for difference in found.differences:
        if difference.query is not query:
            query = difference.query
            say(f"\n{query.name}: {query.query}")
        yes, no = (first, second) if difference.relevant else (second, first)
        text = " ".join(difference.snippet.text.split())
        say(f"- relevant for {yes}, not for {no}: {text[:200]}{'…' * (len(text) > 200)}")
