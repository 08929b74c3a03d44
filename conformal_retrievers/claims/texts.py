"""The texts that enter, checked: a question, an answer, its claims, the documents behind it."""

from __future__ import annotations

from collections.abc import Iterable

from conformal_retrievers.data.queries import Snippet


def check_text(name: str, text: object, what: str) -> None:
    """Raise TypeError, naming it and saying what it is to be, for anything but a str."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {text!r:.60}; give {what}")


def as_claims(claims: Iterable[str]) -> tuple[str, ...]:
    """Return claims as a tuple; raises TypeError for a text, whose letters would be the claims.

    It raises TypeError, naming the place, for a claim that is no text, too.
    """
    if isinstance(claims, str) or not isinstance(claims, Iterable):
        raise TypeError(f"claims is one {_said(claims)}; give a list of claims")
    given = tuple(claims)
    for i, claim in enumerate(given):
        check_text(f"claims[{i}]", claim, "the claim's text")
    return given


def as_documents(documents: Iterable[Snippet | str]) -> tuple[Snippet, ...]:
    """Return documents as snippets; raises TypeError, naming the place, for one of another kind."""
    if isinstance(documents, (str, Snippet)) or not isinstance(documents, Iterable):
        raise TypeError(
            f"documents is one {_said(documents)}; give a list of texts, or of Snippets"
        )
    return tuple(_snippet(i, document) for i, document in enumerate(documents))


def _snippet(i: int, document: object) -> Snippet:
    if isinstance(document, Snippet):
        return document
    if isinstance(document, str):
        return Snippet(document)
    raise TypeError(
        f"documents[{i}] is a {type(document).__name__}; give texts, or Snippets: page_content of "
        "a LangChain Document, get_content() of a LlamaIndex node (answer_filter_runnable and "
        "ClaimFilterQueryEngine take these as they are)"
    )


def _said(value: object) -> str:
    return f"{type(value).__name__}, {value!r:.60}"
