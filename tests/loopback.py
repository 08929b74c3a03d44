"""Servers on loopback in a thread, and replies in JSON."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler


@contextlib.contextmanager
def serving(server):
    """Serve in a thread until the end of the block."""
    with server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class InJson(BaseHTTPRequestHandler):
    """Replies with the status and the JSON that `answer` makes of a body, and prints nothing."""

    def do_POST(self):
        status, fields = self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        data = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.do_POST()

    def log_message(self, *_):
        """Print nothing: the tests look at what came."""
