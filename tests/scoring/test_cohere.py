"""Cohere's `/v2/rerank` on loopback: relevance scores of snippets, and spans as those of sentences.

The server's answers have the fields of the types in cohere 7.3.1, whose `ClientV2` reads them where
it is installed. `Client` sends and reads the same JSON.
"""

import json
import math
import re
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from loopback import InJson, serving

from conformal_retrievers import JudgedQuery, Snippet, calibrate
from conformal_retrievers.data.sentences import cut
from conformal_retrievers.scoring import CohereScorer, ascore_snippets
from conformal_retrievers.sentence_filter import open_filter

MODEL, QUERY = "rerank-v5.0-pro", "red wine"


class Rerank(InJson):
    """Scores by the query's words; spans are the words that the query has, each 0.5 to 0.9."""

    bodies: list = []  # noqa: RUF012

    def answer(self, body):
        body = json.loads(body)
        self.bodies.append(body)
        assert self.path == "/v2/rerank"
        assert body["model"] == MODEL
        results = []
        for i, text in enumerate(body["documents"]):
            words = [w for w in body["query"].split() if w in text.lower()]
            result = {"index": i, "relevance_score": len(words) / len(body["query"].split())}
            if (body.get("relevant_spans") or {}).get("mode") == "enabled":
                assert body["relevant_spans"]["threshold"] == 0
                found = [m for word in words for m in re.finditer(word, text.lower())]
                spans = [{"start": m.start(), "end": m.end(), "score": 0.5} for m in found]
                spans += [{**spans[0], "score": 0.9}] if spans else []
                result |= {"relevant_spans": spans} if spans else {}
            results.append(result)
        results.sort(key=lambda one: -one["relevance_score"])
        if body["query"] == "cut":
            del results[1:]
        return 200, {"id": "1", "results": results, "meta": {"api_version": {"version": "2"}}}


class Client:
    """Speaks the wire format without the SDK."""

    def __init__(self, url):
        self.url = url

    def rerank(self, **body):
        found = httpx.post(f"{self.url}/v2/rerank", json=body).text
        return json.loads(found, object_hook=lambda fields: Answer(**fields))


class Answer(SimpleNamespace):
    relevant_spans = None


def of_cohere(url):
    return pytest.importorskip("cohere").ClientV2(api_key="none", base_url=url)


@pytest.fixture(scope="module")
def url():
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Rerank)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(params=[Client, of_cohere], ids=["json", "sdk"])
def client(request, url):
    Rerank.bodies.clear()
    return request.param(url)


async def test_a_score_is_minus_the_relevance_and_all_snippets_are_one_request(client):
    scorer = CohereScorer(client, MODEL)
    snippets = [Snippet(text) for text in ("White bread.", " ", "Red wine.", "Wine.")]
    scores = await ascore_snippets(scorer, QUERY, snippets)
    np.testing.assert_array_equal(scores, [0, math.nan, -1, -0.5])
    np.testing.assert_array_equal(scores, scorer.score(QUERY, snippets))
    assert scorer.name == "cohere(rerank-v5.0-pro)"
    sent = {"model": MODEL, "query": QUERY, "documents": ["White bread.", "Red wine.", "Wine."]}
    assert Rerank.bodies == [sent, sent]


def test_a_sentence_has_the_highest_score_of_the_spans_that_it_is_in(client):
    pages = [
        Snippet("Ünë 🍷. Bread. The red one. Wine too.", id="a", document="p", position=0),
        Snippet("Cold water. It rains.", id="b", document="p", position=90),
    ]
    sentences = cut(pages, "sentences").snippets
    scorer = CohereScorer(client, MODEL, spans=True)
    assert scorer.score(QUERY, sentences).tolist() == [0, 0, -0.9, -0.5, 0, 0]
    [body] = Rerank.bodies
    assert body["documents"] == [page.text for page in pages]
    assert scorer.name == "cohere(rerank-v5.0-pro, spans)"


def test_a_snippet_that_the_server_cuts_off_is_never_kept(client):
    snippets = [Snippet("cut"), Snippet("bread")]
    assert CohereScorer(client, MODEL).score("cut", snippets).tolist() == [-1, math.inf]


class Replying:
    """A client whose server returns these results."""

    def __init__(self, *results):
        self.results = [Answer(index=i, relevance_score=0.5, **more) for i, more in results]

    def rerank(self, **_):
        return Answer(results=self.results)


@pytest.mark.parametrize("indices", [[0, 0], [2], [-1], [None]])
def test_an_index_of_no_document_or_a_repeated_one_is_an_error_that_names_it(indices):
    scorer = CohereScorer(Replying(*((i, {}) for i in indices)), MODEL)
    match = rf"'cohere\({MODEL}\)' returned the index {indices[-1]}; .* each of 0 to 1 once"
    with pytest.raises(ValueError, match=match):
        scorer.score(QUERY, [Snippet("wine"), Snippet("bread")])


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 10, [-0.5, 0, 0]),
        (11, 18, [0, -0.5, 0]),
        (19, 25, [0, 0, -0.5]),
        (10, 11, [0, 0, 0]),  # the blank between two sentences
        (9, 12, [-0.5, -0.5, 0]),
    ],
)
def test_the_borders_of_sentences_and_spans_are_exact(start, end, expected):
    sentences = cut(["First one. Second. Third."], "sentences").snippets
    answer = {"relevant_spans": [Answer(start=start, end=end, score=0.5)]}
    scorer = CohereScorer(Replying((0, answer)), MODEL, spans=True)
    assert scorer.score(QUERY, sentences).tolist() == expected


@pytest.mark.parametrize("spans", [[math.nan, 0.9], [0.9, math.nan], [None, 0.9], [0.9, None]])
def test_a_sentence_in_a_span_without_a_score_is_unscorable(spans):
    found = [Answer(start=0, end=4, score=score) for score in spans]
    sentences = cut(["Wine. Bread."], "sentences").snippets
    scorer = CohereScorer(Replying((0, {"relevant_spans": found})), MODEL, spans=True)
    np.testing.assert_array_equal(scorer.score(QUERY, sentences), [math.nan, 0])


def test_where_a_model_returns_no_spans_at_all_sentences_are_unscorable_not_irrelevant():
    sentences = cut(["Wine. Bread.", "Water."], "sentences").snippets
    older = CohereScorer(Replying((0, {}), (1, {})), MODEL, spans=True)
    assert np.isnan(older.score(QUERY, sentences)).all()
    none_found = Replying((0, {"relevant_spans": []}), (1, {}))
    assert CohereScorer(none_found, MODEL, spans=True).score(QUERY, sentences).tolist() == [0] * 3


def test_sentences_are_calibrated_and_filtered_by_their_spans(client):
    scorer = CohereScorer(client, MODEL, spans=True)
    page = "Red grapes. Bread. Wine is old."
    found = cut([page], "sentences")
    judged = [
        JudgedQuery(f"{QUERY} {i}", found.snippets, [True, False, True], split=found.split)
        for i in range(20)
    ]
    calibration = calibrate(judged, scorer, alpha=0.1)
    pruned = open_filter(calibration, scorer, split="sentences")(f"{QUERY} new", [page])
    assert pruned.passages[0].text == "Red grapes. … Wine is old."
