"""Judged queries from text that every machine has: the docstrings of Python's standard library.

A docstring's first sentence says in other words what the rest of it explains. It becomes a query,
and the windows of the rest are relevant. The corpus holds the rest, and all other docstrings whole.
"""

import contextlib
import importlib
import inspect
import io
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.sentences.split import pieces_in

# They open windows or browsers, print poems, or are tests.
SKIPPED = {
    *("antigravity", "distutils", "idlelib", "lib2to3", "test", "tests", "this"),
    *("tkinter", "turtle", "turtledemo"),
}
MIN_REST = 200  # characters: with fewer, there is hardly anything to find
SUMMARY_WORDS = range(5, 31)


class DocstringCorpus(NamedTuple):
    """The snippets of all docstrings, and queries with those of them that are relevant."""

    snippets: list[Snippet]
    questions: list[JudgedQuery]


def docstring_corpus() -> DocstringCorpus:
    """Cut the standard library's docstrings into snippets and take questions from them."""
    docstrings = standard_library_docstrings()
    asked: dict[str, str] = {}  # the name of the docstring by its summary
    for name, docstring in docstrings.items():
        summary, rest = split_summary(docstring)
        if len(summary.split()) in SUMMARY_WORDS and len(rest) > MIN_REST:
            asked.setdefault(summary, name)
    snippets: dict[str, Snippet] = {}  # by text, so that equal windows are one snippet
    questions: list[JudgedQuery] = []
    for name, docstring in docstrings.items():
        summary, rest = split_summary(docstring)
        text = rest if summary in asked else docstring
        words = " ".join(text.split())
        if words.startswith(tuple(asked)):  # another docstring's question
            text = words.removeprefix(next(q for q in asked if words.startswith(q))).strip()
        if len(text) <= MIN_REST:
            continue
        cut = windows(text, size=500, overlap=100, document=name)
        own = [snippets.setdefault(window.text, window) for window in cut]
        if asked.get(summary) == name:
            own = list(dict.fromkeys(own))
            questions.append(JudgedQuery(summary, own, [True] * len(own), id=name))
    return DocstringCorpus(list(snippets.values()), questions)


def windows(text: str, size: int, overlap: int, document: str) -> list[Snippet]:
    """Return the windows of a document in order, as Chakraborty et al. 2025, section 3.1, has them.

    A window has as many whole sentences as fit into `size` characters, and begins with as many of
    the one before as fit into `overlap` characters beside a new one. What does not fit is cut.

    >>> [window.text for window in windows("One two. Three four.  Five six.", 22, 12, "a page")]
    ['One two. Three four.', 'Three four.  Five six.']
    """
    units, snippets = list(pieces_in(text, size)), []
    first = new = 0  # the window's first unit, and the first unit that is in no window yet
    while new < len(units):
        start, end = units[first][0], units[new][1]
        new += 1
        while new < len(units) and units[new][1] - start <= size:
            end = units[new][1]
            new += 1
        snippets.append(Snippet(text[start:end], f"{document}:{start}", document, start))
        first = new
        # Going back ends before this window's first unit: the new unit is too far from that.
        while (
            new < len(units)
            and end - units[first - 1][0] <= overlap
            and units[new][1] - units[first - 1][0] <= size
        ):
            first -= 1
    return snippets


def split_summary(docstring: str) -> tuple[str, str]:
    """Split a docstring into its one-sentence first paragraph and the rest.

    The summary is "" where the first paragraph is not one sentence.

    >>> split_summary("Return the sum of a and b.\\n\\nBoth are numbers.")
    ('Return the sum of a and b.', 'Both are numbers.')
    """
    first, _, rest = docstring.partition("\n\n")
    summary = " ".join(first.split())
    if not re.fullmatch(r"[A-Z][^.!?]*(?:[.!?](?=\S)[^.!?]*)*[.!?]", summary):
        return "", docstring
    return summary, rest.strip()


def standard_library_docstrings() -> dict[str, str]:
    """Return the docstrings of public modules, classes, functions and methods, each text once."""
    docstrings: dict[str, str] = {}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of deprecated modules
        for module in (m for name in sorted(sys.stdlib_module_names) for m in _modules(name)):
            for name, thing in _public_things(module):
                docstring = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
                if docstring:
                    docstrings.setdefault(docstring, name)
    return {name: docstring for docstring, name in docstrings.items()}


def _modules(name: str) -> Iterator[ModuleType]:
    """Import a public module and the modules in it, except what this machine cannot import."""
    if name.rpartition(".")[2].startswith("_") or not SKIPPED.isdisjoint(name.split(".")):
        return
    try:
        module = importlib.import_module(name)
    except (ImportError, AttributeError, OSError, ValueError):
        return  # for another platform, or for a library that this Python was built without
    yield module
    for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from _modules(f"{name}.{inner.name}")


def _public_things(module: ModuleType) -> Iterator[tuple[str, object]]:
    yield module.__name__, module
    for name, thing in sorted(vars(module).items()):
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(thing) or inspect.isroutine(thing):
            yield f"{module.__name__}.{name}", thing
        for inner, member in sorted(vars(thing).items()) if inspect.isclass(thing) else ():
            documented = inspect.isroutine(member) or inspect.isdatadescriptor(member)
            if documented and not inner.startswith("_"):
                yield f"{module.__name__}.{name}.{inner}", member
