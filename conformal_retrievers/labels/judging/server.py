"""The page's server, for this machine alone.

It binds to 127.0.0.1. Other sites in the same browser cannot use it: each request needs a token
that only the printed address has (after its "#", which browsers do not send), the name of this
machine as its host (an answer to DNS rebinding), and no foreign origin.
"""

import json
import re
import secrets
import socketserver
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from conformal_retrievers.labels.judging.judging import Judging

LONGEST = 1 << 20  # bytes of a request's body
POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class JudgingServer(ThreadingHTTPServer):
    """A server of the page for one judging; `serve_forever` runs it, and `url` is its address.

    Raises OSError if the port is in use; port 0 is any free one.
    """

    daemon_threads = True

    def __init__(self, judging: Judging, port: int = 0) -> None:
        self.judging, self.token = judging, secrets.token_urlsafe(24)
        self.page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            reason = f"port {port} cannot be used ({error.strerror}); give another --port"
            raise type(error)(reason) from None

    def server_bind(self) -> None:
        """Bind without looking the name of this machine up, which may ask other machines."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the browser went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The page's address, with its token."""
        return f"http://127.0.0.1:{self.server_port}/#{self.token}"


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Marks(BaseModel):
    """What the page sends of a question."""

    model_config = ConfigDict(strict=True)

    marks: list[bool | None]
    done: bool
    version: int


class _Handler(BaseHTTPRequestHandler):
    server: JudgingServer
    timeout: ClassVar[float] = 30  # seconds, for one that sends slowly
    server_version, sys_version = "conformal-retrievers", ""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, found: Callable[[], None]) -> None:
        host = self.headers.get("Host", "")
        try:
            if not re.fullmatch(r"(127\.0\.0\.1|localhost)(:[0-9]+)?", host):
                raise _Refused(403, "the host is not this machine")
            if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
                raise _Refused(403, "the request comes from another site")
            found()
        except _Refused as error:
            self._send_json({"error": str(error)}, error.status)

    def _get(self) -> None:
        if self.path == "/":
            nonce = secrets.token_urlsafe(16)
            page = self.server.page.replace("NONCE", nonce)
            self._send(page.encode(), "text/html; charset=utf-8", POLICY.format(nonce))
            return
        self._check_token()
        judging = self.server.judging
        if self.path == "/question":  # where to begin
            number = judging.next_after(-1)
            self._send_json(judging.question(number or 0) | {"all_done": number is None})
            return
        self._send_json(judging.question(self._number()))

    def _post(self) -> None:
        self._check_token()
        number, length = self._number(), self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not length.isdecimal():
            raise _Refused(415, "the body is not JSON of a stated length")
        if len(length) > 9 or int(length) > LONGEST:
            raise _Refused(413, "the body is too long")
        body = self.rfile.read(int(length))
        try:
            stored = self.server.judging.mark(number, **vars(_Marks.model_validate_json(body)))
        except ValueError as error:
            raise _Refused(400, f"marks, done or version are wrong: {error}") from None
        except OSError as error:
            raise _Refused(507, str(error)) from None
        self._send_json(self.server.judging.question(number), 200 if stored else 409)

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").encode()
        if not secrets.compare_digest(given, f"Bearer {self.server.token}".encode()):
            raise _Refused(403, "the token is missing or old; open the address that was printed")

    def _number(self) -> int:
        address = re.fullmatch("/question[?]number=([0-9]{1,9})", self.path)
        if not address or int(address[1]) >= len(self.server.judging.queries):
            raise _Refused(404, "there is no such page")
        return int(address[1])

    def _send_json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", "default-src 'none'", status)

    def _send(self, content: bytes, kind: str, policy: str, status: int = 200) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content))}
        headers |= {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        headers |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: what the person does is in the journal."""
