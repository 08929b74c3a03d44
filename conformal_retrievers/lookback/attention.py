"""Attention weights of a transformers model, averaged over segments inside each attention call.

The rows of new tokens alone are computed a second time, in float32 whatever the model's type, and
reduced at once to A_t(x) of `ratios.py`, so memory holds layers × heads × segments numbers for each
token. The model's outputs come from PyTorch's own scaled dot-product attention.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.extras import require
from conformal_retrievers.lookback.prompt import PromptTokens
from conformal_retrievers.lookback.wording import say

require("models", "torch", "transformers")
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

BLOCK = 2**20  # attention weights in memory at a time, 4 MiB of float32
NAME = "conformal_retrievers_lookback"
_RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
# The attention function is a setting of the whole model, so one thread at a time may change it.
_LOCKS: WeakKeyDictionary[PreTrainedModel, threading.Lock] = WeakKeyDictionary()


class Recorder:
    """Collects the attention of new tokens to segments, (B, H, rows, S) of each call."""

    def __init__(
        self, tokens: Sequence[PromptTokens], prompt: int, *, last_row_alone: bool
    ) -> None:
        member = torch.zeros(len(tokens), prompt, max(len(own.lengths) for own in tokens))
        for i, own in enumerate(tokens):
            places = torch.arange(prompt - len(own.ids), prompt)
            lengths = torch.tensor(own.lengths[own.segments], dtype=torch.float32)
            member[i, places, torch.tensor(own.segments)] = 1 / lengths
        self.member = member
        self.prompt = prompt
        self.last_row_alone = last_row_alone
        self.records: dict[int, list[Tensor]] = {}

    def record(
        self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float
    ) -> None:
        """Reduce one attention call: queries (B, H, Q, d), keys (B, G, P + output, d).

        The first call has the whole prompt and each other one token more, else ValueError.
        """
        seen = self.records.setdefault(layer, [])
        read = (query.shape[0], query.shape[2], key.shape[2])
        rows = (1 if seen else self.prompt) if self.last_row_alone else read[2]
        keys = self.prompt + len(seen) if self.last_row_alone else read[2]
        if read != (len(self.member), rows, keys):
            expected = len(self.member), rows, keys
            raise ValueError(say("read otherwise", layer=layer, read=read, expected=expected))
        self.member = self.member.to(query.device)
        _, n_queries, n_keys = read
        first = n_queries - 1 if self.last_row_alone else self.prompt - 1
        block = max(1, BLOCK // (query.shape[0] * query.shape[1] * n_keys))
        blocks = [slice(i, min(i + block, n_queries)) for i in range(first, n_queries, block)]
        with torch.autocast(query.device.type, enabled=False):  # which would undo float32
            parts = [self._reduced(query, key, mask, scaling, rows) for rows in blocks]
        seen.append(torch.cat(parts, dim=2))

    def _reduced(
        self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, rows: slice
    ) -> Tensor:
        batch, heads, _, size = query.shape
        groups, n_keys = key.shape[1], key.shape[2]
        # Cast before the product: float16 overflows, and bfloat16 has three digits.
        q = query[:, :, rows].float() * scaling
        n_rows = q.shape[2]
        # Heads that share keys become rows of one product, so keys are not repeated.
        q = q.reshape(batch, groups, -1, size)
        block = max(1, BLOCK // (batch * groups * size))
        products = [q @ some.float().transpose(2, 3) for some in torch.split(key, block, dim=2)]
        scores = torch.cat(products, dim=3).view(batch, heads, n_rows, n_keys)
        del products
        # The number of keys that each row attends to: queries are the last of the keys.
        ahead = n_keys - query.shape[2] + 1 + torch.arange(rows.start, rows.stop)
        if mask is not None:
            scores.masked_fill_(~mask[:, :, rows, :n_keys], float("-inf"))
        elif int(ahead[0]) < n_keys:
            future = torch.arange(n_keys) >= ahead[:, None]
            scores.masked_fill_(future.to(scores.device), float("-inf"))
        weights = scores.softmax(dim=-1)
        flat = weights[..., : self.prompt].reshape(batch, heads * n_rows, self.prompt) @ self.member
        output = weights[..., self.prompt :].sum(dim=-1, keepdim=True)
        lengths = (ahead - self.prompt).clamp(min=1).to(output)
        return torch.cat([flat.view(batch, heads, n_rows, -1), output / lengths[:, None]], dim=-1)

    def means(self, layers: int, calls: int) -> NDArray[np.float32]:
        """Return the recorded means, (B, T, L, H, S)."""
        calls_of = {layer: len(records) for layer, records in self.records.items()}
        if calls_of != dict.fromkeys(range(layers), calls):
            facts = {"layers": layers, "calls": calls, "calls_of": calls_of}
            raise ValueError(say("not recorded", m=len(calls_of), **facts))
        whole = [torch.cat(self.records[layer], dim=2).cpu() for layer in range(layers)]
        return np.asarray(torch.stack(whole, dim=1).permute(0, 3, 1, 2, 4).numpy())


@contextmanager
def recording(model: PreTrainedModel, name: str, recorder: Recorder) -> Iterator[None]:
    """Record the model's attention, in this thread alone.

    Raises ValueError for a model in training mode.
    """
    if model.training:
        raise ValueError(f"model {name!r} is in training mode, with dropout; call its eval() first")
    with _LOCKS.setdefault(model, threading.Lock()):
        before = model.config._attn_implementation
        token = _RECORDER.set(recorder)
        try:
            model.set_attn_implementation(NAME)
            yield
        finally:
            _RECORDER.reset(token)
            model.set_attn_implementation(before)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as PyTorch does, and pass the call to this thread's recorder, if there is one."""
    recorder = _RECORDER.get()
    if recorder is not None:
        other = [n for n in ("softcap", "s_aux", "position_bias") if kwargs.get(n) is not None]
        if kwargs.get("is_causal") is False or not getattr(module, "is_causal", True):
            other.append("later tokens")
        if other:
            raise ValueError(say("depends on", kind=type(module).__name__, what=other[0]))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        layer: int = module.layer_idx  # type: ignore[assignment]
        recorder.record(layer, query, key, attention_mask, scale)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
