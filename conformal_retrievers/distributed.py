"""The same work on a cluster: scoring, labelling, calibrating and evaluating in parts, on Ray.

Each part of a source (see `data/parts.py`) is one task of Ray Data on a pool of actors. An actor
makes its scorer or LLM once, reads a part from the storage, and writes its result there; the
driver holds names of parts only. An actor that dies is started again, and its part done again. A
driver that is interrupted continues, by the same call, with the parts that are not done.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from conformal_retrievers.extras import require

require("ray", "fsspec", "pyarrow", "ray")

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cluster.results import calibrated, diagnosed_log, evaluated
from conformal_retrievers.cluster.tasks import Done, Labelling, Scoring, Task, do_part
from conformal_retrievers.data import parts
from conformal_retrievers.data.parts import Folder, Part
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.llm.ask import LLM, check_count, check_llm
from conformal_retrievers.llm.deadlines import patient
from conformal_retrievers.llm.limits import CacheOfDesk, Desk
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.scoring.scorer import Scorer, check_scorer
from conformal_retrievers.version import __version__

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is imported: it asks outside
import ray
import ray.data
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MOST = 5  # how often a part is begun: it may be what kills its actor
_REMOTE: Any = ray.remote  # its types are narrower than what it takes

T = TypeVar("T")
U = TypeVar("U")


def score_dataset(
    source: str | Path,
    out: str | Path,
    make_scorer: Callable[[], Scorer],
    *,
    actors: int = 1,
    num_gpus: float = 0,
    requests_per_minute: float | None = None,
    queries_per_part: int = 1000,
) -> Done:
    """Score judged queries on a Ray cluster, into a folder of Parquet files.

    Called again with the same folder, it does the parts that are missing there. Malformed records
    are in `Done.errors` and in the folder's errors.jsonl; the others are scored.

    Parameters
    ----------
    source, out
        A file or folder of judged queries, JSON lines or Parquet, or the folder of `label_dataset`;
        a folder, new or of an earlier run. Paths or URLs of fsspec that all machines reach.
    make_scorer
        Makes the scorer, once in each actor.
    actors, num_gpus
        The number of actors, and the GPUs of each; without GPUs each has one CPU.
    requests_per_minute
        How many requests all LLMs of `limited` send together.
    queries_per_part
        Lines of JSON that are one part; a compressed or Parquet file is always one.

    Raises
    ------
    ValueError
        For a source without data, and a folder that was begun with another source or scorer.
    RuntimeError
        If a part fails, naming it and why; the parts that are done stay.
    """
    make = partial(_scoring, make_scorer)
    each = {"num_gpus": num_gpus} if num_gpus else {"num_cpus": 1}
    return _done("score", make, source, out, queries_per_part, actors, requests_per_minute, each)


def label_dataset(
    source: str | Path,
    out: str | Path,
    make_llm: Callable[[], LLM],
    *,
    actors: int = 1,
    concurrency: int = 8,
    requests_per_minute: float | None = None,
    patience: float = 600.0,
    cache: str | Path | None = None,
    prompt: Prompt | None = None,
    split: Split | None = None,
    queries_per_part: int = 100,
) -> Done:
    """Let an LLM judge retrieved snippets as `label_by_llm` does, on a Ray cluster.

    Called again with the same folder, it does the parts that are missing there. Malformed records
    and queries without a verdict are in `Done.errors` and in the folder's errors.jsonl.

    Parameters
    ----------
    source, out, actors, queries_per_part
        As for `score_dataset`; the lines of the source are {"id", "query", "answer", "group",
        "snippets": [{"id", "text", "document", "position", "retrieval_score", "hits"}]}.
    make_llm
        Makes the LLM, once in each actor. Its client's own retries take no permit: give
        `openai_llm(..., max_retries=0)`.
    concurrency
        The number of requests of each actor under way at a time.
    requests_per_minute
        How many requests all actors send together.
    patience
        Seconds to wait for an endpoint that refuses connections or is overloaded; then the part
        fails.
    cache
        A file on the driver's machine for the replies: those of a part that is not done are not
        paid for again.
    prompt, split
        As for `label_by_llm`.

    Raises
    ------
    ValueError, RuntimeError
        As `score_dataset`.
    """
    prompt = prompt or Prompt.load("label_sentences" if split else "label")
    check_count(concurrency, "concurrency")
    make = partial(_labelling, make_llm, patience, prompt, split, concurrency)
    each, log = {"num_cpus": 1}, None if cache is None else os.path.abspath(cache)
    return _done(
        "label", make, source, out, queries_per_part, actors, requests_per_minute, each, log
    )


def calibrate_dataset(source: str | Path, *, alpha: float, **options: Any) -> Calibration:
    """Return the calibration of scored queries in parts: that of all at once, bit for bit.

    `source` is the folder of `score_dataset`, which has the scorer's name, or a file or folder of
    scored queries in Parquet. `options` are those of `Calibration.from_scores`. The file states how
    many malformed records are left out, and a UserWarning, too. Raises ValueError as
    `Calibration.from_scores` does, if parts are not done, and for several retrievers or depths.
    """
    return calibrated(source, _mapped, alpha=alpha, **options)


def evaluate_dataset(
    calibration: Calibration, source: str | Path, *, level: float = 0.95
) -> Evaluation:
    """Return what `evaluate` returns for scored queries in parts, without `equal_recall`.

    `source` is as for `calibrate_dataset`. Raises `CalibrationMismatch` for another scorer than the
    calibration's, and ValueError as `evaluate` does, and if parts are not done.
    """
    return evaluated(calibration, source, _mapped, level)


def diagnose_log_dataset(
    calibration: Calibration, source: str | Path, *, level: float = 0.95
) -> Diagnosis:
    """Return what `diagnose` returns for a filter log in many files, such as rotated ones.

    `source` is the path or URL of a folder of filter logs, or of one. A repeated query counts once,
    in the first file by name that has it. Raises ValueError as `diagnose` does, and if no event is
    of this calibration.
    """
    return diagnosed_log(calibration, source, _mapped, level)


def connect(address: str | None = None) -> None:
    """Connect to the cluster at an address, or start one here; nothing if that has been done."""
    if not ray.is_initialized():
        ray.init(address)


def limited(llm: LLM, *, patience: float = 600.0) -> LLM:
    """Return the same model, which in an actor of `score_dataset` takes a permit for each request.

    It waits for an endpoint that is away, see `patient`. Make it in `make_scorer`.
    """
    permit = None if _DESK is None else partial(_at_desk, "permit")
    return patient(llm, patience=patience, permit=permit)


def _scoring(make_scorer: Callable[[], Scorer]) -> Scoring:
    check_scorer(scorer := make_scorer())
    return Scoring(scorer)


def _labelling(
    make_llm: Callable[[], LLM],
    patience: float,
    prompt: Prompt,
    split: Split | None,
    concurrency: int,
) -> Labelling:
    check_llm(llm := make_llm(), "make_llm()")
    cache = None if _DESK is None else CacheOfDesk(_at_desk)
    return Labelling(limited(llm, patience=patience), prompt, split, concurrency, cache)


class _Actor:
    """Makes a task once, and does it for one part after the other."""

    def __init__(
        self, make: Callable[[], Task], out: str, by: Mapping[str, Any], desk: Any
    ) -> None:
        global _DESK
        _DESK = desk
        self.task, self.folder, self.by = make(), Folder(out), by

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        part = Part(**json.loads(batch["item"][0]))
        try:
            if (made := _by(self.task)) != self.by:
                raise ValueError(f"one actor made {made!r}, and another {self.by!r}")
            if (times := _at_desk("begin", part.name)) > MOST:
                raise RuntimeError(f"its actor died {times - 1} times, perhaps out of memory")
            do_part(self.task, part, self.folder)
        except Exception as error:
            where = f"the part of {part.file} from line {part.line}"
            return {"failed": [f"{where} failed: {type(error).__name__}: {error}"]}
        return {"failed": [""]}


_DESK: Any = None  # the desk of the cluster, in the process of an actor


def _at_desk(method: str, *arguments: Any) -> Any:
    return ray.get(getattr(_DESK, method).remote(*arguments))


def _done(
    task: str,
    make: Callable[[], Task],
    source: str | Path,
    out: str | Path,
    per_part: int,
    actors: int,
    per_minute: float | None,
    each: Mapping[str, Any],  # what an actor takes of its machine
    cache: str | None = None,
) -> Done:
    """Do the parts of a source that the folder lacks, and return all of its results."""
    check_count(per_part, "queries_per_part")
    check_count(actors, "actors")
    if per_minute is not None and not per_minute > 0:
        raise ValueError(f"requests_per_minute is {per_minute!r}; give a number above 0")
    folder, labels = Folder(out), parts.labels_of(source)
    files = parts.files_in(source, parts.ENDINGS if task == "score" else parts.LINES)
    surveys = [*_mapped(partial(parts.surveyed, per_part=per_part), files)]
    by = _got(_REMOTE(**each)(lambda: _by(make())).remote())
    more = {"library": __version__, "labels": labels}
    folder.begin(parts.manifest_of(task, by, surveys, per_part, **more))
    every, before = parts.parts_of(surveys), folder.done()
    todo = [json.dumps(asdict(part)) for part in every if part.name not in before]
    if todo:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        again = {"max_restarts": -1, "max_task_retries": -1}
        made = _REMOTE(num_cpus=0, scheduling_strategy=here, **again)(Desk)
        data = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
            _Actor,
            batch_size=1,
            fn_constructor_args=(make, folder.url, by, made.remote(per_minute, cache)),
            compute=ray.data.ActorPoolStrategy(size=actors),
            **each,
        )
        for row in data.iter_rows():
            if row["failed"]:
                raise RuntimeError(f"{row['failed']}. Run it again to continue with this part")
    return Done.of(folder, [part.name for part in every], len(every) - len(todo))


def _by(task: Task) -> dict[str, Any]:
    return dict(json.loads(json.dumps(task.by)))  # as the manifest gives it back


def _got(result: Any) -> Any:
    """Return a result; raise what its task raised, whose own message Ray puts a traceback into."""
    try:
        return ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _mapped(do: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Yield what a function returns for each item, in order, from a task of the cluster each."""
    connect()
    task, under_way = _REMOTE(lambda do, item: do(item)), deque[Any]()
    resources: Any = ray.cluster_resources  # untyped
    most = 2 * int(resources().get("CPU", 1))  # so that no result waits for long
    for item in items:
        if len(under_way) >= most:
            yield _got(under_way.popleft())
        under_way.append(task.remote(do, item))
    while under_way:
        yield _got(under_way.popleft())
