"""A scorer with a cache."""

from __future__ import annotations

import math
import struct

import pytest
from lookup import LookupScorer

from conformal_retrievers import EmbeddingScorer, RetrievalScorer, Snippet
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.scoring import relative_to_query
from conformal_retrievers.scoring.cached import CachedScorer


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache.db")


def bits(values):
    return [struct.pack("<d", value) for value in values]


class Counting(LookupScorer):
    def score(self, query, snippets):
        asked.append([s.text for s in snippets])
        return super().score(query, snippets)


asked: list[list[str]] = []


@pytest.fixture
def counting():
    asked.clear()
    return Counting({"a": 0.1, "b": -0.0, "c": math.nan, "d": math.inf})


def snippets(texts):
    return [Snippet(text) for text in texts]


async def test_a_cached_scorer_asks_only_for_what_it_does_not_know(cache, counting):
    scorer = CachedScorer(counting, cache)
    assert scorer.name == counting.name
    first = scorer.score("q", snippets("ab"))
    second = scorer.score("q", snippets("dbca"))
    third = await scorer.ascore("q", snippets("dbca"))
    assert bits(first) == bits([0.1, -0.0])
    assert bits(second) == bits(third) == bits([math.inf, -0.0, math.nan, 0.1])
    assert asked == [["a", "b"], ["d", "c"], ["c"]]  # NaN is tried again
    assert bits(CachedScorer(counting, cache).score("q", snippets("a"))) == bits([0.1])
    assert asked[3:] == []


def test_a_cached_scorer_gives_what_its_scorer_gives(cache, minilm, toy_corpus):
    plain = EmbeddingScorer(lambda texts: minilm.encode(texts), name="minilm")
    cached = CachedScorer(plain, cache)
    given = snippets([*toy_corpus.values(), "  "])
    original = plain.score("highest mountain", given)
    for _ in range(2):
        assert bits(cached.score("highest mountain", given)) == bits(original)


def test_a_score_that_depends_on_the_others_is_not_cached(cache, counting):
    class Relative(LookupScorer):
        relative_to_query = True

    assert relative_to_query(Relative({}))
    assert not relative_to_query(counting)
    with pytest.raises(TypeError, match="relative to the others of its query.*cache the scorers"):
        CachedScorer(Relative({}), cache)
    with pytest.raises(TypeError, match="reads more of a snippet than its text"):
        CachedScorer(RetrievalScorer("faiss", higher_is_better=True), cache)
    with pytest.raises(TypeError, match="scorer is"):
        CachedScorer(len, cache)
