"""`conformal-retrievers depth`: how deep to retrieve, and with which retrievers?"""

import sys
from typing import Annotated

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries
from conformal_retrievers.cli.terminal import print_json, say
from conformal_retrievers.data.evidence import by_sentence
from conformal_retrievers.evaluation.depth import depth as measured
from conformal_retrievers.theory.ranks import check_probability


def depth(
    judged: options.Judged,
    recall: Annotated[
        float,
        options.option(
            "SHARE",
            "The end-to-end recall to reach, in (0, 1).",
            parser=options.passes(lambda r: check_probability("recall", r, "a recall")),
        ),
    ] = 0.9,
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    split: options.Split = None,
    as_json: options.Json = False,
) -> None:
    """Find the depth K, and the retrievers, that reach a recall.

    Takes deep judged lists with hits: of judge_retriever, or of the runs of a BEIR folder. Measures
    a third of the queries, whose ids --json has: leave them out when you calibrate.
    """
    queries = judged_queries(judged, run, k, min_score)
    asked = by_sentence(queries, split) if split else queries
    found = measured(asked, recall=recall, progress=sys.stderr.isatty())
    if as_json:
        print_json(found)
    else:
        say(found)
