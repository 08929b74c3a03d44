"""What a part of a source becomes: scored or labelled queries, and what is known of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from conformal_retrievers.data import parts
from conformal_retrievers.data.jsonl import judged_query
from conformal_retrievers.data.parquet import iter_rows, write_parquet
from conformal_retrievers.data.parts import Folder, Part, Report
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.retrieved import check_retrieved, queries_to_judge
from conformal_retrievers.data.sentences import Split, splitter
from conformal_retrievers.labels.labeling import AnsweredQuery, label_by_llm
from conformal_retrievers.labels.reading import answered_query
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.scoring import scorer
from conformal_retrievers.scoring.scorer import Scorer

# What to write, facts about it, and the errors by the query's place.
Result = tuple[Sequence[Any], Report, dict[int, str]]


@dataclass(frozen=True)
class Scoring:
    """Scores judged queries."""

    scorer: Scorer

    @property
    def by(self) -> dict[str, Any]:
        """The scorer's name, and what a calibration has to know of it, for the manifest."""
        return {
            "scorer": self.scorer.name,
            "relative_to_query": scorer.relative_to_query(self.scorer),
            "scorer_provenance": scorer.provenance_of(self.scorer),
        }

    def read(self, place: str, row: bytes | JudgedQuery) -> JudgedQuery:
        """Return the judged query of a line, or of Parquet."""
        judged = judged_query(place, row.decode()) if isinstance(row, bytes) else row
        (query,) = queries_to_judge([judged])
        check_retrieved([query])
        return query

    def do(self, queries: Sequence[JudgedQuery]) -> Result:
        """Return the scored queries."""
        scored = scorer.score_queries(self.scorer, queries)
        facts = {
            "pairs": sum(len(query.scores) for query in scored),
            "unscorable": sum(int(np.isnan(query.scores).sum()) for query in scored),
            "usage": {},
            "retriever": sorted({query.retriever for query in queries} - {None}, key=str),
            "k": sorted({query.k for query in queries} - {None}, key=str),
        }
        return scored, facts, {}


@dataclass(frozen=True)
class Labelling:
    """Lets an LLM judge what was retrieved."""

    llm: LLM
    prompt: Prompt
    split: Split | None
    concurrency: int
    cache: Cache | None

    @property
    def by(self) -> dict[str, Any]:
        """The model, the prompt and the splitter, for the manifest."""
        split = None if self.split is None else splitter(self.split).name
        return {"llm": self.llm.name, "prompt": self.prompt.hash, "split": split}

    def read(self, place: str, line: bytes) -> AnsweredQuery:
        """Return the query of a line."""
        return answered_query(place, line)

    def do(self, queries: Sequence[AnsweredQuery]) -> Result:
        """Return the judged queries, and why others have no verdict."""
        labelled = label_by_llm(queries, **vars(self))  # the fields are its parameters
        places = {id(query): i for i, query in enumerate(queries)}
        errors = {
            places[id(query)]: "; ".join(f"snippets[{i}]: {why}" for i, why in reasons.items())
            for query, reasons in labelled.unlabelled
        }
        pairs = sum(len(query.snippets) for query in labelled.judged)
        facts = {"pairs": pairs, "unscorable": 0, "usage": asdict(labelled.usage)}
        return labelled.judged, facts, errors


Task = Scoring | Labelling


def do_part(task: Task, part: Part, folder: Folder) -> None:
    """Do a task for the records of a part, and write what comes of it."""
    read: Callable[[str, Any], Any] = task.read
    if part.file.endswith(".parquet"):
        with parts.local_copy(part.file) as path:
            rows, errors = parts.records(part, read, enumerate(iter_rows(path), start=1))
    else:
        rows, errors = parts.records(part, read, parts.lines_of(part))
    result, facts, without = task.do([query for _, query in rows])
    errors += [
        parts.error_at(part, rows[i][0], why) | {"verdict": None} for i, why in without.items()
    ]
    report = {"queries": len(result), **facts, "errors": errors}
    folder.finish(part.name, report, partial(write_parquet, result) if len(result) else None)


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
    usage: Usage = field(default_factory=Usage)  # of an LLM, by these parts; not what died with one

    @classmethod
    def of(cls, folder: Folder, names: Sequence[str], skipped: int) -> "Done":
        """Return what a folder has of these parts, and write its errors.jsonl."""
        reports = folder.reports(names)
        errors = tuple(error for report in reports for error in report["errors"])
        lines = "".join(json.dumps(error, ensure_ascii=False) + "\n" for error in errors)
        folder.write(parts.ERRORS, lines.encode())
        queries, pairs, unscorable = (
            sum(report[name] for report in reports) for name in ("queries", "pairs", "unscorable")
        )
        usage = sum((Usage(**report["usage"]) for report in reports), Usage())
        return cls(folder.url, len(names), skipped, queries, pairs, unscorable, errors, usage)
