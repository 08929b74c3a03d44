"""Models over HTTP, and handlers of LlamaIndex, for one test each."""

import httpx
import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike


@pytest.fixture
async def models(llm_server):
    """Return a function from settings to the model of LangChain and of LlamaIndex.

    Their HTTP clients are of this test's event loop; the frameworks' own outlive theirs.
    """
    async with httpx.AsyncClient(verify=False) as asynchronous:  # certificates take 40 ms to read
        with httpx.Client(verify=False) as synchronous:

            def build(url=llm_server.url, **settings):
                known = {"model": "minilm", "temperature": 0, "max_retries": 0, "api_key": "none"}
                known |= {"http_client": synchronous, **settings}
                like = {"is_chat_model": True, "is_function_calling_model": True}
                like |= {"context_window": 100_000, "async_http_client": asynchronous}
                return (
                    ChatOpenAI(base_url=url, http_async_client=asynchronous, **known),
                    OpenAILike(api_base=url, **like, **known),
                )

            yield build


@pytest.fixture
def path(tmp_path):
    """Where the file of a calibration is to be."""
    return tmp_path / "calibration.json"


@pytest.fixture
def handled(dispatcher):
    """Return a function that adds a handler to LlamaIndex for this test."""
    return dispatcher.add_event_handler
