"""Pruners: how sentences reach OpenProvence's `process`, and how its probabilities come back."""

import math

import numpy as np
import pytest
from open_provence import OpenProvenceStandIn

from conformal_retrievers import JudgedQuery, Snippet, calibrate
from conformal_retrievers.data.sentences import cut
from conformal_retrievers.scoring import ProvenceScorer
from conformal_retrievers.sentence_filter import open_filter

QUESTION, OPTION = "red wine", "return_sentence_metrics"


class Returns:
    """Returns what it was given, whatever it is asked."""

    def __init__(self, **result):
        self.result = result

    def process(self, question, context, **options):
        return self.result


def of(document, *texts):
    return [Snippet(text, document=document, position=i) for i, text in enumerate(texts)]


def test_a_score_is_one_minus_the_probability_of_the_sentence_in_its_document():
    snippets = [*of("a", "Red wine.", "White bread."), *of("b", "Cold water.", "White wine.")]
    scores = ProvenceScorer(OpenProvenceStandIn(), "p").score(QUESTION, snippets)
    # Shares of the two words: 2/2 and 0 in a document with both, 0 and 1/2 in one with "wine".
    np.testing.assert_array_equal(scores, [1 - 1, 1 - 0.5, 1 - 0.25, 1 - 0.5])


def test_the_documents_of_a_query_are_one_call_in_which_each_has_its_sentences_in_order():
    model, (a, b) = OpenProvenceStandIn(), of("a", "Red.", "White.")
    (c,) = of("b", "Wine.")
    assert ProvenceScorer(model, "p").score(QUESTION, [a, c, b, "Alone.", "Alone."]).shape == (5,)
    assert model.calls == [[["Red. ", "White. "], ["Wine. "], ["Alone. "], ["Alone. "]]]


def test_chunks_of_one_page_are_documents_of_their_own():
    chunks = [
        Snippet("Wine. Red.", id="b", document="page", position=20),
        Snippet("Red. White.", id="a", document="page", position=0),
        Snippet("Bread.", document="page", position=40),
    ]
    model = OpenProvenceStandIn()
    ProvenceScorer(model, "p").score(QUESTION, cut(chunks, "sentences").snippets)
    assert model.calls == [[["Wine. ", "Red. "], ["Red. ", "White. "], ["Bread. "]]]


def test_scores_come_back_to_the_sentences_that_they_belong_to_in_any_order():
    snippets = [*of("a", "Red wine.", "White."), *of("b", "Wine.", "Bread.", "Red.")]
    scorer = ProvenceScorer(OpenProvenceStandIn(), "p")
    scores = dict(zip(snippets, scorer.score(QUESTION, snippets), strict=True))
    mixed = [snippets[i] for i in (2, 0, 3, 1, 4)]
    assert scorer.score(QUESTION, mixed).tolist() == [scores[snippet] for snippet in mixed]


def test_a_table_is_one_sentence_to_the_model_too():
    table = "| colour | drink\r\n| red | wine\n| white | milk"
    scores = ProvenceScorer(OpenProvenceStandIn(), "p").score(QUESTION, of("a", "Bread.", table))
    np.testing.assert_array_equal(scores, [0.5, 0.0])


def test_a_blank_text_is_not_read_and_unscorable():
    model = OpenProvenceStandIn()
    scorer = ProvenceScorer(model, "p")
    scores = scorer.score(QUESTION, [*of("a", "Red wine.", " \n"), *of("b", "\t")])
    np.testing.assert_array_equal(scores, [0.0, math.nan, math.nan])
    assert model.calls == [[["Red wine. "]]]
    assert np.isnan(scorer.score(QUESTION, [" "])).all()
    assert scorer.score(QUESTION, []).shape == (0,)
    assert len(model.calls) == 1


@pytest.mark.parametrize(
    ("sentences", "probabilities"),
    [
        (["Red. ", "White. ", "Wine. "], [0.5, 0.5, 0.5]),
        (["White. ", "Red. "], [0.5, 0.5]),
        (["Red. ", "White. "], [0.5]),
        (["Red. White. ", ""], [0.5, 0.5]),
        (None, [0.5, 0.5]),
        (["Red. ", "White. "], None),
    ],
)
def test_a_document_with_other_sentences_than_were_given_is_unscorable(sentences, probabilities):
    returned = [probabilities, [0.75]]
    model = Returns(kept_sentences=[sentences, ["Wine. "]], sentence_probabilities=returned)
    snippets = [*of("a", "Red.", "White."), *of("b", "Wine.")]
    scores = ProvenceScorer(model, "p").score(QUESTION, snippets)
    np.testing.assert_array_equal(scores, [math.nan, math.nan, 0.25])


def test_a_probability_that_is_not_finite_is_unscorable():
    model = Returns(
        kept_sentences=[[f"{i} " for i in range(4)]],
        sentence_probabilities=[np.array([0.25, math.nan, math.inf, -math.inf], np.float32)],
    )
    scores = ProvenceScorer(model, "p").score(QUESTION, of("a", *"0123"))
    np.testing.assert_array_equal(scores, [0.75, math.nan, math.nan, math.nan])


@pytest.mark.parametrize(
    ("returned", "remedy"),
    [
        ({}, OPTION),
        ({"pruned_context": ["Red. "], "reranking_score": [0.5]}, OPTION),
        ({"sentence_probabilities": [[0.5]]}, OPTION),
        ({"kept_sentences": [["Red. "]], "sentence_probabilities": [[0.5], [0.5]]}, OPTION),
        ({"kept_sentences": [["Red. "]], "sentence_probabilities": 0.5}, OPTION),
        *(
            ({"kept_sentences": [["Red. "]], "sentence_probabilities": [[wrong]]}, "")
            for wrong in ("high", 50, -0.1)
        ),
    ],
)
def test_a_model_that_returns_no_probabilities_of_sentences_is_refused_by_name(returned, remedy):
    with pytest.raises((TypeError, ValueError), match=f"'odd'.*{remedy}"):
        ProvenceScorer(Returns(**returned), "odd").score(QUESTION, of("a", "Red."))


async def test_a_pruner_calibrates_and_filters_the_sentences_of_documents():
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    document = f"Ann likes red wine.\n\nBob bakes bread. He adds salt.\n\n{table}"
    judged = [
        JudgedQuery(f"{QUESTION} {i}", [Snippet(document, id="d")], [True], evidence=[("d", 0, 19)])
        for i in range(12)
    ]
    scorer = ProvenceScorer(OpenProvenceStandIn(), "p")
    calibration = calibrate(judged, scorer, alpha=0.1, split="sentences")
    pruner = open_filter(calibration, scorer, split="sentences")
    asked = "red wine 7", ["Cheese. Red wine.", Snippet(document, id="d"), "Milk."]
    pruned, later = pruner(*asked), await pruner.acall(*asked)
    assert [p.text for p in pruned.passages] == ["Red wine.", "Ann likes red wine."]
    assert not pruned.unscorable.size
    assert later.scores.tolist() == pruned.scores.tolist()
