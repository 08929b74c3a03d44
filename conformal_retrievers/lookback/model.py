"""A transformers model that runs here, and its attention to its prompt while it answers.

`LocalModel.generate` answers prompts, and `LocalModel.read` takes existing answers. Both return the
mean attention of each new token over the segments of its prompt (`prompt.py`), which `attention.py`
computes inside the model; `lookback_ratios` turns it into lookback ratios.
"""

import copy
import hashlib
import inspect
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.checks import check_count
from conformal_retrievers.extras import require
from conformal_retrievers.llm.wire import portable
from conformal_retrievers.lookback.attention import Recorder, recording
from conformal_retrievers.lookback.prompt import PromptTokens, RagPrompt, check_plain, prompt_tokens
from conformal_retrievers.lookback.ratios import SegmentAttention
from conformal_retrievers.lookback.wording import say

require("models", "torch", "transformers")
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Generated:
    """A generated answer; it may have no token, and then no attention."""

    text: str
    tokens: tuple[int, ...]  # without special tokens at the end
    attention: SegmentAttention


class LocalModel:
    """A transformers causal language model whose attention to its prompt can be read.

    `name` identifies the model; by default it is its name on the hub, or the digest of the weights
    in the folder that it was loaded from. While attention is read, a model is switched to "sdpa":
    let no other thread use it directly meanwhile. Raises ValueError for a model with a sliding
    window, or with positions that depend on padding.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str | None = None
    ) -> None:
        name = name or portable(getattr(model.config, "_name_or_path", ""))
        if not name:
            raise ValueError(f"name is missing, and {type(model).__name__} has none; give name=")
        _check_attention(model, name)
        config = model.config.get_text_config()
        self.model, self.tokenizer, self.name = model, tokenizer, str(name)
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads  # of each layer
        # Of prompt and answer together.
        self.max_tokens: int | None = getattr(config, "max_position_embeddings", None)

    def generate(
        self,
        prompts: Sequence[RagPrompt],
        *,
        max_new_tokens: int,
        generation: GenerationConfig | None = None,
    ) -> list[Generated]:
        """Answer prompts as one batch, and return each answer with its attention.

        `generation` is the model's own by default. It may sample. Raises ValueError for beam search
        and several tokens at a time, for too long a prompt, and for a special token in a text.
        """
        max_new_tokens = check_count(max_new_tokens, "max_new_tokens")
        tokens = [self._tokens(i, prompt, max_new_tokens) for i, prompt in enumerate(prompts)]
        if not tokens:
            return []
        settings = copy.deepcopy(generation or self.model.generation_config)
        settings.update(  # type: ignore[no-untyped-call]
            max_new_tokens=max_new_tokens,
            max_length=None,
            cache_implementation="dynamic",  # None would take the model's own, which may be longer
            use_cache=True,
            return_dict_in_generate=False,
            output_attentions=False,
        )
        ends = settings.eos_token_id
        ends = self.model.generation_config.eos_token_id if ends is None else ends
        ending = {*(ends if isinstance(ends, list) else [] if ends is None else [ends])}
        if settings.pad_token_id is None:
            settings.pad_token_id = min(ending, default=0)
        ids, mask = _padded_left([prompt.ids for prompt in tokens], self.model.device)
        recorder = Recorder(tokens, ids.shape[1], last_row_alone=True)
        with torch.inference_mode(), recording(self.model, self.name, recorder):
            output = self.model.generate(  # type: ignore[operator]
                ids, attention_mask=mask, generation_config=settings
            )
        rows = output[:, ids.shape[1] :].tolist()
        answers = [[*takewhile(lambda token: token not in ending, row)] for row in rows]
        means = recorder.means(self.layers, output.shape[1] - ids.shape[1])
        return [
            Generated(str(self.tokenizer.decode(a, skip_special_tokens=True)), tuple(a), attention)
            for a, attention in zip(answers, self._attention(means, tokens, answers), strict=True)
        ]

    def read(
        self, prompts: Sequence[RagPrompt], answers: Sequence[str | Sequence[int]]
    ) -> list[SegmentAttention]:
        """Return the attention with which the model would give these answers, in one pass.

        An answer is text as the model would write it after the prompt (often with a leading space),
        or token ids, such as `Generated.tokens`. Raises ValueError unless each prompt has an answer
        of one token or more, and both fit the model.
        """
        if len(prompts) != len(answers):
            raise ValueError(f"{len(answers)} answers for {len(prompts)} prompts; give one of each")
        given = [self._answer(i, answer) for i, answer in enumerate(answers)]
        pairs = zip(prompts, given, strict=True)
        tokens = [self._tokens(i, p, len(a)) for i, (p, a) in enumerate(pairs)]
        if not tokens:
            return []
        ids, mask = _padded_left([prompt.ids for prompt in tokens], self.model.device)
        recorder = Recorder(tokens, ids.shape[1], last_row_alone=False)
        # The last token of an answer is not an input: nothing is predicted after it.
        longest = max(map(len, given)) - 1
        tails = [answer[:-1] for answer in given]
        tail = torch.tensor([t + [0] * (longest - len(t)) for t in tails], dtype=torch.long)
        seen = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in tails])
        ids = torch.cat([ids, tail.to(ids)], dim=1)
        mask = torch.cat([mask, seen.to(mask)], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.inference_mode(), recording(self.model, self.name, recorder):
            # Without the head: the logits of a whole prompt are large, and not needed.
            inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
            self.model.base_model(**inputs, use_cache=False)
        return self._attention(recorder.means(self.layers, 1), tokens, given)

    def _attention(
        self, means: NDArray[np.float32], prompts: list[PromptTokens], answers: list[list[int]]
    ) -> list[SegmentAttention]:
        """Return each answer's own tokens and segments, out of those of the batch."""
        read_ones = []
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            segments = [*range(len(prompt.lengths)), -1]  # the last: output
            own = means[i, : len(answer)][..., segments]
            digest = hashlib.sha256(json.dumps([prompt.ids, answer]).encode()).hexdigest()[:12]
            read_ones.append(SegmentAttention(own, prompt.lengths, self.name, digest))
        return read_ones

    def _answer(self, number: int, answer: str | Sequence[int]) -> list[int]:
        if isinstance(answer, str):
            check_plain(f"answers[{number}]", answer, self.tokenizer)
            ids: list[int] = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        else:
            ids = [operator.index(token) for token in answer]
        if not ids:
            raise ValueError(f"answers[{number}] has no token; leave it out")
        return ids

    def _tokens(self, number: int, prompt: RagPrompt, answer: int) -> PromptTokens:
        tokens = prompt_tokens(number, prompt, self.tokenizer)
        if self.max_tokens is not None and len(tokens.ids) + answer > self.max_tokens:
            facts = {"number": number, "n": len(tokens.ids), "answer": answer, "name": self.name}
            raise ValueError(say("too long", **facts, limit=self.max_tokens))
        return tokens


def _check_attention(model: PreTrainedModel, name: str) -> None:
    """Raise ValueError for a model whose ratios would be wrong without an error."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    # Some models count positions from behind their padding. For others generate() counts them from
    # the mask if they take position_ids; decoders such as Bart's do not.
    padded = any(hasattr(m, "create_position_ids_from_input_ids") for m in model.modules())
    if padded or "position_ids" not in inspect.signature(model.forward).parameters:
        reason = "may count positions from its padding"
    elif window or kinds & {"sliding_attention", "chunked_attention"}:
        reason = f"attends in windows or chunks (config.sliding_window is {window!r:.80})"
    else:
        return
    raise ValueError(say("no attention", name=name, kind=type(model).__name__, reason=reason))


def _padded_left(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask, (B, P), padded on the left: all prompts end together."""
    longest = max(map(len, ids))
    padded = torch.tensor([[0] * (longest - len(row)) + list(row) for row in ids])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    return padded.to(device), mask.to(device)
