"""Headless Chromium, driven through its DevTools protocol over two pipes: no package is needed.

Install it with `apt-get install -y chromium`, or name another with CHROMIUM=PATH.
"""

import json
import os
import select
import shutil
import subprocess
import time

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed: apt-get install -y chromium"
)
KEYS = {"Space": (" ", 32, " "), "Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, "")}
KEYS |= {"ArrowDown": ("ArrowDown", 40, ""), "ArrowUp": ("ArrowUp", 38, ""), "ν": ("ν", 78, "ν")}
SECONDS = 60


class Browser:
    """A page of the browser; `events` is what its console, exceptions and requests said."""

    def __init__(self, folder):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def pipes():  # the protocol reads from 3 and writes to 4
            one, other = os.dup(to_browser), os.dup(from_browser)
            os.dup2(one, 3)
            os.dup2(other, 4)

        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        self._process = subprocess.Popen(
            [CHROMIUM, *options, "--no-first-run", f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=pipes,
            pass_fds=(3, 4),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.events, self._buffer, self._number, self._session = [], b"", 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method, **parameters):
        """Send a command and return its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._read, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def size(self, width, height):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url):
        self.send("Page.navigate", url="about:blank")  # so that another token is a new page
        self.send("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression):
        """Return the value of a JavaScript expression in the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.js(expression):
            assert time.monotonic() < end, f"{expression} stays false: {self.js(SEEN)}"
            time.sleep(0.01)

    def press(self, *keys):
        """Press keys, one after the other, and wait until the page is done with each."""
        for name in keys:
            key, code, text = KEYS.get(name, (name, ord(name[0].upper()), name))
            pressed = {"key": key, "windowsVirtualKeyCode": code, "code": f"Key{chr(code)}"}
            self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
            self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)
            self.js("work")

    @property
    def requested(self):
        """The addresses that the page asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]

    @property
    def problems(self):
        """What the page threw, logged, or was refused by its policy."""
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [e["params"] for e in self.events if e.get("method") in bad]


SEEN = "document.body.innerText"
