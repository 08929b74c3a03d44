"""What a part of a source becomes: scored queries, and what is known of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from conformal_retrievers.cluster.parts import ERRORS, Folder, Part, Report, judged_in
from conformal_retrievers.data.parquet import write_parquet
from conformal_retrievers.scoring import scorer as scorers
from conformal_retrievers.scoring.scorer import Scorer


def facts_of(scorer: Scorer) -> dict[str, Any]:
    """Return a scorer's name, and what a calibration has to know of it, as the manifest has it."""
    facts = {
        "scorer": scorer.name,
        "relative_to_query": scorers.relative_to_query(scorer),
        "scorer_provenance": scorers.provenance_of(scorer),
    }
    return dict(json.loads(json.dumps(facts)))


def score_part(scorer: Scorer, part: Part, folder: Folder) -> None:
    """Score the judged queries of a part, and write what comes of it."""
    queries, errors = judged_in(part)
    scored = scorers.score_queries(scorer, queries)
    report = {
        "queries": len(scored),
        "pairs": sum(len(query.scores) for query in scored),
        "unscorable": sum(int(np.isnan(query.scores).sum()) for query in scored),
        "retriever": sorted({query.retriever for query in queries} - {None}, key=str),
        "k": sorted({query.k for query in queries} - {None}, key=str),
        "errors": errors,
    }
    folder.finish(part.name, report, partial(write_parquet, scored) if scored else None)


@dataclass(frozen=True)
class Done:
    """What a folder holds once all parts are done, by whichever runs."""

    out: str
    parts: int
    skipped: int  # parts that earlier runs had done
    queries: int
    pairs: int  # queries with a snippet each
    unscorable: int  # pairs whose score is NaN
    errors: tuple[Report, ...]  # {"file", "line", "error"} of each record that has no result

    @classmethod
    def of(cls, folder: Folder, names: Sequence[str], skipped: int) -> "Done":
        """Return what a folder has of these parts, and write its errors.jsonl."""
        reports = folder.reports(names)
        errors = tuple(error for report in reports for error in report["errors"])
        lines = "".join(json.dumps(error, ensure_ascii=False) + "\n" for error in errors)
        folder.write(ERRORS, lines.encode())
        queries, pairs, unscorable = (
            sum(report[name] for report in reports) for name in ("queries", "pairs", "unscorable")
        )
        return cls(folder.url, len(names), skipped, queries, pairs, unscorable, errors)
