"""Embeddings kept by text: which texts go to the model, the same scores, and the bound."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers import EmbeddingScorer
from conformal_retrievers.scoring.vectors import Vectors

MIB = 2**20


def vector(text: str) -> list[float]:
    return np.random.default_rng([*text.encode()]).normal(size=8).tolist()


class Embedder:
    """Keeps the batches that it is asked for, and returns lists of floats or an array."""

    def __init__(self, kind):
        self.kind, self.batches = kind, []

    def __call__(self, texts):
        self.batches.append(texts)
        return self.kind([vector(text) for text in texts])

    async def later(self, texts):
        return self(texts)

    def query(self, text):
        return self([text])[0]


@pytest.mark.parametrize("kind", [list, np.array, lambda rows: np.array(rows, np.float32)])
async def test_a_text_is_embedded_once_and_scores_the_same_for_every_query(kind):
    embed = Embedder(kind)
    scorer, plain = EmbeddingScorer(embed, "e"), EmbeddingScorer(Embedder(kind), "e", cache=0)
    later = replace(scorer, aembed=embed.later)
    queries = {"q": ["a", "b", "a"], "r": ["b", "c", " ", "a"], "s": ["c", "a"], "t": []}
    for query, texts in queries.items():
        assert scorer.score(query, texts).tobytes() == plain.score(query, texts).tobytes()
    assert embed.batches == [["q", "a", "b"], ["r", "c"], ["s"], ["t"]]
    embed.batches.clear()
    for query, texts in queries.items():
        assert (await later.ascore(query, texts)).tobytes() == plain.score(query, texts).tobytes()
    assert embed.batches == [["q", "a", "b"], ["r", "c"], ["s"], ["t"]]


async def test_with_an_embedder_of_queries_known_texts_are_no_call_at_all():
    texts, queries = Embedder(list), Embedder(list)
    scorer = EmbeddingScorer(texts, "e", embed_query=queries.query, aembed=texts.later)
    scorer.score("q", ["a", "b"])
    scorer.score("r", ["b", "a"])
    await scorer.ascore("s", ["a", "b"])
    assert texts.batches == [["a", "b"]]
    assert queries.batches == [["q"], ["r"], ["s"]]


def test_a_query_is_embedded_as_a_query_although_a_snippet_has_its_text():
    scorer = EmbeddingScorer(
        lambda texts: [[1.0, 0.0]] * len(texts), "e", embed_query=lambda _: [0, 1]
    )
    assert scorer.score("a", ["a"]).tolist() == scorer.score("a", ["a"]).tolist() == [1.0]


def test_without_a_cache_every_query_embeds_its_texts():
    embed = Embedder(list)
    scorer = EmbeddingScorer(embed, "e", cache=0)
    scorer.score("q", ["a", "a"])
    scorer.score("q", ["a"])
    assert embed.batches == [["q", "a", "a"], ["q", "a"]]


@pytest.mark.parametrize("cache", [-1, float("nan")])
def test_a_cache_of_less_than_nothing_is_refused(cache):
    with pytest.raises(ValueError, match="cache"):
        EmbeddingScorer(len, "e", cache=cache)


def test_a_vector_that_is_not_finite_is_asked_for_again():
    returned = iter([[[1, 0], [np.nan, 1], [0, 1]], [[1, 0], [1, 0]]])
    scorer = EmbeddingScorer(lambda texts: next(returned), "e")
    np.testing.assert_array_equal(scorer.score("q", ["a", "b"]), [np.nan, 1.0])
    np.testing.assert_array_equal(scorer.score("q", ["a", "b"]), [0.0, 1.0])


def test_vectors_that_are_refused_are_not_kept():
    returned = iter([[[1.0, 0.0], [1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    scorer = EmbeddingScorer(lambda texts: next(returned), "e")
    with pytest.raises(ValueError, match="'e'"):
        scorer.score("q", ["a"])
    assert scorer.score("q", ["a"]).tolist() == [0.0]


def test_an_embedder_may_write_into_the_array_that_it_returned():
    array = np.zeros((2, 2))

    def embed(texts):
        array[: len(texts)] = [[1.0, 0.0] if text in ("q", "a") else [0.0, 1.0] for text in texts]
        return array[: len(texts)]

    scorer = EmbeddingScorer(embed, "e")
    assert scorer.score("q", ["a"]).tolist() == [0.0]
    assert scorer.score("q", ["b"]).tolist() == [1.0]
    assert scorer.score("q", ["a"]).tolist() == [0.0]


def test_the_vectors_that_were_not_asked_for_the_longest_go_first():
    vectors = Vectors(MIB)
    vectors.add("abcd", np.zeros((4, 30_000)))  # of which four fit into 2**20 bytes
    assert [*vectors.known("a")] == ["a"]
    vectors.add("e", np.zeros((1, 30_000)))
    assert [*vectors.known("abcde")] == ["a", "c", "d", "e"]
    vectors.add("f", np.zeros((1, 200_000)))  # which is more than fits
    assert vectors.known("abcdef") == {}
    vectors.add("a", np.zeros((1, 30_000)))
    vectors.add(["x" * MIB], np.zeros((1, 1)))  # texts count too
    assert vectors.known("a") == {}


def test_a_vector_that_was_added_twice_counts_once():
    vectors = Vectors(MIB)
    for _ in range(100):
        vectors.add("ab", np.zeros((2, 30_000)))
    assert [*vectors.known("ab")] == ["a", "b"]


def test_what_is_kept_does_not_hold_the_batch_that_it_came_from():
    vectors = Vectors(MIB)
    vectors.add("a", np.zeros((1, 4)))
    assert vectors.known("a")["a"].base is None


@pytest.mark.parametrize("cache", [256, 0.001])  # the second one keeps about five vectors
def test_threads_get_the_same_scores(cache):
    queries = [(f"q{i}", [f"text {(i * j) % 17}" for j in range(12)]) for i in range(200)]
    scorer = EmbeddingScorer(Embedder(np.array), "e", cache=cache)
    plain = EmbeddingScorer(Embedder(np.array), "e", cache=0)
    with ThreadPoolExecutor(8) as pool:
        scores = pool.map(lambda query: scorer.score(*query).tobytes(), queries)
        assert [*scores] == [plain.score(*query).tobytes() for query in queries]


def test_a_scorer_travels_to_another_process_without_what_it_kept():
    scorer = EmbeddingScorer(vectors_of, "e", cache=3)
    scorer.score("q", ["a"])
    copy = pickle.loads(pickle.dumps(scorer))
    assert copy == scorer
    assert copy._kept.known("a") == {}
    assert copy._kept.size == 3 * MIB
    assert copy.score("q", ["a"]).tolist() == scorer.score("q", ["a"]).tolist()


def vectors_of(texts):
    return [vector(text) for text in texts]
