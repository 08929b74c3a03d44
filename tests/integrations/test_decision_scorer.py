"""A LangChain decision model as a scorer, which langchain-core 1.8 and newer have."""

import math

import pytest

decisions = pytest.importorskip("langchain_core.decisions")
from conformal_retrievers import JudgedQuery, Snippet, calibrate
from conformal_retrievers.scoring import ascore_snippets
from langchain_conformal import ConformalCompressor, decision_scorer

SNIPPETS = [Snippet("red wine"), Snippet("bread"), Snippet("wine")]


class Words(decisions.BaseDecisionModel):
    """Its probability of yes is the share of the query's words that the text has."""

    model: str = "words-1"
    fails: tuple[str, ...] = ()
    jitter: float = 0.0

    @property
    def _provider(self):
        return "here"

    def _classify(self, state, questions):
        if state["text"] in self.fails:
            raise RuntimeError("busy")
        [(name, question)] = questions.items()
        assert question.type == "noul"
        words = state["query"].split()[:2]
        share = sum(word in state["text"].split() for word in words) / len(words)
        answer = {"type": "noul", "noul": max(share - self.jitter, 0.0)}
        body = {"id": "1", "model": self.model, "answers": {name: answer}, "usage": None}
        return decisions.ClassifierResponse.model_validate(body)


async def test_a_score_is_one_minus_the_probability_that_the_text_answers_the_query():
    scorer = decision_scorer(Words())
    assert scorer.score("red wine", SNIPPETS).tolist() == [0, 1, 0.5]
    assert (await ascore_snippets(scorer, "red wine", SNIPPETS)).tolist() == [0, 1, 0.5]


def test_the_name_has_the_model_and_another_question():
    assert decision_scorer(Words()).name == "decision(words-1)"
    named = decision_scorer(Words(), question="Is it wine?").name
    assert named.startswith("decision(words-1), question=")
    assert decision_scorer(Words(), name="mine").name == "mine"


async def test_a_text_whose_request_fails_is_unscorable_and_all_failing_are_an_error():
    scores = decision_scorer(Words(fails=("bread",))).score("red wine", SNIPPETS).tolist()
    assert [math.isnan(score) for score in scores] == [False, True, False]
    with pytest.raises(RuntimeError, match="busy"):
        decision_scorer(Words(fails=("bread",))).score("red wine", SNIPPETS[1:2])


def test_a_probability_is_calibrated_and_may_vary_between_calls():
    judged = [JudgedQuery(f"red wine {i}", SNIPPETS, [True, False, True]) for i in range(20)]
    calibration = calibrate(judged, decision_scorer(Words()), alpha=0.1)
    for jitter in (0.0, -0.001):
        scorer = decision_scorer(Words(jitter=jitter))
        keep = ConformalCompressor.from_calibration(calibration, scorer=scorer)
        assert keep.filter("red wine new", SNIPPETS).kept.tolist() == [0, 2]
