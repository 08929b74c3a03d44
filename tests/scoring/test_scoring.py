"""Scorers without an LLM: embeddings, BM25 against its formula, retrieval scores, functions."""

import asyncio
import math
import re
from collections import Counter

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer
from scipy.spatial.distance import cosine

from conformal_retrievers import FunctionScorer, JudgedQuery, Scorer, Snippet, score_queries
from conformal_retrievers.labels import Labelled
from conformal_retrievers.scoring import CrossEncoderScorer, EmbeddingScorer, ascore_snippets
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.scorer import query_digest

QUESTION = "How soon can Tylenol be taken after a drink?"


class Recorded:
    """A function that remembers what it was called with."""

    def __init__(self, function):
        self.function = function
        self.calls = []

    def __call__(self, argument):
        self.calls.append(argument)
        return self.function(argument)


def awaitable(function):
    async def awaited(argument):
        await asyncio.sleep(0)
        return function(argument)

    return Recorded(awaited)


def vector(text):
    """A vector of counts of letters, as a toy embedding; never zero."""
    return np.array([1.0, *(text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz")])


def embed(texts):
    return np.array([vector(text) for text in texts])


@pytest.fixture
def snippets(toy_corpus):
    return [Snippet(text, id=id) for id, text in toy_corpus.items()]


# --- embeddings -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_model_scores_relevant_snippets_lowest(minilm, snippets):
    recorded = Recorded(lambda texts: minilm.encode(texts, show_progress_bar=False))
    scores = EmbeddingScorer(recorded, name="minilm").score(QUESTION, snippets)
    query = minilm.encode(QUESTION).astype(np.float64)
    expected = [cosine(query, minilm.encode(s.text).astype(np.float64)) for s in snippets]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    assert scores.dtype == np.float64
    assert {snippets[i].id for i in np.argsort(scores)[:3]} == {"acetaminophen", "liver", "dosage"}
    assert recorded.calls == [[QUESTION, *(s.text for s in snippets)]]  # one batch


def test_a_blank_text_is_unscorable_and_not_embedded():
    recorded = Recorded(embed)
    texts = ["", "The liver.", " \n\t", "Bread."]
    scores = EmbeddingScorer(recorded, name="e").score("liver", [Snippet(t) for t in texts])
    assert np.isnan(scores).tolist() == [True, False, True, False]
    assert recorded.calls == [["liver", "The liver.", "Bread."]]
    apart = EmbeddingScorer(recorded, name="e", embed_query=vector)
    assert np.isnan(apart.score("q", [Snippet(""), Snippet(" ")])).all()
    assert len(recorded.calls) == 1


@pytest.mark.parametrize("native", [False, True], ids=["thread", "native"])
@pytest.mark.parametrize("own_query", [False, True], ids=["one batch", "own query"])
async def test_asynchronous_embeddings_give_the_synchronous_scores(snippets, native, own_query):
    recorded, aembed = Recorded(embed), awaitable(embed)
    options = {"embed_query": lambda query: vector(f"zzz {query}")} if own_query else {}
    expected = EmbeddingScorer(embed, name="e", **options).score(QUESTION, snippets)
    query = vector(f"zzz {QUESTION}" if own_query else QUESTION)
    by_hand = [cosine(query, vector(s.text)) for s in snippets]
    np.testing.assert_allclose(expected, by_hand, rtol=0, atol=1e-12)
    if native:
        options |= {"aembed": aembed}
    if native and own_query:
        options |= {"aembed_query": awaitable(options["embed_query"])}
    scores = await EmbeddingScorer(recorded, name="e", **options).ascore(QUESTION, snippets)
    assert scores.tolist() == expected.tolist()
    assert (len(recorded.calls), len(aembed.calls)) == ((0, 1) if native else (1, 0))


@pytest.mark.parametrize("own_query", [True, False])
async def test_embeddings_of_snippets_are_reused_if_allowed(snippets, own_query):
    with_vectors = [
        Snippet(s.text, embedding=vector(s.text)) if i % 2 else s for i, s in enumerate(snippets)
    ]
    recorded = Recorded(embed)
    options = {"embed_query": vector} if own_query else {}
    scorer = EmbeddingScorer(recorded, name="e", reuse_embeddings=True, **options)
    expected = EmbeddingScorer(embed, name="e").score(QUESTION, snippets)
    assert scorer.score(QUESTION, with_vectors).tolist() == expected.tolist()
    sent = [s.text for s in snippets[::2]]
    assert recorded.calls == [sent if own_query else [QUESTION, *sent]]
    assert (await scorer.ascore(QUESTION, with_vectors)).tolist() == expected.tolist()


def test_embeddings_of_snippets_are_ignored_by_default(snippets):
    wrong = [Snippet(s.text, embedding=np.ones(27)) for s in snippets]
    reuse, scorer = (EmbeddingScorer(embed, "e", reuse_embeddings=b) for b in (True, False))
    assert scorer.score("q", wrong).tolist() == scorer.score("q", snippets).tolist()
    assert np.ptp(reuse.score("q", wrong)) == 0
    unknown = reuse.score("q", [Snippet("a", embedding=[math.nan] * 27), wrong[0]])
    assert np.isnan(unknown).tolist() == [True, False]
    with pytest.raises(ValueError, match="shape"):
        reuse.score("q", [Snippet("a", embedding=[1.0, 2.0, 3.0]), Snippet("b")])


def test_a_vector_without_a_direction_is_unscorable():
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
    scores = scorer.score("q", [Snippet(text) for text in list(vectors)[1:]])
    np.testing.assert_array_equal(scores, [0.0, 2.0, 1.0, math.nan, math.nan, math.nan])
    assert np.isnan(scorer.score("zero", [Snippet("same")])).all()


@pytest.mark.parametrize("d", [1, 7, 384, 1023])
@pytest.mark.parametrize("kind", [np.ndarray.tolist, np.float32, np.copy])
@given(n=st.sampled_from([1, 5, 127, 128, 129, 300]), seed=st.integers(0, 999))
def test_a_cosine_does_not_depend_on_the_other_snippets_even_in_its_last_bit(d, kind, n, seed):
    chosen = 1 + np.random.default_rng(seed).permutation(399)[:n]
    drawn = enumerate(np.random.default_rng(d).normal(size=(400, d)))
    vectors = {str(i): kind(vector) for i, vector in drawn}
    scorer = EmbeddingScorer(lambda texts: [vectors[text] for text in texts], name="table")
    q, *rows = (np.array(vectors[str(i)], dtype=np.float64) for i in [0, *chosen])
    alone = [1 - v @ q / (math.sqrt(v @ v) * math.sqrt(q @ q)) for v in rows]
    texts = [str(i) for i in chosen]
    assert scorer.score("0", texts).tolist() == alone
    assert scorer.score("0", [" ", *map(Snippet, texts)]).tolist()[1:] == alone


@pytest.mark.parametrize(
    "vectors",
    [
        *(np.ones((2, 4)), np.ones((4, 4)), np.ones(3), [], 3, None),
        *([[1.0], [1.0], None], [[1.0], [2.0], ["a"]], [[1], [2], [10**400]], [[1], [1], [1, 2]]),
        *(np.array([["1", "2"]] * 3), [np.array(["1", "2"])] * 3),
    ],
)
def test_an_embedder_that_returns_other_than_a_vector_for_each_text_is_named(vectors):
    scorer = EmbeddingScorer(lambda texts: vectors, name="broken")
    for call in (scorer.score, scorer.vectors):
        with pytest.raises(ValueError, match="'broken'"):
            call("q", ["a", "b"])


@pytest.mark.slow
def test_a_tensor_that_numpy_cannot_read_is_refused_with_the_scorers_name():
    import torch

    for tensor in (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, dtype=torch.bfloat16)):
        for scorer in (
            EmbeddingScorer(lambda texts, tensor=tensor: tensor, "tensor"),
            EmbeddingScorer(list, "tensor", embed_query=lambda query, tensor=tensor: tensor[0]),
            FunctionScorer(lambda query, texts, tensor=tensor: tensor[0], "tensor"),
        ):
            with pytest.raises(ValueError, match="'tensor'"):
                scorer.score("q", [" "])


# --- BM25 -----------------------------------------------------------------------------------------

WORD = re.compile(r"(?u)\b\w\w+\b")


def tokens(text):
    return [w for w in WORD.findall(text.lower()) if w not in STOPWORDS_EN]


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
    "query", [QUESTION, "mountain Everest mountain", "MOUNT everest, yeast; sugar", "zürich CAFÉ"]
)
def test_a_bm25_score_is_minus_lucenes_bm25(toy_corpus, query):
    corpus = [*toy_corpus.values(), "Everest Everest Everest yeast", "Everest"]
    scorer = BM25Scorer(corpus)
    scores = scorer.score(query, corpus)
    expected = -lucene_bm25(query, corpus)
    assert np.count_nonzero(expected) > 0
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=0)
    some = scorer.score(f"astronaut {query}", [corpus[i] for i in (5, 0, 2, 0)])
    assert some.tolist() == scores[[5, 0, 2, 0]].tolist()


def test_bm25_cannot_score_a_blank_text_or_one_outside_its_corpus(toy_corpus):
    corpus = [*toy_corpus.values(), "   "]
    scorer = BM25Scorer(corpus)
    scores = scorer.score(QUESTION, ["elsewhere", "   ", "", corpus[0]])
    assert np.isnan(scores).tolist() == [True, True, True, False]
    assert not scorer.score("the astronaut", corpus[:-1]).any()  # no word in common
    assert scorer.name == BM25Scorer([*corpus, corpus[0]]).name  # a repeated text is one text
    assert scorer.name != BM25Scorer(corpus[:-1]).name
    with pytest.raises(ValueError, match="corpus"):
        BM25Scorer(["the", "of it", " "])


# --- functions ------------------------------------------------------------------------------------


async def test_a_function_may_have_an_asynchronous_twin():
    async def twin(query, texts):
        return [len(text) + 0.5 for text in texts]

    assert (await FunctionScorer(lengths, "n").ascore("q", ["ab", "c"])).tolist() == [2.0, 1.0]
    assert (await FunctionScorer(lengths, "n", twin).ascore("q", ["ab"])).tolist() == [2.5]


def lengths(query, texts):
    return [len(text) for text in texts]


@pytest.mark.parametrize(
    "build",
    [
        BM25Scorer,
        lambda texts: CrossEncoderScorer(lambda pairs: [len(text) for _, text in pairs], "length"),
        lambda texts: EmbeddingScorer(embed, name="letters"),
    ],
)
async def test_plain_strings_are_scored_as_snippets(build):
    texts = ["red and blue", "green", "blue"]
    scorer = build(texts)
    as_strings = scorer.score("blue", texts)
    np.testing.assert_array_equal(as_strings, scorer.score("blue", [Snippet(t) for t in texts]))
    np.testing.assert_array_equal(as_strings, await ascore_snippets(scorer, "blue", texts))


# --- many queries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [False, True])
def test_a_scored_query_keeps_what_is_known_of_the_query(progress, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich shows a bar without a terminal
    judged = JudgedQuery("q", ["a", "b"], [False, True], id="q1", group="g", missed=3)
    other = JudgedQuery("r", ["b", "a"], [True, False])
    scorer = LookupScorer({"a": 0.5, "b": math.nan})
    scored, second = score_queries(scorer, iter([judged, other]), progress=progress)
    np.testing.assert_array_equal(scored.scores, [0.5, np.nan])
    np.testing.assert_array_equal(second.scores, [np.nan, 0.5])
    assert scored.relevant.tolist() == [False, True]
    assert (scored.id, scored.group, scored.missed) == ("q1", "g", 3)
    assert dict(scored.unscorable) == {1: "snippet 'b'"}
    assert ("Scoring" in "".join(capsys.readouterr())) == progress


@pytest.mark.parametrize(
    "scores",
    [
        [0.5],
        0.5,
        [0.5] * 3,
        [[0.5], [0.5]],
        [[0.5], [0.5, 1]],
        [10**400, 1],
        ["0.5", None],
        ["1", 1],
        [1j, 1],
    ],
)
async def test_a_scorer_returns_one_number_for_each_snippet(scores):
    of_function = FunctionScorer(lambda query, texts: scores, "odd")
    for scorer in (of_function, CrossEncoderScorer(lambda pairs: scores, "odd")):
        with pytest.raises(ValueError, match="'odd'"):
            score_queries(scorer, [JudgedQuery("q", ["a", "b"], [True, False])])
        with pytest.raises(ValueError, match="'odd'"):
            await ascore_snippets(scorer, "q", [Snippet("a"), Snippet("b")])


def test_only_a_scorer_scores_queries():
    for other in (len, "name", object()):
        assert not isinstance(other, Scorer)
        with pytest.raises(TypeError, match="scorer is"):
            score_queries(other, [])
    with pytest.raises(TypeError, match="judged"):
        score_queries(LookupScorer({}), ["q"])
    with pytest.raises(TypeError, match=r"is 'q\.jsonl'; give a list of .* or read the file first"):
        score_queries(LookupScorer({}), "q.jsonl")
    with pytest.raises(TypeError, match="the int 7; give a list of ids"):
        JudgedQuery.from_ids("q", 7)
    with pytest.raises(TypeError, match="judged is a single JudgedQuery"):
        score_queries(LookupScorer({}), JudgedQuery("q", [], []))
    with pytest.raises(TypeError, match=r"give its \.judged"):
        score_queries(LookupScorer({}), Labelled((), {}))


def test_case_white_space_and_composition_do_not_change_the_digest_of_a_query():
    assert query_digest("abc") == "ba7816bf8f01cfea"  # the start of its SHA-256
    assert query_digest("\u01f0") == "3651063ff416cf3b"
    assert query_digest("u\u0308 \u212b") == query_digest("ü Å") != query_digest("u A")
    for same in ("a b ", "\ta\n b", "A B", "a\u00a0B"):
        assert query_digest(same) == query_digest("a b") != query_digest("ab")
