"""Documents whose sentences are numbers, and a scorer that reads these."""

from conformal_retrievers import Evidence, FunctionScorer, JudgedQuery, Snippet
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.data.sentences import splitter

NAME = splitter("sentences").name
NUMBER = FunctionScorer(
    lambda query, texts: [float(text.split()[-1][:-1].replace("none", "nan")) for text in texts],
    "number",
)


def page(id, *numbers):
    """Return a document with a sentence for each number."""
    return Snippet(" ".join(f"The number is {n}." for n in numbers), id=id)


def asked(name, pages, relevant, **fields):
    """Return a query with the pages of numbers, judged by evidence: {page: [places in it]}."""
    evidence = []
    for i, places in relevant.items():
        for place in places:
            start = len(" ".join(f"The number is {n}." for n in pages[i][:place])) + (place > 0)
            length = len(f"The number is {pages[i][place]}.")
            evidence.append(Evidence(f"{name}-{i}", start, start + length))
    return JudgedQuery(
        f"Which number of {name}?",
        with_hits([page(f"{name}-{i}", *numbers) for i, numbers in enumerate(pages)]),
        [i in relevant for i in range(len(pages))],
        id=name,
        evidence=evidence,
        **fields,
    )


def by_line(text):
    """A splitter of one's own: after each line break."""
    ends = [i + 1 for i, character in enumerate(text) if character == "\n"]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))
