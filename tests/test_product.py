"""Options in every combination: they work together, or an error names two of them.

To work is to calibrate, save, load, evaluate and state, and to filter in the core and in both
packages with the same survivors. Of the queries that calibrated, at least the guaranteed share is
kept for certain.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

import langchain_conformal
import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import JudgedQuery, LearnedScorer, Snippet, evaluate, score_queries
from conformal_retrievers.calibration import Calibration, calibrate, calibrate_gate, needed_scorers
from conformal_retrievers.data.hits import fuse
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.scoring import BestScore, FunctionScorer, RankScorer, RetrievalScorer
from conformal_retrievers.sentence_filter import open_filter
from langchain_conformal.documents import with_hits as found_by

pytestmark = pytest.mark.slow

ALPHA, N, K = 0.3, 40, 6
WORDS = [*"abcdefghijkl"]


def drawn(seed, n, answered=True):
    """Queries whose first snippets share their words, as two retrievers find them, K in all."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        query = " ".join([f"{seed}q{i}", *rng.choice(WORDS, 3, replace=False)])
        texts = [
            f"It is of {' '.join(rng.choice(WORDS, 3))}. Part {j} of {seed} and {i} ends here."
            for j in range(K)
        ]
        relevant = np.arange(K) < int(rng.integers(1, 4)) if answered else np.zeros(K, bool)
        strength = relevant * rng.uniform(0.2, 1.0, K) + rng.uniform(0, 0.6, K)
        pairs = zip(texts, strength, strict=True)
        texts = [f"{text} {query}." if s > 0.7 else text for text, s in pairs]
        lists = {}
        for name, noise in (("dense", 0.05), ("words", 0.3)):
            scores = strength + rng.normal(0, noise, K)
            lists[name] = [(j, float(scores[j])) for j in np.argsort(-scores)]
        found = fuse(lists).items()
        snippets = [Snippet(texts[j], f"{seed}-{i}-{j}", hits=hits) for j, hits in found]
        places = [int(s.id.rpartition("-")[2]) for s in snippets]
        yield JudgedQuery(
            query,
            snippets,
            relevant[places].tolist(),
            id=f"{seed}{i}",
            group="ab"[i % 2],
            missed=int(rng.random() < 0.1) if answered else 0,
            retriever="store",
            k=K,
            evidence=[(s.id, 0, 20) for s, j in zip(snippets, places, strict=True) if relevant[j]],
            answerable=answered,
        )


JUDGED = [*drawn(1, N)]
UNANSWERED = [*drawn(2, 15, answered=False)]
LENGTH = FunctionScorer(lambda query, texts: [-len(text) for text in texts], "length")
SCORERS = {
    "default": lambda queries: None,
    "absolute": lambda queries: LENGTH,
    "rank": lambda queries: RankScorer("dense"),
    "several": lambda queries: [LENGTH],
    "learned": LearnedScorer.fit,
}
OPTIONS = {
    "guarantee": ("query-recall", "snippet", "all", "any"),
    "delta": (None, 0.2),
    "by_group": (False, True),
    "count_missed": (False, True),
    "sentences": (False, True),
    "gate": (None, "best", "learned"),
}
NAMED = {"sentences": "split", "scorer": "scor"}  # an option, by another word in errors


def named_in(text, options):
    return [name for name, value in options.items() if value and NAMED.get(name, name) in text]


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("guarantee", OPTIONS["guarantee"])
@pytest.mark.filterwarnings(
    "ignore:.*drops none", "ignore:.*infinite", "ignore:the threshold passed"
)
def test_options_work_together_or_an_error_names_two_of_them(scorer, guarantee, tmp_path):
    worked = refused = 0
    for values in itertools.product(*list(OPTIONS.values())[1:]):
        options = {"guarantee": guarantee, **dict(zip(list(OPTIONS)[1:], values, strict=True))}
        try:
            calibration, judged = calibrated_with(scorer, **options)
        except ValueError as error:
            refused += 1
            if len(named_in(str(error), options | {"scorer": scorer})) < 2:
                pytest.fail(f"{options}: {error}")
            continue
        worked += 1
        calibration.save(tmp_path / "calibration.json")
        check(tmp_path / "calibration.json", calibration, judged, options)
    # 'snippet' takes a score that compares nothing, no delta and no gate; behind a gate, no delta.
    snippet = (8, 40) if scorer == "absolute" else (0, 48)
    assert (worked, refused) == (snippet if guarantee == "snippet" else (32, 16))


def calibrated_with(scorer, *, sentences, gate, **options):
    fit, judged, unanswered = [*drawn(3, 12)], JUDGED, UNANSWERED
    if sentences:
        fit, judged, unanswered = (by_sentence(q, "sentences") for q in (fit, judged, unanswered))
    if gate:
        by = None if gate == "learned" else BestScore(RetrievalScorer("dense"))
        options["gate"] = calibrate_gate(
            judged, unanswered, by, alpha=ALPHA / 3, by_group=options["by_group"]
        )
    return calibrate(judged, SCORERS[scorer](fit), alpha=ALPHA, **options), judged


def check(path, calibration, judged, options):
    assert Calibration.load(path) == calibration
    split = "sentences" if options["sentences"] else None
    needed = [LENGTH] if "length" in needed_scorers(calibration) else []
    keep = open_filter(path, needed, split=split)
    calibrates = [not calibration.chosen_on(query) for query in judged]
    wholes, judged = ([*itertools.compress(of, calibrates)] for of in (JUDGED, judged))
    scored = score_queries(keep.scorer, judged, gate=keep.gate)
    evaluation = evaluate(calibration, [replace(query, id=None) for query in scored])
    assert len(str(evaluation)) > 500
    assert "at least 70 %" in keep.statement or calibration.keeps_everything
    for group, part in (evaluation.by_group if options["by_group"] else {None: evaluation}).items():
        shares = part.end_to_end if options["count_missed"] else part.coverage
        if calibration.threshold(group) < math.inf:
            assert shares[options["guarantee"]].estimate >= 1 - ALPHA - 1e-9, options
    groups = [whole.group if options["by_group"] else None for whole in wholes]
    filters = [keep(w.query, w.snippets, group) for w, group in zip(wholes, groups, strict=True)]
    for i in [0, 1, *[i for i, filtered in enumerate(filters) if filtered.silenced][:1]]:
        whole, query, group, filtered = wholes[i], scored[i], groups[i], filters[i]
        if filtered.silenced:
            assert (len(filtered.kept), query.silenced) == (0, True)
        if not query.silenced:  # or each score is +inf there, which no threshold keeps
            np.testing.assert_array_equal(filtered.scores, query.scores)
        shadow = open_filter(path, needed, split=split, shadow=True)
        marked = shadow(whole.query, whole.snippets, group)
        assert (marked.shadow, marked.kept.tolist()) == (True, filtered.kept.tolist())
        given = {"scorer": needed, "split": split, "group_of": {whole.query: group}.get}
        for package in (in_langchain, in_llama_index):
            assert package(path, whole, **given) == texts_of(filtered, whole)
            shown = package(path, whole, shadow=True, **given)
            assert shown == [snippet.text for snippet in whole.snippets]


def texts_of(filtered, query):
    if hasattr(filtered, "passages"):
        return [passage.text for passage in filtered.passages]
    return [query.snippets[i].text for i in filtered.kept]


def in_langchain(path, query, **options):
    documents = found_by(
        [Document(s.text, id=s.id) for s in query.snippets],
        [{name: [rank, score] for name, rank, score in s.hits} for s in query.snippets],
    )
    compressor = langchain_conformal.ConformalCompressor.from_calibration(path, **options)
    return [d.page_content for d in compressor.compress_documents(documents, query.query)]


def in_llama_index(path, query, **options):
    nodes = [
        llama_index_conformal.NodeWithHits(node=TextNode(text=s.text, id_=s.id), hits=s.hits)
        for s in query.snippets
    ]
    postprocessor = llama_index_conformal.ConformalPostprocessor.from_calibration(path, **options)
    kept = postprocessor.postprocess_nodes(nodes, query_str=query.query)
    return [node.node.text for node in kept]
