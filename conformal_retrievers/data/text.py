"""Text from files and servers, made safe to print and to log."""

from __future__ import annotations

import json
import logging
import re

# Control characters, line separators, marks that reverse the direction of text, lone surrogates.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with every control character as its JSON escape.

    >>> print(visible("a\x1b[2Jb\n"))
    a\u001b[2Jb\n
    """
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def printable(name: str) -> str:
    """Return a name; raise ValueError if it has a control character."""
    if _HIDDEN.search(name):
        raise ValueError("give a name without control characters")
    return name


def _make_visible(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if _HIDDEN.search(message):
        record.msg, record.args = visible(message), ()
    return True


logging.getLogger("conformal_retrievers").addFilter(_make_visible)  # the logger of every module
