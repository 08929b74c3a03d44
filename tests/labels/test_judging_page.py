"""The judging page in a real browser, by keyboard alone, at two widths."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from chromium import needs_chromium
from judging import ask, queries, serving

from conformal_retrievers.data import JudgedQuery, read_jsonl
from conformal_retrievers.labels import read_labels
from conformal_retrievers.labels.judging import Judging

pytestmark = [pytest.mark.slow, needs_chromium]

FOREIGN = "<img src=x onerror=alert(1)><script>alert(2)</script> &lt;b&gt; \u202e" + "w" * 300
MARKS = "[...document.querySelectorAll('li input')].map(i => i.indeterminate ? null : i.checked)"
FOCUS = "[...document.querySelectorAll('li input')].indexOf(document.activeElement)"
MESSAGE = "document.getElementById('message').textContent"
QUESTION = "document.getElementById('query').textContent"


@pytest.fixture(params=[1200, 400])
def browser(request, browser):
    browser.size(request.param, 800)
    return browser


def open_page(browser, server):
    browser.open(server.url)
    browser.js("work")


@pytest.fixture
def page(browser, tmp_path):
    """A function that opens the page on queries, and returns the judging and its server."""
    with ExitStack() as ends:

        def opened(queries, **options):
            judging = Judging(queries, tmp_path / "judged.jsonl", **options)
            server = ends.enter_context(serving(judging))
            open_page(browser, server)
            return judging, server

        yield opened


def asked_in_order(judging):
    return [judging.queries[i] for i in judging.sample.order]


def test_questions_are_judged_by_keyboard_alone(browser, page, tmp_path):
    out = tmp_path / "judged.jsonl"
    judging, server = page(queries(4))
    first, second, third, fourth = asked_in_order(judging)
    assert browser.js(QUESTION) == first.query
    assert browser.js(MARKS) == [True, False, False, False]
    browser.press("j", "j", "Space", "k", "k", "k", "Space")  # k stops at the first
    assert browser.js(FOCUS) == 0
    assert browser.js(MARKS) == ask(server.url)[1]["marks"] == [False, False, True, False]
    browser.press("Enter")
    assert browser.js(QUESTION) == second.query
    browser.press("ArrowDown", "ArrowDown", "ArrowUp", "u")
    assert browser.js(MARKS) == [True, None, False, False]
    assert "left out" in browser.js(MESSAGE)
    browser.press("Enter", "ν", "Enter", "b")  # n in a Greek layout, and back at the third
    assert browser.js(QUESTION) == third.query
    assert browser.js(MARKS) == [False] * 4
    browser.press("Enter", "Enter")
    assert "All questions" in browser.js(QUESTION)
    shown = browser.js("document.querySelector('main').innerText")
    assert "Left out as unsure, and counted: 1." in shown
    written = {query.id: query.relevant for query in read_jsonl(out)}
    marks = {first.id: (False, False, True, False), third.id: (False,) * 4}
    assert written == marks | {fourth.id: fourth.relevant}
    assert read_labels(out)["unsure"] == 1
    browser.press("j", "Space", "n", "u", "b")  # nothing happens at the end but going back
    assert browser.js(QUESTION) == fourth.query
    assert judging.question(3)["version"] == 1
    open_page(browser, server)
    assert "All questions" in browser.js(QUESTION)
    browser.press("Enter")  # to the unsure one
    assert browser.js(QUESTION) == second.query
    browser.press("j", "Space", "Enter")
    assert "All questions" in browser.js(QUESTION)
    assert len(read_jsonl(out)) == 4
    browser.press("Enter")  # there is no other one
    assert "All questions" in browser.js(QUESTION)
    assert browser.problems == []
    hosts = {url.partition("/q")[0].rstrip("/") for url in browser.requested}
    assert hosts <= {server.url.partition("/#")[0], "about:blank"}


def test_a_reloaded_page_goes_on_where_it_was(browser, page):
    judging, server = page(queries(3))
    browser.press("Enter", "j", "Space")
    open_page(browser, server)
    assert browser.js(QUESTION) == asked_in_order(judging)[1].query
    assert browser.js(MARKS) == [True, True, False, False]
    assert "Question 2 of 3. 1 judged." in browser.js("document.body.innerText")
    assert browser.js("document.getElementById('progress').value") == 1


def test_foreign_text_is_shown_as_text_and_nothing_scrolls_sideways(browser, page):
    query = JudgedQuery(FOREIGN, [FOREIGN, "b " * 2000, "c"], [True, False, False], id="q")
    page([replace(query, snippets=[replace(s, document=FOREIGN) for s in query.snippets])])
    assert browser.js(QUESTION) == FOREIGN
    assert browser.js("document.querySelector('.text').textContent") == FOREIGN
    assert browser.js("document.querySelectorAll('img, li script, h1 script').length") == 0
    root = "document.documentElement"
    assert browser.js(f"{root}.scrollWidth <= {root}.clientWidth")
    assert browser.problems == []


def test_the_snippet_that_has_the_focus_is_in_sight(browser, page):
    """It lies between the question above it and the keys below it, at every step."""
    texts = [f"Text {i}. " * 20 for i in range(12)]
    gap = """(() => {
        const box = document.activeElement.closest('li').getBoundingClientRect()
        const above = document.querySelector('header').getBoundingClientRect().bottom
        const below = document.querySelector('footer').getBoundingClientRect().top
        return Math.min(box.top - above, below - Math.min(box.bottom, box.top + below - above))
    })()"""
    page([JudgedQuery("Why? " * 30, texts, [True] + [False] * 11)], share=1.0)
    for key in ["j"] * 11 + ["k"] * 11:
        browser.press(key)
        assert browser.js(gap) >= -1, browser.js(FOCUS)


def test_nothing_is_confirmed_unseen_or_by_accident(browser, page):
    judging, _ = page(queries(4, marked=[]))
    browser.press("Enter")
    assert "press n" in browser.js(MESSAGE)
    assert judging.n_done == 0
    browser.press("Space")
    repeated = {"key": "Enter", "windowsVirtualKeyCode": 13, "autoRepeat": True}
    browser.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **repeated)
    browser.js("work")
    assert judging.n_done == 0  # a key that is held down
    event = "new KeyboardEvent('keydown', {key, bubbles: true})"
    press = f"for (const key of ['Enter', 'n', 'Enter']) document.body.dispatchEvent({event})"
    browser.js(f"{press}; work")
    assert judging.n_done == 1  # what was pressed before the next question was shown is dropped
    assert judging.question(1)["version"] == 0


def test_a_mark_that_is_not_saved_is_not_shown(browser, tmp_path):
    judging = Judging(queries(3), tmp_path / "judged.jsonl")
    with serving(judging) as server:
        open_page(browser, server)
        judging.journal.close()
        browser.press("j", "Space")
        assert "Not saved" in browser.js(MESSAGE)
        assert browser.js(MARKS) == [True, False, False, False]
    browser.press("Space")
    assert browser.js(MARKS) == [True, False, False, False]
    assert "ended" in browser.js(MESSAGE)


def test_a_mark_that_is_saved_but_not_in_the_file_is_shown_so(browser, page, tmp_path):
    page(queries(2))
    (tmp_path / "judged.jsonl").mkdir()
    first = browser.js(QUESTION)
    browser.press("Enter")
    assert "Saved, but not in the file" in browser.js(MESSAGE)
    assert browser.js(QUESTION) == first
    (tmp_path / "judged.jsonl").rmdir()
    browser.press("Enter")
    assert browser.js(QUESTION) != first
    assert len(read_jsonl(tmp_path / "judged.jsonl")) == 1


def test_two_windows_do_not_overwrite_each_other(browser, page):
    judging, _ = page(queries(3))
    judging.mark(0, [False, True, True, False], done=False, version=0)
    browser.press("Enter")
    assert "Another window" in browser.js(MESSAGE)
    assert browser.js(MARKS) == [False, True, True, False]
    assert judging.n_done == 0


def test_an_address_without_its_token_says_what_to_open(browser, tmp_path):
    with serving(Judging(queries(1), tmp_path / "judged.jsonl")) as server:
        browser.open(server.url.partition("#")[0])
        assert "the address that the command printed" in browser.js(MESSAGE)
        browser.open(server.url[:-1])
        browser.js("work")
        assert "token" in browser.js(MESSAGE)


def test_what_a_screen_reader_is_told(browser, page):
    page(queries(2))
    browser.press("j", "u")
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
    named = [(n["role"]["value"], n["name"]["value"]) for n in tree if n.get("name")]
    for one in [
        ("checkbox", "Snippet 1: relevant"),
        ("checkbox", "Snippet 2: unsure"),
        ("checkbox", "Snippet 3: not relevant"),
        ("list", "Snippets"),
        ("progressbar", "Questions that are judged"),
        ("group", "Keys"),
        *(("button", name) for name in ("u unsure", "n none relevant", "b back", "Enter next")),
    ]:
        assert one in named
    states = {n["name"]["value"]: n["properties"] for n in tree if n["role"]["value"] == "checkbox"}
    checked = {p["value"]["value"] for p in states["Snippet 2: unsure"] if p["name"] == "checked"}
    assert checked == {"mixed"}
    assert "status" in {n["role"]["value"] for n in tree}


def test_buttons_do_what_their_keys_do(browser, page):
    judging, _ = page(queries(2))
    browser.press(*["Tab"] * 4, "Enter")  # from the first box: three boxes, then "unsure"
    assert browser.js(MARKS) == [True, False, False, None]
    browser.press("Tab", "Space")
    assert browser.js(MARKS) == [False] * 4
    browser.press("Tab", "Tab", "Enter")
    assert judging.n_done == 1
    assert browser.js(FOCUS) == 0


CONTRAST = """(() => {
    const light = text => {
        const c = text.match(/[0-9.]+/g).map(Number).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]
    }
    const behind = e => e && getComputedStyle(e).backgroundColor !== 'rgba(0, 0, 0, 0)'
        ? getComputedStyle(e).backgroundColor : e ? behind(e.parentElement) : 'rgb(255, 255, 255)'
    return Math.min(...[...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
        && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
            const [a, b] = [light(getComputedStyle(e).color), light(behind(e))]
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
        }))
})()"""


def test_all_text_has_the_contrast_that_wcag_asks_for(browser, page):
    page(queries(2, 20))
    browser.press("j", "u", "n", "u", "k", "Space")
    assert browser.js(CONTRAST) >= 4.5
    browser.press("n", "Enter", "n", "Space", "Space", "Enter")  # a message in colour
    assert "press n" in browser.js(MESSAGE)
    assert browser.js(CONTRAST) >= 4.5
