"""The prompt that a local model answers, and which of its tokens belong to which segment.

The segments are the preamble, snippet 1 … k and the question. Where each starts in the text is
known from building it, and the tokenizer's offsets say where each token ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PREAMBLE = "Answer the question from the documents alone."


@dataclass(frozen=True)
class RagPrompt:
    """A question and the snippets that shall answer it, in the order in which the model reads them.

    The model reads preamble, snippets and question, a blank line between them; where the tokenizer
    has a chat template, as one message of the user, else with `ending` behind. A segment reaches to
    the start of the next, so the template's own words count to the preamble and the question, and
    a token to the segment in which it ends. Raises TypeError for what is no text, ValueError where
    there is no snippet, or one or the question is blank.
    """

    question: str
    snippets: tuple[str, ...]
    preamble: str = PREAMBLE
    ending: str = "\n\nAnswer:"

    def __post_init__(self) -> None:
        if isinstance(self.snippets, str):
            raise TypeError(f"snippets is the str {self.snippets!r:.60}; give a sequence of texts")
        object.__setattr__(self, "snippets", tuple(self.snippets))
        parts = [("preamble", self.preamble), ("ending", self.ending), ("question", self.question)]
        parts += [(f"snippets[{i}]", snippet) for i, snippet in enumerate(self.snippets)]
        for name, text in parts:
            if not isinstance(text, str):
                raise TypeError(f"{name} is {text!r:.60}; give its text as a str")
            if name not in ("preamble", "ending") and not text.strip():
                raise ValueError(f"{name} is {text!r}, which is blank; give its text")
        if not self.snippets:
            raise ValueError("snippets is empty; give the snippets that shall answer the question")


@dataclass(frozen=True, eq=False)
class PromptTokens:
    """The token ids of a prompt, (P,), and the segment of each: 0 preamble, 1 … k, k + 1."""

    ids: list[int]
    segments: NDArray[np.int64]
    lengths: NDArray[np.int64]


def prompt_tokens(
    number: int, prompt: RagPrompt, tokenizer: PreTrainedTokenizerBase
) -> PromptTokens:
    """Return the tokens of `prompts[number]`, each in the segment in which it ends in the text.

    Raises ValueError for a text with a special token of the tokenizer, a snippet that has no token
    of its own, and a chat template that changes the message.
    """
    text, starts, chat = _text(number, prompt, tokenizer)
    encoded = tokenizer(
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
    lengths = np.bincount(segments, minlength=len(prompt.snippets) + 2)
    without = np.flatnonzero(lengths[1:-1] == 0)
    if len(without):
        raise ValueError(
            f"prompts[{number}].snippets[{without[0]}] is {prompt.snippets[without[0]]!r:.60}, "
            "which has no token of its own; leave it out"
        )
    return PromptTokens(encoded["input_ids"], segments, lengths)


def _text(
    number: int, prompt: RagPrompt, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, list[int], bool]:
    """Return the text, where each snippet and the question start in it, and if it is a chat's."""
    for name, said in (
        ("question", prompt.question),
        ("preamble", prompt.preamble),
        *((f"snippets[{i}]", snippet) for i, snippet in enumerate(prompt.snippets)),
    ):
        check_plain(f"prompts[{number}].{name}", said, tokenizer)
    # Chat templates strip a message, so that it starts and ends with what is no space.
    parts = [p for p in (prompt.preamble.strip(), *prompt.snippets, prompt.question) if p]
    parts[0], parts[-1] = parts[0].lstrip(), parts[-1].rstrip()
    body = "\n\n".join(parts)
    chat = tokenizer.chat_template is not None
    if chat:
        message = {"role": "user", "content": body}
        text = str(
            tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        )
        if text.count(body) != 1:
            raise ValueError(
                f"prompts[{number}]: the tokenizer's chat template does not hold the message "
                "once, as it is; give a tokenizer without one (chat_template = None)"
            )
    else:
        text = body + prompt.ending
    start, starts = text.index(body), []
    for part in reversed(parts[-len(prompt.snippets) - 1 :]):
        body = body.removesuffix(part)
        starts.append(start + len(body))
        body = body.removesuffix("\n\n")
    return text, starts[::-1], chat


def check_plain(name: str, text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError for text that the tokenizer would read as its own control tokens."""
    special = {
        str(token)
        for token in tokenizer.added_tokens_decoder.values()
        if token.special and str(token)
    } | set(tokenizer.all_special_tokens)
    found = next((token for token in sorted(special) if token in text), None)
    if found is not None:
        raise ValueError(
            f"{name} holds {found!r}, which the tokenizer reads as a control token; remove it "
            "or write it otherwise"
        )
