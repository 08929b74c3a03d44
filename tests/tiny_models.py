"""Randomly initialised models of a few thousand weights, a tokenizer for them, and prompts."""

import torch
import transformers
from conftest import TOY_CORPUS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from conformal_retrievers.lookback.model import LocalModel
from conformal_retrievers.lookback.prompt import RagPrompt

VOCABULARY = 400
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "initializer_range": 0.25,  # so that attention is far from even, and heads differ
}
ARCHITECTURES = ["llama", "mistral", "gpt2"]

CORPUS = [
    "Answer the question from the documents alone.\n\nWait six hours after the last drink.",
    "Tylenol and alcohol strain the liver.\n\nMount Everest is the highest mountain on Earth.",
    "How long to wait?\n\nAnswer: six hours",
]
PROMPTS = [
    RagPrompt(
        "How long to wait?",
        ("Wait six hours after the last drink.", "Tylenol and alcohol strain the liver."),
    ),
    RagPrompt("Why?", ("Everest.", "Bread rises — 3 € at the café 😀.", "K2")),
    RagPrompt("What is the highest mountain?", ("Everest is.",), preamble=""),
    RagPrompt(
        "Which?", ("one", "two two", "three three three", "four"), preamble="Be brief, be exact."
    ),
]


def byte_of_character() -> dict[str, int]:
    """GPT-2's table: the byte that each character of a byte-level token stands for."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def byte_level(special: list[str], *, space: bool = False) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have: every byte a character; `space` puts one in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def bpe_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE: any text comes back from its tokens, and a token may join words' ends."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(["<s>", "</s>"]),
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def word_tokenizer(words: list[str]) -> transformers.PreTrainedTokenizerFast:
    """A word is a token, white space none."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def tiny(architecture: str, **config) -> torch.nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(architecture, **{**SHAPE, **config})
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    model.generation_config.eos_token_id = None  # answers are as long as they may be
    return model


def local(architecture: str, **config) -> LocalModel:
    return LocalModel(tiny(architecture, **config), bpe_tokenizer(), name=architecture)


def saved_cross_encoder(folder, labels):
    """Write a BERT of two layers with seeded random weights, and its words, to a folder."""
    words = sorted({word for text in TOY_CORPUS.values() for word in text.lower().split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=1.0,
        num_labels=labels,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder
