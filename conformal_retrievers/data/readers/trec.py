"""TREC's files: qrels ("qid 0 docid relevance") and runs ("qid Q0 docid rank score tag").

Documents that the qrels do not have count as irrelevant, and queries of a run that they do not have
are left out with a warning, as trec_eval does. The order is that of the ranks, and of the scores
where ranks are equal.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from conformal_retrievers.data import beir
from conformal_retrievers.data.beir import Runs, judged_by_qrels, read_corpus, read_texts
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.readers.documents import warn
from conformal_retrievers.data.text import number_in
from conformal_retrievers.data.wording import say


def fits(line: str) -> bool:
    """Return whether a line is one of qrels, or the header that BEIR gives them."""
    columns = line.split()
    if columns == ["query-id", "corpus-id", "score"]:
        return True
    return len(columns) == 4 and columns[1] in ("0", "Q0") and not math.isnan(number_in(columns[3]))


def read_trec(
    qrels: str | Path,
    run: Runs | None = None,
    *,
    queries: str | Path | None = None,
    corpus: str | Path | None = None,
    k: int | None = None,
    min_score: float = 1,
) -> list[JudgedQuery]:
    """Read the judged queries of qrels, retrieved as in one run or several.

    Qrels have four columns: query, a column without use, document, relevance; `min_score` is the
    relevance from which on a document is relevant. A run has six columns; several are given as in
    `read_beir`, and k is how many documents to keep of each query and run, the best by rank; all by
    default. `queries` and `corpus` are the texts of queries and documents: files of lines with id,
    tab and text, or queries.jsonl and corpus.jsonl.

    Without texts, a query has its id as the text and its snippets have none: scores of hits need
    none. Relevant documents that no run has are counted in `missed`. Without a run, queries have
    the ids of their relevant documents, or these with their texts, for `judge_retriever`.

    Raises ValueError for a broken line, naming file and line; for a document or query without a
    text in a file that is given; for qrels without a run and without texts of the queries.
    """
    judgements = beir.read_qrels(Path(qrels))
    texts = None if queries is None else read_texts(queries)
    if texts is not None and (unknown := [id for id in judgements if id not in texts]):
        raise ValueError(say("no text", queries=queries, id=unknown[0], qrels=qrels))
    documents = None if corpus is None else read_corpus(corpus)
    relevant = {
        id: [document for document, score in scores.items() if score >= min_score]
        for id, scores in judgements.items()
    }
    if run is None:
        if texts is None:
            raise ValueError(say("texts of queries", qrels=qrels))
        return _to_retrieve(relevant, texts, documents)
    runs = beir.read_runs(Path(), run, k)
    made = [
        judged_by_qrels(id if texts is None else texts[id], runs, known, documents, id=id, k=k)
        for id, known in relevant.items()
    ]
    if left_out := {id for ranking in runs.values() for id in ranking.ranked}:
        warn(say("queries not judged", n=len(left_out), id=min(left_out), qrels=qrels))
    if not any(query.snippets for query in made):
        raise ValueError(f"run has no query of {qrels}; give a run of these queries")
    return made


def _to_retrieve(
    relevant: Mapping[str, list[str]], texts: Mapping[str, str], documents: Mapping[str, str] | None
) -> list[JudgedQuery]:
    if without := [id for id, its in relevant.items() if not its]:
        warn(say("nothing relevant", n=len(without), id=without[0]))
    asked = {id: its for id, its in relevant.items() if its}
    if documents is None:
        return [JudgedQuery.from_ids(texts[id], its, id=id) for id, its in asked.items()]
    made = []
    for id, documents_of in asked.items():
        beir.check_found(f"query {id!r:.60}", documents_of, documents)
        snippets = [Snippet(documents[document], id=document) for document in documents_of]
        made.append(JudgedQuery(texts[id], snippets, [True] * len(documents_of), id=id))
    return made
