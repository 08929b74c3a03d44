"""`conformal-retrievers try`: calibrate on random halves of judged queries, measure the others."""

import sys
from typing import Annotated

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries
from conformal_retrievers.cli.scorers import Models
from conformal_retrievers.cli.terminal import print_json, say
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.evaluation.splits import try_splits as tried


def try_splits(
    judged: options.Judged,
    alpha: options.Alpha,
    splits: Annotated[int, options.option("--splits", "NUMBER", min=1)] = 20,
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    corpus: options.Corpus = None,
    split: options.Split = None,
    as_json: options.Json = False,
) -> None:
    """Try a filter on judged queries, beside top k.

    Calibrates on random halves of the queries, and measures the other halves. Saves nothing.
    """
    queries = judged_queries(judged, run, k, min_score)
    asked = by_sentence(queries, split) if split else queries
    models = Models(None, corpus, judged).given() or None
    table = tried(asked, models, alpha=alpha, splits=splits, progress=sys.stderr.isatty())
    if as_json:
        print_json(table)
    else:
        say(table)
