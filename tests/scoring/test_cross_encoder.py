"""Cross-encoders: the real class on a small model of random weights, and LangChain's interface."""

from __future__ import annotations

import math

import numpy as np
import pytest
from langchain_community.cross_encoders.base import BaseCrossEncoder

from conformal_retrievers import (
    ConformalFilter,
    CrossEncoderScorer,
    JudgedQuery,
    Scorer,
    Snippet,
    calibrate,
)
from langchain_conformal import cross_encoder_scorer

QUESTION = "what is the highest mountain"


def saved_model(folder, labels):
    """Write a BERT of two layers with seeded random weights, and its words, to a folder."""
    import torch
    from conftest import TOY_CORPUS
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = sorted({word for text in TOY_CORPUS.values() for word in text.lower().split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=1.0,
        num_labels=labels,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("models") / "bert", labels=1)


@pytest.fixture(scope="module")
def model(folder):
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


@pytest.fixture
def snippets(toy_corpus):
    return [Snippet(text) for text in toy_corpus.values()]


def logits_of(folder, query, texts):
    """Return the logits of one pair after the other, by transformers alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    bert = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [bert(**tokenizer(query, text, return_tensors="pt")).logits.item() for text in texts]


def test_the_score_is_minus_the_logit_of_query_and_snippet(folder, model, snippets):
    scorer = CrossEncoderScorer.from_sentence_transformers(model, name="tiny")
    scores = scorer.score(QUESTION, snippets)
    logits = logits_of(folder, QUESTION, [s.text for s in snippets])
    assert np.ptp(logits) > 0.1
    np.testing.assert_allclose(scores, -np.array(logits), rtol=0, atol=1e-4)
    assert scores.dtype == np.float64
    # The model's own activation is another: what it predicts by itself is no logit.
    predicted = model.predict([(QUESTION, s.text) for s in snippets])
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(scores)), rtol=0, atol=1e-4)
    assert scorer.name == "tiny"
    assert isinstance(scorer, Scorer)


def test_a_single_snippet_is_scored_as_among_others(model, snippets):
    scorer = CrossEncoderScorer.from_sentence_transformers(model, name="tiny")
    together = scorer.score(QUESTION, snippets)
    for i, snippet in enumerate(snippets):
        alone = scorer.score(QUESTION, [snippet])
        np.testing.assert_allclose(alone, together[[i]], rtol=0, atol=1e-4)


def test_a_model_with_two_outputs_is_refused(tmp_path, snippets):
    from sentence_transformers import CrossEncoder

    two = CrossEncoder(str(saved_model(tmp_path / "two", labels=2)), device="cpu")
    scorer = CrossEncoderScorer.from_sentence_transformers(two, name="two labels")
    with pytest.raises(ValueError, match=r"'two labels' returned logits of shape \(9, 2\) for 9 p"):
        scorer.score(QUESTION, snippets)


@pytest.mark.parametrize("logits", [[1.0], [[1.0], [2.0]], 1.0, [1.0, 2.0, 3.0]])
def test_logits_that_do_not_fit_the_pairs_are_an_error(logits):
    scorer = CrossEncoderScorer(lambda pairs: logits, "odd")
    with pytest.raises(ValueError, match=r"'odd' returned logits of shape .* for 2 pairs"):
        scorer.score("q", [Snippet("a"), Snippet("b")])


def test_a_blank_snippet_cannot_be_scored_and_is_not_read():
    asked = []

    def predict(pairs):
        asked.append(pairs)
        return [float(len(text)) for _, text in pairs]

    scorer = CrossEncoderScorer(predict, "length")
    scores = scorer.score("q", [Snippet(text) for text in ("", "a", " \n", "bbb")])
    np.testing.assert_array_equal(scores, [math.nan, -1.0, math.nan, -3.0])
    assert np.isnan(scorer.score("q", [Snippet(" ")])).all()
    assert scorer.score("q", []).tolist() == []
    assert asked == [[("q", "a"), ("q", "bbb")]]


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_cannot_be_scored(logit):
    scorer = CrossEncoderScorer(lambda pairs: np.array([0.5, logit], dtype=np.float32), "odd")
    np.testing.assert_array_equal(scorer.score("q", [Snippet("a"), Snippet("b")]), [-0.5, math.nan])


# --- LangChain ------------------------------------------------------------------------------------


class SentenceTransformersCrossEncoder(BaseCrossEncoder):
    """A LangChain cross-encoder around the real model."""

    model_name = "tiny-bert"

    def __init__(self, model):
        self.model = model

    def score(self, text_pairs):
        return self.model.predict(text_pairs).tolist()


def test_a_langchain_cross_encoder_is_a_scorer(model, snippets):
    scorer = cross_encoder_scorer(SentenceTransformersCrossEncoder(model))
    assert scorer.name == "cross-encoder(tiny-bert)"
    expected = -model.predict([(QUESTION, s.text) for s in snippets])
    np.testing.assert_allclose(scorer.score(QUESTION, snippets), expected, rtol=0, atol=1e-6)


def test_a_langchain_cross_encoder_without_a_name_needs_one():
    class Nameless(BaseCrossEncoder):
        def score(self, text_pairs):
            raise AssertionError

    with pytest.raises(ValueError, match="Nameless does not tell its model's name.*name="):
        cross_encoder_scorer(Nameless())
    assert cross_encoder_scorer(Nameless(), name="mine").name == "mine"


async def test_it_filters_synchronously_and_not(model, snippets):
    scorer = cross_encoder_scorer(SentenceTransformersCrossEncoder(model))
    scores = scorer.score(QUESTION, snippets)
    relevant = scores <= np.sort(scores)[3]  # by its own lights, so that a threshold can be had
    judged = [JudgedQuery(QUESTION, snippets, relevant, id=str(i)) for i in range(9)]
    conformal = ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.5))
    filtered = conformal(QUESTION, snippets)
    awaited = await conformal.acall(QUESTION, snippets)
    assert awaited.kept.tolist() == filtered.kept.tolist()
    assert 0 < len(filtered.kept) <= 4
