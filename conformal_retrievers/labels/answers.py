"""Relevance labels by reference answer: a text is relevant if it has the answer, word for word."""

from collections.abc import Iterable

from pydantic import JsonValue

from conformal_retrievers.data.answer_words import has_words, words_of
from conformal_retrievers.data.checks import all_of, query_name
from conformal_retrievers.data.sentences import Split, cut, splitter
from conformal_retrievers.labels.labeling import AnsweredQuery, Labelled


def label_by_answer(queries: Iterable[AnsweredQuery], split: Split | None = None) -> Labelled:
    """Label snippets, or sentences with `split`, as relevant if they have the reference answer.

    The answer's words must stand in the text in a row, as for `has_answer`: case, punctuation and
    a, an, the do not count; in scripts without spaces, each character is a word. Give short
    answers: a name, a number, a phrase. An answer in other words than the text's is found nowhere,
    and its query has nothing relevant; `labels["queries_without_relevant"]` is the number of these
    queries. A short word such as "yes" may be found where it answers nothing.

    Raises ValueError, naming the query, for an answer without a word, and TypeError for another
    object than an `AnsweredQuery`.

    >>> query = AnsweredQuery("Who?", ["It rains. Ann did it. Not Anna."], "ann")
    >>> (judged,) = label_by_answer([query], split="sentences").judged
    >>> judged.relevant
    (False, True, False)
    """
    judged, cuts = [], None if split is None else splitter(split)
    for query in all_of(AnsweredQuery, queries, "queries"):
        answer = query.answer or ""
        if not words_of(answer):
            where = query_name(query.id, query.query)
            raise ValueError(f"{where}: answer is {query.answer!r:.60}; give one that has a word")
        sentences = None if cuts is None else cut(query.snippets, cuts)
        texts = [s.text for s in (query.snippets if sentences is None else sentences.snippets)]
        judged.append(query.judged([has_words(text, answer) for text in texts], sentences))
    labels: dict[str, JsonValue] = {"source": "answer", "queries": len(judged)}
    labels["queries_without_relevant"] = sum(not any(query.relevant) for query in judged)
    return Labelled(tuple(judged), labels)
