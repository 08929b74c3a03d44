"""A real OpenAI-compatible server on loopback, whose model is a function from texts to a rating.

It is an ASGI application under uvicorn in a thread. It reads query and snippets from the prompt
that it receives, rates each by `similarity`, and answers in the wire format of Chat Completions,
with log-probabilities and token counts if they are requested, and word by word for a stream.

- `trouble` maps a request's body, and how often that body has come, to one of TROUBLES.
- `reply` answers instead of the model, with a text or with a message as a dict.
- `wire` changes a completion before it is sent, as JSON, or as it is if it is text or bytes.
"""

import asyncio
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn

# Errors: the status, the error, and the seconds of `retry-after`, which is shorter than the
# client's own backoff.
ERRORS: dict[str | None, tuple[int, dict[str, str], str]] = {
    "429": (429, {"message": "busy"}, "0.05"),
    "429 for good": (429, {"message": "busy"}, "1000"),
    "content filter": (400, {"message": "it was filtered", "code": "content_filter"}, "0.05"),
    "too long": (400, {"message": "8192 tokens", "code": "context_length_exceeded"}, "0.05"),
    **{
        status: (int(status), {"message": f"error {status}"}, "0.05")
        for status in ("400", "401", "403", "404", "500")
    },
}
# Answers that are no completion, with their status.
ANSWERS: dict[str | None, tuple[int, Any]] = {
    "too large": (413, "<html>Request Entity Too Large</html>"),
    "not json": (200, "<html>gateway</html>"),
    "null": (200, None),
    "malformed": (200, '{"id": "chatcmpl-1", "choices": [{"ind'),
    "wrong types": (200, {"choices": [{"message": {"content": 7}}], "usage": "none"}),
}
TROUBLES = {*ERRORS, *ANSWERS, "slow", "dropped", "drips", "no choices", "stream"}
TROUBLES |= {None, "refusal", "filtered", "cut off", "unreadable"}


def overlap(query: str, text: str) -> float:
    """Return the share of the query's words of four letters or more that the text has."""
    one, other = (set(re.findall(r"\w{4,}", words.lower())) for words in (query, text))
    return len(one & other) / max(1, len(one))


def fields_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the texts that fill the fields of a prompt, by the names of their tags."""
    found = re.findall(r"^<(\w+)>\n(.*)\n</\1>$", body["messages"][-1]["content"], re.MULTILINE)
    fields = {tag: json.loads(data) for tag, data in found}
    assert len(fields) == len(found)
    return fields


def verdict_of(body: dict[str, Any]) -> str:
    """Judge whether a snippet states a fact by their words: a `reply` for labels."""
    fields = fields_of(body)
    verdict = "yes" if overlap(fields["fact"], fields["snippet"]) >= 0.5 else "no"
    return json.dumps({"reasoning": "The words say so.", "verdict": verdict})


@dataclass
class LLMServer:
    """The server, running from `start` to `stop`; `bodies` and `headers` are those it received."""

    similarity: Callable[[str, str], float] = overlap
    latency: float = 0.0
    together: int = 0  # the first so many requests are answered once all are there
    trouble: Callable[[dict[str, Any], int], str | None] = lambda body, times: None
    reply: Callable[[dict[str, Any]], str | dict[str, Any]] | None = None  # instead of a rating
    wire: Callable[[dict[str, Any]], Any] = lambda completion: completion
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busiest: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    _times: Counter[str] = field(default_factory=Counter)
    _now: int = 0

    def start(self, port: int = 0) -> None:
        options: Any = {"log_level": "critical", "lifespan": "off", "ws": "none", "loop": "asyncio"}
        # Clients forget an idle connection after 5 s, which is before this server closes it.
        options |= {"interface": "asgi3", "timeout_keep_alive": 60}
        self._server = uvicorn.Server(uvicorn.Config(self.app, port=port, **options))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/v1"

    def stop(self) -> None:
        self.released.set()
        self._server.should_exit = True
        self._thread.join()

    def reset(self) -> None:
        """Forget all requests and behave well."""
        self.released.set()  # ends the answers that a client has given up, and still reads
        new = vars(LLMServer(self.similarity))
        del new["_now"]  # of a request whose answer is sent, the end may be to come
        for name, value in new.items():
            setattr(self, name, value)

    # --- ASGI -------------------------------------------------------------------------------------

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raw = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] != "/v1/chat/completions":
            await self._send(send, 404, {"error": {"message": f"no {scope['path']}"}})
            return
        body = json.loads(raw)
        self.bodies.append(body)
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        self.headers.append({**headers, "from": str(scope["client"])})
        key = json.dumps(body, sort_keys=True)
        self._times[key] += 1
        self._now += 1
        self.busiest = max(self.busiest, self._now)
        try:
            trouble = self.trouble(body, self._times[key])
            assert trouble in TROUBLES
            gone = asyncio.ensure_future(receive())  # when the client has gone
            if trouble in ("slow", "drips"):
                await self._keep_waiting(send, gone, trouble)
            while self.busiest < self.together and not gone.done():
                await asyncio.wait({gone}, timeout=0.01)
            await asyncio.wait({gone}, timeout=self.latency)
            if not gone.done():
                gone.cancel()
                await self._answer(send, body, trouble)
        finally:
            self._now -= 1

    async def _keep_waiting(self, send: Any, gone: asyncio.Future[Any], trouble: str) -> None:
        """Send nothing, or byte by byte, until the client has gone; for a minute if it stays."""
        released = self.released  # that of the next test is another
        if trouble == "drips":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(600):
            if trouble == "drips":
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.wait({gone}, timeout=0.1)
            if gone.done() or released.is_set():
                break

    async def _answer(self, send: Any, body: dict[str, Any], trouble: str | None) -> None:
        if trouble in ERRORS:
            status, error, seconds = ERRORS[trouble]
            await self._send(send, status, {"error": error}, retry_after=seconds)
        elif trouble in ANSWERS:
            await self._send(send, *ANSWERS[trouble])
        elif trouble == "drips":
            text = json.dumps(self.completion(body, None)).encode()
            await send({"type": "http.response.body", "body": text})
        elif trouble == "dropped":
            await self._send(send, 200, self.completion(body, None), announced=100_000)
        elif body.get("stream") or trouble == "stream":
            chunks = self.chunks(self.completion(body, trouble))
            data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
            await self._send(send, 200, data + "data: [DONE]\n\n")
        else:
            await self._send(send, 200, self.wire(self.completion(body, trouble)))

    async def _send(
        self,
        send: Any,
        status: int,
        body: Any,
        *,
        retry_after: str | None = None,
        announced: int | None = None,
    ) -> None:
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        data = text.encode() if isinstance(text, str) else text
        kind = {b"<": b"text/html", b"d": b"text/event-stream"}.get(data[:1], b"application/json")
        length = str(len(data) if announced is None else announced)
        headers = [(b"content-type", kind), (b"content-length", length.encode())]
        if retry_after is not None:
            headers.append((b"retry-after", retry_after.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        # Fewer bytes than announced: uvicorn closes the connection.
        await send({"type": "http.response.body", "body": data, "more_body": announced is not None})

    # --- the model --------------------------------------------------------------------------------

    def completion(self, body: dict[str, Any], trouble: str | None) -> dict[str, Any]:
        text, first = self._text_of(body, trouble)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        finish = "stop"
        if isinstance(text, dict):
            message, finish, text = {**message, "content": None, **text}, "tool_calls", ""
        if trouble == "refusal":
            message |= {"content": None, "refusal": "I cannot help with that."}
        elif trouble == "filtered":
            message["content"], finish = "", "content_filter"
        elif trouble == "cut off":
            message["content"], finish = text[: len(text) // 2], "length"
        elif 1 in (body.get("max_tokens"), body.get("max_completion_tokens")):
            finish = "length"
        logprobs = None
        if body.get("logprobs"):
            tops = [{"token": t, "logprob": p, "bytes": None} for t, p in first.items()]
            tops = sorted(tops, key=lambda top: -top["logprob"])[: body["top_logprobs"]]
            logprobs = {"content": [{**tops[0], "top_logprobs": tops}], "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}
        prompt, completion = sum(len(m.get("content") or "") for m in body["messages"]), len(text)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        usage["total_tokens"] = prompt + completion
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000}
        choices = [] if trouble == "no choices" else [choice]
        return {**head, "model": body["model"], "choices": choices, "usage": usage}

    def chunks(self, completion: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks of a completion's stream, one for each word."""
        choice = completion["choices"][0]
        message = choice["message"]
        words = re.findall(r"\S*\s*", message["content"] or "")
        deltas = [{"role": "assistant", "content": word} for word in words if word]
        if "tool_calls" in message:
            calls = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
            deltas.append({"role": "assistant", "tool_calls": calls})
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        head = {**completion, "object": "chat.completion.chunk", "usage": None}
        return [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in deltas
        ] + [{**head, "choices": [last]}]

    def _text_of(self, body: dict[str, Any], trouble: str | None) -> tuple[Any, dict[str, float]]:
        if self.reply is not None:
            return self.reply(body), {}
        asked = fields_of(body)
        if "number" in (asked.get("snippets") or [{}])[0]:  # a verdict on all of them together
            asked["snippet"] = " ".join(s["text"] for s in asked.pop("snippets"))
        if body.get("logprobs"):
            yes = min(max(self.similarity(asked["query"], asked["snippet"]), 0.001), 0.999)
            first = {"YES": math.log(yes * 0.9), "NO": math.log((1 - yes) * 0.9)}
            return max(first, key=first.__getitem__), {**first, "Well": math.log(0.05)}
        text = json.dumps(self._rating(asked["query"], asked["snippet"]))
        return "I would say 7/10." if trouble == "unreadable" else text, {}

    def _rating(self, query: str, text: str) -> dict[str, Any]:
        rating = min(max(round(self.similarity(query, text), 1), 0.0), 1.0)
        return {"reason": 'It says {"as much"}.', "rating": rating}
