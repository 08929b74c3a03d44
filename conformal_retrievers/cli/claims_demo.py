"""`conformal-retrievers claims demo`: from a question to the claims of an answer that are kept.

BM25 retrieves docstrings of Python's standard library. An LLM answers, divides the answers into
claims and annotates these by the docstring of the question. Half of the questions calibrate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

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
from conformal_retrievers.cli.docstrings import Index, Question, docstring_corpus
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.cli.terminal import bad_data_in_one_line, fail, say, tracked
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import LLM, ask
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Unanswered
from conformal_retrievers.scoring import EmbeddingScorer

K = 4


def demo(
    base_url: Annotated[str, options.option("URL", "The URL of an OpenAI-compatible server.")],
    llm: Annotated[str, options.option("NAME", "The name of its model.")],
    model: Annotated[str, options.MODEL],
    alpha: options.Alpha = 0.2,
    questions: Annotated[int, options.option("NUMBER", "The number of questions.", min=10)] = 40,
) -> None:
    """Answer questions on Python's docstrings; filter the claims."""
    with bad_data_in_one_line():
        require("llm", "openai")
        require("snippets", "regex")
        from openai import OpenAIError

        from conformal_retrievers.llm.openai import openai_llm

        embedding = embedding_scorer(model, f"cosine({model})")
        try:
            asked = openai_llm(llm, base_url=base_url)
            for part in run(asked, embedding, alpha=alpha, n_questions=questions):
                say(part)
        except (Unanswered, OpenAIError) as error:
            fail(
                f"{base_url} gives no answer: {str(error).rstrip('.')}; start an OpenAI-compatible "
                "server, and check --base-url (it often ends in /v1) and --llm"
            )


def run(llm: LLM, embedding: EmbeddingScorer, *, alpha: float, n_questions: int) -> Iterator[str]:
    """Yield the text to print, part by part; raise Unanswered if the LLM gives no answer."""
    corpus = docstring_corpus()
    asked = corpus.questions[:: len(corpus.questions) // n_questions or 1][:n_questions]
    answer(llm, asked[0].text, asked[0].relevant)  # notices a missing server at once
    index = Index(corpus.snippets, K)
    relevance = ClaimRelevance(embedding)

    def annotated(question: Question) -> AnnotatedAnswer:
        documents = index.search(question.text)
        claims = decompose(llm, question.text, answer(llm, question.text, documents)).claims
        reference = " ".join(snippet.text for snippet in question.relevant)
        verdicts = annotate(llm, question.text, claims, reference=reference, documents=documents)
        of_claims = relevance.relevance(question.text, claims, documents)
        return AnnotatedAnswer(of_claims, verdicts.factual, id=question.id)

    answers = [annotated(question) for question in tracked(asked, "Asking")]
    calibration = calibrate_claims(answers[::2], alpha=alpha, scorer=relevance.name)
    yield calibration.statement
    yield f"\n{evaluate_claims(calibration, answers[1::2])}"

    question = asked[1].text
    documents = index.search(question)
    text = answer(llm, question, documents)
    filtered = AnswerFilter(ClaimFilter(relevance, calibration), llm)(question, text, documents)
    yield f"\nQuestion: {question}\nAnswer: {text}\n\nClaims:"
    for word, places in (("kept", filtered.claims.kept), ("removed", filtered.claims.dropped)):
        for i in places:
            yield f"  {word:<8} {filtered.claims.relevance[i]:.3f}  {filtered.claims.claims[i]}"
    yield f"\nFiltered answer: {filtered.text}"


def answer(llm: LLM, query: str, documents: Sequence[Snippet]) -> str:
    """Return an LLM's answer to a query from documents; raises Unanswered where it gives none."""
    prompt = Prompt.load("answer")
    request = prompt.request({"query": query, "documents": [d.text for d in documents]})
    reply = ask(llm, [request])[0]
    if isinstance(reply, Unanswered):
        raise reply
    return reply.text
