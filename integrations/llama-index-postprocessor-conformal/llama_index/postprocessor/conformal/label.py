"""Plain questions, judged by an LLM as a LlamaIndex retriever returns nodes for them."""

from collections.abc import Iterable, Sequence

from llama_index.core.base.base_retriever import BaseRetriever

from conformal_retrievers import LLM
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.labels import Labelled, checked_questions, label_questions
from conformal_retrievers.llm import Cache, Prompt
from llama_index.postprocessor.conformal.judge import retrieve
from llama_index.postprocessor.conformal.nodes import to_snippets


def label_retriever(
    retriever: BaseRetriever,
    questions: Iterable[str],
    llm: LLM,
    *,
    answers: Sequence[str | None] | None = None,
    name: str | None = None,
    max_concurrency: int | None = None,
    split: Split | None = None,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = True,
    most_calls: int | None = None,
) -> Labelled:
    """Retrieve for each question, and let an LLM judge each of the nodes.

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
        The judge, such as `as_llm(model)`. It is asked once about each node of a question.
    answers
        The reference answer to each question, None where there is none: nodes are judged by
        whether they support it, and by whether they answer the question where it is None.
    split, prompt, concurrency, cache
        As in `label_by_llm`. With a cache, an interrupted or repeated run asks only for what it
        lacks.
    progress
        Whether to print the number of calls before the first, and to show a progress bar, which
        needs the extra `cli` of `conformal-retrievers`. Otherwise the number is logged.
    most_calls
        If more calls are needed than this, ValueError is raised with their number, and none is
        made. Give 0 to learn the number.

    Raises
    ------
    TypeError
        For anything but a retriever, texts and an LLM.
    ValueError
        For a question that is blank or occurs twice, another number of answers, more calls than
        `most_calls`, and as in `judge_retriever` and `label_by_llm`.
    """
    texts = checked_questions(questions, answers, llm)
    retrieved, asked = retrieve(retriever, texts, name=name, max_concurrency=max_concurrency)
    return label_questions(
        texts,
        [to_snippets(nodes) for nodes in retrieved],
        llm,
        answers=answers,
        asked=asked,
        split=split,
        prompt=prompt,
        concurrency=concurrency,
        cache=cache,
        progress=progress,
        most_calls=most_calls,
    )
