"""Which snippets a person sees, and in which order the questions come.

Of the U unmarked snippets of a query, ⌈share · U⌉ are drawn, so that each of them stands for
U / ⌈share · U⌉ snippets and numbers of missed ones are estimated without bias, whichever questions
are judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.labels.wording import say
from conformal_retrievers.theory.ranks import exact_share

FEW = 10  # snippets a query: with no more, a person sees all of them
SHARE = 0.2  # of the unmarked ones that a person sees where there are more


@dataclass(frozen=True)
class Sample:
    """The snippets to judge."""

    share: float  # of the unmarked snippets
    seed: int
    order: tuple[int, ...]  # places of the queries
    shown: tuple[tuple[int, ...], ...]  # for each query, the places of its snippets to judge


def draw(judged: Sequence[JudgedQuery], share: float | None, seed: int) -> Sample:
    """Return all marked snippets and a random share of the unmarked ones, in a random order.

    A share of None is 1 if no snippet is marked, or no query has more than 10, and 0.2 otherwise.
    Raises ValueError for a share outside (0, 1], for one below 1 if nothing is marked, and if there
    is no snippet.
    """
    if not any(query.snippets for query in judged):
        raise ValueError("the queries have no snippets to judge; retrieve some for each query")
    marked = any(any(query.relevant) for query in judged)
    if share is None:
        share = 1.0 if max(len(query.snippets) for query in judged) <= FEW or not marked else SHARE
    exact = exact_share(share)
    if exact < 1 and not marked:
        raise ValueError(say("none marked", share=share))
    rng = np.random.default_rng(seed)
    shown = []
    for query in judged:
        unmarked = [i for i, relevant in enumerate(query.relevant) if not relevant]
        drawn = rng.choice(unmarked, math.ceil(exact * len(unmarked)), replace=False).tolist()
        shown.append(tuple(sorted({*range(len(query.snippets))} - {*unmarked} | {*drawn})))
    return Sample(float(share), seed, tuple(rng.permutation(len(judged)).tolist()), tuple(shown))
