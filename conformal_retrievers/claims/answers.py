"""Annotated answers, their files, and their scores S: the highest relevance of a false claim."""

import gzip
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from conformal_retrievers.data.checks import all_of, check_names, check_texts
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.jsonl import rows
from conformal_retrievers.data.queries import as_scores
from conformal_retrievers.theory.ranks import exact_share


@dataclass(frozen=True, eq=False)
class AnnotatedAnswer:
    """The claims of one answer: the relevance of each, and whether it is factual.

    Raises ValueError if the lengths differ, an annotation is not True, False or None, or the group
    has a control character.
    """

    relevance: NDArray[np.float64]  # (p,): high for likely factual claims, NaN if not scorable
    factual: tuple[bool | None, ...]  # (p,): None for a claim that could not be annotated
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)  # of the query, known at run time

    def __post_init__(self) -> None:
        where = "an answer" if self.id is None else f"answer {self.id!r}"
        check_texts(where, id=self.id)
        check_names(where, group=self.group)
        given: tuple[object, ...] = tuple(self.factual)
        factual = tuple(bool(f) if isinstance(f, np.bool_) else f for f in given)
        for i, f in enumerate(factual):
            if f is not None and not isinstance(f, bool):
                raise ValueError(f"{where}: factual[{i}] is {f!r:.80}; give True, False or None")
        name = f"{where}: relevances"
        relevance = np.array(as_scores(self.relevance, name, len(factual), "annotations"))
        relevance.setflags(write=False)
        object.__setattr__(self, "relevance", relevance)
        object.__setattr__(self, "factual", factual)

    @property
    def annotated(self) -> bool:
        """Whether every claim that has a relevance is annotated; the others are always dropped."""
        pairs = zip(self.factual, self.relevance.tolist(), strict=True)
        return all(f is not None or math.isnan(r) for f, r in pairs)


def answer_scores(answers: Sequence[AnnotatedAnswer], share: float = 1.0) -> NDArray[np.float64]:
    """Return S of each answer (n,): −inf if a share of its claims is factual at every threshold.

    S is the highest relevance v for which less than `share` of the claims with a relevance ≥ v is
    factual; with share 1, that of a claim that is not factual, so that all claims above a threshold
    are factual iff S is not. Claims without a relevance are never kept, so they do not count.
    O(N log N) for N claims. Feng et al. 2025 (arXiv 2506.20978, eq. 5; its S ≥ 0 drops claims of
    relevance 0 even if all are factual); Mohri and Hashimoto 2024 (arXiv 2402.10978).

    Raises ValueError for a share outside (0, 1], and for an unannotated claim with a relevance.

    >>> answer_scores([AnnotatedAnswer([0.9, 0.4, 0.2], [True, False, False])]).tolist()
    [0.4]
    """
    needed = exact_share(share)
    if not all(answer.annotated for answer in answers):
        raise ValueError("factual is None for a claim with a relevance; leave its answer out")
    return np.array([_score(answer, needed) for answer in answers], dtype=np.float64)


def _score(answer: AnnotatedAnswer, share: Fraction) -> float:
    pairs = zip(answer.relevance.tolist(), answer.factual, strict=True)
    claims = sorted(((r, bool(f)) for r, f in pairs if not math.isnan(r)), reverse=True)
    n_factual = 0
    for n, (relevance, factual) in enumerate(claims, start=1):
        n_factual += factual
        # Claims of equal relevance are kept together: sorted, the factual ones of them come first.
        if n_factual * share.denominator < n * share.numerator:
            return float(relevance)
    return -math.inf


class ClaimRow(BaseModel):
    """A claim of an answer; null for a relevance or an annotation that could not be had."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    relevance: float | None
    factual: bool | None
    claim: str | None = None


class AnswerRow(BaseModel):
    """A line of a file: one annotated answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claims: list[ClaimRow]
    id: str | None = None
    group: str | None = None
    query: str | None = None
    answer: str | None = None


def read_answers(path: str | Path) -> list[AnnotatedAnswer]:
    """Read annotated answers from a file of JSON lines, one answer a line; .gz is unpacked.

    A line is {"id", "group", "query", "answer", "claims": [{"claim", "relevance", "factual"}]};
    "claims", "relevance" and "factual" are required. `relevance` is null for a claim that could not
    be scored, `factual` for one that could not be annotated. Raises ValueError, naming the file,
    the line and the field.
    """
    answers = []
    for place, row in rows(path, AnswerRow):
        relevance = np.array([math.nan if c.relevance is None else c.relevance for c in row.claims])
        factual = tuple(c.factual for c in row.claims)
        try:
            answers.append(AnnotatedAnswer(relevance, factual, id=row.id, group=row.group))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    return answers


def write_answers(answers: Iterable[AnnotatedAnswer], path: str | Path) -> None:
    """Write annotated answers as JSON lines that `read_answers` reads back; .gz is packed.

    The fields "claim", "query" and "answer" are left out. Raises ValueError for an infinite
    relevance, which JSON does not have.
    """
    text = ""
    for place, answer in enumerate(all_of(AnnotatedAnswer, answers, "answers")):
        if np.isinf(answer.relevance).any():
            raise ValueError(f"answers[{place}] has an infinite relevance; give a number, or NaN")
        claims = [
            ClaimRow(relevance=None if math.isnan(r) else r, factual=f)
            for r, f in zip(answer.relevance.tolist(), answer.factual, strict=True)
        ]
        row = AnswerRow(id=answer.id, group=answer.group, claims=claims)
        text += f"{row.model_dump_json(exclude_unset=True)}\n"
    packed = gzip.compress(text.encode()) if Path(path).suffix == ".gz" else text.encode()
    write_whole(path, packed, what="annotated answers")
