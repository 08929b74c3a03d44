"""Text from files and servers is safe to print and to log."""

import json
import logging

import pytest

from conformal_retrievers.data.text import printable, visible

UNSAFE = [
    *("\x00", "\n", "\r", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066", "\ud800"),
    *("\xad", "\u061c", "\u200b", "\u200e", "\u200f", "\ufeff", "\U000e0041"),
]


@pytest.mark.parametrize("character", UNSAFE)
def test_control_characters_become_visible_and_are_refused_in_names(character):
    shown = visible(f"a{character}b")
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == f"a{character}b"
    with pytest.raises(ValueError, match="control"):
        printable(f"a{character}b")


def test_text_of_any_script_stays_as_it_is():
    text = 'Ça va\u00a0? ❤\ufe0f 文 می\u200cخواهم 👨‍👩‍👧 90\u202f% \\ "'
    assert visible(text) == printable(text) == text


def test_the_log_shows_control_characters_of_a_reply(caplog):
    logger = logging.getLogger("conformal_retrievers")
    logger.warning("%s failed %d times: %s", "llm\x1b[2J", 3, ValueError("no\nINFO forged"))
    logger.warning("%(a)s", {"a": "\x07"})
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: \\u001b[2J\n" in caplog.text
    assert caplog.messages[:2] == [r"llm\u001b[2J failed 3 times: no\nINFO forged", r"\u0007"]
