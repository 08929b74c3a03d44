"""The model of the loopback server for answers: it writes, divides, annotates, rates and merges.

It goes into `LLMServer.reply`. Each prompt is known by the fields in the user's message. What it
generates is the first sentences of the context that it was given, and mostly one that it invents.
"""

import json
import re
from functools import cache
from typing import Any

from llm_server import fields_of

from conformal_retrievers.llm import LLM, openai_llm

INVENTED = (
    "Its author won the Nobel Prize for it in 1987.",
    "It returns a list of strings in all other cases.",
    "The function raises an error if the argument is a negative number.",
    "Paris has more bridges than Venice.",
    "It was removed from Python in version 4.2.",
)


@cache
def llm_at(url: str) -> LLM:
    """The model of a server, kept: collected as garbage, it may lose its sockets unclosed."""
    return openai_llm("m", base_url=url, max_retries=0)


def sentences(text: str) -> list[str]:
    return [s.strip() for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if s.strip()]


def model(body: dict[str, Any]) -> str:
    """Return the reply's text to a request's body."""
    asked = fields_of(body)
    if "reference" in asked:
        return json.dumps(annotation(asked))
    if "answer" in asked:
        return json.dumps({"claims": sentences(asked["answer"])})
    if "claims" in asked:
        return json.dumps({"text": "In short: " + " ".join(asked["claims"])})
    if "documents" in asked:
        return written(asked["documents"])
    _, context, *_ = re.split(r"^-{5,}$", body["messages"][-1]["content"], flags=re.MULTILINE)
    return written(context.split("\n\n"))


def annotation(asked: dict[str, Any]) -> dict[str, str]:
    given = " ".join(" ".join([asked["reference"], *asked["documents"]]).split())
    verdict = "supported" if asked["claim"] in given else "contradicted"
    return {"reason": 'It says {"so"}.', "verdict": verdict}


def written(paragraphs: list[str]) -> str:
    """Answer with the first sentence of each paragraph, and mostly one that is invented."""
    firsts = [sentences(paragraph)[0] for paragraph in paragraphs if paragraph.strip()]
    # Of six answers, one invents nothing; frameworks differ in the white space of their prompts.
    return " ".join([*dict.fromkeys(firsts), *INVENTED[len("".join(firsts)) % 6 :][:1]])
