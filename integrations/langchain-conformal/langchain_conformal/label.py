"""Plain questions, judged by an LLM as a LangChain retriever returns documents for them."""

from collections.abc import Iterable, Sequence
from functools import partial

from langchain_core.retrievers import RetrieverLike
from typing_extensions import Unpack

from conformal_retrievers import LLM
from conformal_retrievers.labels import Labelled, label_questions
from conformal_retrievers.labels.questions import LabelOptions
from langchain_conformal.judge import retrieve


def label_retriever(
    retriever: RetrieverLike,
    questions: Iterable[str],
    llm: LLM,
    *,
    answers: Sequence[str | None] | None = None,
    name: str | None = None,
    max_concurrency: int | None = None,
    **options: Unpack[LabelOptions],
) -> Labelled:
    """Retrieve for each question, and let an LLM judge each of the documents.

    Calibrate on `judged` of the result, with its `labels`, which say where the judgements come
    from: `calibrate(labelled.judged, alpha=0.1, labels=labelled.labels)`. The guarantee is then
    about what the LLM calls relevant. The queries have their questions as ids, and the snippets
    their hits, as those of `judge_retriever`.

    Parameters
    ----------
    retriever, name, max_concurrency
        As in `judge_retriever`: the unfiltered retriever, its name, and how many questions it is
        asked at a time.
    questions
        The texts of different questions, as users ask them.
    llm
        The judge, such as `as_llm(chat_model)`. It is asked once about each document of a question.
    answers
        The reference answer to each question, None where there is none: documents are judged by
        whether they support it, and by whether they answer the question where it is None.
    options
        `split`, `prompt`, `concurrency` and `cache`, as in `label_by_llm`: with a cache, an
        interrupted or repeated run asks only for what it lacks. `progress`, by default True, prints
        the number of calls before the first, and shows a progress bar, which needs the extra `cli`
        of `conformal-retrievers`; otherwise the number is logged. If more calls are needed than
        `most_calls`, ValueError is raised with their number, and none is made: give 0 to learn it.

    Raises
    ------
    TypeError
        For anything but a retriever, texts and an LLM.
    ValueError
        For a question that is blank or occurs twice, another number of answers, more calls than
        `most_calls`, and as in `judge_retriever` and `label_by_llm`.
    """
    ask = partial(retrieve, retriever, name=name, max_concurrency=max_concurrency)
    return label_questions(questions, ask, llm, answers=answers, **options)
