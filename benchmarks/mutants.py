"""Whether the tests notice mistakes in the statistics: each mutant must fail one of them.

A mutant is one change of one place in the library, of the kind that is easily made and hard to see:
a rank that is off by one, a tie on the wrong side, a maximum instead of +inf. For each, the
repository is copied into a temporary folder, changed, and the tests that are about the changed file
run there until the first failure. The table says which test killed which mutant. Exit code 1 if one
survives, 2 if a mutant no longer fits the library or the tests fail without any.

    .venv/bin/python benchmarks/mutants.py [--file tolerance.py ...] [--jobs 2]

It needs the extra `dev` and takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
SECONDS = 300  # a mutant that runs on and on is noticed too

# The tests that are about a file, the fastest to kill first.
TESTS = {
    "conformal.py": ["test_conformal", "test_calibration", "test_guarantees"],
    "tolerance.py": ["test_tolerance"],
    "guarantees.py": [
        "test_calibration",
        "test_scorers_and_calibrations",
        "test_guarantees",
        "test_tolerance",
        "test_tracking",
    ],
    "calibration.py": [
        "test_calibration",
        "test_scorers_and_calibrations",
        "test_guarantees",
        "test_tolerance",
    ],
    "calibration_file.py": ["test_calibration"],
    "filtering.py": ["test_filtering", "test_guarantees"],
    "planning.py": ["test_planning"],
    "certify.py": ["test_certify"],
    "choosing.py": ["test_choosing"],
    "llm/prompt.py": ["llm/test_prompt"],
    "llm/ask.py": ["llm/test_ask"],
    "llm/verdicts.py": ["llm/test_verdicts"],
    "llm/wire.py": ["llm/test_wire"],
    "llm/openai.py": ["llm/test_openai"],
    "llm/cache.py": ["llm/test_cache"],
    "labels/labeling.py": ["labels/test_labeling"],
    "labels/audit.py": ["labels/test_audit"],
    "scoring/scorer.py": ["test_combine"],
    "monitor.py": ["test_monitor"],
    "tracking.py": ["test_tracking"],
    "comparison.py": ["test_comparison"],
    "verdict.py": ["test_evaluation"],
    "columns.py": ["test_diagnostics"],
    "findings.py": ["test_diagnostics"],
}


class Mutant(NamedTuple):
    """`old`, which must occur once in the file, becomes `new`; `why` says what mistake that is."""

    file: str
    old: str
    new: str
    why: str


MUTANTS = [
    # --- conformal.py: ranks, thresholds, p-values
    Mutant(
        "conformal.py",
        "return n + 1 - math.floor((n + 1) * exact_alpha(alpha))",
        "return n - math.floor(n * exact_alpha(alpha))",
        "rank without the new unit",
    ),
    Mutant(
        "conformal.py",
        "return Fraction(str(alpha))",
        "return Fraction(float(alpha))",
        "alpha as the binary float, not the decimal",
    ),
    Mutant(
        "conformal.py",
        "(total + masses.new)) - masses.new",
        "total)",
        "no mass for the new query",
    ),
    Mutant(
        "conformal.py",
        "    if may_lose < 0:\n        return math.inf\n",
        "    may_lose = max(0, may_lose)\n",
        "the maximum instead of +inf",
    ),
    Mutant(
        "conformal.py",
        'may_lose, side="right")',
        'may_lose, side="left")',
        "one score too many where the mass is reached exactly",
    ),
    Mutant(
        "conformal.py",
        "if lost[-1] > may_lose:",
        "if lost[-1] >= may_lose:",
        "one score too few sorted",
    ),
    Mutant(
        "conformal.py",
        "highest[np.argsort(v[highest])[::-1]]",
        "highest[np.argsort(v[highest])]",
        "lost from below",
    ),
    Mutant(
        "conformal.py",
        "< 2**63 else np.object_",
        "< 2**99 else np.object_",
        "64 bits where they do not hold the sum",
    ),
    Mutant(
        "conformal.py",
        "[::-1])[::-1], [0]]) + masses.new",
        "[::-1])[::-1], [0]])",
        "p-values without the new query",
    ),
    Mutant(
        "conformal.py",
        "int(not_below[0]) >= 2**53",
        "int(not_below[0]) >= 2**70",
        "sums as floats that do not hold them",
    ),
    Mutant(
        "conformal.py",
        'np.searchsorted(ordered_scores, s, side="left")',
        'np.searchsorted(ordered_scores, s, side="right")',
        "tied scores counted as below",
    ),
    # --- tolerance.py: Beta ranks and bets
    Mutant(
        "tolerance.py",
        "return n + 1 - above",
        "return n - above",
        "tolerance rank off by one",
    ),
    Mutant(
        "tolerance.py",
        "below = check_delta(delta) * (1 - 1e-9)",
        "below = 2 * check_delta(delta)",
        "two-sided delta",
    ),
    Mutant(
        "tolerance.py",
        "while tolerance_rank(n, alpha, delta) > n:",
        "while tolerance_rank(n, alpha, delta) > n + 1:",
        "feasible one query too early",
    ),
    Mutant(
        "tolerance.py",
        "before = np.concatenate([[0.25], variances[:-1]])",
        "before = variances",
        "a bet that has seen its loss",
    ),
    Mutant(
        "tolerance.py",
        "means = (0.5 + np.cumsum(x)) / (1 + counts)",
        "means = np.full(n, x.mean())",
        "a variance around the mean of all losses",
    ),
    Mutant(
        "tolerance.py",
        "np.log1p(bets * (alpha - x))",
        "np.log1p(bets * (x - alpha))",
        "a bet on the other side",
    ),
    Mutant(
        "tolerance.py",
        "wealth.max(initial=0.0)",
        "wealth[-1]",
        "the last wealth, not the largest",
    ),
    Mutant(
        "tolerance.py",
        "np.flatnonzero(values == math.inf)",
        "np.flatnonzero(np.isnan(values))",
        "missed snippets lost from no loss",
    ),
    Mutant(
        "tolerance.py",
        "alpha, delta) > delta:\n            return threshold",
        "alpha, delta) > delta:\n            return float(candidate)",
        "one threshold below the last that passes",
    ),
    Mutant(
        "tolerance.py",
        "share = 1.0 / np.array([len(q) for q in queries], dtype=np.float64)",
        "share = np.full(len(queries), len(queries) / len(values))",
        "losses per snippet, not per query",
    ),
    # --- guarantees.py: units, masses, order
    Mutant(
        "guarantees.py",
        "[s[-1:] for s in scores]",
        "[s[:1] for s in scores]",
        "the lowest score for 'all'",
    ),
    Mutant(
        "guarantees.py",
        "            return [s[:1] for s in scores]",
        "            return [s[-1:] for s in scores]",
        "the highest score for 'any'",
    ),
    Mutant(
        "guarantees.py",
        "            if self.count_missed and q.missed\n",
        "            if not self.count_missed and q.missed\n",
        "missed snippets count where they do not",
    ),
    Mutant(
        "guarantees.py",
        "if len(q.scores) or (self.count_missed and q.missed)]",
        "if len(q.scores)]",
        "a query that missed everything does not enter",
    ),
    Mutant(
        "guarantees.py",
        'lengths if self.guarantee == "query-recall" else np.ones_like(lengths)',
        "np.ones_like(lengths)",
        "snippets pooled for query-recall",
    ),
    Mutant(
        "guarantees.py",
        'if relative_to_query and guarantee == "snippet":',
        'if relative_to_query and guarantee == "any":',
        "ranks within a query taken for scores of single snippets",
    ),
    Mutant(
        "guarantees.py",
        "key=lambda i: digest(self.entering[i].id, i)",
        "key=lambda i: i",
        "bets in the order that the caller gave",
    ),
    Mutant(
        "guarantees.py",
        'return len(self.scores) if self.guarantee == "snippet" else len(self.entering)',
        "return len(self.entering)",
        "snippets counted in queries",
    ),
    # --- calibration.py: what is kept, groups, what enters
    Mutant(
        "calibration.py",
        "(s <= self.threshold(group)) | np.isnan(s)",
        "(s < self.threshold(group)) | np.isnan(s)",
        "a score equal to the threshold dropped",
    ),
    Mutant(
        "calibration.py",
        "(s <= self.threshold(group)) | np.isnan(s)",
        "s <= self.threshold(group)",
        "what cannot be scored dropped",
    ),
    Mutant(
        "calibration.py",
        "self._thresholds.get(self._key(group), math.inf)",
        "self._thresholds.get(self._key(group), max(self._thresholds.values()))",
        "an unseen group borrows a threshold",
    ),
    Mutant(
        "calibration.py",
        "return (self.merge_groups or {}).get(group, group)",
        "return group",
        "merged groups stay apart",
    ),
    Mutant(
        "calibration.py",
        "if query.relevant.any() or query.missed]",
        "if query.relevant.any()]",
        "queries that missed everything forgotten",
    ),
    Mutant(
        "calibration.py",
        "guarantee=self.guarantee if guarantee is None else guarantee",
        "guarantee=self.guarantee",
        "at() ignores the guarantee",
    ),
    Mutant(
        "calibration.py",
        "scores=np.where(lost, -math.inf, query.scores)",
        "scores=np.where(lost, math.inf, query.scores)",
        "what cannot be scored counts as lost, but is kept",
    ),
    Mutant(
        "calibration.py",
        "if n < needed:",
        "if n < needed - 1:",
        "a delta that is not quite feasible accepted",
    ),
    Mutant(
        "calibration_file.py",
        "if told == follows or (name in sums and math.isclose(told, follows, rel_tol=1e-3)):",
        "if told is not None:",
        "a file whose threshold does not follow from its scores",
    ),
    Mutant(
        "calibration_file.py",
        "count_missed=record.count_missed,\n",
        "",
        "count_missed lost on loading",
    ),
    # --- filtering.py: groups at run time
    Mutant(
        "filtering.py",
        "return self.group_of(query) if group is None and self.group_of is not None else group",
        "return self.group_of(query) if self.group_of is not None else group",
        "the caller's group overruled",
    ),
    Mutant(
        "filtering.py",
        "await ascore_snippets(self.scorer, query, snippets)\n"
        "        return self.decide(scores, self._group(query, group))",
        "await ascore_snippets(self.scorer, query, snippets)\n"
        "        return self.decide(scores, group)",
        "no group of the query in async",
    ),
    # --- planning.py, certify.py, choosing.py
    Mutant(
        "planning.py",
        "while n > feasible and good(n - 1):",
        "while n > feasible + 1 and good(n - 2):",
        "one query more than enough",
    ),
    Mutant(
        "planning.py",
        "independent = math.floor(n / design_effect)",
        "independent = n",
        "clustered units that promise as much as single ones",
    ),
    Mutant(
        "certify.py",
        "seen = calibration.ids",
        "seen = frozenset[str]()",
        "a certificate from the calibration's own queries",
    ),
    Mutant(
        "planning.py",
        "_beta_cdf(1 - alpha - within, k, n)",
        "_beta_cdf(1 - alpha - within, k, n + 1)",
        "a Beta law off by one",
    ),
    Mutant(
        "certify.py",
        "binomial_cdf(n, p)[kept - 1]",
        "binomial_cdf(n, p)[kept]",
        "a bound that is no bound",
    ),
    Mutant(
        "certify.py",
        "beta_binomial_cdf(len(shares), k, n + 1 - k)",
        "beta_binomial_cdf(len(shares), k, n + 2 - k)",
        "a Beta-binomial law off by one",
    ),
    Mutant(
        "certify.py",
        'shares == 1 if guarantee == "all" else shares > 0',
        'shares > 0 if guarantee == "all" else shares > 0',
        "'all' measured as 'any'",
    ),
    Mutant(
        "choosing.py",
        "level = delta / len(alphas)",
        "level = delta",
        "points that do not hold together",
    ),
    Mutant(
        "choosing.py",
        "math.log(1 / delta) / (2 * len(ordered))",
        "math.log(1 / delta) / (4 * len(ordered))",
        "a band that is too narrow",
    ),
    Mutant(
        "choosing.py",
        'affordable = int(np.searchsorted(v, v[affordable], side="left"))',
        "affordable = int(affordable)",
        "tied scores over budget",
    ),
    Mutant(
        "choosing.py",
        "budget -= float(cost[unscorable].sum())",
        "budget -= 0.0",
        "what cannot be scored for nothing",
    ),
    # --- llm/
    Mutant(
        "llm/prompt.py",
        r"[A-Za-z_][^]\s[]*\s*\])",
        r"[A-Z]+\s*\])",
        "markers in capital letters only",
    ),
    Mutant("llm/prompt.py", "\\u034f", "", "a character that is not seen stays"),
    Mutant(
        "llm/prompt.py", "json.dumps(value, ensure_ascii=False)", "json.dumps(value)", "ASCII only"
    ),
    Mutant(
        "llm/ask.py",
        "                with slots:\n",
        "                with threading.Semaphore(self.concurrency):\n",
        "each call of `ask` has a bound of its own",
    ),
    Mutant(
        "llm/ask.py",
        "async with slots:",
        "async with asyncio.Semaphore(self.concurrency):",
        "each call of `aask` has a bound of its own",
    ),
    Mutant(
        "llm/ask.py",
        "if self.cache is not None and self.is_answer(i, reply):",
        "if self.cache is not None:",
        "an unreadable reply is cached",
    ),
    Mutant(
        "llm/ask.py",
        "if reply is not None and self.is_answer(i, reply):",
        "if reply is not None:",
        "an unreadable reply is taken from the cache",
    ),
    Mutant(
        "llm/ask.py",
        "                    if self.stopped.is_set():\n                        return\n",
        "",
        "one more request after an error",
    ),
    Mutant(
        "llm/ask.py",
        "_SLOTS.setdefault((loop, id(llm), concurrency)",
        "_SLOTS.setdefault((id(llm), concurrency)",
        "one bound for all event loops",
    ),
    Mutant(
        "llm/verdicts.py",
        "    return _verdicts(requests, ask(llm, different, is_answer=_has_verdict, **options))",
        "    return _verdicts(requests, ask(llm, different, **options))",
        "a reply without a verdict is cached",
    ),
    Mutant(
        "llm/wire.py",
        'if word in _REFUSAL else "unknown"',
        'if word in _REFUSAL else "stop"',
        "a reply with an unknown end is whole",
    ),
    Mutant(
        "llm/openai.py",
        "    weakref.finalize(complete, client.close)\n",
        "",
        "a dropped model's sockets stay open",
    ),
    Mutant(
        "llm/cache.py",
        'for suffix in ("-wal", "-shm"):',
        "for suffix in ():",
        "the broken file's log stays",
    ),
    Mutant(
        "llm/cache.py",
        "            with _RECOVERY:\n",
        "            with suppress():\n",
        "every thread renames the broken file",
    ),
    Mutant(
        "llm/cache.py",
        '    connection.execute(f"PRAGMA user_version = {VERSION}")\n',
        '        connection.execute(f"PRAGMA user_version = {VERSION}")\n',
        "a read-only file shows after a reply is paid for",
    ),
    # --- labels/
    Mutant(
        "labels/labeling.py",
        "            if snippet.text.strip():\n",
        "            if snippet.text:\n",
        "blank snippets are sent",
    ),
    Mutant(
        "labels/labeling.py", "if not fact.strip():", "if not fact:", "a blank fact is asked about"
    ),
    Mutant("labels/audit.py", "place is None or place in audited", "place is None", "a row twice"),
    Mutant(
        "labels/audit.py",
        "rng.permutation(np.concatenate(drawn))",
        "np.concatenate(drawn)",
        "the order of the rows shows the labels",
    ),
    Mutant(
        "labels/audit.py",
        "np.bincount(population.strata)[strata] / np.bincount(strata)[strata]",
        "np.ones(len(strata))",
        "rates of the sample for those of all labels",
    ),
    # --- scoring/scorer.py
    Mutant(
        "scoring/scorer.py",
        '" ".join(normalize("NFC", query).casefold().split())',
        "query",
        "a space hides a query that was fitted on",
    ),
    # --- monitor.py, tracking.py and what measures: evaluate, compare, diagnose
    Mutant(
        "monitor.py",
        "return self.harm_evidence >= 2 / self.level",
        "return self.harm_evidence >= 1 / self.level",
        "an alarm of harm at half the evidence",
    ),
    Mutant(
        "monitor.py",
        "return self.drift_evidence >= 1 / self.level",
        "return self.drift_evidence >= 2 / self.level",
        "an alarm of drift at twice the evidence",
    ),
    Mutant(
        "monitor.py",
        "1 - betting_lower(1 - np.array(losses), self.level / 2)",
        "1 - betting_lower(1 - np.array(losses), self.level)",
        "all of the level for the calibration's luck",
    ),
    Mutant(
        "monitor.py",
        "1 - betting_lower(1 - np.array(losses), self.level / 2)",
        "float(np.mean(losses))",
        "no luck of the calibration",
    ),
    Mutant(
        "monitor.py",
        "math.log1p(stake / u * (lost - u))",
        "math.log1p(stake / u * (lost - u / 2))",
        "a bet that is won too often",
    ),
    Mutant(
        "monitor.py",
        "for log in logs) / len(logs))",
        "for log in logs))",
        "stakes added up, not averaged",
    ),
    Mutant(
        "monitor.py",
        "self._state.most_log_harm = max(self._state.most_log_harm, mixed)",
        "self._state.most_log_harm = mixed",
        "an alarm of harm that goes off again",
    ),
    Mutant(
        "monitor.py",
        "max(self._state.most_log_drift, self._state.log_drift)",
        "self._state.log_drift",
        "an alarm of drift that goes off again",
    ),
    Mutant(
        "monitor.py",
        "(n - below - equal + u * (1 + equal)) / (n + 1)",
        "(n - below - equal + u * equal) / n",
        "ranks without the new query",
    ),
    Mutant(
        "monitor.py",
        "(n - below - equal + u * (1 + equal)) / (n + 1)",
        "(n - below + u) / (n + 1)",
        "ties that all count as higher",
    ),
    Mutant(
        "monitor.py",
        "self._ordered.insert(below, lowest)",
        "",
        "p-values against a calibration that stays",
    ),
    Mutant(
        "monitor.py",
        "(1 - JUMPS) * capital + JUMPS * total / 3",
        "capital",
        "a bet that never changes sides",
    ),
    Mutant(
        "monitor.py",
        "            monitor._state.check()\n",
        "",
        "a broken state goes on",
    ),
    Mutant(
        "guarantees.py",
        "known = int(query.relevant.sum()) + query.missed * count_missed",
        "known = int(query.relevant.sum()) + query.missed",
        "missed snippets always lost",
    ),
    Mutant(
        "guarantees.py",
        'return float(share < 1 if guarantee == "all" else share == 0)',
        "return float(share == 0)",
        "'all' lost only where everything is",
    ),
    Mutant(
        "tracking.py",
        "keeps = ~(query.scores > self.threshold)",
        "keeps = query.scores <= self.threshold",
        "what has no score is lost",
    ),
    Mutant(
        "tracking.py",
        "guarantee=c.guarantee, count_missed=c.count_missed",
        "count_missed=c.count_missed",
        "a loss that is not the guarantee's",
    ),
    Mutant(
        "tracking.py",
        "guarantee=c.guarantee, count_missed=c.count_missed",
        "guarantee=c.guarantee",
        "missed snippets that never count",
    ),
    Mutant(
        "tracking.py",
        "self.step * t**-DECAY * (lost - self.alpha)",
        "self.step * (lost - self.alpha)",
        "steps that do not decay",
    ),
    Mutant(
        "comparison.py",
        "misses_known = counted or bool(counts[0].missed.any())",
        "misses_known = True",
        "recall of 100 % where nobody knows",
    ),
    Mutant(
        "comparison.py",
        "misses_known = counted or bool(counts[0].missed.any())",
        "misses_known = bool(counts[0].missed.any())",
        "unknown what a calibration says is known",
    ),
    Mutant(
        "verdict.py",
        "m = round(min(coverage.n, coverage.effective_n))",
        "m = round(coverage.n)",
        "snippets of a query as independent evidence",
    ),
    Mutant(
        "verdict.py",
        "m = round(min(coverage.n, coverage.effective_n))",
        "m = round(coverage.effective_n)",
        "more evidence than queries",
    ),
    Mutant(
        "verdict.py",
        "return self.unscorable >= MOSTLY",
        "return self.unscorable > MOSTLY",
        "half without a score tests the promise",
    ),
    Mutant(
        "verdict.py",
        "min(1.0, n * worst.p_value)",
        "worst.p_value",
        "the worst of many groups tested as if alone",
    ),
    Mutant(
        "columns.py",
        "        _check_once(name, queries)\n",
        "",
        "a query that counts many times",
    ),
    Mutant(
        "findings.py",
        "d.removal <= LITTLE_REMOVED * scored",
        "d.removal <= LITTLE_REMOVED",
        "the scores blamed for what has none",
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if mutant.file in arguments.file]
    check_that_each_fits(mutants)
    check_that_the_tests_pass(arguments.file)
    verdicts = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, (killer, seconds) in zip(mutants, pool.map(verdict, mutants), strict=True):
            verdicts.append((killer, seconds))
            said = f"{mutant.file}: {mutant.why}: {killer or 'SURVIVED'}"
            print(said, file=sys.stderr, flush=True)
    table = Table(box=box.SIMPLE)
    for heading in ("file", "mutant", "killed by", "s"):
        table.add_column(heading)
    for mutant, (killer, seconds) in zip(mutants, verdicts, strict=True):
        table.add_row(mutant.file, mutant.why, killer or "SURVIVED", f"{seconds:.0f}")
    Console(width=150).print(table, markup=False)
    survivors = sum(killer is None for killer, _ in verdicts)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    sys.exit(1 if survivors else 0)


def check_that_each_fits(mutants: list[Mutant]) -> None:
    misfits = [
        f"{mutant.file}: {mutant.old!r} occurs {times} times"
        for mutant in mutants
        if (times := source(ROOT, mutant.file).read_text(encoding="utf-8").count(mutant.old)) != 1
    ]
    if misfits:
        print(*misfits, sep="\n", file=sys.stderr)
        sys.exit(2)


def check_that_the_tests_pass(files: list[str]) -> None:
    names = sorted({name for file in files for name in TESTS[file]})
    with copied() as folder:
        where = python(folder, "-c", "import conformal_retrievers as c; print(c.__file__)").stdout
        if not Path(where.strip()).is_relative_to(folder):
            print(f"the tests would import {where.strip()}, not the copy", file=sys.stderr)
            sys.exit(2)
        tested = tests(folder, names)
    if tested.returncode:
        print("the tests fail without any mutant:", tested.stdout, file=sys.stderr)
        sys.exit(2)


def verdict(mutant: Mutant) -> tuple[str | None, float]:
    """Return the test that kills a mutant, None where it survives, and the seconds that took."""
    start = time.perf_counter()
    with copied() as folder:
        path = source(folder, mutant.file)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            tested = tests(folder, TESTS[mutant.file])
        except subprocess.TimeoutExpired:
            return f"time: more than {SECONDS} s", SECONDS
    seconds = time.perf_counter() - start
    if tested.returncode == 0:
        return None, seconds
    killer = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", tested.stdout, re.MULTILINE)
    return killer.group(1) if killer else "an error while collecting", seconds


def tests(folder: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    paths = [f"tests/{name}.py" for name in names]
    return python(folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def source(root: Path, file: str) -> Path:
    return root / "conformal_retrievers" / file


@contextmanager
def copied() -> Iterator[Path]:
    """Copy what the tests need of the repository into a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for name in ("conformal_retrievers", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield folder


if __name__ == "__main__":
    main()
