"""The attention of a transformers model to the segments of its prompt, while it answers.

The segments are the preamble, each chunk, the question and the output. Inside each attention call,
only the rows of new tokens are computed, in float32, and summed over segments at once,

    A_t(x) = (1/N_x) Σ_{p ∈ x} softmax(q_t · K / √d)_p   (Geissler et al. 2026, arXiv 2605.05244,
                                                          eq. 7)

so that what is held is layers × heads × segments a token. The model's outputs come from PyTorch's
own scaled dot-product attention. `lookback.py` makes ratios and a confidence of it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.extras import require
from conformal_retrievers.lookback import SegmentAttention

require("huggingface", "torch", "transformers")
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import (
    GenerationConfig as GenerationConfig,  # also for those who may not import transformers
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PREAMBLE = "Answer the question from the documents alone."
BLOCK = 2**24  # attention weights that are held at a time, 64 MiB of float32

# --- the prompt -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RagPrompt:
    """A question and the chunks that shall answer it, in the order in which the model reads them.

    The model reads preamble, chunks and question, a blank line between them; where the tokenizer
    has a chat template, as one message of the user, else with `ending` behind. A segment reaches to
    the start of the next, so the template's own words count to the preamble and the question, and
    a token to the segment in which it ends. Raises TypeError for what is no text, ValueError where
    there is no chunk, or one or the question is blank.
    """

    question: str
    chunks: tuple[str, ...]
    preamble: str = PREAMBLE
    ending: str = "\n\nAnswer:"

    def __post_init__(self) -> None:
        if isinstance(self.chunks, str):
            raise TypeError(f"chunks is the str {self.chunks!r:.60}; give a sequence of texts")
        object.__setattr__(self, "chunks", tuple(self.chunks))
        parts = [("preamble", self.preamble), ("ending", self.ending), ("question", self.question)]
        parts += [(f"chunks[{i}]", chunk) for i, chunk in enumerate(self.chunks)]
        for name, text in parts:
            if not isinstance(text, str):
                raise TypeError(f"{name} is {text!r:.60}; give its text as a str")
            if name not in ("preamble", "ending") and not text.strip():
                raise ValueError(f"{name} is {text!r}, which is blank; give its text")
        if not self.chunks:
            raise ValueError("chunks is empty; give the chunks that shall answer the question")


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The token ids of a prompt, (P,), and the segment of each: 0 preamble, 1 … k, k + 1."""

    ids: list[int]
    segments: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Generated:
    """An answer: its text, its token ids without special ones at the end, and what they looked at.

    An answer that ends before it begins has no token, and then the attention of none.
    """

    text: str
    tokens: tuple[int, ...]
    attention: SegmentAttention


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class LocalModel:
    """A transformers causal language model whose attention to its prompt can be seen.

    `name` says which model it is, by default as it was loaded. While it is read, a model set to
    another attention than "sdpa" is switched to that: let no other thread use it by itself then.
    Raises ValueError, naming the model and the remedy, for one without attention in all its layers,
    with a sliding window, or that is no decoder alone; for a tokenizer that does not say where its
    tokens come from; TypeError for what is no transformers model or tokenizer.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    layers: int = field(repr=False)
    max_tokens: int | None = field(repr=False)

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise TypeError(
                f"model is {type(model).__name__}, whose attention cannot be seen; give a "
                "transformers model that runs here, such as AutoModelForCausalLM.from_pretrained"
            )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(f"tokenizer is {type(tokenizer).__name__}; give the model's tokenizer")
        name = name or getattr(model.config, "_name_or_path", "")
        if not name:
            raise ValueError(f"this {type(model).__name__} has no name of its own; give name=")
        _check_attention(model, name)
        if not tokenizer.is_fast:
            raise ValueError(
                f"tokenizer {type(tokenizer).__name__} has no offsets, which tell the segments of "
                "a prompt apart; give a fast one, based on the tokenizers library"
            )
        config = model.config.get_text_config()
        self.__dict__.update(
            model=model,
            tokenizer=tokenizer,
            name=name,
            layers=config.num_hidden_layers,
            max_tokens=getattr(config, "max_position_embeddings", None),
        )

    def generate(
        self,
        prompts: Sequence[RagPrompt],
        *,
        max_new_tokens: int,
        generation: GenerationConfig | None = None,
    ) -> list[Generated]:
        """Answer prompts as one batch, and return each answer with its attention.

        `generation` is the model's own by default; it may sample, but not search beams or guess
        several tokens at a time. Raises ValueError for such settings, where a prompt and
        `max_new_tokens` do not fit the model, naming the chunks that do not, or a text holds one of
        the tokenizer's special tokens.
        """
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens!r}; give a whole number from 1")
        tokens = [self._tokens(i, prompt, max_new_tokens) for i, prompt in enumerate(prompts)]
        if not tokens:
            return []
        settings = copy.deepcopy(generation or self.model.generation_config)
        _check_token_by_token(settings, self.model.generation_config)
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
        ids, mask = _padded_left([one.ids for one in tokens], self.model.device)
        recorder = _Recorder(tokens, ids.shape[1], last_row_alone=True)
        with torch.inference_mode(), self._recording(recorder):
            output = self.model.generate(  # type: ignore[operator]
                ids, attention_mask=mask, generation_config=settings
            )
        answers = [_until(row, ending) for row in output[:, ids.shape[1] :].tolist()]
        means = recorder.means(self.layers, output.shape[1] - ids.shape[1])
        return [
            Generated(
                str(self.tokenizer.decode(answer, skip_special_tokens=True)),
                tuple(answer),
                self._attention(means[i], one, answer),
            )
            for i, (one, answer) in enumerate(zip(tokens, answers, strict=True))
        ]

    def read(
        self, prompts: Sequence[RagPrompt], answers: Sequence[str | Sequence[int]]
    ) -> list[SegmentAttention]:
        """Return the attention with which the model would give these answers, in one pass.

        An answer is text, as the model would write it after the prompt (often with a leading
        space), or token ids, such as `Generated.tokens`. Raises ValueError where there is not one
        answer a prompt, one has no token, one that the model does not know or, as text, a special
        one, and where a prompt does not fit.
        """
        if isinstance(answers, str) or len(prompts) != len(answers):
            raise ValueError(
                f"there are {len(prompts)} prompts and {len(answers)} answers; give one answer for "
                "each prompt"
            )
        given = [self._answer(i, answer) for i, answer in enumerate(answers)]
        pairs = zip(prompts, given, strict=True)
        tokens = [self._tokens(i, p, len(a)) for i, (p, a) in enumerate(pairs)]
        if not tokens:
            return []
        ids, mask = _padded_left([one.ids for one in tokens], self.model.device)
        recorder = _Recorder(tokens, ids.shape[1], last_row_alone=False)
        # The last token of an answer is never read: nothing comes after it.
        longest = max(map(len, given)) - 1
        tails = [answer[:-1] for answer in given]
        tail = torch.tensor([t + [0] * (longest - len(t)) for t in tails], dtype=torch.long)
        seen = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in tails])
        ids = torch.cat([ids, tail.to(ids)], dim=1)
        mask = torch.cat([mask, seen.to(mask)], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.inference_mode(), self._recording(recorder):
            # The body alone: the logits of a whole prompt are large, and are not asked for.
            self.model.base_model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            )
        means = recorder.means(self.layers, 1)
        return [
            self._attention(means[i], one, answer)
            for i, (one, answer) in enumerate(zip(tokens, given, strict=True))
        ]

    def _attention(
        self, means: NDArray[np.float32], tokens: _Tokens, answer: Sequence[int]
    ) -> SegmentAttention:
        """Cut an answer's own tokens and segments out of those of its batch."""
        k = len(tokens.lengths) - 2
        segments = [*range(k + 2), means.shape[-1] - 1]
        read = json.dumps([tokens.ids, [*answer]])
        return SegmentAttention(
            means[: len(answer)][..., segments],
            tokens.lengths,
            self.name,
            hashlib.sha256(read.encode()).hexdigest()[:12],
        )

    def _answer(self, number: int, answer: str | Sequence[int]) -> list[int]:
        if isinstance(answer, str):
            self._check_plain(f"answers[{number}]", answer)
            ids = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        else:
            ids = [operator.index(token) for token in answer]
        if not ids:
            raise ValueError(f"answers[{number}] is {answer!r}, which has no token; leave it out")
        known = self.model.config.get_text_config().vocab_size
        unknown = next((token for token in ids if not 0 <= token < known), None)
        if unknown is not None:
            raise ValueError(
                f"answers[{number}] holds the token {unknown}, but {self.name!r} knows {known} "
                "tokens; give the ids of its own tokenizer"
            )
        return ids

    def _tokens(self, number: int, prompt: RagPrompt, answer: int) -> _Tokens:
        """Tokenize a prompt, and find the segment of each token by where it ends in the text."""
        text, starts, chat = self._text(number, prompt)
        encoded = self.tokenizer(
            text,
            add_special_tokens=not chat,  # a chat template writes its own
            return_offsets_mapping=True,
            verbose=False,
        )
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64)
        # A special token has no place in the text, (0, 0): it goes with what is before it. Spaces
        # that a tokenizer trims off are (end, end), and go where they end as all tokens do.
        last = np.maximum.accumulate(offsets[:, 1] - 1)
        segments = np.searchsorted(starts, last, side="right")
        lengths = np.bincount(segments, minlength=len(prompt.chunks) + 2)
        without = np.flatnonzero(lengths[1:-1] == 0)
        if len(without):
            raise ValueError(
                f"prompts[{number}].chunks[{without[0]}] is {prompt.chunks[without[0]]!r:.60}, "
                "which has no token of its own; leave it out"
            )
        self._check_fit(number, segments, answer)
        return _Tokens(encoded["input_ids"], segments, lengths)

    def _text(self, number: int, prompt: RagPrompt) -> tuple[str, list[int], bool]:
        """Return the text, where each chunk and the question start in it, and if it is a chat's."""
        for name, said in (
            ("question", prompt.question),
            ("preamble", prompt.preamble),
            *((f"chunks[{i}]", chunk) for i, chunk in enumerate(prompt.chunks)),
        ):
            self._check_plain(f"prompts[{number}].{name}", said)
        # Chat templates strip a message, so that it starts and ends with what is no space.
        parts = [p for p in (prompt.preamble.strip(), *prompt.chunks, prompt.question) if p]
        parts[0], parts[-1] = parts[0].lstrip(), parts[-1].rstrip()
        body = "\n\n".join(parts)
        chat = self.tokenizer.chat_template is not None
        if chat:
            message = {"role": "user", "content": body}
            text = str(
                self.tokenizer.apply_chat_template(
                    [message], tokenize=False, add_generation_prompt=True
                )
            )
            if text.count(body) != 1:
                raise ValueError(
                    f"prompts[{number}]: the tokenizer's chat template does not hold the message "
                    "once, as it is; give a tokenizer without one (chat_template = None)"
                )
        else:
            text = body + prompt.ending
        start, starts = text.index(body), []
        for part in reversed(parts[-len(prompt.chunks) - 1 :]):
            body = body.removesuffix(part)
            starts.append(start + len(body))
            body = body.removesuffix("\n\n")
        return text, starts[::-1], chat

    def _check_plain(self, name: str, text: str) -> None:
        """Raise ValueError for text that the tokenizer would read as its own control tokens."""
        special = {
            str(token)
            for token in self.tokenizer.added_tokens_decoder.values()
            if token.special and str(token)
        } | set(self.tokenizer.all_special_tokens)
        found = next((token for token in sorted(special) if token in text), None)
        if found is not None:
            raise ValueError(
                f"{name} holds {found!r}, which the tokenizer reads as a control token; remove it "
                "or write it otherwise"
            )

    def _check_fit(self, number: int, segments: NDArray[np.int64], answer: int) -> None:
        needed = len(segments) + answer
        if self.max_tokens is None or needed <= self.max_tokens:
            return
        # What is behind the chunks is needed in any case.
        last = segments.max()
        room = self.max_tokens - answer - int((segments == last).sum())
        n_chunks = last - 1
        fitting = sum(int((segments <= i).sum()) <= room for i in range(1, n_chunks + 1))
        raise ValueError(
            f"prompts[{number}] takes {len(segments)} tokens and its answer {answer}, but "
            f"{self.name!r} reads {self.max_tokens}: of its {n_chunks} chunks the first {fitting} "
            "fit; give fewer or shorter chunks, or a shorter answer"
        )

    @contextmanager
    def _recording(self, recorder: _Recorder) -> Iterator[None]:
        """Have the model's attention recorded, for this thread alone."""
        if self.model.training:
            raise ValueError(
                f"{self.name!r} is in training mode, where dropout changes its attention; call "
                "its eval() first"
            )
        with _LOCKS.setdefault(self.model, threading.Lock()):
            before = self.model.config._attn_implementation
            token = _RECORDER.set(recorder)
            try:
                self.model.set_attn_implementation(NAME)
                yield
            finally:
                _RECORDER.reset(token)
                self.model.set_attn_implementation(before)


def _check_attention(model: PreTrainedModel, name: str) -> None:
    config = model.config.get_text_config()
    if not model.can_generate():
        raise ValueError(
            f"{name!r} is a {type(model).__name__}, which does not generate; load it as "
            "AutoModelForCausalLM"
        )
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{name!r} is an encoder-decoder, whose answer does not follow its prompt in one "
            "sequence; give a causal language model"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) or kinds & {
        "sliding_attention",
        "chunked_attention",
    }:
        raise ValueError(
            f"{name!r} attends through a sliding window (config.sliding_window is "
            f"{getattr(config, 'sliding_window', None)!r}), so that chunks go out of sight; give "
            "a model with full attention"
        )
    if kinds != {"full_attention"} or not model._can_set_attn_implementation():
        raise ValueError(
            f"the attention of {name!r} ({type(model).__name__}) cannot be seen: not all its "
            "layers call the attention function that transformers lets one set; give a model such "
            "as Llama, Qwen, Mistral or GPT-2"
        )


def _check_token_by_token(settings: GenerationConfig, own: GenerationConfig) -> None:
    """Raise ValueError for settings that do not read one token of one sequence a call."""
    for name, plain in _ONE_TOKEN_A_CALL.items():
        value = getattr(settings, name, None)
        value = getattr(own, name, None) if value is None else value  # as generate() fills it up
        if value is not None and value != plain:
            raise ValueError(
                f"generation.{name} is {value!r}, but attention is read of one sequence, token by "
                "token, until one of eos_token_id; leave it out of generation and the model's "
                "generation_config"
            )


_ONE_TOKEN_A_CALL = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "guidance_scale"), 1),
    **dict.fromkeys(("constraints", "force_words_ids", "penalty_alpha", "dola_layers")),
    **dict.fromkeys(("prompt_lookup_num_tokens", "assistant_early_exit", "prefill_chunk_size")),
    **dict.fromkeys(("stop_strings", "token_healing", "use_mtp"), False),
}


def _padded_left(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask, (B, P), padded on the left so that all prompts end together."""
    longest = max(map(len, ids))
    padded = torch.tensor([[0] * (longest - len(row)) + list(row) for row in ids])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    return padded.to(device), mask.to(device)


def _until(tokens: list[int], ending: set[int]) -> list[int]:
    end = next((i for i, token in enumerate(tokens) if token in ending), len(tokens))
    return tokens[:end]


# --- inside the attention call --------------------------------------------------------------------

NAME = "conformal_retrievers_lookback"
_RECORDER: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)
# Which attention function is called is a setting of a whole model.
_LOCKS: WeakKeyDictionary[PreTrainedModel, threading.Lock] = WeakKeyDictionary()


class _Recorder:
    """Collects, call by call, the attention of new tokens to segments, (B, H, rows, S)."""

    def __init__(self, tokens: Sequence[_Tokens], prompt: int, *, last_row_alone: bool) -> None:
        n_segments = max(len(one.lengths) for one in tokens)
        member = torch.zeros(len(tokens), prompt, n_segments)
        for i, one in enumerate(tokens):
            places = torch.arange(prompt - len(one.ids), prompt)
            lengths = torch.tensor(one.lengths[one.segments], dtype=torch.float32)
            member[i, places, torch.tensor(one.segments)] = 1 / lengths
        self.member = member
        self.prompt = prompt
        self.last_row_alone = last_row_alone
        self.records: dict[int, list[Tensor]] = {}

    def record(
        self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float
    ) -> None:
        """Reduce one attention call: queries (B, H, Q, d), keys (B, G, P + output, d).

        Raises ValueError where they are not those of the whole prompt, or then of one more token.
        """
        seen = self.records.setdefault(layer, [])
        read = (query.shape[0], query.shape[2], key.shape[2])
        rows = (1 if seen else self.prompt) if self.last_row_alone else read[2]
        keys = self.prompt + len(seen) if self.last_row_alone else read[2]
        if read != (len(self.member), rows, keys):
            raise ValueError(
                f"layer {layer} read (sequences, tokens, tokens so far) {read}, where "
                f"{(len(self.member), rows, keys)} were expected: this model or its generation "
                "settings do not read one token of each sequence a call"
            )
        if self.member.device != query.device:
            self.member = self.member.to(query.device)
        n_keys, n_queries = key.shape[2], query.shape[2]
        first = n_queries - 1 if self.last_row_alone else self.prompt - 1
        block = max(1, BLOCK // (query.shape[0] * query.shape[1] * n_keys))
        parts = [
            self._reduced(query, key, mask, scaling, slice(start, min(start + block, n_queries)))
            for start in range(first, n_queries, block)
        ]
        seen.append(torch.cat(parts, dim=2))

    def _reduced(
        self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, rows: slice
    ) -> Tensor:
        batch, heads, _, size = query.shape
        groups, n_keys = key.shape[1], key.shape[2]
        q = query[:, :, rows]
        n_rows = q.shape[2]
        # Heads that share keys become rows of one product: keys are not repeated.
        scores = q.reshape(batch, groups, -1, size) @ key.transpose(2, 3)
        scores = scores.view(batch, heads, n_rows, n_keys).float() * scaling
        # Keys of the sequence that each row has behind it: queries are the last of the keys.
        ahead = n_keys - query.shape[2] + 1 + torch.arange(rows.start, rows.stop)
        if mask is not None:
            of_rows = mask[:, :, rows, :n_keys]
            if of_rows.dtype == torch.bool:
                scores = scores.masked_fill(~of_rows, float("-inf"))
            else:
                scores = scores + of_rows
        elif int(ahead[0]) < n_keys:
            future = torch.arange(n_keys) >= ahead[:, None]
            scores = scores.masked_fill(future.to(scores.device), float("-inf"))
        weights = scores.softmax(dim=-1)
        before = weights[..., : self.prompt]
        flat = before.reshape(batch, heads * n_rows, self.prompt) @ self.member
        output = weights[..., self.prompt :].sum(dim=-1, keepdim=True)
        lengths = (ahead - self.prompt).clamp(min=1).to(output)
        return torch.cat([flat.view(batch, heads, n_rows, -1), output / lengths[:, None]], dim=-1)

    def means(self, layers: int, calls: int) -> NDArray[np.float32]:
        """Return what was recorded, (B, T, L, H, S)."""
        found = {layer: len(records) for layer, records in self.records.items()}
        if found != dict.fromkeys(range(layers), calls):
            raise ValueError(
                f"the attention of {len(found)} of {layers} layers was seen, {found} times, where "
                f"{calls} calls were expected: this model does not run its attention once a layer"
            )
        whole = [torch.cat(self.records[layer], dim=2).cpu() for layer in range(layers)]
        return np.asarray(torch.stack(whole, dim=1).permute(0, 3, 1, 2, 4).numpy())


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as PyTorch does, and let the recorder of this thread see it, if there is one."""
    recorder = _RECORDER.get()
    if recorder is not None:
        other = [n for n in ("softcap", "s_aux", "position_bias") if kwargs.get(n) is not None]
        if other:
            raise ValueError(
                f"{type(module).__name__} changes its attention weights by {other[0]}, so that "
                "they are no plain softmax; give a model without"
            )
        if kwargs.get("is_causal") is False or not getattr(module, "is_causal", True):
            raise ValueError(
                f"{type(module).__name__} also looks at what comes after a token; give a causal "
                "language model"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        layer: int = module.layer_idx  # type: ignore[assignment]
        recorder.record(layer, query, key, attention_mask, scale)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
