"""The LLM that divides answers, annotates claims and merges them."""

import pytest
from claims_server import llm_at, model


@pytest.fixture
def llm(llm_server):
    llm_server.reply = model
    return llm_at(llm_server.url)
