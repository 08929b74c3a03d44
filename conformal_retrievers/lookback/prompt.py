"""The prompt that a local model answers, and the segment that each of its tokens belongs to.

The segments are the preamble, snippets 1 … k and the question. The tokenizer's offsets give the
place where each token ends.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.lookback.wording import say

PREAMBLE = "Answer the question from the documents alone."


@dataclass(frozen=True)
class RagPrompt:
    """A question and the snippets to answer it from, in the order in which the model reads them.

    The model reads preamble, snippets and question with a blank line between them: as one user
    message where the tokenizer has a chat template, else followed by `ending`. A template's own
    words belong to the preamble or the question; a token belongs to the segment in which it ends.
    Raises ValueError for a blank question or snippet, or no snippets.
    """

    question: str
    snippets: tuple[str, ...]
    preamble: str = PREAMBLE
    ending: str = "\n\nAnswer:"

    def __post_init__(self) -> None:
        object.__setattr__(self, "snippets", tuple(all_of(str, self.snippets, "snippets")))
        parts = {f"snippets[{i}]": snippet for i, snippet in enumerate(self.snippets)}
        for name, text in {"question": self.question, **parts}.items():
            if not text.strip():
                raise ValueError(f"{name} is {text!r:.80}, which is blank; give a text")
        if not self.snippets:
            raise ValueError("snippets is empty; give at least one snippet")


@dataclass(frozen=True, eq=False)
class PromptTokens:
    """The tokens of a prompt, and the segments that they belong to."""

    ids: list[int]  # (P,)
    segments: NDArray[np.int64]  # (P,): 0 preamble, 1 … k snippets, k + 1 question
    lengths: NDArray[np.int64]  # (k + 2,): tokens of each segment


def prompt_tokens(number: int, prompt: RagPrompt, tokenizer: Any) -> PromptTokens:
    """Return the tokens of `prompts[number]`, each in the segment in which it ends in the text.

    `tokenizer` is a fast tokenizer of transformers. Raises ValueError for a text with one of its
    special tokens, a snippet without a token of its own, or a chat template that changes the text.
    """
    text, starts, chat = _text(number, prompt, tokenizer)
    encoded = tokenizer(
        text,
        add_special_tokens=not chat,  # a chat template writes its own
        return_offsets_mapping=True,
        verbose=False,
    )
    # A special token has the offsets (0, 0): it belongs to the segment of the token before it.
    # Spaces that a tokenizer trims have the offsets (end, end).
    last = np.maximum.accumulate(np.array(encoded["offset_mapping"], dtype=np.int64)[:, 1] - 1)
    segments = np.searchsorted(starts, last, side="right")
    lengths = np.bincount(segments, minlength=len(prompt.snippets) + 2)
    without = np.flatnonzero(lengths[1:-1] == 0)
    if len(without):
        i = without[0]
        raise ValueError(say("no token", number=number, i=i, text=prompt.snippets[i]))
    return PromptTokens(encoded["input_ids"], segments, lengths)


def _text(number: int, prompt: RagPrompt, tokenizer: Any) -> tuple[str, NDArray[np.int64], bool]:
    """Return the text, the start of each snippet and of the question, and whether it is a chat."""
    texts = {"question": prompt.question, "preamble": prompt.preamble}
    texts |= {f"snippets[{i}]": snippet for i, snippet in enumerate(prompt.snippets)}
    for name, text in texts.items():
        check_plain(f"prompts[{number}].{name}", text, tokenizer)
    # Chat templates strip a message, so it must not start or end with white space.
    parts = [p for p in (prompt.preamble.strip(), *prompt.snippets, prompt.question) if p]
    parts[0], parts[-1] = parts[0].lstrip(), parts[-1].rstrip()
    body = "\n\n".join(parts)
    text, chat = body + prompt.ending, tokenizer.chat_template is not None
    if chat:
        message = [{"role": "user", "content": body}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        if text.count(body) != 1:
            raise ValueError(say("template", number=number))
    starts = text.index(body) + np.cumsum([0, *(len(part) + 2 for part in parts)])
    return text, starts[-len(prompt.snippets) - 2 : -1], chat


def check_plain(name: str, text: str, tokenizer: Any) -> None:
    """Raise ValueError for a text that has one of the tokenizer's control tokens in it."""
    added = tokenizer.added_tokens_decoder.values()
    special = {str(token) for token in added if token.special and str(token)}
    special.update(tokenizer.all_special_tokens)
    control = next((token for token in sorted(special) if token in text), None)
    if control is not None:
        raise ValueError(say("control token", name=name, control=control))
