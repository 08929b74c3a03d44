"""A classifier of lookback ratios: does an answer follow its context?

A logistic regression on the ratios of all layers and heads (`ratios.py`) gives the confidence that
an answer is consistent with its context (Geissler et al. 2026, arXiv 2605.05244, section 3.3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, PlainValidator

from conformal_retrievers.data.checks import as_scores, check_count
from conformal_retrievers.data.files import Kind, read_value, write_envelope
from conformal_retrievers.lookback.ratios import (
    JudgedRatios,
    LookbackRatios,
    Values,
    Variant,
    check_digests,
    ratio_features,
)
from conformal_retrievers.lookback.wording import say
from conformal_retrievers.theory.intervals import Interval, auc, check_level

FORMAT = "conformal-retrievers/factuality-classifier"
KIND = Kind(FORMAT, 1, saved_by="FactualityClassifier.save", what="classifier")
RESAMPLES = 2000
Count = Annotated[int, Field(gt=0)]
Numbers = Annotated[Values, PlainValidator(partial(as_scores, name="coefficients"))]


@dataclass(frozen=True, eq=False)
class FactualityClassifier:
    """A logistic regression from lookback ratios to the confidence in an answer; made by `fit`."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)  # of a file

    model: str  # the name of the model that the ratios are of
    variant: Variant
    layers: Count
    heads: Count
    n_snippets: Count  # the largest number K of snippets in a prompt
    coefficients: Numbers = field(repr=False)
    intercept: float
    # Digests of the answers of the fit, which must not calibrate.
    fitted_on: frozenset[str] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.model.isprintable():
            raise ValueError(f"model is {self.model!r:.80}; give a printable name")
        size = self.layers * self.heads * (self.n_snippets if self.variant == "snippets" else 1)
        if self.coefficients.shape != (size,) or not np.isfinite(self.coefficients).all():
            raise ValueError(f"coefficients are not {size} finite numbers; give as many")

    @classmethod
    def fit(
        cls, answers: Iterable[JudgedRatios], *, n_snippets: int, variant: Variant = "snippets"
    ) -> FactualityClassifier:
        """Return the classifier that scikit-learn fits: balanced classes, at most 1000 iterations.

        Raises ValueError unless there are consistent and inconsistent answers of one model, each
        with a token and at most `n_snippets` snippets.
        """
        n_snippets = check_count(n_snippets, "n_snippets")
        answers = list(answers)
        from sklearn.linear_model import LogisticRegression

        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        _check_both(consistent)
        first = answers[0].ratios
        layers, heads = first.context.shape
        shape = (first.model, variant, layers, heads, n_snippets)
        table = np.stack([_features_of(answer.ratios, *shape) for answer in answers])
        empty = np.flatnonzero(np.isnan(table).any(axis=1))
        if len(empty):
            raise ValueError(f"answers[{empty[0]}] has no token, so no ratios; leave it out")
        fitted = LogisticRegression(max_iter=1000, class_weight="balanced").fit(table, consistent)
        weights, fitted_on = fitted.coef_[0], frozenset(a.ratios.digest for a in answers)
        return cls(*shape, weights.astype(np.float64), float(fitted.intercept_[0]), fitted_on)

    def predict_proba(self, ratios: Iterable[LookbackRatios]) -> Values:
        """Return the confidence in each answer, (n,): the probability that it is consistent.

        It is NaN for an answer without a token. The fit balances the classes, so this is the
        probability among as many consistent as inconsistent answers. Raises ValueError for ratios
        of another model or of more snippets than `n_snippets`.
        """
        from scipy.special import expit

        shape = (self.model, self.variant, self.layers, self.heads, self.n_snippets)
        rows = [_features_of(answer, *shape) @ self.coefficients for answer in ratios]
        return np.asarray(expit(np.array(rows, dtype=np.float64) + self.intercept))

    def evaluate(self, answers: Iterable[JudgedRatios], *, level: float = 0.95) -> Interval:
        """Return the AUC on answers that it was not fitted on, with a bootstrap interval.

        The AUC is P(a consistent answer has a higher confidence than an inconsistent one); ties
        count one half, and an answer without a token has confidence 0. The interval is of 2,000
        resamples, of consistent and inconsistent answers apart. Raises ValueError if an answer
        occurs twice or was fitted on, or all are of one kind.
        """
        check_level(level)
        answers = list(answers)
        check_digests(answers, {"fit the classifier": self.fitted_on})
        confidence = np.nan_to_num(self.predict_proba(a.ratios for a in answers), nan=0.0)
        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        _check_both(consistent)
        yes, no = confidence[consistent], confidence[~consistent]
        again, rng = [], np.random.default_rng(0)
        for _ in range(RESAMPLES):
            some, others = rng.choice(yes, len(yes)), rng.choice(no, len(no))
            again.append(auc(others, some))
        low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2])
        return Interval(auc(no, yes), float(low), float(high))

    @cached_property
    def name(self) -> str:
        """The model, the shape of the features, and a digest of the fit: the identity in files."""
        shape = f"{self.layers}×{self.heads}×{self.n_snippets}"
        made_for = f"{self.model}; {self.variant}, {shape}"
        fitted = np.append(self.coefficients, self.intercept).astype("<f8").tobytes()
        digest = hashlib.sha256(made_for.encode() + fitted).hexdigest()[:12]
        return f"factuality({made_for}, fit={digest})"

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        fields = {name: getattr(self, name) for name in ("model", "variant", "layers", "heads")}
        fields |= {"n_snippets": self.n_snippets, "fitted_on": sorted(self.fitted_on)}
        fields |= {"coefficients": self.coefficients.tolist(), "intercept": self.intercept}
        write_envelope(path, fields, KIND)

    @classmethod
    def load(cls, path: str | Path) -> FactualityClassifier:
        """Read a classifier that `save` wrote, bit for bit the same.

        Raises ValueError if the file is incomplete, changed or of another version; OSError if it
        cannot be read.
        """
        return read_value(path, KIND, cls)


def _check_both(consistent: NDArray[np.bool_]) -> None:
    if consistent.all() or not consistent.any():
        n = consistent.sum()
        raise ValueError(say("of one kind", consistent=n, inconsistent=consistent.size - n))


def _features_of(
    ratios: LookbackRatios, model: str, variant: Variant, layers: int, heads: int, n_snippets: int
) -> Values:
    if (ratios.model, *ratios.context.shape) != (model, layers, heads):
        expected = layers, heads
        raise ValueError(say("of another model", ratios=ratios, model=model, expected=expected))
    return ratio_features(ratios, variant, n_snippets)
