"""Asking an LLM many small questions: prompts, replies, servers and a cache.

`conformal_retrievers.llm.ask` has the functions that ask, and `wire` what frameworks' models need.
"""

from conformal_retrievers.llm import wire
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage
from conformal_retrievers.llm.wire import openai_options

__all__ = ["LLM", "Cache", "Prompt", "Reply", "Request", "Unanswered", "Usage"]
__all__ += ["openai_llm", "openai_options", "wire"]
