"""The guarantee on real text, from judge_retriever to the filter, by leaving each query out once.

Of n + 1 queries, each is filtered once with a calibration of the n others. Whatever the queries
are, the mean share of relevant snippets that is kept is then at least 1 − α, exactly, if the score
is the same for all: so they are too few to change the prior, or those that fit are never left out,
and as many fit whichever one is. A gate by default, which takes its units from some of them, is
replaced.
"""

import numpy as np
import pytest
from frameworks import judged, langchain_retriever, vector_index, vector_store
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

import langchain_conformal
import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import ConformalFilter, calibrate, calibrate_gate
from conformal_retrievers.calibration.fitting import FEWEST, SHARE, split
from conformal_retrievers.scoring import BestScore, RetrievalScorer

pytestmark = pytest.mark.slow

ALPHA, K = 0.25, 20


def by_words(query):
    """The documents that share most words with the query, with their number as the score."""
    words = {*query.casefold().split()}
    texts = {d["id"]: d["text"] for d in vector_store().store.values()}
    shared = {id: len(words & {*text.casefold().split()}) for id, text in texts.items()}
    best = sorted(texts, key=lambda id: (-shared[id], len(texts[id])))[:K]
    scores = [{"relevance_score": float(shared[id])} for id in best]
    return [Document(texts[id], id=id, metadata=s) for id, s in zip(best, scores, strict=True)]


def in_langchain():
    both = {"dense": langchain_retriever(K), "words": RunnableLambda(by_words)}
    return langchain_conformal.judge_retriever(langchain_conformal.HybridRetriever(both), judged())


def in_llama_index():
    retriever = vector_index().as_retriever(similarity_top_k=K)
    return llama_index_conformal.judge_retriever(retriever, judged())


@pytest.mark.filterwarnings("ignore:.*(drops none|have no document)")
@pytest.mark.parametrize("gated", [False, True], ids=["alone", "behind a gate"])
@pytest.mark.parametrize("n", [FEWEST, 2 * FEWEST + 1], ids=["by the prior", "fitted"])
@pytest.mark.parametrize("retrieved", [in_langchain, in_llama_index])
def test_a_query_left_out_keeps_its_share_on_average(retrieved, n, gated):
    queries = [query for query in retrieved() if any(query.relevant)][:n]
    fit = split(queries).fit if n > FEWEST else []
    best = BestScore(RetrievalScorer(max(queries[0].hits)))
    shares, kept = [], []
    for query in (query for query in queries if query not in fit):
        others = [other for other in queries if other is not query]
        gate = calibrate_gate(others, (), best, alpha=ALPHA / 3) if gated else None
        keep = ConformalFilter.of(calibrate(others, alpha=ALPHA, gate=gate))
        assert keep.calibration.choice.n_fit == len(fit) == (n - 1) // SHARE * (n > FEWEST)
        filtered = keep(query.query, query.snippets)
        shares.append(filtered.keeps[np.array(query.relevant)].mean())
        kept.append(len(filtered.kept))
    assert np.mean(shares) >= 1 - ALPHA - 1e-9
    assert np.mean(kept) < K  # it is not that all are kept
