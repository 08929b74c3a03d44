"""A LangSmith on loopback, as its client sends traces to one: a server that keeps the runs.

Asked for its limits (`GET /info`) it names none, and it takes runs as multipart forms
(`POST /runs/multipart`): a part `post.<id>` holds a new run as JSON, `patch.<id>` what is added to
it, and `post.<id>.outputs`, or of another field, that field alone.
"""

import contextlib
import json
from collections import defaultdict
from email import message_from_bytes
from http.server import ThreadingHTTPServer

from loopback import InJson, serving


@contextlib.contextmanager
def langsmith_server():
    """The server; `runs` are those that reached it, by their id."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Requests)) as server:
        server.runs = defaultdict(dict)
        yield server


class _Requests(InJson):
    def answer(self, body):
        if self.path != "/runs/multipart":
            return (200 if self.path == "/info" else 404), {}
        form = message_from_bytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        for part in form.get_payload():
            _, run, *field = part.get_param("name", header="Content-Disposition").split(".")
            value = json.loads(part.get_payload(decode=True))
            self.server.runs[run].update({field[0]: value} if field else value)
        return 202, {}
