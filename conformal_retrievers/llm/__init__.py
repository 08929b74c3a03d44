"""Asking an LLM many small questions: prompts, replies, servers and a cache.

`conformal_retrievers.llm.ask` has the functions that ask.
"""

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage
from conformal_retrievers.llm.wire import (
    finish_of,
    first_of,
    first_token_in,
    model_name,
    name_of,
    openai_options,
    part_of,
    reason_in,
    scorer_name,
    settings_of,
    tokens_in,
    unanswered_without_reply,
)

__all__ = ["LLM", "Cache", "Prompt", "Reply", "Request", "Unanswered", "Usage"]
__all__ += ["openai_llm", "openai_options"]
# For models of other frameworks, as in the packages for LangChain and LlamaIndex:
__all__ += ["model_name", "name_of", "scorer_name", "settings_of", "unanswered_without_reply"]
__all__ += ["finish_of", "first_of", "first_token_in", "part_of", "reason_in", "tokens_in"]
