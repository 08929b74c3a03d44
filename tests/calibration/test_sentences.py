"""Calibrations of sentences: what they are made from, what they state, and the theorem."""

import random
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from calibrations import alphas
from hypothesis import given
from hypothesis import strategies as st
from pages import NAME, NUMBER, asked

from conformal_retrievers import Calibration, ScoredQuery, SentenceFilter, calibrate
from conformal_retrievers.calibration.subjects import SENTENCES
from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.scoring.learned.prior import prior_of

JUDGED = [
    asked("one", [[1, 9], [8]], {0: [0]}),
    asked("two", [[9, 2, 4], [7]], {0: [1, 2]}),
    asked("three", [[9], [3, 8]], {1: [0]}),
    asked("four", [[6, 9]], {}),
]


def calibrated(judged=JUDGED, alpha=0.4, **options):
    return calibrate(judged, NUMBER, alpha=alpha, **{"split": "sentences", **options})


def test_the_threshold_of_three_queries_by_hand():
    # Masses 1 at 1, 1/2 at 2 and at 4, 1 at 3: a mass of 0.6 × 4 = 2.4 is reached at 3.
    calibration = calibrated()
    assert calibration.threshold() == 3
    assert [q.scores.tolist() for q in calibration.queries] == [[1], [2, 4], [3]]
    assert (calibration.subject, calibration.split) == (SENTENCES, NAME)
    assert calibration.retrieval == {"split": NAME, "lengths": {"1": 1, "2": 3}}
    assert (calibration.n_relevant, calibration.n_missed) == (4, 0)
    assert calibrated(by_sentence(JUDGED, "sentences"), split=None).queries[1].missed == 0


def test_sentences_that_are_judged_already_give_the_same_calibration(tmp_path):
    one, other = calibrated(), calibrated(by_sentence(JUDGED, "sentences"), split=None)
    assert replace(one, created="now") == replace(other, created="now")
    one.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == one


def test_the_statement_speaks_of_sentences_and_names_the_splitter():
    text = calibrated().statement
    first, *_ = text.splitlines()
    assert first == (
        "Keeps at least 60 % of the relevant sentences that were retrieved, on average over "
        "queries."
    )
    assert NAME in text
    for guarantee in ("query-recall", "all", "any", "snippet"):
        for at in (0.4, 0.01):
            c = calibrated(guarantee=guarantee, alpha=at)
            assert "snippet" not in c.statement.replace("'snippet'", "")
    missed = [replace(query, evidence=[*query.evidence, ("gone", 0, 5)]) for query in JUDGED]
    with pytest.warns(UserWarning, match="infinite"):
        c = calibrated(missed, count_missed=True)
    assert "snippet" not in c.statement
    assert c.n_missed == 4


def test_judgements_of_whole_snippets_and_mixtures_are_refused():
    with pytest.raises(ValueError, match=r"evidence.*label_by_answer.*label_by_llm"):
        calibrated([replace(query, evidence=()) for query in JUDGED])
    with pytest.raises(ValueError, match="split"):
        calibrated([*by_sentence(JUDGED[:2], "sentences"), *JUDGED[2:]], split=None)
    with pytest.raises(ValueError, match="split"):
        calibrated(by_sentence(JUDGED, "sentences"), split=by_line)
    scored = [ScoredQuery([1.0], [True]), ScoredQuery([1.0], [True], split=NAME)]
    with pytest.raises(ValueError, match="split"):
        Calibration.from_scores(scored, alpha=0.5, scorer="s")
    with pytest.raises(ValueError, match="split"):
        replace(calibrated(), retrieval=None)


def by_line(text):
    return [(0, len(text))]


@st.composite
def queries(draw):
    """Queries of one or two pages, each with a relevant sentence or more; numbers have ties."""
    found, page = [], st.lists(st.integers(0, 6), min_size=1, max_size=3)
    for i in range(draw(st.integers(2, 7))):
        pages = draw(st.lists(page, min_size=1, max_size=2))
        places = [(d, s) for d, page in enumerate(pages) for s in range(len(page))]
        chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
        relevant = {d: [s for e, s in chosen if e == d] for d, _ in chosen}
        found.append(asked(f"q{i}", pages, relevant))
    return found


@given(judged=queries(), alpha=alphas, n=st.integers(0, 2))
def test_leaving_out_each_query_loses_at_most_alpha_of_the_relevant_sentences(judged, alpha, n):
    """The theorem, exactly, from evidence to the filter's passages; neighbours only add."""
    lost = Fraction(0)
    for i, query in enumerate(judged):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibration = calibrated(judged[:i] + judged[i + 1 :], float(alpha))
            pruned = SentenceFilter(NUMBER, calibration, neighbours=n)(query.query, query.snippets)
        ranges = {query.snippets[p.document].id: p.ranges for p in pruned.passages}
        kept = [
            any(start <= e.start and e.end <= end for start, end in ranges.get(e.document, ()))
            for e in query.evidence
        ]
        lost += 1 - Fraction(sum(kept), len(kept))
    allowed = Fraction(float(alpha)).limit_denominator(10**6) * len(judged)
    assert lost <= allowed + Fraction(1, 10**9)


# --- without a scorer -----------------------------------------------------------------------------


def worded(i, rng, n_documents=4):
    """Return a query about a word, which one sentence of two documents has."""
    word = f"w{i}ord"
    documents, evidence = [], []
    for d in range(n_documents):
        sentences = [f"Some {rng.choice('abcdef')} is {rng.randint(0, 99)}." for _ in range(4)]
        if d < 2:
            sentences[rng.randrange(4)] = f"Here {word} is explained."
        text = " ".join(sentences)
        documents.append(Snippet(text, id=f"{i}-{d}"))
        if d < 2:
            start = text.index("Here")
            evidence.append((f"{i}-{d}", start, start + len(f"Here {word} is explained.")))
    rng.shuffle(documents)
    relevant = [any(d.id == e[0] for e in evidence) for d in documents]
    fields = {"id": str(i), "evidence": evidence}
    return JudgedQuery(f"What is {word}?", with_hits(documents), relevant, **fields)


@pytest.mark.parametrize("n", [40, 120])
def test_the_default_tells_sentences_of_a_document_apart(n):
    rng = random.Random(0)
    judged = [worded(i, rng) for i in range(n + 40)]
    calibration = calibrate(judged[:n], alpha=0.1, split="sentences")
    kept = [SentenceFilter.of(calibration)(q.query, q.snippets) for q in judged[n:]]
    assert np.mean([one.m2 for one in kept]) < 0.25  # 2 of 16 are relevant
    assert calibration.choice.n_fit == n // 4
    costs = calibration.choice.costs
    assert (calibration.choice.best, [*costs]) == ("learned", ["learned", "top k of retriever"])
    assert costs["top k of retriever"] % 4 == 0 < costs["learned"] < 4  # sentences a document
    assert f"prior {prior_of('sentences').name}" in calibration.statement


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
def test_a_single_document_whose_sentences_have_equal_hits_is_not_kept_whole(guarantee):
    rng = random.Random(0)
    judged = []
    for i in range(40):
        query = worded(i, rng)
        first = next(s for s, r in zip(query.snippets, query.relevant, strict=True) if r)
        own = [e for e in query.evidence if e.document == first.id]
        judged.append(replace(query, snippets=with_hits([first]), relevant=[True], evidence=own))
    prune = SentenceFilter.of(calibrate(judged, alpha=0.1, split="sentences", guarantee=guarantee))
    # The one that answers of four, or none: a share alpha may be lost.
    assert all(prune(q.query, q.snippets).m2 <= 0.25 for q in judged)


@pytest.mark.parametrize("hits", [True, False])
def test_sentences_that_share_nothing_with_the_query_are_not_all_kept(hits):
    judged = []
    for i in range(30):
        documents = [Snippet("Rain fell. Sun shone. Snow came. Then none.", id=str(i))]
        evidence = [(str(i), 0, 10)]
        found = with_hits(documents) if hits else documents
        judged.append(JudgedQuery(f"Ünd {i}?", found, [True], id=str(i), evidence=evidence))
    calibration = calibrate(judged, alpha=0.1, split="sentences")
    assert SentenceFilter.of(calibration)("Ünd so?", judged[0].snippets).kept.tolist() == [0]


def test_snippets_without_hits_are_scored_by_what_they_share_with_the_query():
    rng = random.Random(0)
    bare = []
    for query in (worded(i, rng) for i in range(100)):
        bare.append(replace(query, snippets=[replace(s, hits=()) for s in query.snippets]))
    calibration = calibrate(bare, alpha=0.1, split="sentences")
    assert calibration.scorer.startswith("learned(words; context=document+position, fit=")
    with pytest.raises(ValueError, match="hit"):
        calibrate(bare, alpha=0.1)
