"""A classifier that reads from lookback ratios whether an answer follows its context.

A logistic regression on the ratios of all layers and heads (`ratios.py`) gives the confidence that
an answer is consistent (Geissler et al. 2026, arXiv 2605.05244, section 3.3); `flagging.py` flags
answers of too low a confidence.
"""

from __future__ import annotations

import hashlib
import io
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex, get_args

import numpy as np

from conformal_retrievers.extras import require
from conformal_retrievers.lookback.classifier_file import read_classifier, write_classifier
from conformal_retrievers.lookback.ratios import (
    LookbackRatios,
    SegmentAttention,
    Values,
    Variant,
    check_ratios,
    features,
    kind_of,
    lookback_ratios,
)
from conformal_retrievers.theory.intervals import auc, check_level

__all__ = [
    "AUROC",
    "FactualityClassifier",
    "JudgedRatios",
    "LookbackRatios",
    "SegmentAttention",
    "Variant",
    "check_count",
    "check_once",
    "cross_group",
    "judged_answers",
    "lookback_ratios",
]


@dataclass(frozen=True)
class JudgedRatios:
    """The lookback ratios of an answer, and whether it was judged consistent with its context.

    `id` names the answer, and `group` is a property of the question that is known at run time.
    Raises TypeError for what are no ratios, and a judgement that is not true or false.
    """

    ratios: LookbackRatios
    consistent: bool
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_ratios("ratios", self.ratios)
        if not isinstance(self.consistent, (bool, np.bool_)):
            raise TypeError(f"consistent is {self.consistent!r}; give True or False")


def judged_answers(name: str, answers: object) -> list[JudgedRatios]:
    """Return the answers as a list. Raises TypeError, naming them, for what is none of them."""
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise TypeError(f"{name} is {kind_of(answers)}; give a list of them")
    judged = []
    for i, one in enumerate(answers):
        if not isinstance(one, JudgedRatios):
            raise TypeError(
                f"{name}[{i}] is {kind_of(one)}; give a JudgedRatios(ratios, consistent)"
            )
        judged.append(one)
    return judged


def check_count(name: str, value: object) -> int:
    """Return a count as an int.

    Raises TypeError, naming it, for what is no whole number, ValueError below 1.

    >>> check_count("n_snippets", np.int64(5))
    5
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r:.60}; give a whole number, 1 or more")
    count = operator.index(value)
    if count < 1:
        raise ValueError(f"{name} is {count}; give 1 or more")
    return count


@dataclass(frozen=True)
class AUROC:
    """P(a consistent answer has the higher confidence than an inconsistent one), with interval."""

    value: float
    low: float
    high: float
    n_consistent: int
    n_inconsistent: int


@dataclass(frozen=True, eq=False, repr=False)
class FactualityClassifier:
    """A logistic regression from lookback ratios to the confidence in an answer; made by `fit`.

    It belongs to one model of L layers of H heads and one variant of the features; `n_snippets` is
    the largest number K of snippets. `fitted_on` are the digests of the answers that it saw, which
    are not fit to calibrate on.
    """

    model: str
    variant: Variant
    layers: int
    heads: int
    n_snippets: int
    coefficients: Values
    intercept: float
    fitted_on: frozenset[str]

    @classmethod
    def fit(
        cls, answers: Iterable[JudgedRatios], *, n_snippets: int, variant: Variant = "snippets"
    ) -> FactualityClassifier:
        """Return the classifier that scikit-learn fits: balanced classes, 1000 iterations at most.

        Raises ValueError where not both kinds of answers are there, they are of different models,
        one has more than `n_snippets` snippets or no token, or is judged both ways, and for
        `n_snippets` below 1; TypeError for one that is no whole number; ModuleNotFoundError
        without the extra `lookback`.
        """
        n_snippets = check_count("n_snippets", n_snippets)
        answers = judged_answers("answers", answers)
        require("lookback", "sklearn")
        from sklearn.linear_model import LogisticRegression

        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        if not 0 < consistent.sum() < len(answers):
            raise ValueError(
                f"answers holds {consistent.sum()} consistent and {(~consistent).sum()} "
                "inconsistent ones; give some of both"
            )
        _check_agreement(answers)
        first = answers[0].ratios
        layers, heads = first.context.shape
        table = np.stack(
            [
                _features_of(answer.ratios, first.model, layers, heads, variant, n_snippets)
                for answer in answers
            ]
        )
        empty = np.flatnonzero(np.isnan(table).any(axis=1))
        if len(empty):
            raise ValueError(f"answers[{empty[0]}] has no token, so no ratios; leave it out")
        fitted = LogisticRegression(max_iter=1000, class_weight="balanced").fit(table, consistent)
        return cls(
            first.model,
            variant,
            layers,
            heads,
            n_snippets,
            fitted.coef_[0].astype(np.float64),
            float(fitted.intercept_[0]),
            frozenset(answer.ratios.digest for answer in answers),
        )

    def predict_proba(self, ratios: Iterable[LookbackRatios]) -> Values:
        """Return the confidence in each answer, (n,): the probability that it is consistent.

        It is NaN for an answer without a token. Classes weigh the same in the fit, so this is the
        probability among as many consistent as inconsistent answers. Raises ValueError for ratios
        of another model, or of more snippets than were fitted; TypeError for what are none.
        """
        from scipy.special import expit

        if not isinstance(ratios, Iterable):
            raise TypeError(f"ratios is {kind_of(ratios)}; give a list of LookbackRatios")
        shape = (self.model, self.layers, self.heads, self.variant, self.n_snippets)
        rows = []
        for i, one in enumerate(ratios):
            check_ratios(f"ratios[{i}]", one)
            rows.append(_features_of(one, *shape) @ self.coefficients)
        log_odds = np.array(rows, dtype=np.float64) + self.intercept
        return np.asarray(expit(log_odds))

    def evaluate(
        self,
        answers: Iterable[JudgedRatios],
        *,
        rng: np.random.Generator,
        level: float = 0.95,
        resamples: int = 2000,
    ) -> AUROC:
        """Return the AUROC on answers it was not fitted on, with a bootstrap interval.

        Consistent and inconsistent answers are resampled apart; an answer without a token counts as
        of no confidence. Raises ValueError for answers that it was fitted on, that are there twice
        or all of one kind, for a level that is none, and for `resamples` below 1; TypeError for
        what is no generator of random numbers.
        """
        check_level(level)
        resamples = check_count("resamples", resamples)
        if not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"rng is {kind_of(rng)}; give a generator, as in np.random.default_rng(0)"
            )
        answers = judged_answers("answers", answers)
        self.check_new(answers)
        check_once(answers)
        confidence = np.nan_to_num(self.predict_proba(a.ratios for a in answers), nan=0.0)
        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        yes, no = confidence[consistent], confidence[~consistent]
        if not len(yes) or not len(no):
            raise ValueError(
                f"answers has {len(yes)} consistent and {len(no)} inconsistent answers; give some "
                "of both"
            )
        value = auc(no, yes)
        again = [auc(rng.choice(no, len(no)), rng.choice(yes, len(yes))) for _ in range(resamples)]
        low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2])
        return AUROC(value, float(low), float(high), len(yes), len(no))

    @cached_property
    def name(self) -> str:
        """The model, what the features are, and a digest of what was fitted.

        It is the same wherever the classifier is loaded: a saved flag is known by it.
        """
        shape = f"{self.layers}×{self.heads}×{self.n_snippets}"
        made_for = f"{self.model}; {self.variant}, {shape}"
        fitted = np.append(self.coefficients, self.intercept).astype("<f8").tobytes()
        digest = hashlib.sha256(made_for.encode() + fitted).hexdigest()[:12]
        return f"factuality({made_for}, fit={digest})"

    def save(self, path: str | Path) -> None:
        """Write a JSON file, and the coefficients in an npz file beside it that it names.

        The npz file is named by its content and written first: what the JSON file names is always
        there and whole. Raises OSError, naming the path, where one cannot be written.
        """
        write_classifier(
            path,
            {
                "model": self.model,
                "variant": self.variant,
                "layers": self.layers,
                "heads": self.heads,
                "n_snippets": self.n_snippets,
                "fitted_on": sorted(self.fitted_on),
            },
            self._weights,
        )

    @classmethod
    def load(cls, path: str | Path) -> FactualityClassifier:
        """Read a classifier that `save` wrote, bit for bit the same.

        Raises ValueError, naming path and remedy, where a file is broken, changed or of another
        version, or the coefficients do not fit the layers, heads and snippets; FileNotFoundError
        where one is missing.
        """
        fields, coefficients, intercept = read_classifier(path)
        if fields["variant"] not in get_args(Variant):
            raise ValueError(f"{path}: its field 'variant' is {fields['variant']!r}; fit again")
        layers, heads, n_snippets = fields["layers"], fields["heads"], fields["n_snippets"]
        expected = layers * heads * (n_snippets if fields["variant"] == "snippets" else 1)
        if coefficients.shape != (expected,):
            raise ValueError(
                f"{path}: {layers} layers, {heads} heads and {n_snippets} snippets take {expected} "
                f"coefficients for {fields['variant']!r}, but there are {coefficients.shape}; fit "
                "again"
            )
        return cls(
            fields["model"],
            fields["variant"],
            layers,
            heads,
            n_snippets,
            coefficients,
            intercept,
            frozenset(fields["fitted_on"]),
        )

    @property
    def _weights(self) -> bytes:
        file = io.BytesIO()
        np.savez(file, coefficients=self.coefficients, intercept=np.float64(self.intercept))
        return file.getvalue()

    def check_new(self, answers: Sequence[JudgedRatios]) -> None:
        """Raise ValueError for an answer that the classifier was fitted on."""
        seen = next(
            (i for i, one in enumerate(answers) if one.ratios.digest in self.fitted_on), None
        )
        if seen is not None:
            raise ValueError(
                f"answers[{seen}] is one that the classifier was fitted on, so its confidence says "
                "nothing of new answers; give others"
            )

    def __repr__(self) -> str:
        return f"FactualityClassifier({self.name!r}, {len(self.fitted_on)} answers)"


def check_once(answers: Sequence[JudgedRatios]) -> None:
    """Raise ValueError for an answer that is there twice: it would count as two."""
    places: dict[str, int] = {}
    for i, one in enumerate(answers):
        first = places.setdefault(one.ratios.digest, i)
        if first != i:
            raise ValueError(
                f"answers[{i}] is the same answer as answers[{first}], to the same prompt, and "
                "each counts once; leave one of them out"
            )


def _check_agreement(answers: Sequence[JudgedRatios]) -> None:
    """Raise ValueError for an answer that is judged consistent, and is judged not to be."""
    places: dict[str, int] = {}
    for i, one in enumerate(answers):
        first = places.setdefault(one.ratios.digest, i)
        if answers[first].consistent != one.consistent:
            raise ValueError(
                f"answers[{first}] and answers[{i}] are the same answer to the same prompt, but "
                f"consistent is {bool(answers[first].consistent)} and {bool(one.consistent)}; "
                "judge it once, and leave the other out"
            )


def cross_group(
    train: Iterable[JudgedRatios],
    test: Iterable[JudgedRatios],
    *,
    n_snippets: int,
    variant: Variant = "snippets",
    rng: np.random.Generator,
) -> dict[str, dict[str, AUROC]]:
    """Return the AUROC of a classifier fitted on each group (first key), on each group (second).

    Off the diagonal they say what a classifier is worth on questions of another kind (figure 6 of
    the paper). Raises ValueError for an answer without a group, and what `fit` and `evaluate` do.
    """
    sources, targets = _by_group("train", train), _by_group("test", test)
    fitted = {
        group: FactualityClassifier.fit(answers, n_snippets=n_snippets, variant=variant)
        for group, answers in sources.items()
    }
    return {
        source: {
            target: classifier.evaluate(answers, rng=rng) for target, answers in targets.items()
        }
        for source, classifier in fitted.items()
    }


def _by_group(name: str, answers: Iterable[JudgedRatios]) -> dict[str, list[JudgedRatios]]:
    groups: dict[str, list[JudgedRatios]] = {}
    for i, answer in enumerate(judged_answers(name, answers)):
        if answer.group is None:
            raise ValueError(f"{name}[{i}].group is None; name the group of every answer")
        groups.setdefault(answer.group, []).append(answer)
    return dict(sorted(groups.items()))


def _features_of(
    ratios: LookbackRatios, model: str, layers: int, heads: int, variant: Variant, n_snippets: int
) -> Values:
    if (ratios.model, *ratios.context.shape) != (model, layers, heads):
        raise ValueError(
            f"ratios are of {ratios.model!r} with {ratios.context.shape} layers and heads, the "
            f"classifier is for {model!r} with {(layers, heads)}; fit one for each model"
        )
    return features(ratios, variant, n_snippets)
