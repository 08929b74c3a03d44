"""Lookback ratios: how much of its attention a model paid to the context while it answered.

Of a prompt with a preamble, snippets c_1 … c_k and a question, generating token t of the answer,
the attention weights α_{t,p} of a head are averaged over each segment x of N_x tokens, and
compared:

    A_t(x) = (1/N_x) Σ_{p ∈ x} α_{t,p}                             (eq. 7)
    LR_t(c_i) = k · A_t(c_i) / (A_t(c_1 ∪ … ∪ c_k) + A_t(output))  (eq. 8)
    LR(c_i) = (1/T) Σ_t LR_t(c_i)                                  (eq. 9)

The paper's factor is K, the most snippets that there are, in place of k: scaling takes out either.
The full-context ratio, A_t(prompt) / (A_t(prompt) + A_t(output)), also counts preamble and question
(Chuang et al. 2024, arXiv 2407.07071). `huggingface.py` reads the attention, and `lookback.py`
makes a confidence of the ratios. Geissler et al. 2026, arXiv 2605.05244, section 3.3.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Variant = Literal["snippets", "snippet-average", "full-context"]


@dataclass(frozen=True, eq=False)
class SegmentAttention:
    """The mean attention of each new token over each segment of its prompt, A_t(x) of eq. 7.

    `means` is (T, L, H, k + 3): of T new tokens, in L layers of H heads, over the segments
    preamble, snippet 1 … k, question, output. Token t is read where it is predicted, so that its
    output holds t − 1 tokens: the mean over none is 0. `lengths` (k + 2,) are the segments of the
    prompt in tokens, `model` names what generated, `answer` is a digest of prompt and answer.
    Raises ValueError where shapes disagree, a snippet has no token or a mean is no number of 0 or
    more.
    """

    means: NDArray[np.float32]
    lengths: NDArray[np.int64]
    model: str
    answer: str | None = None

    def __post_init__(self) -> None:
        segments = len(self.lengths) + 1
        if self.means.ndim != 4 or self.means.shape[3] != segments or segments < 4:
            raise ValueError(
                f"means has shape {self.means.shape} with {len(self.lengths)} lengths; give "
                "(tokens, layers, heads, snippets + 3) and the lengths of preamble, at least one "
                "snippet, and question"
            )
        if not (np.isfinite(self.means).all() and (self.means >= 0).all()):
            raise ValueError("means holds NaN, infinite or negative attention; read it again")
        if (self.lengths[1:-1] < 1).any():
            raise ValueError(f"lengths is {self.lengths.tolist()}: a snippet has no token; drop it")

    @property
    def n_snippets(self) -> int:
        """The number k of snippets in the prompt."""
        return len(self.lengths) - 2


@dataclass(frozen=True, eq=False)
class LookbackRatios:
    """The time-averaged lookback ratios of one answer: over each snippet, and over the full
    context.

    `snippets` is (L, H, k), eq. 9, `context` (L, H); both are NaN for an answer without a token.
    `answer` is that of `SegmentAttention`.
    """

    snippets: Values
    context: Values
    model: str
    answer: str | None = None

    @property
    def digest(self) -> str:
        """Which answer this is: twelve digits of a SHA-256 of its tokens, or else of its ratios.

        Read again in another batch, ratios differ in their last bits, and tokens do not.
        """
        if self.answer is not None:
            return self.answer
        content = self.snippets.tobytes() + self.context.tobytes()
        return hashlib.sha256(content).hexdigest()[:12]


def lookback_ratios(attention: SegmentAttention) -> LookbackRatios:
    """Return the time-averaged lookback ratios of an answer (eq. 8 and 9).

    Raises TypeError for what is no attention.
    """
    if not isinstance(attention, SegmentAttention):
        raise TypeError(
            f"attention is {kind_of(attention)}; give a SegmentAttention, from LocalModel.read, or "
            "which of a Generated is its .attention"
        )
    means = attention.means.astype(np.float64)
    snippet, output = means[..., 1:-2], means[..., -1]
    all_snippets = _joined(snippet, attention.lengths[1:-1])
    prompt = _joined(means[..., :-1], attention.lengths)
    by_snippet = _share(attention.n_snippets * snippet, (all_snippets + output)[..., None])
    return LookbackRatios(
        _over_time(by_snippet),
        _over_time(_share(prompt, prompt + output)),
        attention.model,
        attention.answer,
    )


def _joined(means: Values, lengths: NDArray[np.int64]) -> Values:
    """Return the mean over several segments taken as one."""
    return np.asarray(means @ lengths / lengths.sum())


def _share(part: Values, whole: Values) -> Values:
    """Return part / whole, 0 where a head looks at neither context nor output."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _over_time(ratios: Values) -> Values:
    return ratios.mean(axis=0) if len(ratios) else np.full(ratios.shape[1:], np.nan)


def features(ratios: LookbackRatios, variant: Variant, n_snippets: int) -> Values:
    """Return an answer's features, scaled linearly to [0, 1] within the answer.

    For "snippets" they are (L·H·K,) with K = `n_snippets`: scaled, then filled up with zeros where
    there are fewer snippets. For "snippet-average" they are the snippets' ratios averaged over the
    snippets, for "full-context" those over the whole prompt, both (L·H,). NaN stays NaN. Raises
    ValueError for an unknown variant, or more snippets than K.
    """
    if variant not in get_args(Variant):
        known = ", ".join(map(repr, get_args(Variant)))
        raise ValueError(f"variant is {variant!r}; give one of {known}")
    missing = n_snippets - ratios.snippets.shape[-1]
    if missing < 0:
        raise ValueError(
            f"n_snippets is {n_snippets}, but the prompt of an answer has "
            f"{ratios.snippets.shape[-1]} snippets; fit with more, or generate from fewer"
        )
    if variant == "full-context":
        return _scaled(ratios.context).ravel()
    if variant == "snippet-average":
        return _scaled(ratios.snippets.mean(axis=-1)).ravel()
    return np.pad(_scaled(ratios.snippets), ((0, 0), (0, 0), (0, missing))).ravel()


def _scaled(values: Values) -> Values:
    spread = np.ptp(values)
    if spread == 0:
        return np.zeros_like(values)
    return np.asarray((values - values.min()) / spread)


def check_ratios(name: str, ratios: object) -> None:
    """Raise TypeError, naming it and what to give, for what is no LookbackRatios."""
    if isinstance(ratios, LookbackRatios):
        return
    remedy = "of a JudgedRatios its .ratios, else from lookback_ratios(attention)"
    raise TypeError(f"{name} is {kind_of(ratios)}; give a LookbackRatios, {remedy}")


def kind_of(value: object) -> str:
    """Return what an error calls a value: its type, and of a text what it says."""
    return f"the str {value!r:.60}" if isinstance(value, str) else f"a {type(value).__name__}"
