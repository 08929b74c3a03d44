"""Lookback ratios: how much of its attention a model paid to the context while it answered.

The prompt has a preamble, snippets c_1 … c_k and a question. While the model generates token t of
the answer, the attention weights α_{t,p} of a head are averaged over each segment x of N_x tokens:

    A_t(x) = (1/N_x) Σ_{p ∈ x} α_{t,p}                             (eq. 7)
    LR_t(c_i) = k · A_t(c_i) / (A_t(c_1 ∪ … ∪ c_k) + A_t(output))  (eq. 8)
    LR(c_i) = (1/T) Σ_t LR_t(c_i)                                  (eq. 9)

Source: Geissler et al. 2026 (arXiv 2605.05244, section 3.3). Their factor is K, the largest number
of snippets, in place of k; `ratio_features` scales either away. The full-context ratio,
A_t(prompt) / (A_t(prompt) + A_t(output)), includes preamble and question (Chuang et al. 2024,
arXiv 2407.07071).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.checks import check_names, check_texts, check_type
from conformal_retrievers.lookback.wording import say

Values = NDArray[np.float64]
Variant = Literal["snippets", "snippet-average", "full-context"]


@dataclass(frozen=True, eq=False)
class SegmentAttention:
    """The mean attention of each new token over each segment of its prompt, A_t(x) of eq. 7.

    Token t is read where it is predicted, so its output segment holds t − 1 tokens; the mean over
    no tokens is 0. Raises ValueError if shapes disagree, or a mean is negative or not finite.
    """

    means: NDArray[np.float32]  # (T, L, H, k + 3): tokens, layers, heads; preamble … output
    lengths: NDArray[np.int64]  # (k + 2,): tokens of preamble, snippets 1 … k, question
    model: str  # the name of the model
    digest: str  # of the tokens of prompt and answer, which identifies the answer

    def __post_init__(self) -> None:
        segments = len(self.lengths) + 1
        if self.means.ndim != 4 or self.means.shape[3] != segments or segments < 4:
            shapes = f"{self.means.shape} and lengths ({len(self.lengths)},)"
            raise ValueError(f"means has shape {shapes}; give (T, L, H, k + 3) and (k + 2,)")
        if not (np.isfinite(self.means).all() and (self.means >= 0).all()):
            raise ValueError("means has negative, infinite or NaN attention; read the answer again")


@dataclass(frozen=True, eq=False)
class LookbackRatios:
    """The lookback ratios of one answer, averaged over its tokens; NaN for no tokens."""

    snippets: Values  # (L, H, k), eq. 9
    context: Values  # (L, H), full-context ratios
    model: str
    digest: str  # of the tokens: ratios differ in their last bits between batches


def lookback_ratios(attention: SegmentAttention) -> LookbackRatios:
    """Return the time-averaged lookback ratios of an answer (eq. 8 and 9).

    >>> import numpy as np
    >>> means = np.array([0.1, 0.3, 0.1, 0.1, 0.0]).reshape(1, 1, 1, 5)  # a token, a layer, a head
    >>> attention = SegmentAttention(means, np.array([2, 1, 1, 4]), "model", "digest")
    >>> lookback_ratios(attention).snippets.round(6).tolist()
    [[[3.0, 1.0]]]
    """
    means = attention.means.astype(np.float64)
    snippet, output = means[..., 1:-2], means[..., -1]
    all_snippets = _joined(snippet, attention.lengths[1:-1])
    prompt = _joined(means[..., :-1], attention.lengths)
    by_snippet = _share(snippet.shape[-1] * snippet, (all_snippets + output)[..., None])
    return LookbackRatios(
        _over_time(by_snippet),
        _over_time(_share(prompt, prompt + output)),
        attention.model,
        attention.digest,
    )


def _joined(means: Values, lengths: NDArray[np.int64]) -> Values:
    """Return the mean over several segments taken as one."""
    return np.asarray(means @ lengths / lengths.sum())


def _share(part: Values, whole: Values) -> Values:
    """Return part / whole, 0 where a head attends to neither context nor output."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _over_time(ratios: Values) -> Values:
    return ratios.mean(axis=0) if len(ratios) else np.full(ratios.shape[1:], np.nan)


def ratio_features(ratios: LookbackRatios, variant: Variant, n_snippets: int) -> Values:
    """Return an answer's features, scaled linearly to [0, 1] within the answer; NaN stays NaN.

    "snippets" gives (L·H·K,) for K = `n_snippets`, with zeros in place of missing snippets;
    "snippet-average" (the mean over the snippets) and "full-context" give (L·H,). Raises
    ValueError for an unknown variant, or more than K snippets.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant is {variant!r:.80}; give one of {get_args(Variant)}")
    missing = n_snippets - ratios.snippets.shape[-1]
    if missing < 0:
        raise ValueError(say("more snippets", limit=n_snippets, n=n_snippets - missing))
    if variant == "full-context":
        return _scaled(ratios.context).ravel()
    if variant == "snippet-average":
        return _scaled(ratios.snippets.mean(axis=-1)).ravel()
    return np.pad(_scaled(ratios.snippets), ((0, 0), (0, 0), (0, missing))).ravel()


def _scaled(values: Values) -> Values:
    spread = np.ptp(values)
    return np.zeros_like(values) if spread == 0 else np.asarray((values - values.min()) / spread)


@dataclass(frozen=True)
class JudgedRatios:
    """The lookback ratios of an answer, and the judgement whether it is consistent."""

    ratios: LookbackRatios
    consistent: bool
    id: str | None = field(default=None, kw_only=True)  # of the answer
    group: str | None = field(default=None, kw_only=True)  # of the question, known at run time

    def __post_init__(self) -> None:
        check_type(LookbackRatios, "lookback_ratios(generated.attention)", ratios=self.ratios)
        check_type((bool, np.bool_), "True or False", consistent=self.consistent)
        check_texts("an answer", id=self.id)
        check_names("an answer", group=self.group)


def check_digests(answers: Sequence[JudgedRatios], used: Mapping[str, Iterable[str]]) -> None:
    """Raise ValueError for an answer that occurs twice, or whose digest was used before.

    `used` has the digests of each use, such as "fit the classifier".
    """
    uses = {digest: use for use, digests in used.items() for digest in digests}
    places: dict[str, int] = {}
    for i, answer in enumerate(answers):
        digest = answer.ratios.digest
        if digest in uses:
            raise ValueError(f"answers[{i}] was used to {uses[digest]}; give answers new to it")
        if places.setdefault(digest, i) != i:
            raise ValueError(say("twice", i=i, other=places[digest]))
