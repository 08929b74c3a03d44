"""Scorers: the real MiniLM by cosine, BM25 against an independent count, the retriever's number."""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from lookup import LookupScorer
from scipy.spatial.distance import cosine

from conformal_retrievers import (
    Cache,
    CachedScorer,
    Calibration,
    ConformalFilter,
    CrossEncoderScorer,
    EmbeddingScorer,
    FunctionScorer,
    JudgedQuery,
    RetrievalScorer,
    Scorer,
    Snippet,
    TieBreak,
    calibrate,
    score_queries,
)
from conformal_retrievers.extras import require
from conformal_retrievers.scoring import AsyncScorer
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.scorer import ascore_snippets

QUESTION = "How soon can Tylenol be taken after a drink?"


class Recorded:
    """A function that remembers what it was called with."""

    def __init__(self, function):
        self.function = function
        self.calls = []

    def __call__(self, argument):
        self.calls.append(argument)
        return self.function(argument)


def encoder(model):
    return Recorded(lambda texts: model.encode(texts, show_progress_bar=False))


def awaitable(function):
    async def awaited(argument):
        await asyncio.sleep(0)
        return function(argument)

    return Recorded(awaited)


@pytest.fixture
def snippets(toy_corpus):
    return [Snippet(text, id=id) for id, text in toy_corpus.items()]


# --- embeddings, with the real model --------------------------------------------------------------


def test_an_embedding_score_is_one_minus_the_cosine(minilm, snippets):
    scores = EmbeddingScorer(encoder(minilm), name="minilm").score(QUESTION, snippets)
    query = minilm.encode(QUESTION).astype(np.float64)
    expected = [cosine(query, minilm.encode(s.text).astype(np.float64)) for s in snippets]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    assert scores.shape == (len(snippets),)
    assert scores.dtype == np.float64


def test_the_model_finds_the_relevant_snippets_nearest(minilm, snippets):
    scores = EmbeddingScorer(encoder(minilm), name="minilm").score(QUESTION, snippets)
    assert {snippets[i].id for i in np.argsort(scores)[:3]} == {"acetaminophen", "liver", "dosage"}


def test_vectors_of_any_length_have_the_same_cosine(minilm, snippets):
    scores = EmbeddingScorer(encoder(minilm), name="minilm").score(QUESTION, snippets)
    longer = EmbeddingScorer(lambda texts: 7 * minilm.encode(texts), name="7 x minilm")
    np.testing.assert_allclose(longer.score(QUESTION, snippets), scores, rtol=0, atol=1e-6)


def test_query_and_snippets_are_embedded_in_one_call(minilm, snippets):
    embed = encoder(minilm)
    EmbeddingScorer(embed, name="minilm").score(QUESTION, snippets)
    assert embed.calls == [[QUESTION, *(s.text for s in snippets)]]


def test_a_blank_text_cannot_be_scored_and_is_not_embedded(minilm):
    embed = encoder(minilm)
    texts = ["", "The liver.", " \n\t", "Bread."]
    scores = EmbeddingScorer(embed, name="minilm").score("liver", [Snippet(t) for t in texts])
    assert np.isnan(scores).tolist() == [True, False, True, False]
    assert scores[1] < scores[3]
    assert embed.calls == [["liver", "The liver.", "Bread."]]


def test_a_query_can_be_embedded_in_its_own_way(minilm, snippets):
    embed = encoder(minilm)
    embed_query = Recorded(lambda query: minilm.encode(f"query: {query}"))
    scorer = EmbeddingScorer(embed, name="minilm", embed_query=embed_query)
    scores = scorer.score(QUESTION, snippets)
    expected = [
        cosine(minilm.encode(f"query: {QUESTION}"), minilm.encode(s.text)) for s in snippets
    ]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    assert embed_query.calls == [QUESTION]
    assert embed.calls == [[s.text for s in snippets]]


def test_blank_snippets_alone_are_not_embedded_at_all(minilm):
    embed, embed_query = encoder(minilm), encoder(minilm)
    scorer = EmbeddingScorer(embed, name="minilm", embed_query=embed_query)
    assert np.isnan(scorer.score("q", [Snippet(""), Snippet(" ")])).all()
    assert embed.calls == []


async def test_async_scores_are_the_sync_scores(minilm, snippets):
    embed = encoder(minilm)
    own_query = {"embed_query": lambda query: minilm.encode(f"query: {query}")}
    apart = {**own_query, "aembed_query": awaitable(own_query["embed_query"])}
    expected = EmbeddingScorer(embed, name="m").score(QUESTION, snippets)
    expected_apart = EmbeddingScorer(embed, name="m", **own_query).score(QUESTION, snippets)
    assert np.abs(expected - expected_apart).max() > 1e-3
    for options, scores in (
        ({}, expected),  # in a thread
        ({"aembed": awaitable(embed)}, expected),
        (own_query, expected_apart),
        ({"aembed": awaitable(embed), **own_query}, expected_apart),
        ({"aembed": awaitable(embed), **apart}, expected_apart),
    ):
        awaited = await EmbeddingScorer(embed, name="m", **options).ascore(QUESTION, snippets)
        np.testing.assert_allclose(awaited, scores, rtol=0, atol=1e-6)


async def test_the_async_embedder_is_the_one_that_is_awaited(minilm, snippets):
    embed = encoder(minilm)
    aembed = awaitable(minilm.encode)
    await EmbeddingScorer(embed, name="m", aembed=aembed).ascore(QUESTION, snippets)
    assert embed.calls == []
    assert aembed.calls == [[QUESTION, *(s.text for s in snippets)]]


def test_an_async_query_embedder_without_a_sync_one_is_an_error():
    with pytest.raises(ValueError, match="aembed_query is given without embed_query"):
        EmbeddingScorer(np.asarray, name="m", aembed_query=awaitable(np.asarray))


@pytest.mark.parametrize("own_query", [True, False])
async def test_embeddings_at_hand_are_reused_when_they_may_be(minilm, snippets, own_query):
    with_vectors = [
        Snippet(s.text, embedding=minilm.encode(s.text)) if i % 2 else s
        for i, s in enumerate(snippets)
    ]
    expected = EmbeddingScorer(encoder(minilm), name="m").score(QUESTION, snippets)
    embed = encoder(minilm)
    options = {"embed_query": minilm.encode} if own_query else {}
    scorer = EmbeddingScorer(embed, name="m", reuse_embeddings=True, **options)
    np.testing.assert_allclose(scorer.score(QUESTION, with_vectors), expected, rtol=0, atol=1e-5)
    sent = [s.text for s in snippets[::2]]
    assert embed.calls == [sent if own_query else [QUESTION, *sent]]
    awaited = await scorer.ascore(QUESTION, with_vectors)
    np.testing.assert_allclose(awaited, expected, rtol=0, atol=1e-5)


def test_embeddings_at_hand_are_not_used_unless_allowed(minilm, snippets):
    embed = encoder(minilm)
    wrong = [Snippet(s.text, embedding=np.ones(384)) for s in snippets]
    expected = EmbeddingScorer(embed, name="m").score(QUESTION, snippets)
    scores = EmbeddingScorer(embed, name="m").score(QUESTION, wrong)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)
    reused = EmbeddingScorer(embed, name="m", reuse_embeddings=True).score(QUESTION, wrong)
    assert np.ptp(reused) < 1e-12


def test_an_embedding_of_another_dimension_is_an_error_that_names_both(minilm):
    scorer = EmbeddingScorer(encoder(minilm), name="minilm", reuse_embeddings=True)
    snippets = [Snippet("a", embedding=[1.0, 2.0, 3.0]), Snippet("b")]
    with pytest.raises(ValueError, match=r"\(3,\).*'minilm'.*\(384,\)"):
        scorer.score("q", snippets)


def test_a_vector_without_a_direction_cannot_be_scored():
    vectors = {
        "q": [3.0, 4.0],
        "same": [6.0, 8.0],
        "opposite": [-3.0, -4.0],
        "across": [4.0, -3.0],
        "zero": [0.0, 0.0],
        "nan": [math.nan, 1.0],
        "inf": [math.inf, 1.0],
    }
    scorer = EmbeddingScorer(lambda texts: [vectors[t] for t in texts], name="table")
    texts = list(vectors)[1:]
    scores = scorer.score("q", [Snippet(text) for text in texts])
    np.testing.assert_array_equal(scores, [0.0, 2.0, 1.0, math.nan, math.nan, math.nan])
    assert np.isnan(scorer.score("zero", [Snippet("same")])).all()


@pytest.mark.parametrize("d", [1, 7, 384, 1023, 9000])
def test_a_score_does_not_depend_on_what_else_is_scored_not_even_in_its_last_bit(rng, d):
    vectors = {str(i): vector for i, vector in enumerate(rng.normal(size=(60, d)))}
    scorer = EmbeddingScorer(lambda texts: [vectors[text] for text in texts], name="table")
    snippets = [Snippet(str(i)) for i in range(1, 60)]
    together = scorer.score("0", snippets)
    alone = [scorer.score("0", [snippet])[0] for snippet in snippets]
    assert together.tolist() == alone
    assert scorer.score("0", snippets[::7]).tolist() == alone[::7]


@pytest.mark.parametrize(
    "vectors",
    [np.ones((2, 4)), np.ones((4, 4)), np.ones(3), np.ones((3, 4, 1)), [], [[1], [1, 2], [1]]],
)
def test_an_embedder_that_returns_the_wrong_number_of_vectors_is_named(vectors):
    scorer = EmbeddingScorer(lambda texts: vectors, name="broken")
    with pytest.raises(ValueError, match=r"'broken' returned \d vectors of shapes .* and 2 texts"):
        scorer.score("q", [Snippet("a"), Snippet("b")])


def test_the_whole_way_with_the_real_model(minilm, toy_judged, toy_corpus, tmp_path):
    scorer = EmbeddingScorer(encoder(minilm), name="all-MiniLM-L6-v2")
    calibration = calibrate(toy_judged, scorer, alpha=0.3)
    calibration.save(tmp_path / "calibration.json")
    loaded = Calibration.load(tmp_path / "calibration.json")
    filtered = ConformalFilter(scorer, loaded)(QUESTION, toy_corpus.values())
    kept = {list(toy_corpus)[i] for i in filtered.kept}
    assert {"acetaminophen", "liver"} <= kept
    assert not kept & {"everest", "k2", "climb", "café"}


# --- BM25 -----------------------------------------------------------------------------------------

WORD = re.compile(r"(?u)\b\w\w+\b")
STOP_WORDS = set(  # Lucene's
    WORD.findall(
        "an and are as at be but by for if in into is it no not of on or such that the their then "
        "there these they this to was will with"
    )
)


def tokens(text):
    return [w for w in WORD.findall(text.lower()) if w not in STOP_WORDS]


def lucene_bm25(query, corpus, k1=1.5, b=0.75):
    """Σ_words idf · tf / (tf + k1 (1 − b + b length / mean length)), from the formula."""
    documents = [Counter(tokens(text)) for text in corpus]
    lengths = np.array([d.total() for d in documents], dtype=float)
    total = np.zeros(len(corpus))
    for word in tokens(query):
        tf = np.array([d[word] for d in documents], dtype=float)
        df = np.count_nonzero(tf)
        idf = math.log(1 + (len(corpus) - df + 0.5) / (df + 0.5))
        total += idf * tf / (tf + k1 * (1 - b + b * lengths / lengths.mean()))
    return total


@pytest.mark.parametrize(
    "query",
    [
        QUESTION,
        "Everest",
        "the highest mountain on Earth",
        "mountain Everest mountain",  # a word counts as often as it is asked
        "MOUNT everest, yeast; sugar",
        "zürich CAFÉ",
    ],
)
def test_a_bm25_score_is_minus_lucenes_bm25(toy_corpus, query):
    corpus = [*toy_corpus.values(), "Everest Everest Everest yeast", "Everest"]
    scores = BM25Scorer(corpus).score(query, [Snippet(text) for text in corpus])
    expected = -lucene_bm25(query, corpus)
    assert np.count_nonzero(expected) > 0
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=0)
    assert scores.dtype == np.float64


def test_bm25_scores_the_snippets_that_it_is_given_in_their_order(toy_corpus):
    corpus = list(toy_corpus.values())
    scorer = BM25Scorer(corpus)
    all_of_them = scorer.score(QUESTION, [Snippet(text) for text in corpus])
    some = scorer.score(QUESTION, [Snippet(corpus[i]) for i in (5, 0, 2, 0)])
    assert some.tolist() == all_of_them[[5, 0, 2, 0]].tolist()


def test_bm25_cannot_score_a_text_outside_its_corpus_or_a_blank_one(toy_corpus):
    corpus = [*toy_corpus.values(), "   "]
    snippets = [Snippet("Tylenol elsewhere"), Snippet("   "), Snippet(""), Snippet(corpus[0])]
    scores = BM25Scorer(corpus).score(QUESTION, snippets)
    assert np.isnan(scores).tolist() == [True, True, True, False]


@pytest.mark.parametrize("query", ["astronaut", "", "the a of", "?!"])
def test_bm25_of_texts_that_share_no_word_with_the_query_is_zero(toy_corpus, query):
    scorer = BM25Scorer(toy_corpus.values())
    scores = scorer.score(query, [Snippet(text) for text in toy_corpus.values()])
    assert scores.tolist() == [0.0] * len(toy_corpus)


def test_a_word_that_the_corpus_does_not_hold_changes_no_bm25(toy_corpus):
    scorer = BM25Scorer(toy_corpus.values())
    snippets = [Snippet(text) for text in toy_corpus.values()]
    plain = scorer.score("highest mountain", snippets)
    assert scorer.score("highest astronaut mountain", snippets).tolist() == plain.tolist()


@pytest.mark.parametrize(
    "build",
    [
        BM25Scorer,
        lambda texts: CachedScorer(BM25Scorer(texts), Cache(":memory:")),
        lambda texts: TieBreak(BM25Scorer(texts), then=FunctionScorer(lengths, "length")),
        lambda texts: FunctionScorer(lengths, "length"),
        lambda texts: CrossEncoderScorer(lambda pairs: [len(text) for _, text in pairs], "length"),
        lambda texts: EmbeddingScorer(lambda t: [[1, len(text)] for text in t], name="length"),
        lambda texts: RetrievalScorer("store", higher_is_better=True),
    ],
)
async def test_plain_strings_are_scored_as_snippets(build):
    texts = ["red and blue", "green", "blue"]
    scorer = build(texts)
    as_strings = scorer.score("blue", texts)
    np.testing.assert_array_equal(as_strings, scorer.score("blue", [Snippet(t) for t in texts]))
    np.testing.assert_array_equal(as_strings, await ascore_snippets(scorer, "blue", texts))


def lengths(query, texts):
    return [len(text) for text in texts]


def test_the_name_of_a_bm25_scorer_changes_with_its_corpus(toy_corpus):
    texts = list(toy_corpus.values())
    name = BM25Scorer(texts).name
    assert name == BM25Scorer(iter(texts)).name
    assert name == BM25Scorer([*texts, texts[0]]).name  # a repeated text is one text
    assert name != BM25Scorer(texts[:-1]).name
    assert name != BM25Scorer([*texts[:-1], texts[-1] + "!"]).name
    assert "k1=1.5" in name
    assert "b=0.75" in name


@pytest.mark.parametrize("corpus", [[], ["", "  "], ["the", "of it"]])
def test_bm25_over_no_text_is_an_error(corpus):
    with pytest.raises(ValueError, match="corpus contains no words"):
        BM25Scorer(corpus)


# --- the retriever's own number -------------------------------------------------------------------


def test_a_retrievers_number_is_taken_in_the_direction_that_is_stated():
    snippets = [Snippet("a", retrieval_score=0.9), Snippet("b"), Snippet("c", retrieval_score=-2)]
    similarity = RetrievalScorer("faiss ip", higher_is_better=True)
    distance = RetrievalScorer("faiss l2", higher_is_better=False)
    np.testing.assert_array_equal(similarity.score("q", snippets), [-0.9, np.nan, 2.0])
    np.testing.assert_array_equal(distance.score("q", snippets), [0.9, np.nan, -2.0])


def test_the_direction_is_a_part_of_the_name_and_must_be_stated():
    names = {
        RetrievalScorer(retriever, higher_is_better=direction).name
        for retriever in ("faiss", "bm25")
        for direction in (True, False)
    }
    assert len(names) == 4
    assert any("faiss" in name for name in names)
    with pytest.raises(TypeError, match="higher_is_better"):
        RetrievalScorer("faiss")


# --- many queries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [False, True])
def test_judged_queries_are_scored_one_by_one(
    toy_judged, toy_corpus, progress, capsys, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich shows a bar although nobody looks
    scores = {text: float(i) for i, text in enumerate(toy_corpus.values())}
    scored = score_queries(LookupScorer(scores), iter(toy_judged), progress=progress)
    assert len(scored) == len(toy_judged)
    for query, judged in zip(scored, toy_judged, strict=True):
        assert query.scores.tolist() == [float(i) for i in range(9)]
        assert tuple(query.relevant.tolist()) == judged.relevant
        assert (query.id, query.group, query.missed) == (judged.id, judged.group, judged.missed)
    assert ("Scoring" in "".join(capsys.readouterr())) == progress


def test_what_is_known_of_a_query_goes_with_its_scores():
    judged = JudgedQuery("q", ["a", "b"], [False, True], id="q1", group="g", missed=3)
    (scored,) = score_queries(LookupScorer({"a": 0.5, "b": math.nan}), [judged])
    np.testing.assert_array_equal(scored.scores, [0.5, np.nan])
    assert scored.relevant.tolist() == [False, True]
    assert (scored.id, scored.group, scored.missed) == ("q1", "g", 3)


def test_a_query_that_retrieved_nothing_is_not_sent_to_the_scorer():
    (scored,) = score_queries(LookupScorer({}), [JudgedQuery("q", [], [], missed=2)])
    assert scored.scores.shape == (0,)
    assert scored.missed == 2


def test_each_query_is_one_call_of_the_model(minilm, toy_judged):
    embed = encoder(minilm)
    score_queries(EmbeddingScorer(embed, name="minilm"), toy_judged)
    assert [call[0] for call in embed.calls] == [query.query for query in toy_judged]


def test_a_missing_extra_is_an_error_that_says_how_to_install_it():
    with pytest.raises(ModuleNotFoundError, match=r"no_such.*'conformal-retrievers\[cli\]'"):
        require("cli", "json", "no_such_module")
    assert require("cli", "json") is None


# --- what a scorer is -----------------------------------------------------------------------------


def test_anything_with_a_name_and_a_score_is_a_scorer(toy_corpus):
    embedding = EmbeddingScorer(np.asarray, name="m")
    retrieval = RetrievalScorer("faiss", higher_is_better=True)
    for scorer in (embedding, retrieval, BM25Scorer(toy_corpus.values()), LookupScorer({})):
        assert isinstance(scorer, Scorer)
    assert isinstance(embedding, AsyncScorer)
    assert not isinstance(retrieval, AsyncScorer)
    for other in (len, "name", object()):
        assert not isinstance(other, Scorer)


def test_importing_the_library_imports_nothing_heavier_than_numpy_and_pydantic():
    code = (
        "import sys, conformal_retrievers; "
        "print(*(m for m in ('scipy', 'torch', 'bm25s', 'rich', 'sentence_transformers', "
        "'langchain_core', 'llama_index') if m in sys.modules))"
    )
    imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert imported.stdout.split() == []
