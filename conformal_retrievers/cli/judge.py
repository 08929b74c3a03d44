"""`conformal-retrievers judge`: a page on which a person judges retrieved snippets."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries, labels_of
from conformal_retrievers.cli.terminal import say
from conformal_retrievers.labels.judging import Judging, JudgingServer
from conformal_retrievers.theory.ranks import exact_share


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
    options.check_not_read(out, retrieved)  # Judging refuses a file that it did not write
    queries = list(judged_queries(retrieved, run, k, min_score))
    given = labels_of(retrieved, synthetic)
    with closing(Judging(queries, out, by=by, share=sample, given=given)) as judging:
        with JudgingServer(judging, port) as server:
            say(f"{judging.n_done} of {len(queries)} questions are judged.")
            say(f"{len(judging.texts_left):,} snippets are left to read.")
            say(f"Open this address:\n{server.url}\nStop with Ctrl-C.")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                say()
        _say_what_is_written(judging)


def _say_what_is_written(judging: Judging) -> None:
    if judging.unwritten is not None:
        judging.write()
    written, unsure = judging.n_done - len(judging.unsure), len(judging.unsure)
    say(f"{written} of {len(judging.queries)} questions are judged.")
    if unsure:
        say(f"Left out as unsure, since a snippet is marked so: {unsure}.")
    if written:
        say(f"Calibrate with: conformal-retrievers calibrate {judging.out} --alpha 0.1")
