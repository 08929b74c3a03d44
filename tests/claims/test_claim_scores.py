"""Relevance of claims: algorithm 1 against its definition, real embeddings, and its files."""

import asyncio
import math

import numpy as np
import pytest
from frameworks import MiniLMEmbeddings, cosine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cosine as cosine_distance

from conformal_retrievers import EmbeddingScorer, Snippet
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    ClaimRelevance,
    claim_relevance,
    read_answers,
    write_answers,
)
from langchain_conformal import embedding_scorer

NUMBERS = st.integers(-4, 4).map(float)


def by_definition(query, claims, documents):
    """Algorithm 1 as it is printed, one pair after the other."""

    def relevance(claim):
        pairs = ((cosine_distance(query, d), cosine_distance(claim, d)) for d in documents)
        return max(0.0, *((1 - q) * (1 - c) for q, c in pairs))

    return [relevance(claim) for claim in claims]


def vectors(n):
    nonzero = arrays(np.float64, (n, 4), elements=NUMBERS)
    return nonzero.filter(lambda rows: (rows != 0).any(axis=1).all())


@given(vectors(1), vectors(3), vectors(5))
def test_relevance_is_algorithm_1(query, claims, documents):
    measured = claim_relevance(query[0], claims, documents)
    assert measured == pytest.approx(by_definition(query[0], claims, documents), abs=1e-12)


def test_what_has_no_direction_supports_nothing_and_cannot_be_scored():
    assert claim_relevance([1, 0], [[1, 0]], []).tolist() == [0.0]
    assert claim_relevance([1, 0], [[1, 0]], [[0, 0], [math.nan, 1]]).tolist() == [0.0]
    assert claim_relevance([1, 0], [], [[1, 0]]).tolist() == []
    assert np.isnan(claim_relevance([0, 0], [[1, 0]], [[1, 0]])).all()
    claims = [[math.nan, 0], [math.inf, 0], [1, 0]]
    scores = claim_relevance([1, 0], claims, [[1, 0], [math.inf, 0]])
    assert np.isnan(scores[:2]).all()
    assert scores[2] == 1
    # Of these each product with (1, −1) is NaN.
    assert np.isnan(claim_relevance([1, 0], [[math.inf, math.inf], [math.inf, 1]], [[1, -1]])).all()


@pytest.mark.parametrize("far", [200, -200])
def test_what_is_too_long_or_too_short_to_be_squared_has_no_direction(far):
    one, other = np.array([[3, 4]], np.float32), np.array([[3.0, 4.0]]) * 10.0**far
    assert np.isnan(claim_relevance(one[0], other, one)).all()
    assert np.isnan(claim_relevance(other[0], one, one)).all()
    assert claim_relevance(one[0], one, other).tolist() == [0.0]
    half = np.array([[3, 4]]) * 10.0 ** (0.6 * far)  # the square has a number
    assert claim_relevance(half[0], half, half) == pytest.approx([1.0])


# --- embeddings -----------------------------------------------------------------------------------

QUERY = "How soon can Tylenol be taken after a drink?"
CLAIMS = ["Wait some hours after a drink before taking Tylenol.", " ", "Paris is in France."]
DOCUMENTS = [
    Snippet("Acetaminophen should not be taken within hours of drinking alcohol."),
    Snippet("  "),
    Snippet("Tylenol is a brand of acetaminophen."),
]


async def test_the_claim_that_the_documents_support_ranks_first():
    told = [document.text for document in DOCUMENTS if document.text.strip()]
    claims = (CLAIMS[0], CLAIMS[2])
    expected = [max(0.0, *(cosine(QUERY, d) * cosine(c, d) for d in told)) for c in claims]
    scorer = ClaimRelevance(embedding_scorer(MiniLMEmbeddings()))
    relevance = scorer.relevance(QUERY, CLAIMS, DOCUMENTS)
    assert relevance[[0, 2]] == pytest.approx(expected)
    assert relevance[0] > relevance[2]
    assert math.isnan(relevance[1])
    assert scorer.name == "claim_relevance(cosine(all-MiniLM-L6-v2))"
    awaited = await scorer.arelevance(QUERY, CLAIMS, [document.text for document in DOCUMENTS])
    assert awaited.tolist()[::2] == relevance.tolist()[::2]


async def test_one_function_embeds_query_claims_and_documents_in_one_batch():
    batches = []

    def embed(texts):
        batches.append(texts)
        return [[len(text), 1.0] for text in texts]

    async def aembed(texts):
        await asyncio.sleep(0)
        return embed(texts)

    for asynchronous in (None, aembed):
        scorer = ClaimRelevance(EmbeddingScorer(embed, "length", aembed=asynchronous))
        one = scorer.relevance(QUERY, CLAIMS, DOCUMENTS)
        assert [*one[::2]] == [*(await scorer.arelevance(QUERY, CLAIMS, DOCUMENTS))[::2]]
    texts = [QUERY, CLAIMS[0], CLAIMS[2], DOCUMENTS[0].text, DOCUMENTS[2].text]
    assert batches == [texts] * 4
    for n in (1, 4, 6):  # a document whose vector is lost would be one that supports nothing
        short = ClaimRelevance(EmbeddingScorer(lambda texts, n=n: [[1.0]] * n, "short"))
        with pytest.raises(ValueError, match="'short'"):
            short.relevance(QUERY, CLAIMS, DOCUMENTS)


# --- files of annotated answers -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz"])
def test_answers_are_read_as_they_were_written(tmp_path, name):
    first = AnnotatedAnswer([0.1, math.nan], [True, None], id="q", group="x")
    answers = [first, AnnotatedAnswer([], [])]
    write_answers(answers, tmp_path / name)
    for one, again in zip(answers, read_answers(tmp_path / name), strict=True):
        np.testing.assert_array_equal(again.relevance, one.relevance)
        assert (again.factual, again.id, again.group) == (one.factual, one.id, one.group)
    with pytest.raises(ValueError, match=r"answers\[0\] has an infinite relevance"):
        write_answers([AnnotatedAnswer([math.inf], [True], id="inf")], tmp_path / name)
    assert len(read_answers(tmp_path / name)) == 2


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"id": "q"}', "claims"),
        ('{"claims": [{"relevance": "high", "factual": true}]}', r"claims\.0\.relevance"),
        ('{"claims": [{"relevance": 0.5, "factual": "S"}]}', r"claims\.0\.factual"),
        ('{"claims": [{"relevance": NaN, "factual": true}]}', ""),
        ('{"claims": [], "topic": "x"}', "topic"),
        ('{"claims": [{"relevance": 0.5, "factual": true, "factual": false}]}', "factual"),
        (f'{{"claims": [{{"relevance": {10**400}, "factual": true}}]}}', "relevance"),
        ('{"claims": [], "group": "\\u001b[2J"}', "group"),
        ('{"claims": [], "id": "\\ud800"}', "id"),
        ("{", ""),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, field):
    (tmp_path / "bad.jsonl").write_text('{"claims": []}\n' + line)
    with pytest.raises(ValueError, match=rf"bad.jsonl, line 2.*{field}"):
        read_answers(tmp_path / "bad.jsonl")
