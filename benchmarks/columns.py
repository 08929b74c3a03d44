"""Scored queries as columns against plain numpy on the same flat arrays, and memory.

    arrays   `ScoredQueries(…)` and `Calibration.from_scores` with its threshold, of 10⁴ and of
             `--queries` queries with 20 scores, against `np.argsort` of these scores
    objects  `Calibration.from_scores` and `evaluate` of 100 queries as objects, here and, with
             --before FOLDER, in a checkout of an earlier version
    figures  a calibration and an evaluation, of `--queries` queries in arrays each, against numpy;
             then what `evaluate`, `diagnose` and `compare` take alone
    parquet  a calibration and an evaluation, of `--queries` queries in a Parquet file each, against
             numpy: pyarrow reads, then argsort, cumsum and bincount give the same figures. Each in
             a process of its own, so that peak memory (resident set size) is that of the step alone

    python -m benchmarks.columns [--queries 1000000] [--before FOLDER]

Each query has 1 to 3 relevant snippets. The targets are at most 5 times argsort, 1.1 times the
earlier version, and 3 times numpy in less than 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from conformal_retrievers import Calibration, ScoredQuery

K = 20
ALPHA = 0.1
Flat = tuple[Any, Any, Any, Any]  # scores, relevant, offsets, missed
FILES = ("calibration.parquet", "evaluation.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.columns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--only", choices=("arrays", "objects", "figures", "parquet"))
    parser.add_argument("--step", choices=(*STEPS, *FLAT), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured(arguments.step, arguments.folder, arguments.queries)))
        return
    if arguments.only in (None, "arrays"):
        for n in sorted({10_000, arguments.queries}):
            arrays(n)
    if arguments.only in (None, "objects"):
        objects(arguments.before)
    if arguments.only in (None, "figures"):
        figures(arguments.queries)
    if arguments.only in (None, "parquet"):
        with tempfile.TemporaryDirectory() as folder:
            parquet(arguments.queries, Path(folder))


def drawn(n: int, seed: int = 0) -> dict[str, Any]:
    """Return the columns of n queries; relevant snippets score lower."""
    rng = np.random.default_rng(seed)
    relevant = np.zeros((n, K), dtype=np.bool_)
    relevant[np.arange(n)[:, None], rng.integers(K, size=(n, 3))] = True
    scores = rng.normal(size=(n, K)) - 2 * relevant
    return {
        "scores": scores.ravel(),
        "relevant": relevant.ravel(),
        "offsets": np.arange(0, n * K + 1, K),
        "ids": [f"{seed}-{i}" for i in range(n)],
        "missed": rng.integers(3, size=n),
    }


def arrays(n: int) -> None:
    from conformal_retrievers.data.columns import ScoredQueries

    columns = drawn(n)
    calibrate = lambda: calibrated(ScoredQueries(**columns)).threshold()  # noqa: E731
    repetitions = max(3, min(100, 5_000_000 // n))
    ours, argsort = in_turn(calibrate, lambda: np.argsort(columns["scores"]), repetitions)
    print(f"arrays   {n:>9,} queries: {ours:.3f} s, {ours / argsort:.2f} × argsort (target ≤ 5)")


def objects(before: Path | None) -> None:
    folders = [Path(__file__).parents[1], *([before] if before else [])]
    for step in ("objects", "evaluated"):
        seconds = [min(run(step, folder)[0] for _ in range(5)) for folder in folders]
        ratio = f", {seconds[0] / seconds[1]:.2f} × before (target ≤ 1.1)" if before else ""
        print(f"{step:<9}      100 queries: {1000 * seconds[0]:.2f} ms{ratio}")


def figures(n: int) -> None:
    ratios = []
    for _ in range(3):
        (ours, peak), (numpy, least) = (run(step, n=n) for step in ("flat", "flat-numpy"))
        print(f"figures  2 × {n:,} queries: {ours:.2f} s, {peak / 1e6:.0f} MB, numpy ", end="")
        print(f"{numpy:.2f} s, {least / 1e6:.0f} MB")
        ratios.append(ours / numpy)
    print(f"  columns / numpy: {', '.join(f'{r:.2f}' for r in ratios)} (targets ≤ 3, < 2000 MB)")
    for step in ("evaluate", "diagnose", "compare"):
        seconds, peak = run(step, n=n)
        print(f"{step:<8} {n:>9,} queries: {seconds:.2f} s, {peak / 1e6:.0f} MB")


def parquet(n: int, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for seed, name in enumerate(FILES):
        columns = drawn(n, seed)
        lists = {
            field: pa.ListArray.from_arrays(
                pa.array(columns["offsets"], pa.int32()), pa.array(columns[field])
            )
            for field in ("scores", "relevant")
        }
        rows = {"id": columns["ids"], "missed": columns["missed"], **lists}
        pq.write_table(pa.table(rows), folder / name, row_group_size=100_000)
    size = sum((folder / name).stat().st_size for name in FILES) / 1e6
    print(f"parquet  2 × {n:,} queries × {K} snippets, {size:.0f} MB")
    ratios = []
    for _ in range(3):  # in turn: the machine's mood is shared
        (ours, peak), (numpy, least) = (run(step, folder=folder) for step in ("columns", "numpy"))
        print(f"  columns {ours:6.1f} s, {peak / 1e6:5.0f} MB   numpy {numpy:6.1f} s, ", end="")
        print(f"{least / 1e6:5.0f} MB")
        ratios.append(ours / numpy)
    print(f"  columns / numpy: {', '.join(f'{r:.2f}' for r in ratios)} (targets ≤ 3, < 2000 MB)")


def in_turn(
    one: Callable[[], object], other: Callable[[], object], repetitions: int
) -> tuple[float, float]:
    """Return the seconds of the processor that each takes at best, run in turn."""
    seconds: dict[Callable[[], object], list[float]] = {one: [], other: []}
    for _ in range(repetitions):
        for function, found in seconds.items():
            start = time.process_time()
            function()
            found.append(time.process_time() - start)
    return min(seconds[one]), min(seconds[other])


def run(
    step: str, version: Path | None = None, folder: Path | None = None, n: int = 0
) -> tuple[float, float]:
    """Return the seconds of a step and its peak in bytes, in a process of a version."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    command += ["--queries", str(n)]
    path = {"PYTHONPATH": str(version or Path(__file__).parents[1])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **path}
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def measured(step: str, folder: Path, n: int) -> tuple[float, float]:
    seconds = flat_step(step, n) if step in FLAT else STEPS[step](folder)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1000


def calibrated(queries: Any) -> Calibration:
    return Calibration.from_scores(queries, alpha=ALPHA, scorer="drawn")


def objects_of(seed: int) -> list[ScoredQuery]:
    columns = drawn(100, seed)
    rows = (columns[name].reshape(-1, K) for name in ("scores", "relevant"))
    pairs = zip(*rows, columns["ids"], strict=True)
    return [ScoredQuery(scores, relevant, id=id) for scores, relevant, id in pairs]


def step_objects(_: Path) -> float:
    queries, found = objects_of(0), []
    for _ in range(200):
        start = time.process_time()
        calibrated(queries).threshold()
        found.append(time.process_time() - start)
    return min(found)


def step_evaluated(_: Path) -> float:
    from conformal_retrievers import evaluate

    known, new = (objects_of(seed) for seed in (0, 1))
    calibration = calibrated(known)
    calibration.threshold()
    found = []
    for _ in range(100):
        start = time.process_time()
        evaluate(calibration, new)
        found.append(time.process_time() - start)
    return min(found)


def step_columns(folder: Path) -> float:
    from conformal_retrievers import evaluate
    from conformal_retrievers.data.parquet import read_parquet

    start = time.perf_counter()
    calibration = calibrated(read_parquet(folder / FILES[0]))
    evaluate(calibration, read_parquet(folder / FILES[1]))
    return time.perf_counter() - start


def step_numpy(folder: Path) -> float:
    import pyarrow.parquet as pq

    def flat(name: str) -> Flat:
        table = pq.read_table(folder / name).combine_chunks()
        scores, relevant = (table[of].chunk(0) for of in ("scores", "relevant"))
        values = relevant.values.to_numpy(zero_copy_only=False)
        offsets, missed = scores.offsets.to_numpy(), table["missed"].to_numpy()
        return scores.values.to_numpy(), values, offsets, missed

    start = time.perf_counter()
    threshold = numpy_threshold(*flat(FILES[0]))
    numpy_figures(threshold, *flat(FILES[1]))
    return time.perf_counter() - start


def flat(n: int, seed: int) -> Flat:
    columns = drawn(n, seed)
    return columns["scores"], columns["relevant"], columns["offsets"], columns["missed"]


def numpy_threshold(scores: Any, relevant: Any, offsets: Any, _: Any) -> float:
    n = len(offsets) - 1
    query_of = np.repeat(np.arange(n), np.diff(offsets))
    in_query = np.bincount(query_of[relevant], minlength=n)
    order = np.argsort(scores[relevant])
    mass = np.cumsum((1 / in_query[query_of[relevant]])[order])
    place = np.searchsorted(mass, (1 - ALPHA) * (np.count_nonzero(in_query) + 1))
    return float(scores[relevant][order[place]])


def numpy_figures(threshold: float, scores: Any, relevant: Any, offsets: Any, missed: Any) -> None:
    n = len(offsets) - 1
    query_of = np.repeat(np.arange(n), np.diff(offsets))
    keeps = scores <= threshold
    retrieved = np.bincount(query_of, minlength=n)
    in_query = np.bincount(query_of, relevant, n)
    kept, hit = np.bincount(query_of, keeps, n), np.bincount(query_of, keeps & relevant, n)
    known = in_query + missed
    for part, whole in (  # each with the variance over queries that an interval needs
        *((hit / of, of > 0) for of in (in_query, known)),  # query-recall
        *((hit, of) for of in (in_query, known)),  # snippet
        *((hit == of, of > 0) for of in (in_query, known)),  # all
        *((hit > 0, of > 0) for of in (in_query, known)),  # any
        (in_query / known, known > 0),  # recall@K
        (retrieved - kept, retrieved),  # removal
        (hit, kept),  # precision
        (kept > 0, np.ones(n)),  # m1
        (kept / retrieved, retrieved > 0),  # m2
        (np.bincount(query_of, np.isnan(scores), n), retrieved),  # unscorable
    ):
        share = part.sum() / whole.sum()
        np.sum((part - share * whole) ** 2)


def flat_step(step: str, n: int) -> float:
    from conformal_retrievers import compare, diagnose, evaluate
    from conformal_retrievers.data.columns import ScoredQueries

    if step == "flat-numpy":
        known, new = (flat(n, seed) for seed in (0, 1))
        start = time.process_time()
        numpy_figures(numpy_threshold(*known), *new)
        return time.process_time() - start
    columns = [drawn(n, seed) for seed in (0, 1)]
    start = time.process_time()
    calibration = calibrated(ScoredQueries(**columns.pop(0)))
    queries = ScoredQueries(**columns.pop(0))
    calibration.threshold()
    if step != "flat":
        start = time.process_time()
    if step == "diagnose":
        diagnose(calibration, queries)
    elif step == "compare":
        compare(calibration, calibration.at(2 * ALPHA), queries)
    else:
        evaluate(calibration, queries)
    return time.process_time() - start


STEPS = {
    "objects": step_objects,
    "evaluated": step_evaluated,
    "columns": step_columns,
    "numpy": step_numpy,
}
FLAT = ("flat", "flat-numpy", "evaluate", "diagnose", "compare")


if __name__ == "__main__":
    main()
