"""Relevance of claims: algorithm 1 against its definition, real embeddings, and LLMs' numbers."""

from __future__ import annotations

import asyncio
import json
import math

import numpy as np
import pytest
from claims_server import llm_at, model
from frameworks import MiniLMEmbeddings, cosine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cosine as cosine_distance

from conformal_retrievers import (
    LLM,
    Agreement,
    ClaimRelevance,
    EmbeddingScorer,
    SelfConfidence,
    Snippet,
    claim_relevance,
)
from conformal_retrievers.llm.ask import Prompt, Reply, Unanswered
from langchain_conformal import embedding_scorer

NUMBERS = st.integers(-4, 4).map(float)


def by_definition(query, claims, documents):
    """Algorithm 1 as it is printed, one pair after the other."""
    return [
        max(
            [
                0.0,
                *((1 - cosine_distance(query, d)) * (1 - cosine_distance(c, d)) for d in documents),
            ]
        )
        for c in claims
    ]


def vectors(n):
    nonzero = arrays(np.float64, (n, 4), elements=NUMBERS)
    return nonzero.filter(lambda rows: (rows != 0).any(axis=1).all())


@given(vectors(1), vectors(3), vectors(5))
def test_relevance_is_algorithm_1(query, claims, documents):
    measured = claim_relevance(query[0], claims, documents)
    assert measured == pytest.approx(by_definition(query[0], claims, documents), abs=1e-12)


def test_relevance_by_hand():
    relevance = claim_relevance([1, 0], [[3, 4], [0, 1], [-1, 0], [0, 0]], [[2, 0], [1, 1]])
    # cos(query, d) is 1 and √½; cos(c, d) is .6 and 1.4 √½, 0 and √½, −1 and −√½.
    assert relevance[:3] == pytest.approx([0.7, 0.5, 0.0])
    assert math.isnan(relevance[3])


def test_two_negative_cosines_make_a_positive_product_as_printed():
    assert claim_relevance([1, 0], [[1, 0]], [[-1, 0]]) == pytest.approx([1.0])


def test_without_documents_or_with_blank_ones_alone_nothing_is_supported():
    assert claim_relevance([1, 0], [[1, 0]], []).tolist() == [0.0]
    assert claim_relevance([1, 0], [[1, 0]], [[0, 0], [math.nan, 1]]).tolist() == [0.0]
    assert claim_relevance([1, 0], np.empty((0, 2)), [[1, 0]]).tolist() == []
    assert claim_relevance([1, 0], [], [[1, 0]]).tolist() == []


@pytest.mark.parametrize(
    ("query", "claims", "documents"),
    [([[1, 0]], [[1, 0]], [[1, 0]]), ([1, 0], [1, 0], [[1, 0]]), ([1, 0], [[1, 0]], [[1]])],
)
def test_vectors_of_other_shapes_are_refused(query, claims, documents):
    with pytest.raises(ValueError, match="give vectors of one length"):
        claim_relevance(query, claims, documents)


def test_what_has_no_direction_cannot_be_scored():
    assert np.isnan(claim_relevance([0, 0], [[1, 0]], [[1, 0]])).all()
    scores = claim_relevance(
        [1, 0], [[math.nan, 0], [math.inf, 0], [1, 0]], [[1, 0], [math.inf, 0]]
    )
    assert np.isnan(scores[:2]).all()
    assert scores[2] == 1
    both = [[math.inf, math.inf], [math.inf, 1]]  # of which each product with (1, −1) is NaN
    assert np.isnan(claim_relevance([1, 0], both, [[1, -1]])).all()


@pytest.mark.parametrize(("dtype", "far"), [(np.float32, 25), (np.float64, 200)])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_too_long_or_too_short_to_be_squared_has_no_direction(dtype, far, sign):
    one, other = np.array([[3, 4]], dtype), np.array([[3, 4]], dtype) * dtype(10.0 ** (sign * far))
    assert np.isnan(claim_relevance(one[0], other, one)).all()
    assert np.isnan(claim_relevance(other[0], one, one)).all()
    assert claim_relevance(one[0], one, other).tolist() == [0.0]
    half = np.array([[3, 4]], dtype) * dtype(10.0 ** (sign * far * 0.6))  # the square has a number
    assert claim_relevance(half[0], half, half) == pytest.approx([1.0])


def test_relevance_of_float32_is_that_of_float64_within_a_millionth(rng):
    query, claims, documents = (rng.normal(0.3, 1, size=(n, 384)) for n in (1, 50, 20))
    short = [v.astype(np.float32) for v in (query[0], claims, documents)]
    expected = claim_relevance(*(v.astype(np.float64) for v in short))
    relevance = claim_relevance(*short)
    assert relevance.dtype == np.float64
    assert relevance == pytest.approx(expected, abs=1e-6)
    assert (relevance != expected).any()  # multiplied as float32
    mixed = claim_relevance(query[0], *short[1:])
    assert mixed == pytest.approx(claim_relevance(query[0], claims, documents), abs=1e-6)


# --- embeddings -----------------------------------------------------------------------------------

QUERY = "How soon can Tylenol be taken after a drink?"
CLAIMS = ["Wait some hours after a drink before taking Tylenol.", " ", "Paris is in France."]
DOCUMENTS = [
    Snippet("Acetaminophen should not be taken within hours of drinking alcohol."),
    Snippet("  "),
    Snippet("Tylenol is a brand of acetaminophen."),
]


async def test_minilm_ranks_the_claim_that_the_documents_support_first():
    told = [document.text for document in DOCUMENTS if document.text.strip()]
    expected = [
        max(0.0, *(cosine(QUERY, d) * cosine(c, d) for d in told)) for c in (CLAIMS[0], CLAIMS[2])
    ]
    scorer = ClaimRelevance(embedding_scorer(MiniLMEmbeddings()))
    relevance = scorer.relevance(QUERY, CLAIMS, DOCUMENTS)
    assert relevance[[0, 2]] == pytest.approx(expected)
    assert relevance[0] > 0.3 > relevance[2]
    assert math.isnan(relevance[1])
    assert scorer.name == "claim_relevance(cosine(all-MiniLM-L6-v2))"
    plain = scorer.relevance(QUERY, CLAIMS, [document.text for document in DOCUMENTS])
    assert plain.tolist()[::2] == relevance.tolist()[::2]
    awaited = await scorer.arelevance(QUERY, CLAIMS, DOCUMENTS)
    assert awaited.tolist()[::2] == relevance.tolist()[::2]


async def test_one_function_embeds_query_claims_and_documents_in_one_batch():
    batches = []

    def embed(texts):
        batches.append(texts)
        return [[len(text), 1.0] for text in texts]

    async def aembed(texts):
        await asyncio.sleep(0)
        return embed(texts)

    for scorer in (
        ClaimRelevance(EmbeddingScorer(embed, "length")),
        ClaimRelevance(EmbeddingScorer(embed, "length", aembed=aembed)),
    ):
        one = scorer.relevance(QUERY, CLAIMS, DOCUMENTS)
        other = await scorer.arelevance(QUERY, CLAIMS, DOCUMENTS)
        assert one.tolist()[::2] == other.tolist()[::2]
    texts = [QUERY, CLAIMS[0], CLAIMS[2], DOCUMENTS[0].text, DOCUMENTS[2].text]
    assert batches == [texts] * 4
    for n in (1, 4, 6):  # a document whose vector is lost would be one that supports nothing
        short = ClaimRelevance(EmbeddingScorer(lambda texts, n=n: [[1.0]] * n, "short"))
        with pytest.raises(ValueError, match=r"'short' returned vectors of shape \(., 1\)"):
            short.relevance(QUERY, CLAIMS, DOCUMENTS)


# --- an LLM's own numbers -------------------------------------------------------------------------


async def test_self_confidence_asks_for_all_claims_at_once(llm_server):
    llm_server.reply = model(cosine)
    scorer = SelfConfidence(llm_at(llm_server.url))
    claims = [CLAIMS[0], CLAIMS[2]]
    confidence = scorer.relevance(QUERY, claims, DOCUMENTS)
    assert confidence.tolist() == [round(cosine(QUERY, claim), 1) for claim in claims]
    assert (await scorer.arelevance(QUERY, claims, [])).tolist() == confidence.tolist()
    assert len(llm_server.bodies) == 2
    assert "Acetaminophen" not in str(llm_server.bodies)  # the model's own knowledge alone
    assert scorer.relevance(QUERY, [], []).tolist() == []
    assert scorer.name == f"self_confidence(m, prompt={scorer.prompt.hash})"


def saying(*replies):
    """An LLM that says these things in turn; None is no reply."""
    left = list(replies)

    def complete(request):
        said = left.pop(0)
        if said is None:
            raise Unanswered("busy")
        return said if isinstance(said, Reply) else Reply(json.dumps(said))

    return LLM(complete, "script")


def entries(name, *numbers):
    return {"claims": [{"id": i, name: n} for i, n in enumerate(numbers, start=1)]}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (entries("confidence", 0.9, 0), [0.9, 0]),
        (entries("confidence", 1.5, 0.2), [None, 0.2]),
        (entries("confidence", True, "0.2"), [None, None]),
        (entries("confidence", 0.9), [0.9, None]),
        ({"claims": [{"id": 1, "confidence": 0.9}, {"id": 1, "confidence": 0.8}]}, [None, None]),
        ({"claims": [{"id": 0, "confidence": 0.9}, {"id": 1, "confidence": 0.8}]}, [None, None]),
        ({"claims": [0.9, 0.8]}, [None, None]),
        ({"other": []}, [None, None]),
        (Reply("quite sure"), [None, None]),
        (Reply(json.dumps(entries("confidence", 0.9, 0.8)), "length"), [None, None]),
        (Reply("I cannot", "refusal"), [None, None]),
        (None, [None, None]),
    ],
)
def test_a_confidence_that_cannot_be_read_is_none(reply, expected):
    confidence = SelfConfidence(saying(reply)).relevance("q", ["a", "b"], [])
    assert [None if math.isnan(c) else c for c in confidence] == expected


def test_agreement_is_the_mean_over_other_answers(llm_server):
    llm_server.reply = model(cosine)
    texts = ["Yes. It is red.", "It is red.", "It is blue.", "It is red, or so."]
    scorer = Agreement(llm_at(llm_server.url), lambda query: texts, "four texts")
    assert scorer.relevance("q", ["It is red.", "It is blue."], []).tolist() == [0.5, 0.25]
    assert scorer.name.endswith("drawn=four texts)")


def test_an_answer_that_was_not_told_of_does_not_count():
    replies = [entries("agreement", 1, -1), None, entries("agreement", 0, 7)]
    scorer = Agreement(saying(*replies), lambda query: "abc", "letters", concurrency=1)
    assert scorer.relevance("q", ["x", "y"], []).tolist() == [0.5, -1]
    unheard = Agreement(saying(None), lambda query: "a", "letters").relevance("q", ["x"], [])
    assert np.isnan(unheard).all()
    assert np.isnan(Agreement(saying(), lambda query: "", "none").relevance("q", ["x"], [])).all()


@pytest.mark.parametrize("scorer", [SelfConfidence, lambda llm, p: Agreement(llm, str, "d", p)])
def test_a_prompt_with_other_fields_is_refused(scorer):
    with pytest.raises(ValueError, match=r"the prompt has the fields \['claim'\]; write \$query"):
        scorer(saying(), Prompt("system", "$claim"))
