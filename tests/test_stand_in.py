"""The stand-in for an LLM of the notebooks, behind the clients that the notebooks ask it with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("openai")
sys.path.insert(0, str(Path(__file__).parent.parent / "cookbook"))

import stand_in

from conformal_retrievers import LLMScorer
from conformal_retrievers.claims import annotate, decompose
from conformal_retrievers.labels import AnsweredQuery, label_by_llm
from conformal_retrievers.llm import openai_llm

QUERY = "Does yeast make bread rise?"
SNIPPETS = ["It rains.", "Yeast makes the bread rise.", "Bread is baked."]


@pytest.fixture(scope="module")
def llm():
    return openai_llm("stand-in", base_url=stand_in.serve())


def test_the_stand_in_rates_what_shares_more_words_with_the_query_higher(llm):
    for options in ({}, {"snippets_per_call": 3}, {"by": "probability-of-yes"}):
        rain, yeast, baked = LLMScorer(llm, **options).score(QUERY, SNIPPETS)
        assert yeast < baked < rain


def test_the_stand_in_labels_and_judges_claims_by_words(llm):
    asked = AnsweredQuery(QUERY, [*SNIPPETS, " ".join(SNIPPETS)], "Yeast does.", id="q")
    assert label_by_llm([asked], llm).judged[0].relevant == (False, True, False, True)
    in_sentences = label_by_llm([asked], llm, split="sentences").judged[0]
    pairs = zip(in_sentences.snippets, in_sentences.relevant, strict=True)
    marked = [snippet.text.strip() for snippet, relevant in pairs if relevant]
    assert marked == [SNIPPETS[1]] * 2
    claims = decompose(llm, QUERY, "Yeast makes bread rise. Gas does not.").claims
    verdicts = annotate(llm, QUERY, claims, reference=SNIPPETS[1]).verdicts
    assert verdicts == ("supported", "unsupported")


def test_the_stand_in_calls_a_tool_again_at_a_smaller_alpha_if_it_found_little(llm):
    agents = pytest.importorskip("langchain.agents")
    models = pytest.importorskip("langchain_openai")
    calls = []

    def search(query: str, alpha: float = 0.2) -> str:
        """Search the texts."""
        calls.append((query, alpha))
        return SNIPPETS[0] if alpha > 0.1 else " ".join(SNIPPETS)

    model = models.ChatOpenAI(model="stand-in", base_url=stand_in.serve(), api_key="none")
    said = agents.create_agent(model, [search]).invoke({"messages": [("user", QUERY)]})
    assert calls == [(QUERY, 0.2), (QUERY, 0.05)]
    assert said["messages"][-1].content == SNIPPETS[1]
