"""A stand-in for an LLM, so that the notebooks need no key: rules behind an OpenAI-compatible API.

    llm = openai_llm("stand-in", base_url=stand_in.serve())
    llm = openai_llm("gpt-4.1-mini")  # a real model instead: its key is in OPENAI_API_KEY

It reads the question and the texts in a prompt, and judges by the words that they share. Like many
LLMs it rates in five levels. It also divides, annotates and merges claims, answers from the texts
that it is given, mostly with an invented sentence, and calls tools.
"""

from __future__ import annotations

import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LEVELS = (0.0, 0.2, 0.5, 0.8, 1.0)
COMMON = re.compile("the|and|for|with|that|this|from|into|are|was|does|not|but|which|when|how|what")
INVENTED = ("It raises an error for negative numbers.", "It was removed in version 4.2.", "")


class Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps(completion(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing in the notebook."""


def serve(port: int = 0) -> str:
    """Serve on loopback as long as this process lives, and return the address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the Chat Completion for the body of a request."""
    prompt = body["messages"][-1]["content"]
    fields = re.findall(r"^<(\w+)>\n(.*)\n</\1>$", prompt, re.MULTILINE)  # of the library's prompts
    asked = {tag: json.loads(text) for tag, text in fields}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    logprobs = None
    if body.get("tools"):
        message |= with_tools(body)
    elif body.get("logprobs"):
        yes = min(max(shared(asked["query"], asked["snippet"]), 0.01), 0.99)
        both = sorted([(yes, "YES"), (1 - yes, "NO")], reverse=True)
        tops = [{"token": token, "logprob": math.log(p)} for p, token in both]
        message["content"] = tops[0]["token"]
        logprobs = {"content": [{**tops[0], "top_logprobs": tops}]}
    else:
        message["content"] = json.dumps(judged(asked)) if asked else answer(prompt)
    read, written = (len(json.dumps(m)) // 4 for m in (body["messages"], message))  # some 4 letters
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    ends = {"object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
    return {"id": "stand-in", "choices": [choice], **ends}


def shared(question: str, text: str) -> float:
    """Return the share of the question's words that a text has, by their first five letters."""
    one, other = (
        {word[:5] for word in re.findall(r"[a-z]{3,}", words.lower()) if not COMMON.fullmatch(word)}
        for words in (question, text)
    )
    return len(one & other) / len(one) if one else float(question in text)


def judged(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one of the library's prompts, known by its fields."""
    reason = "By the words that they share."
    if "reference" in asked:  # is a claim factual?
        given = " ".join([asked["reference"], *asked["documents"]])
        factual = shared(asked["claim"], given) >= 0.8
        return {"reason": reason, "verdict": "supported" if factual else "unsupported"}
    if "sentences" in asked:  # which of them support the fact?
        found = [s["number"] for s in asked["sentences"] if shared(asked["fact"], s["text"]) >= 0.5]
        return {"reasoning": reason, "sentences": found}
    if "fact" in asked:
        relevant = shared(asked["fact"], asked["snippet"]) >= 0.6
        return {"reasoning": reason, "verdict": "yes" if relevant else "no"}
    if "answer" in asked:
        return {"claims": sentences(asked["answer"])}
    if "claims" in asked:
        return {"text": " ".join(asked["claims"])}
    given = asked.get("snippet") or " ".join(s["text"] for s in asked["snippets"])
    share = shared(asked["query"], given)
    return {"reason": reason, "rating": min(LEVELS, key=lambda level: abs(level - share))}


def sentences(text: str) -> list[str]:
    return [s for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if s]


def answer(prompt: str) -> str:
    """Write the first sentence of each paragraph of a prompt, and mostly an invented one."""
    firsts = [sentences(paragraph)[0] for paragraph in prompt.split("\n\n") if paragraph.strip()]
    return " ".join([*firsts, INVENTED[len(prompt) % len(INVENTED)]]).strip()


def with_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Call the first tool with the question; if it found little, again, as its description says."""
    tool = body["tools"][0]["function"]
    question = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
    found = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    fields = tool["parameters"]["properties"]
    most = 2 if "again with the same question" in tool["description"] else 1
    if len(found) == most or (found and shared(question, found[-1]) >= 0.6):
        best = max(sentences(found[-1]), key=lambda s: shared(question, s), default="")
        return {"content": best or "I found nothing about it."}
    arguments = {next(f for f in fields if fields[f].get("type") == "string"): question}
    call = {"name": tool["name"], "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{len(found)}", "type": "function", "function": call}]}
