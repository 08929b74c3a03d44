"""Judged queries that have, between them, every field and any text."""

from conformal_retrievers.data import Evidence, Hit, JudgedQuery, Snippet
from conformal_retrievers.data.retrieval import Described, Hybrid, Retrieval

BM25 = Described(name="BM25()", framework="LangChain")

QUERIES = [
    JudgedQuery(
        "Wann öffnet das Café — 7 Uhr? 🥐",
        [
            Snippet("Das Café öffnet um 7.\nIn Zürich\u2028", id="s1", document="d", position=0),
            Snippet(
                '"quoted" \\ \t tab',
                id="s2",
                retrieval_score=0.1 + 0.2,
                hits=(Hit("dense", 0, 1 / 3), Hit("Café", 41)),
            ),
            Snippet("", embedding=[0.5]),
        ],
        [True, False, False],
        id="q1",
        group="deutsch",
        missed=3,
        retriever="store(model)",
        k=3,
        evidence=[Evidence("d", 0, 1)],
    ),
    JudgedQuery("nothing retrieved", [], []),
    JudgedQuery(
        "nothing missed",
        [],
        [],
        missed=0,
        retriever=Hybrid({"a; b: c": Retrieval(BM25), "d": Retrieval("store(model)", 3)}),
    ),
    JudgedQuery("nothing answers", ["a"], [False], missed=0, answerable=False, retriever=BM25),
    JudgedQuery.from_ids("by ids", ["a", "ü"]),
    JudgedQuery("sentences", [Snippet("a", id="c:0", document="d")], [True], split="sentences"),
]
