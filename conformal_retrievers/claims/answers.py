"""Annotated answers, and S, the score of each: the highest relevance of a claim not factual.

S = max { R(c) : c not factual }, −inf if all claims are factual, so that all claims with R(c) > q
are factual iff S ≤ q. For a share b < 1, S is the smallest q such that, for every q' ≥ q, at least
b of the claims with R(c) > q' are factual.

Sources: Feng et al. 2025, Conformal-RAG (arXiv 2506.20978, eq. 5, with S ≥ 0, which drops claims of
relevance 0 though all are factual); Mohri and Hashimoto 2024 (arXiv 2402.10978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.theory.ranks import exact_share


@dataclass(frozen=True, eq=False)
class AnnotatedAnswer:
    """The relevance of each claim of one answer, and whether it is factual.

    `relevance` (p,) is high for a claim that is likely factual, and NaN for one that could not be
    scored; `factual` (p,) is True or False, and None for a claim that the annotator could not tell
    of. `group` is a property of the query, known at run time. Raises ValueError or TypeError,
    naming the field, where lengths disagree or an annotation is none of these.
    """

    relevance: NDArray[np.float64]
    factual: tuple[bool | None, ...]
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        where = "an answer" if self.id is None else f"answer {self.id!r}"
        for name, value in (("id", self.id), ("group", self.group)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{where}: {name} is {value!r}; give a str, or None")
        relevance = np.array(self.relevance, dtype=np.float64)
        factual = tuple(_annotation(where, i, value) for i, value in enumerate(self.factual))
        if relevance.shape != (len(factual),):
            raise ValueError(
                f"{where}: relevance has shape {relevance.shape} but factual has {len(factual)} "
                "annotations; give one relevance and one annotation for each claim"
            )
        relevance.setflags(write=False)
        object.__setattr__(self, "relevance", relevance)
        object.__setattr__(self, "factual", factual)

    @property
    def annotated(self) -> bool:
        """Whether every claim that has a relevance is annotated; one that has none is dropped."""
        return None not in self.factual or all(
            told is not None or math.isnan(r)
            for told, r in zip(self.factual, self.relevance, strict=True)
        )


def _annotation(where: str, i: int, value: object) -> bool | None:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise ValueError(
        f"{where}: factual[{i}] is {value!r}; give True or False, or None for a claim that could "
        "not be annotated"
    )


# --- an answer's score ----------------------------------------------------------------------------


def answer_scores(answers: Sequence[AnnotatedAnswer], share: float = 1.0) -> NDArray[np.float64]:
    """Return S of each answer (n,): −inf where a share of its claims is factual at every threshold.

    S is the highest relevance v for which less than `share` of the claims with a relevance ≥ v is
    factual; with share 1, that of a claim that is not. Claims without a relevance are never kept,
    so they do not count. O(N log N) for N claims. Raises ValueError for a share outside (0, 1] and,
    naming the answer, where a claim with a relevance is not annotated; eq. 5 of arXiv 2506.20978.
    """
    needed = exact_share(share)
    sizes = np.array([len(answer.factual) for answer in answers], dtype=np.int64)
    relevance = np.concatenate([np.empty(0), *(answer.relevance for answer in answers)])
    annotations = list(chain.from_iterable(answer.factual for answer in answers))
    scored = ~np.isnan(relevance)
    of = np.arange(len(answers)).repeat(sizes)[scored]
    if None in annotations:
        unknown = np.array([a is None for a in annotations])[scored]
        for i in np.flatnonzero(unknown)[:1]:
            raise ValueError(
                f"{answer_name(answers, of[i])}: a claim has a relevance but no annotation; "
                "annotate it, or leave the answer out"
            )
    factual = np.fromiter(annotations, dtype=bool)[scored]  # None becomes False, and is not scored
    relevance = relevance[scored]

    # Answer by answer, from the highest relevance down: how many claims there are, and how many of
    # them are factual. Claims of one relevance enter together, so the last of them is looked at.
    order = np.lexsort((-relevance, of))
    of, relevance, factual = of[order], relevance[order], factual[order]
    start = np.searchsorted(of, of)
    above = np.arange(len(of)) - start + 1
    n_factual = np.cumsum(factual)
    n_factual = n_factual - (n_factual - factual)[start]
    last = np.append((of[1:] != of[:-1]) | (relevance[1:] != relevance[:-1]), True)[: len(of)]
    short = last & (n_factual * needed.denominator < above * needed.numerator)
    scores = np.full(len(answers), -math.inf)
    np.maximum.at(scores, of[short], relevance[short])
    return scores


def answer_name(answers: Sequence[AnnotatedAnswer], i: int) -> str:
    """Return what messages call an answer: by its id, or else by its number."""
    return f"answer number {i + 1}" if answers[i].id is None else f"answer {answers[i].id!r}"
