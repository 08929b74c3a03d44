"""Segments of a prompt in tokens, by tokenizers of every family, held against the tokens' bytes."""

import re

import numpy as np
import pytest
from tiny_models import CORPUS, byte_level, byte_of_character
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from conformal_retrievers.lookback.prompt import RagPrompt, prompt_tokens

pytestmark = pytest.mark.slow

PROMPTS = [
    RagPrompt("How long to wait?", ("Wait six hours 😀", "😀👩‍👩‍👧 x", "😀", "é"), "Be brief."),
    RagPrompt("a", ("a", "a a", "aa", "a", "a\n\na"), "a"),
    RagPrompt("ﬁn ½?", ("①ﬁ ½  \n\n x", "  lead", "\n\nnl\n\n"), ""),
    RagPrompt("Wait", ("Wait six hours after the last drink.", "hours after", "Wait"), "Wait"),
]
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def trimming(*, space, trim):
    """Every byte a character; `trim` takes spaces off offsets."""
    tokenizer = byte_level(SPECIAL, space=space)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


def sentencepiece(*, scheme):
    """As Llama 2 and Mistral have: ▁ for a space, one more in front, bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    if scheme == "normalizer":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        begins = {"single": "<s> $A", "special_tokens": [("<s>", 1)]}
        tokenizer.post_processor = processors.TemplateProcessing(**begins)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokens = [*SPECIAL, *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


TOKENIZERS = {
    "byte-level": lambda: trimming(space=False, trim=False),
    "byte-level, trimmed": lambda: trimming(space=False, trim=True),
    "byte-level, a space in front": lambda: trimming(space=True, trim=False),
    "byte-level, a space in front, trimmed": lambda: trimming(space=True, trim=True),
    "sentencepiece": lambda: sentencepiece(scheme="always"),
    "sentencepiece, first": lambda: sentencepiece(scheme="first"),
    "sentencepiece, legacy": lambda: sentencepiece(scheme="normalizer"),
}


def bytes_of(token):
    """What a token stands for, of either family."""
    if token in SPECIAL:
        return b""
    if token in BYTES:
        return bytes([int(token[1:-1], 16)])
    if re.search("[▁\n ]", token) or not set(token) <= set(pre_tokenizers.ByteLevel.alphabet()):
        return token.replace("▁", " ").encode()
    return bytes(byte_of_character()[character] for character in token)


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("family", TOKENIZERS)
def test_a_token_is_of_the_segment_in_which_its_last_byte_is(family, chat):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[family](), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    before, after = "", "\n\nAnswer:"
    if chat:
        before, after = "[INST] ", " [/INST]"
        tokenizer.chat_template = "[INST] {{ messages[0]['content'] | trim }} [/INST]"
    for prompt in PROMPTS:
        preamble = prompt.preamble and prompt.preamble + "\n\n"
        snippets = [*prompt.snippets]
        if not preamble:
            snippets[0] = snippets[0].lstrip()
        inside = [snippet + "\n\n" for snippet in snippets]
        texts = [before + preamble, *inside, prompt.question + after]
        found = prompt_tokens(0, prompt, tokenizer)
        pieces = [bytes_of(token) for token in tokenizer.convert_ids_to_tokens(found.ids)]
        text = "".join(texts).encode()
        in_front = len(b"".join(pieces)) - len(text)
        assert b"".join(pieces) == b" " * in_front + text  # the oracle reads all
        assert in_front <= 1
        ends = np.cumsum([len(part.encode()) for part in texts])
        places = np.cumsum([len(piece) for piece in pieces]) - in_front - 1
        expected = np.searchsorted(ends, places, side="right")
        in_text = places >= 0  # what stands in front of the text goes with how it starts
        np.testing.assert_array_equal(found.segments[in_text], expected[in_text])
        assert (found.segments[~in_text] <= (0 if preamble else 1)).all()
        counts = np.bincount(found.segments, minlength=len(texts))
        np.testing.assert_array_equal(found.lengths, counts)


def test_padding_that_a_tokenizer_adds_is_left_out():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS["byte-level"](), bos_token="<s>", pad_token="</s>"
    )
    plain = prompt_tokens(0, PROMPTS[0], tokenizer)
    for side in ("left", "right"):
        tokenizer.padding_side = side
        tokenizer.backend_tokenizer.enable_padding(direction=side, length=500)
        assert prompt_tokens(0, PROMPTS[0], tokenizer).ids == plain.ids
