"""An LLM with canned replies."""

import itertools
import json

from conformal_retrievers.llm import LLM, Reply


def replying(*replies, **fields):
    """Return an LLM that gives these texts, JSON or replies in turn, again and again, or raises."""
    turns = itertools.cycle(replies)

    def complete(request):
        reply = next(turns)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Reply):
            return reply
        return Reply(reply if isinstance(reply, str) else json.dumps(reply), **fields)

    return LLM(complete, "canned")
