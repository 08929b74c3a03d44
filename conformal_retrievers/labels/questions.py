"""Plain questions with what was retrieved for them, judged by an LLM."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.data.retrieved import with_questions
from conformal_retrievers.labels.labeling import AnsweredQuery, Labelled, label_by_llm
from conformal_retrievers.llm.ask import LLM, check_llm


def checked_questions(
    questions: Iterable[str], answers: Sequence[str | None] | None, llm: LLM
) -> list[str]:
    """Return the questions, without white space around them.

    Raises as `label_questions`, before anything is retrieved for them.
    """
    check_llm(llm)
    given = questions if isinstance(questions, str) else all_of(str, questions, "questions")
    texts = [query.query for query in with_questions(given, "questions")]
    if isinstance(answers, str) or (answers is not None and len(answers) != len(texts)):
        raise ValueError(
            f"answers is {answers!r:.60} for {len(texts)} questions; give one for each, None where "
            "it is unknown"
        )
    return texts


def label_questions(
    questions: Iterable[str],
    retrieved: Sequence[Sequence[Snippet]],
    llm: LLM,
    *,
    answers: Sequence[str | None] | None = None,
    asked: Retrieval | None = None,
    **options: Any,
) -> Labelled:
    """Let an LLM judge what was retrieved for each question, which becomes the query's id.

    `label_retriever` of both packages retrieves and calls it. Questions are different; snippets are
    those that were returned for each, best first; an answer is None where there is no reference.
    `asked` is what was asked for them; the other options are those
    of `label_by_llm`. Raises TypeError for anything but texts and an LLM, and ValueError for a
    question that is blank or occurs twice, another number of answers, and as `label_by_llm`.
    """
    texts = checked_questions(questions, answers, llm)
    rows = zip(texts, retrieved, answers or [None] * len(texts), strict=True)
    queries = [AnsweredQuery(text, snippets, answer, id=text) for text, snippets, answer in rows]
    labelled = label_by_llm(queries, llm, **options)
    judged = tuple(replace(query, **(vars(asked) if asked else {})) for query in labelled.judged)
    return replace(labelled, judged=judged)
