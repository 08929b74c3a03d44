"""`conformal-retrievers claims demo`: the whole path from a question to the claims that are kept.

The questions are about the docstrings of Python's standard library, in three parts: one calibrates
the filter of snippets, one the filter of claims, and the last tests both. An LLM writes the
answers, divides them into claims and annotates these by the docstring of the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer

from conformal_retrievers.calibration.calibrate import calibrate
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    AnswerFilter,
    ClaimFilter,
    ClaimRelevance,
    annotate,
    calibrate_claims,
    decompose,
    evaluate_claims,
)
from conformal_retrievers.cli import options
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.cli.terminal import bad_data_in_one_line, fail
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.llm.ask import LLM, ask
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Unanswered
from conformal_retrievers.scoring import EmbeddingScorer

K = 4


def demo(
    base_url: Annotated[
        str, typer.Option(help="The URL of an OpenAI-compatible server.", metavar="URL")
    ],
    llm: Annotated[str, typer.Option(help="The name of its model.", metavar="NAME")],
    model: options.Model,
    alpha: options.Alpha = 0.2,
    questions: Annotated[
        int, typer.Option(help="The number of questions.", min=15, metavar="NUMBER")
    ] = 60,
) -> None:
    """Ask about the standard library's docstrings: retrieve, filter, answer, filter the claims."""
    with bad_data_in_one_line():
        require("llm", "openai")
        require("snippets", "regex")
        from openai import OpenAIError

        from conformal_retrievers.llm.openai import openai_llm

        embedding = embedding_scorer(model, f"cosine({model})")
        try:
            asked = openai_llm(llm, base_url=base_url)
            for part in run(asked, embedding, alpha=alpha, n_questions=questions):
                typer.echo(part)
        except Unanswered as error:
            fail(
                f"{base_url} does not answer: {str(error).rstrip('.')}; start a server with an "
                "OpenAI-compatible API there, or give another --base-url"
            )
        except OpenAIError as error:  # an error that no retry can fix
            fail(
                f"{base_url} refuses to answer: {error}; give with --base-url the part before "
                "/chat/completions (often ends in /v1), and with --llm a model that it serves"
            )


def run(llm: LLM, embedding: EmbeddingScorer, *, alpha: float, n_questions: int) -> Iterator[str]:
    """Yield the text to print, part by part; raise Unanswered if the LLM gives no answer.

    The LLM is asked first, so that a missing server is noticed before anything else is done.
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

    def annotated(query: JudgedQuery) -> AnnotatedAnswer:
        documents = context(query.query)
        divided = decompose(llm, query.query, answer(llm, query.query, documents))
        reference = " ".join(snippet.text for snippet in query.snippets)
        verdicts = annotate(
            llm, query.query, divided.claims, reference=reference, documents=documents
        )
        of_claims = relevance.relevance(query.query, divided.claims, documents)
        return AnnotatedAnswer(of_claims, verdicts.factual, id=query.id)

    answers = map(annotated, known[1::3])
    calibration = calibrate_claims(answers, alpha=alpha, scorer=relevance.name)
    yield f"\n{calibration.statement}"
    yield f"\n{evaluate_claims(calibration, map(annotated, known[2::3]))}"

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
