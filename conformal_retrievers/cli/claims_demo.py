"""The whole path on real text, `conformal-retrievers claims demo`: from a question to what is kept.

Questions to the docstrings of Python's standard library, in three thirds: one calibrates the filter
of snippets, one that of claims, and on the last both are tried. An LLM writes the answers, divides
them into claims and annotates these by the docstring that the question was taken from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformal_retrievers.calibration.calibrate import calibrate
from conformal_retrievers.claims.annotating import annotate
from conformal_retrievers.claims.answer_filter import AnswerFilter
from conformal_retrievers.claims.answers import AnnotatedAnswer
from conformal_retrievers.claims.calibrate import calibrate_claims
from conformal_retrievers.claims.dividing import decompose
from conformal_retrievers.claims.evaluation import evaluate_claims
from conformal_retrievers.claims.filter import ClaimFilter
from conformal_retrievers.claims.relevance import ClaimRelevance
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.llm.ask import LLM, ask
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Unanswered
from conformal_retrievers.scoring.embedding import EmbeddingScorer

K = 4


def run(llm: LLM, embedding: EmbeddingScorer, *, alpha: float, n_questions: int) -> Iterator[str]:
    """Yield what there is to tell; raises Unanswered where the LLM gives no answer.

    The LLM is asked first, so that one that is not there is known before anything else is done.
    """
    all_questions = docstring_corpus().questions
    questions = all_questions[:: max(1, len(all_questions) // n_questions)][:n_questions]
    answer(llm, questions[0].text, questions[0].relevant)
    texts = list(dict.fromkeys(s for question in questions for s in question.relevant))
    vectors = np.asarray(embedding.embed([snippet.text for snippet in texts]))
    corpus = [replace(s, embedding=v) for s, v in zip(texts, vectors, strict=True)]
    scorer = replace(embedding, reuse_embeddings=True)

    def retrieve(query: str) -> list[Snippet]:
        return [corpus[i] for i in np.argsort(scorer.score(query, corpus), kind="stable")[:K]]

    known = [JudgedQuery(q.text, q.relevant, [True] * len(q.relevant), id=q.id) for q in questions]
    judged = [query.retrieved_as(retrieve(query.query)) for query in known]
    snippet_filter = ConformalFilter(scorer, calibrate(judged[::3], scorer, alpha=alpha))
    yield snippet_filter.calibration.statement

    def context(query: str) -> list[Snippet]:
        retrieved = retrieve(query)
        return [retrieved[i] for i in snippet_filter(query, retrieved).kept]

    relevance = ClaimRelevance(embedding)

    undivided: Counter[str] = Counter()  # answers, by the reason why they have no claims
    untold: Counter[str] = Counter()  # claims, by the reason why they have no verdict

    def annotated(query: JudgedQuery) -> AnnotatedAnswer:
        documents = context(query.query)
        divided = decompose(llm, query.query, answer(llm, query.query, documents))
        reference = " ".join(snippet.text for snippet in query.snippets)
        told = annotate(llm, query.query, divided.claims, reference=reference, documents=documents)
        undivided.update([divided.reason] if divided.reason else [])
        untold.update(reason for reason in told.reasons if reason)
        of_claims = relevance.relevance(query.query, divided.claims, documents)
        return AnnotatedAnswer(of_claims, told.factual, id=query.id)

    answers = [annotated(query) for query in known[1::3]]
    yield from _failed(undivided, untold)
    calibration = calibrate_claims(answers, alpha=alpha, scorer=relevance.name)
    yield f"\n{calibration.statement}"
    undivided.clear()
    untold.clear()
    answers = [annotated(query) for query in known[2::3]]
    yield from _failed(undivided, untold)
    yield f"\n{evaluate_claims(calibration, answers)}"

    query = known[2].query
    documents = context(query)
    text = answer(llm, query, documents)
    filtered = AnswerFilter(ClaimFilter(relevance, calibration), llm)(query, text, documents)
    yield f"\nQuestion: {query}\n{len(documents)} of {K} snippets kept\nAnswer: {text}"
    for word, places in (("kept", filtered.claims.kept), ("removed", filtered.claims.dropped)):
        for i in places:
            yield f"  {word:<8} {filtered.claims.relevance[i]:.3f}  {filtered.claims.claims[i]}"
    if filtered.undivided:
        yield f"  not divided into claims: {filtered.undivided}"
    yield f"Filtered answer: {filtered.text}"


def answer(llm: LLM, query: str, documents: Sequence[Snippet]) -> str:
    """Return an LLM's answer to a query from documents; raises Unanswered where it gives none."""
    prompt = Prompt.load("answer")
    request = prompt.request({"query": query, "documents": [d.text for d in documents]})
    reply = ask(llm, [request])[0]
    if isinstance(reply, Unanswered):
        raise reply
    return reply.text


def _failed(undivided: Counter[str], untold: Counter[str]) -> Iterator[str]:
    """Yield how many answers and claims came to nothing, and why."""
    for noun, what, reasons in (
        ("answer", "divided into claims", undivided),
        ("claim", "annotated", untold),
    ):
        for reason, n in reasons.most_common():
            some = f"1 {noun} was" if n == 1 else f"{n} {noun}s were"
            yield f"\n{some} not {what}: {reason}; try another model"
