"""`conformal-retrievers judge`: a page on which a person judges retrieved snippets."""

import math
from contextlib import closing
from pathlib import Path
from typing import Annotated

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries, labels_of
from conformal_retrievers.cli.terminal import say
from conformal_retrievers.labels.judging import Judging, JudgingServer
from conformal_retrievers.theory.ranks import exact_share

WORDS_A_MINUTE = 225  # that are read with care


def judge(
    retrieved: options.Judged,
    out: options.Out = Path("judged.jsonl"),
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    sample: Annotated[
        float | None, options.option("--sample", "SHARE", parser=options.passes(exact_share))
    ] = None,
    synthetic: options.Synthetic = False,
    by: Annotated[str | None, options.option("--by", "NAME")] = None,
    port: Annotated[int, options.option("--port", "NUMBER", min=0, max=65535)] = 0,
) -> None:
    """Judge retrieved snippets on a page, or check an LLM's marks.

    Open it in your browser. Every mark is saved at once. Stop with Ctrl-C, and go on with the
    same command.
    """
    options.check_out(out, retrieved, force=True)  # Judging refuses a file that it did not write
    queries = list(judged_queries(retrieved, run, k, min_score))
    given = labels_of(retrieved, synthetic)
    with closing(Judging(queries, out, by=by, share=sample, given=given)) as judging:
        with JudgingServer(judging, port) as server:
            say(f"{judging.n_done} of {len(queries)} questions are judged. {_left(judging)}")
            say(f"Open this address:\n{server.url}\nStop with Ctrl-C.")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                say()
        _say_what_is_written(judging)


def _left(judging: Judging) -> str:
    """Return how much there is to read, which takes far longer than the keys."""
    texts = judging.texts_left
    if not texts:
        return ""
    words = sum(len(text.split()) for text in texts)
    minutes = math.ceil(words / WORDS_A_MINUTE)
    time = f"{minutes} minutes" if minutes < 100 else f"{minutes / 60:.0f} hours"
    fewer = "; a smaller --sample shows fewer" if judging.marked else ""
    return f"To read the other {len(texts):,} snippets takes some {time}{fewer}."


def _say_what_is_written(judging: Judging) -> None:
    if judging.unwritten is not None:
        judging.write()
    written, unsure = judging.n_done - len(judging.unsure), len(judging.unsure)
    say(f"{written} of {len(judging.queries)} questions are judged.")
    if unsure:
        say(f"{unsure} more are left out, because a snippet is marked unsure.")
    if written:
        say(f"Calibrate with: conformal-retrievers calibrate {judging.out} --alpha 0.1")
