"""Plain questions with what was retrieved for them, judged by an LLM."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from typing import TypedDict

from typing_extensions import Unpack

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.judged import with_questions
from conformal_retrievers.data.matching import Returned
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.labels.labeling import AnsweredQuery, Labelled, label_by_llm
from conformal_retrievers.labels.wording import say
from conformal_retrievers.llm.ask import LLM, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt


class LabelOptions(TypedDict, total=False):
    """The options of `label_by_llm`."""

    split: Split | None
    prompt: Prompt | None
    concurrency: int
    cache: Cache | None
    progress: bool
    most_calls: int | None


class QuestionOptions(LabelOptions, total=False):
    """The options of `label_retriever` of both packages."""

    answers: Sequence[str | None] | None
    name: str | None
    max_concurrency: int | None


def label_questions(
    questions: Iterable[str],
    retrieve: Callable[..., Returned],
    llm: LLM,
    *,
    answers: Sequence[str | None] | None = None,
    name: str | None = None,
    max_concurrency: int | None = None,
    **options: Unpack[LabelOptions],
) -> Labelled:
    """Retrieve for each question, which becomes the query's id, and let an LLM judge it.

    `label_retriever` of both packages calls it. `retrieve` returns what was retrieved for each of
    some questions, with the fields of its metadata, and what was asked for it, by `name` and so
    many at a time. Questions are different; an answer is None where there is no reference. The
    other options are those of `label_by_llm`, which shows its progress here.

    Raises TypeError for anything but texts and an LLM, and ValueError for a question that is blank
    or occurs twice, another number of answers, and as `label_by_llm`.
    """
    check_llm(llm)
    signature(label_by_llm).bind((), llm, **options)  # before anything is retrieved
    given = questions if isinstance(questions, str) else all_of(str, questions, "questions")
    texts = [query.query for query in with_questions(given, "questions")]
    if isinstance(answers, str) or (answers is not None and len(answers) != len(texts)):
        raise ValueError(say("answers", answers=answers, n=len(texts)))
    retrieved, asked = retrieve(texts, name=name, max_concurrency=max_concurrency)
    queries = [
        AnsweredQuery(text, [snippet for snippet, _ in items], answer, id=text)
        for text, items, answer in zip(
            texts, retrieved, answers or [None] * len(texts), strict=True
        )
    ]
    options.setdefault("progress", True)
    labelled = label_by_llm(queries, llm, **options)
    return replace(labelled, judged=tuple(replace(q, **vars(asked)) for q in labelled.judged))
