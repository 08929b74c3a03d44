"""A classifier of lookback ratios: does an answer follow its context?

A logistic regression on the ratios of all layers and heads (`ratios.py`) gives the confidence that
an answer is consistent with its context (Geissler et al. 2026, arXiv 2605.05244, section 3.3).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformal_retrievers.data.files import (
    Kind,
    explain,
    read_envelope,
    write_envelope,
    write_whole,
)
from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import check_count
from conformal_retrievers.lookback.ratios import (
    JudgedRatios,
    LookbackRatios,
    Values,
    Variant,
    check_once,
    check_unused,
    features,
)
from conformal_retrievers.theory.intervals import Interval, auc, check_level


@dataclass(frozen=True)
class ClassifierEvaluation:
    """How well a classifier separates consistent from inconsistent answers that are new to it.

    `auc` is P(a consistent answer has a higher confidence than an inconsistent one), with its
    interval; ties count one half.
    """

    auc: Interval
    n_consistent: int
    n_inconsistent: int

    def __str__(self) -> str:
        return (
            f"AUC {str(self.auc).strip()} of {self.n_consistent} consistent and "
            f"{self.n_inconsistent} inconsistent answers"
        )


@dataclass(frozen=True, eq=False, repr=False)
class FactualityClassifier:
    """A logistic regression from lookback ratios to the confidence in an answer; made by `fit`."""

    model: str  # the name of the model that the ratios are of
    variant: Variant
    layers: int
    heads: int
    n_snippets: int  # the largest number K of snippets in a prompt
    coefficients: Values
    intercept: float
    fitted_on: frozenset[str]  # digests of the answers of the fit, which must not calibrate

    @classmethod
    def fit(
        cls, answers: Iterable[JudgedRatios], *, n_snippets: int, variant: Variant = "snippets"
    ) -> FactualityClassifier:
        """Return the classifier that scikit-learn fits: balanced classes, at most 1000 iterations.

        Raises ValueError unless there are consistent and inconsistent answers of one model, each
        with a token and at most `n_snippets` snippets; ModuleNotFoundError without the extra
        `lookback`.
        """
        n_snippets = check_count(n_snippets, "n_snippets")
        answers = list(answers)
        require("lookback", "sklearn")
        from sklearn.linear_model import LogisticRegression

        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        _check_both(consistent)
        first = answers[0].ratios
        layers, heads = first.context.shape
        shape = (first.model, layers, heads, variant, n_snippets)
        table = np.stack([_features_of(answer.ratios, *shape) for answer in answers])
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

        It is NaN for an answer without a token. The fit balances the classes, so this is the
        probability among as many consistent as inconsistent answers. Raises ValueError for ratios
        of another model or of more snippets than `n_snippets`.
        """
        from scipy.special import expit

        shape = (self.model, self.layers, self.heads, self.variant, self.n_snippets)
        rows = [_features_of(one, *shape) @ self.coefficients for one in ratios]
        log_odds = np.array(rows, dtype=np.float64) + self.intercept
        return np.asarray(expit(log_odds))

    def evaluate(
        self,
        answers: Iterable[JudgedRatios],
        *,
        rng: np.random.Generator,
        level: float = 0.95,
        resamples: int = 2000,
    ) -> ClassifierEvaluation:
        """Return the AUC on answers that it was not fitted on, with a bootstrap interval.

        Parameters
        ----------
        answers
            Consistent and inconsistent ones; an answer without a token has confidence 0.
        rng
            Draws the resamples, of consistent and inconsistent answers apart.
        level
            Confidence level of the interval, in (0, 1).
        resamples
            Number of bootstrap resamples.

        Returns
        -------
        ClassifierEvaluation
            The AUC with its interval, and the number of answers of each kind.

        Raises
        ------
        ValueError
            If an answer occurs twice or was fitted on, or all are of one kind.
        """
        check_level(level)
        resamples = check_count(resamples, "resamples")
        answers = list(answers)
        check_unused(answers, self.fitted_on, "fit the classifier")
        check_once(answers)
        confidence = np.nan_to_num(self.predict_proba(a.ratios for a in answers), nan=0.0)
        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        _check_both(consistent)
        yes, no = confidence[consistent], confidence[~consistent]
        again = []
        for _ in range(resamples):
            some, others = rng.choice(yes, len(yes)), rng.choice(no, len(no))
            again.append(auc(others, some))
        low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2])
        return ClassifierEvaluation(
            Interval(auc(no, yes), float(low), float(high)), len(yes), len(no)
        )

    @cached_property
    def name(self) -> str:
        """The model, the shape of the features, and a digest of the fit: the identity in files."""
        shape = f"{self.layers}×{self.heads}×{self.n_snippets}"
        made_for = f"{self.model}; {self.variant}, {shape}"
        fitted = np.append(self.coefficients, self.intercept).astype("<f8").tobytes()
        digest = hashlib.sha256(made_for.encode() + fitted).hexdigest()[:12]
        return f"factuality({made_for}, fit={digest})"

    def save(self, path: str | Path) -> None:
        """Write a JSON file, and the coefficients in an npz file beside it that it names.

        The npz file has its content's digest in its name and is written first, so a JSON file
        never names coefficients that are missing or incomplete.
        """
        npz = io.BytesIO()
        np.savez(npz, coefficients=self.coefficients, intercept=np.float64(self.intercept))
        weights = npz.getvalue()
        digest = hashlib.sha256(weights).hexdigest()
        # On Windows a backslash separates folders, so the name must not have one.
        beside = f"{Path(path).stem}-{digest[:12]}.npz".replace("\\", "_")
        fields = {"format": KIND.format, "version": KIND.version}
        fields |= {name: getattr(self, name) for name in ("model", "variant", "layers", "heads")}
        fields |= {"n_snippets": self.n_snippets, "fitted_on": sorted(self.fitted_on)}
        fields |= {"weights": beside, "weights_sha256": digest}
        write_whole(Path(path).with_name(beside), weights, what="classifier's coefficients")
        write_envelope(path, fields, what=KIND.what)

    @classmethod
    def load(cls, path: str | Path) -> FactualityClassifier:
        """Read a classifier that `save` wrote, bit for bit the same.

        Raises ValueError if a file is incomplete, changed or of another version;
        FileNotFoundError if one is missing.
        """
        try:
            f = _Fields.model_validate(read_envelope(path, KIND))
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}; fit and save again") from None
        coefficients, intercept = _read_weights(Path(path), f)
        shape = (f.model, f.variant, f.layers, f.heads, f.n_snippets)
        return cls(*shape, coefficients, intercept, frozenset(f.fitted_on))

    def __repr__(self) -> str:
        return f"FactualityClassifier({self.name!r}, {len(self.fitted_on)} answers)"


def _check_both(consistent: NDArray[np.bool_]) -> None:
    if consistent.all() or not consistent.any():
        raise ValueError(
            f"answers has {consistent.sum()} consistent and {(~consistent).sum()} inconsistent "
            "ones; give some of both"
        )


def _features_of(
    ratios: LookbackRatios, model: str, layers: int, heads: int, variant: Variant, n_snippets: int
) -> Values:
    if (ratios.model, *ratios.context.shape) != (model, layers, heads):
        raise ValueError(
            f"ratios are of {ratios.model!r} with {ratios.context.shape} layers and heads, but the "
            f"classifier is for {model!r} with {(layers, heads)}; fit one for each model"
        )
    return features(ratios, variant, n_snippets)


# --- the file -------------------------------------------------------------------------------------

KIND = Kind(
    "conformal-retrievers/factuality-classifier",
    1,
    saved_by="FactualityClassifier.save",
    what="classifier",
)
Count = Annotated[int, Field(gt=0)]


class _Fields(BaseModel):
    """The fields of a classifier's JSON file, without the checksum."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    version: int
    model: str
    variant: Variant
    layers: Count
    heads: Count
    n_snippets: Count
    fitted_on: list[str]
    weights: Annotated[str, Field(pattern=r"^[^/\\\x00]+\.npz$")]  # a file in the same folder
    weights_sha256: str


def _read_weights(path: Path, fields: _Fields) -> tuple[Values, float]:
    """Return coefficients and intercept; no pickle is read, and nothing is unpacked."""
    try:
        content = path.with_name(fields.weights).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: its coefficients, {fields.weights}, are not beside it; move that file to the "
            "same folder, or fit again"
        ) from None
    if hashlib.sha256(content).hexdigest() != fields.weights_sha256:
        raise ValueError(
            f"{path}: its coefficients in {fields.weights} were changed after they were written; "
            "restore the original file, or fit again"
        )
    expected = fields.layers * fields.heads
    expected *= fields.n_snippets if fields.variant == "snippets" else 1
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                raise ValueError("it is compressed")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            coefficients, intercept = arrays["coefficients"], arrays["intercept"]
        if (coefficients.shape, intercept.shape) != ((expected,), ()):
            raise ValueError(f"coefficients have shape {coefficients.shape}, not ({expected},)")
        for array in (coefficients, intercept):
            if array.dtype != np.float64 or not np.isfinite(array).all():
                raise ValueError("its numbers must be finite float64")
        return coefficients, float(intercept)
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: {fields.weights} is not a file of coefficients ({error}); fit again"
        ) from None
