"""The same work on a cluster: scoring, calibrating and evaluating in parts, on Ray.

Each part of a source (see `cluster/parts.py`) is one task of an actor, which makes its scorer once,
reads a part from the storage, and writes its result there; the driver holds names of parts only.
An actor that dies is started again, and its part done again. A driver that is interrupted
continues, by the same call, with the parts that are not done.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from conformal_retrievers.data.checks import check_count
from conformal_retrievers.extras import require

require("ray", "fsspec", "pyarrow", "ray")

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cluster import parts
from conformal_retrievers.cluster.parts import Folder, Part
from conformal_retrievers.cluster.results import calibrated, evaluated
from conformal_retrievers.cluster.tasks import Done, facts_of, score_part
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.scoring.scorer import Scorer, check_scorer

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is imported: it asks outside
import ray

logger = logging.getLogger("conformal_retrievers")

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
    queries_per_part: int = 1000,
) -> Done:
    """Score judged queries on a Ray cluster, into a folder of Parquet files.

    Called again with the same folder, it does the parts that are missing there. Malformed records
    are in `Done.errors` and in the folder's errors.jsonl; the others are scored.

    Parameters
    ----------
    source, out
        A file or folder of judged queries, JSON lines or Parquet; a folder, new or of an earlier
        run. Paths or URLs of fsspec that all machines reach.
    make_scorer
        Makes the scorer, once in each actor.
    actors, num_gpus
        The number of actors, and the GPUs of each; without GPUs each has one CPU.
    queries_per_part
        Lines of JSON that are one part; a compressed or Parquet file is always one.

    Raises
    ------
    ValueError
        For a source without data, and a folder that was begun with another source or scorer.
    RuntimeError
        If a part fails, naming it and why; the parts that are done stay.
    """
    check_count(queries_per_part, "queries_per_part")
    check_count(actors, "actors")
    each = {"num_gpus": num_gpus} if num_gpus else {"num_cpus": 1}
    survey = partial(parts.surveyed, per_part=queries_per_part)
    surveys, folder = [*_mapped(survey, parts.files_in(source))], Folder(out)
    facts = _got(_REMOTE(**each)(lambda: facts_of(_made(make_scorer))).remote())
    folder.begin(parts.manifest_of(facts, surveys, queries_per_part))
    every, before = parts.parts_of(surveys), folder.done()
    todo = [part for part in every if part.name not in before]
    start = _REMOTE(**each, max_restarts=-1, max_task_retries=MOST - 1)(_Actor).remote
    _score(todo, [start(make_scorer, facts, folder) for _ in range(min(actors, len(todo)))])
    return Done.of(folder, [part.name for part in every], len(every) - len(todo))


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


def connect(address: str | None = None) -> None:
    """Connect to the cluster at an address, or start one here; nothing if that has been done."""
    if not ray.is_initialized():
        ray.init(address)


class _Actor:
    """Makes a scorer once, and scores one part after the other."""

    def __init__(
        self, make_scorer: Callable[[], Scorer], facts: Mapping[str, Any], folder: Folder
    ) -> None:
        self.make_scorer, self.facts, self.folder = make_scorer, facts, folder

    @cached_property
    def scorer(self) -> Scorer:
        scorer = _made(self.make_scorer)
        if (facts := facts_of(scorer)) != self.facts:
            raise ValueError(f"one actor made {facts!r}, and another {self.facts!r}")
        return scorer

    def score(self, part: Part) -> str:
        """Score a part; return why that failed, as the error itself may not reach the driver."""
        try:
            score_part(self.scorer, part, self.folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _made(make_scorer: Callable[[], Scorer]) -> Scorer:
    check_scorer(scorer := make_scorer())
    return scorer


def _score(todo: Sequence[Part], actors: list[Any]) -> None:
    """Let each actor score one part after the other; stop at the first part that fails."""
    waiting, busy = deque(todo), dict[Any, tuple[Any, Part]]()
    try:
        while waiting or busy:
            while waiting and actors:
                actor, part = actors.pop(), waiting.popleft()
                busy[actor.score.remote(part)] = actor, part
            while actors:
                ray.kill(actors.pop())  # others may wait for its place
            (ended,), _ = ray.wait([*busy])
            actor, part = busy[ended]
            try:
                why = ray.get(ended)
            except ray.exceptions.RayError as error:
                why = f"its actor died {MOST} times, perhaps out of memory ({error})"
            if why:
                where = f"the part of {part.file} from line {part.line}"
                raise RuntimeError(f"{where} failed: {why}. Run again to continue with this part")
            del busy[ended]
            actors.append(actor)
            logger.info("%d of %d parts are left", len(waiting) + len(busy), len(todo))
    finally:
        for actor in [*actors, *(actor for actor, _ in busy.values())]:
            ray.kill(actor)


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
