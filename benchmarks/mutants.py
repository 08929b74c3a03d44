"""Whether the tests notice mistakes in the statistics: at least one must fail for each mutant.

A mutant is one change of one place in the library, of the kind that is easy to make and hard to
see: a rank that is off by one, a tie on the wrong side, a maximum instead of +inf. For each, the
repository is copied into a temporary folder, changed, and the fast tests of the changed file run
until the first failure. The table names the test that killed each mutant. Exit code 1 if one
survives, 2 if a mutant does not fit the library or the tests fail without any.

    .venv/bin/python benchmarks/mutants.py [--file theory ...] [--jobs 2] [--check]

It needs `make .venv/test`. `--check` only says whether each mutant fits.
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
SECONDS = 300  # a mutant that never ends is killed too

# What tests a file, or every file of a package: the fastest to kill first.
TESTS = {
    "theory": ["theory"],
    "data": ["data"],
    "data/columns.py": ["data/test_columns.py", "calibration/test_sufficient_statistics.py"],
    "calibration/sufficient_statistics.py": ["calibration/test_sufficient_statistics.py"],
    "data/queries.py": ["data/test_queries.py", "scoring/test_scoring.py"],
    "calibration": ["calibration", "theory"],
    "calibration/fitting.py": ["calibration/test_fitting.py"],
    "calibration/planning.py": ["calibration/test_planning.py"],
    "filtering.py": ["test_filtering.py", "calibration"],
    "evaluation": ["evaluation"],
    "monitoring": ["monitoring/test_monitor.py"],
    "labels": ["labels"],
    "llm": ["llm"],
    "scoring": ["scoring"],
    **{
        f"scoring/learned/{part}.py": ["scoring/test_learned.py"]
        for part in ("features", "layout", "prior", "regression", "score")
    },
}

# By file: what occurs once in it, what replaces that, and which mistake that is.
MUTANTS = {
    "theory/ranks.py": [
        (
            "return n + 1 - math.floor((n + 1) * exact_alpha(alpha))",
            "return n - math.floor(n * exact_alpha(alpha))",
            "rank without the new unit",
        ),
        (
            "return Fraction(str(alpha))",
            "return Fraction(float(alpha))",
            "alpha as the binary float, not the decimal",
        ),
        (
            "< 2**63 else np.object_",
            "< 2**99 else np.object_",
            "64 bits where they do not hold the sum",
        ),
        (
            "[::-1])[::-1], [0]]) + masses.new",
            "[::-1])[::-1], [0]])",
            "p-values without the new query",
        ),
        (
            "int(not_below[0]) >= 2**53",
            "int(not_below[0]) >= 2**70",
            "sums as floats that do not hold them",
        ),
        (
            'np.searchsorted(ordered_scores, s, side="left")',
            'np.searchsorted(ordered_scores, s, side="right")',
            "tied scores counted as below",
        ),
        (
            "int(masses.parts.sum()) + masses.new\n",
            "int(masses.parts.sum())\n",
            "no mass for the new query",
        ),
        (
            "if first < len(v) else math.inf",
            "if first < len(v) else float(v.max())",
            "the maximum instead of +inf",
        ),
        (
            "np.cumsum(masses.parts[order]), needed)",
            "np.cumsum(masses.parts[order]), needed + 1)",
            "one score too many where the mass is reached exactly",
        ),
        ("order = np.argsort(v)\n", "order = np.argsort(v)[::-1]\n", "masses added from above"),
    ],
    "theory/tolerance.py": [
        ("return n + 1 - above", "return n - above", "tolerance rank off by one"),
        (
            "below = check_delta(delta) * (1 - 1e-9)",
            "below = 2 * check_delta(delta)",
            "two-sided delta",
        ),
        (
            "while tolerance_rank(n, alpha, delta) > n:",
            "while tolerance_rank(n, alpha, delta) > n + 1:",
            "feasible one query too early",
        ),
        (
            "before = np.concatenate([[0.25], variances[:-1]])",
            "before = variances",
            "a bet that has seen its loss",
        ),
        (
            "means = (0.5 + np.cumsum(x)) / (1 + counts)",
            "means = np.full(n, x.mean())",
            "a variance around the mean of all losses",
        ),
        ("np.log1p(bets * (alpha - x))", "np.log1p(bets * (x - alpha))", "a bet on the other side"),
        ("wealth.max(initial=0.0)", "wealth[-1]", "the last wealth, not the largest"),
        (
            "np.add.at(losses, owner[tied], share[owner[tied]])",
            "np.add.at(losses, owner[tied], share[owner[tied]] * (values[tied] < math.inf))",
            "missed snippets lost from no loss",
        ),
        (
            "alpha, delta) > delta:\n                return threshold",
            "alpha, delta) > delta:\n                return float(values[tied[0]])",
            "one threshold below the last that passes",
        ),
        (
            "share = 1.0 / np.array([len(q) for q in queries], dtype=np.float64)",
            "share = np.full(len(queries), len(queries) / len(values))",
            "losses per snippet, not per query",
        ),
        (
            "betaincinv(kept, n - kept + 1,",
            "betaincinv(kept + 1, n - kept + 1,",
            "an invalid bound",
        ),
        ("if _exact_binomial_cdf(n, alpha, above) >", "if cdf[above] >", "a tie decided in floats"),
        (
            "betting_p_value(losses, 1 - c, delta)",
            "betting_p_value(losses, c, delta)",
            "c, not 1 − c",
        ),
        ("betaln(j + a, m - j + b)", "betaln(j + a, m - j + a)", "the law of other ranks"),
    ],
    "theory/intervals.py": [
        ("share + z * z / (2 * n)", "share", "Wald's centre, not Wilson's"),
        ("(b**2).sum() - 1", "(b**2).sum()", "one degree of freedom too many"),
        ("residuals = a - p * b", "residuals = a - a.mean()", "sizes of queries ignored"),
        ("queries / (queries - 1) * np", "1 * np", "a variance around its own mean"),
        ("pairs - int(not_above.sum()) / 2", "int(not_above.sum()) / 2", "ties that count in full"),
    ],
    "theory/exchangeability.py": [
        ("min(1.0, 2 * min(fewer, more))", "min(fewer, more)", "two sides, tested as one"),
        ("2 * min(self.p_everywhere", "min(self.p_everywhere", "two tests, counted as one"),
        ("hypergeom.sf(x - 1,", "hypergeom.sf(x,", "more than x instead of at least x"),
        ("(beyond - 1) / n_new", "beyond / n_new", "a band that is wider than its test"),
        ("(1 / len(reference) + 1 / n_new)", "(1 / n_new)", "a reference without noise"),
    ],
    "data/columns.py": [
        (
            "scores[np.isnan(scores)] = -math.inf",
            "scores[np.isnan(scores)] = math.inf",
            "what cannot be scored counts as lost, but is kept",
        ),
        (
            "scores[rows] = np.sort(scores[rows], axis=1)",
            "scores[rows] = np.sort(scores[rows], axis=0)",
            "scores sorted across queries",
        ),
    ],
    "calibration/sufficient_statistics.py": [
        (
            "query=start + part.first_lost.query",
            "query=part.first_lost.query",
            "a query named by its place in a part",
        ),
        (
            "sum(part.n_lost for part in given)",
            "given[0].n_lost",
            "what cannot be scored counted in the first part only",
        ),
    ],
    "data/files.py": [
        ("if stored != actual:", "if False:", "a changed file is read"),
        ("if len(fields) < len(pairs):", "if False:", "the second of two equal fields counts"),
        ("if not math.isfinite(value):", "if False:", "1e999 is read as infinity"),
        ("            os.unlink(temporary)\n", "", "a broken write leaves a file behind"),
        ("Path(os.path.realpath(path))", "Path(path)", "a link is replaced by a file"),
    ],
    "data/queries.py": [
        (
            "known_missed = (self.missed or 0) + len(known)",
            "known_missed = len(known)",
            "missed ones forgotten",
        ),
        ("scores = scores + 0.0", "scores = +scores", "a score of minus zero"),
    ],
    "data/checks.py": [
        (
            "any(isinstance(x, (str, bytes)) for x in objects)",
            "False",
            "a text counts as the number that it writes",
        ),
    ],
    "data/recognition.py": [
        ("j for j in candidates if j not in taken", "j for j in candidates", "one for two"),
    ],
    "data/unanswerable.py": [
        ("if relevant or snippet.text in texts", "if relevant", "an equal text stays"),
        ("relevant, *judged.relevant", "relevant, *[False for _ in judged.relevant]", "a text"),
        ("order.append(min([", "order.append(max([", "another order"),
        (
            "new if snippet.retrieval_score == was else snippet.retrieval_score",
            "snippet.retrieval_score",
            "the fusion of ranks that are gone",
        ),
        ("[: depths.get(name, 0)]", "[:]", "lists that are not cut again"),
        (
            "key=lambda one: one[1].rank)",
            "key=lambda one: -one[1].rank)",
            "the last of a list, not the first",
        ),
        ("max(before.k, most)", "before.k", "more snippets than k"),
    ],
    "data/jsonl.py": [
        (
            "json.loads(text, object_pairs_hook=files.without_repetition)",
            "json.loads(text)",
            "the second of two judgements of a snippet counts",
        ),
    ],
    "data/text.py": [
        ("\\x7f-\\x9f", "\\x7f", "the C1 control characters reach the terminal"),
        ("\\u2060-\\u206f", "", "a mark reverses the direction of a name"),
        (
            "record.msg, record.args = visible(message), ()",
            "record.args = ()",
            "control characters of a reply reach the log",
        ),
    ],
    "calibration/subjects.py": [
        (
            "return (scores <= threshold) | np.isnan(scores)",
            "return (scores < threshold) | np.isnan(scores)",
            "a score equal to the threshold dropped",
        ),
        (
            "return (scores <= threshold) | np.isnan(scores)",
            "return scores <= threshold",
            "what cannot be scored dropped",
        ),
        (
            "return scores > threshold",
            "return scores >= threshold",
            "a claim at the threshold kept",
        ),
    ],
    "calibration/guarantees.py": [
        (
            "return scores[ends - 1]",
            "return scores[ends - self._known]",
            "the lowest score for 'all'",
        ),
        (
            "return scores[ends - self._known] if",
            "return scores[ends - 1] if",
            "the highest score for 'any'",
        ),
        (
            "nan_to_num(self.queries.missed).astype(np.intp) * self.count_missed",
            "nan_to_num(self.queries.missed).astype(np.intp) * (not self.count_missed)",
            "missed snippets count where they do not",
        ),
        (
            "(self.queries.sizes > 0) | (self._missed > 0)",
            "self.queries.sizes > 0",
            "a query that missed everything does not enter",
        ),
        (
            'self.sizes if self.guarantee == "query-recall" else np.ones_like(self.sizes)',
            "np.ones_like(self.sizes)",
            "snippets pooled for query-recall",
        ),
        (
            "known = int(query.relevant.sum()) + query.n_missed * count_missed",
            "known = int(query.relevant.sum()) + query.n_missed",
            "missed snippets always lost",
        ),
        (
            'return float(share < 1 if guarantee == "all" else share == 0)',
            "return float(share == 0)",
            "'all' lost only where everything is",
        ),
        (
            "sorted(range(len(ids)), key=digests.__getitem__)",
            "list(range(len(ids)))",
            "bets in the order that the caller gave",
        ),
        (
            'return len(self.scores) if self.guarantee == "snippet" else len(self.sizes)',
            "return len(self.sizes)",
            "snippets counted in queries",
        ),
    ],
    "calibration/thresholds.py": [
        (
            'if self.guarantee == "snippet" and self.relative_to_query:',
            'if self.guarantee == "any" and self.relative_to_query:',
            "ranks within a query taken for scores of single snippets",
        ),
        (
            "self._thresholds.get(self._key(group), math.inf)",
            "self._thresholds.get(self._key(group), max(self._thresholds.values()))",
            "an unseen group borrows a threshold",
        ),
        (
            "checks.check_new(given, self.used_ids, self.subject)",
            "pass",
            "a calibration evaluated on its own queries",
        ),
        (
            "self.ids.union(self.choice.fit_ids if self.choice else ())",
            "self.ids",
            "a calibration evaluated on the queries that its score was chosen on",
        ),
        ("if n < needed:", "if n < needed - 1:", "a delta that is not quite feasible accepted"),
    ],
    "calibration/calibration.py": [
        (
            "(queries.sizes > 0) | (queries.missed > 0)",
            "queries.sizes > 0",
            "queries that missed everything forgotten",
        ),
    ],
    "calibration/fitting.py": [
        (
            "for i, digest in enumerate(digests) if digest not in chosen]",
            "for i, digest in enumerate(digests)]",
            "the queries of the fit calibrate, too",
        ),
        (
            "max(0, spare))",
            "len(judged))",
            "a fit part that leaves too few for a threshold",
        ),
        (
            "[q for i, q in enumerate(fit) if k == 1 or i % k != fold]",
            "fit",
            "what is kept measured on the queries that fit",
        ),
        (
            "return fewer(range(n)) and float(np.mean([fewer(places) for places in drawn])) > SURE",
            "return fewer(range(n))",
            "a warning of noise",
        ),
        (
            "np.full(len(scores), 1 / max(1, len(scores)))",
            "np.ones(len(scores))",
            "snippets weigh the same, not queries",
        ),
        (
            "np.where(np.isnan(query.scores), -np.inf, query.scores)",
            "np.where(np.isnan(query.scores), np.inf, query.scores)",
            "what has no score counted as dropped",
        ),
    ],
    "calibration/file_schema.py": [
        (
            'EXACT = ("threshold", "n_queries"',
            'EXACT = ("n_queries"',
            "a file whose threshold does not follow from its scores",
        ),
        (
            '"by_group", "count_missed", "scorer"',
            '"by_group", "scorer"',
            "count_missed lost on loading",
        ),
        (
            "            DETAILS[part.subject].model_validate(part.details)\n",
            "",
            "a share of claims above 1",
        ),
    ],
    "calibration/checks.py": [
        ("if about not in expected:", "if False:", "a calibration of another subject is used"),
        ("2 * ordered < pairs - 2", "2 * ordered > pairs - 2", "a warning of scores in order"),
        (
            'if guarantee != "all" or count_missed or not single:',
            'if guarantee != "all" or count_missed:',
            "an answer with two scores",
        ),
    ],
    "calibration/statement.py": [
        ("if n < c.n_needed and (", "if n <= c.n_needed and (", "enough queries called too few"),
        (
            "if c.out_of_reach:",
            "if False:",
            "a guarantee stated that is out of reach",
        ),
        ("reached = units.ceiling > 1 - c.alpha", "reached = False", "too few blamed on the depth"),
    ],
    "calibration/planning.py": [
        ("betaincinv(k, n + 1 - k,", "betaincinv(k, n + 2 - k,", "a Beta law off by one"),
    ],
    "calibration/gates/gate.py": [
        ("self.score > self.threshold", "self.score >= self.threshold", "silent on a tie"),
        (
            "score > c.threshold_without_one(query.group)",
            "score > c.threshold(query.group)",
            "a filter behind the gate of its own queries, as if they were others",
        ),
    ],
    "filtering.py": [
        (
            "return self.group_of(query) if group is None and self.group_of is not None else group",
            "return self.group_of(query) if self.group_of is not None else group",
            "the caller's group overruled",
        ),
        (
            "group = self._checked(query, given, n, group)\n        scores, gated = await",
            "scores, gated = await",
            "no group of the query in async",
        ),
        (
            "return replace(filtered, keeps=np.zeros(len(s), dtype=bool))",
            "return filtered",
            "what a gate silences is kept",
        ),
        (
            "vars(twin).update(changed(), _twins={}, _alarm=Alarm())",
            "vars(twin).update(changed(), _alarm=Alarm())",
            "a filter at another alpha without its gate",
        ),
    ],
    "llm/prompt.py": [
        ("[A-Za-z_][^]\\s]{0,99}\\s*\\])", "[A-Z]+\\s*\\])", "markers in capital letters only"),
        ("{VARIATIONS}", "", "a character that is not seen stays"),
        ("json.dumps(value, ensure_ascii=False)", "json.dumps(value)", "ASCII only"),
    ],
    "llm/ask.py": [
        (
            "                with slots:\n",
            "                with threading.Semaphore(self.concurrency):\n",
            "each call of `ask` has a bound of its own",
        ),
        (
            "async with slots:",
            "async with asyncio.Semaphore(self.concurrency):",
            "each call of `aask` has a bound of its own",
        ),
        (
            "isinstance(answer, Reply) and self.is_answer(i, answer):",
            "isinstance(answer, Reply):",
            "an unreadable reply is cached",
        ),
        (
            "self.answers[i] = reply if self.is_answer(i, reply) else None",
            "self.answers[i] = reply",
            "an unreadable reply is taken from the cache",
        ),
        (
            "                    if self.stopped.is_set():\n                        return\n",
            "",
            "one more request after an error",
        ),
        (
            "(os.getpid(), loop, id(llm), concurrency)",
            "(os.getpid(), id(llm), concurrency)",
            "one bound for all event loops",
        ),
        (
            "if all(isinstance(a, Unanswered) and marks_of(a) & lost for",
            "if any(isinstance(a, Unanswered) and marks_of(a) & lost for",
            "one broken connection fails every request",
        ),
        (
            "not isinstance(read(places[j], reply), str)",
            "True",
            "a reply without a verdict is cached",
        ),
    ],
    "llm/wire.py": [
        ('word)), "unknown")', 'word)), "stop")', "a reply with an unknown end is whole"),
        (
            "NO_ACCESS = NO_MODEL | {403,",
            "NO_ACCESS = NO_MODEL | {400, 403,",
            "prompts that are too long raise",
        ),
    ],
    "llm/openai.py": [
        (
            "@lru_cache(64)  # keys may change hourly\ndef _client(",
            "def _client(",
            "a connection for each request",
        ),
        (
            "with anyio.fail_after(timeout):",
            "with anyio.fail_after(None):",
            "a reply that comes byte by byte has no deadline",
        ),
    ],
    "llm/cache.py": [
        (" AND typeof(value) = 'blob'", "", "a damaged value is a reply"),
        (
            'self._run(lambda connection: connection.execute(f"PRAGMA user_version = {VERSION}"))',
            "self._run(lambda connection: None)",
            "a read-only file shows after a reply is paid for",
        ),
        (
            "except (OSError, ValueError) as error:",
            "except ValueError as error:",
            "a locked or full file fails the call",
        ),
        (
            "seconds = 0 if self.path in _FAULTY else SECONDS",
            "seconds = SECONDS",
            "every reply waits for the lock of another process",
        ),
        (
            "if type(error) is sqlite3.DatabaseError:",
            "if False:",
            "a file that is no database is one that cannot be written",
        ),
    ],
    "labels/labeling.py": [
        ("if s.text.strip()", "if s.text", "blank snippets are sent"),
        ("if not fact.strip():", "if not fact:", "a blank fact is asked about"),
    ],
    "labels/judging/audit.py": [
        (
            "self.weights * (part & whole)",
            "(part & whole)",
            "rates of the sample for those of all labels",
        ),
    ],
    "data/copies.py": [
        (
            '" ".join(normalize("NFC", query).casefold().split())',
            "query",
            "a space hides a query that was fitted on",
        ),
    ],
    "scoring/overlap.py": [
        (
            "stems[u] in read[i]",
            "True",
            "the start of a text with all that the text has",
        ),
    ],
    "scoring/learned/features.py": [
        (
            "z[:m] -= nearer *",
            "z[:m] -= 0 * nearer *",
            "z-scores that mean something else in short lists",
        ),
        (
            "(placed | (nearer < 0))",
            "1",
            "what a retriever did not find, with a place in its short list",
        ),
        (
            "(placed | (nearer < 0))",
            "placed",
            "what a retriever did not find, before the last of a long list",
        ),
        (
            "line[:TITLE]",
            "line",
            "a title as long as a line",
        ),
        (
            "np.arange(x.shape[1]) < k",
            "np.arange(x.shape[1]) <= k",
            "what a retriever did not find in the mean of its list",
        ),
        (
            "[:own].min(axis=0)",
            ".min(axis=0)",
            "a scorer among the retrievers, of which the best counts",
        ),
        (
            "mean[np.lexsort((mean, document))]",
            "mean[layout.order]",
            "features that depend on the order of snippets",
        ),
    ],
    "scoring/learned/layout.py": [
        (
            "new[1:] |= position_in_order[1:] != position_in_order[:-1]",
            "new[1:] = True",
            "two snippets at one position as neighbours",
        ),
    ],
    "scoring/learned/prior.py": [
        (
            "means.append(own.mean / times)",
            "means.append(own.mean)",
            "several retrievers that count several times",
        ),
    ],
    "scoring/learned/regression.py": [
        (
            "precision = 1 / np.square(sd)",
            "precision = 1 / sd",
            "a standard deviation taken for a variance",
        ),
        (
            "step = step / 2",
            "break",
            "a step that goes too far ends the fit",
        ),
    ],
    "scoring/learned/score.py": [
        (
            "np.array(query.relevant, np.bool_)[known]",
            "np.array(query.relevant, np.bool_)[: known.sum()]",
            "judgements of other snippets where one cannot be scored",
        ),
        (
            "/ BESIDE[item])",
            "/ 500)",
            "a sentence costs as much beside its text as a snippet",
        ),
    ],
    "scoring/embedding.py": [
        (
            "if start == 0:",
            "if True:",
            "the snippets after a block are compared with one of themselves",
        ),
        (
            "1 - _row_by_row(vectors, query_vector) / lengths",
            "1 - vectors @ query_vector / lengths",
            "the last bit of a score depends on the other snippets",
        ),
    ],
    "monitoring/monitor.py": [
        (
            "self._lock = threading.RLock()",
            "self._lock = threading.Semaphore(99)",
            "threads that share a monitor lose counts",
        ),
        (
            "        with self._lock:\n            write_envelope(",
            "        if True:\n            write_envelope(",
            "half of an observation is saved",
        ),
        (
            "if state.calibration != calibration.checksum:",
            "if False:",
            "a monitor of another calibration is loaded",
        ),
        (
            "1 - betting_lower(1 - np.array(losses), self._state.level / 2)",
            "1 - betting_lower(1 - np.array(losses), self._state.level)",
            "all of the level for the calibration's luck",
        ),
        (
            "1 - betting_lower(1 - np.array(losses), self._state.level / 2)",
            "float(np.mean(losses))",
            "no luck of the calibration",
        ),
        (
            "binomial_lower(k, n, ",
            "binomial_lower(k + 1, n, ",
            "a rank too many in what whole queries lose",
        ),
    ],
    "monitoring/state.py": [
        (
            "math.log1p(stake / u * (lost - u))",
            "math.log1p(stake / u * (lost - u / 2))",
            "a bet that is won too often",
        ),
        ("for log in logs) / len(logs))", "for log in logs))", "stakes added up, not averaged"),
        (
            "self.most_log_harm = max(self.most_log_harm, mixed)",
            "self.most_log_harm = mixed",
            "an alarm of harm that goes off again",
        ),
        (
            "max(self.most_log_drift, self.log_drift)",
            "self.log_drift",
            "an alarm of drift that goes off again",
        ),
        (
            "(n - below - equal + u * (1 + equal)) / (n + 1)",
            "(n - below - equal + u * equal) / n",
            "ranks without the new query",
        ),
        (
            "(n - below - equal + u * (1 + equal)) / (n + 1)",
            "(n - below + u) / (n + 1)",
            "ties that all count as higher",
        ),
        ("ordered.insert(below, lowest)", "", "p-values against a calibration that stays"),
        ("(1 - JUMPS) * capital + JUMPS * total / 3", "capital", "a bet that never changes sides"),
    ],
    "monitoring/status.py": [
        (
            "Annotated[int, Field(ge=0, lt=2**53)]",
            "Annotated[int, Field(lt=2**53)]",
            "negative counts are loaded",
        ),
        (
            "return self.harm_evidence >= 2 / self.level",
            "return self.harm_evidence >= 1 / self.level",
            "an alarm of harm at half the evidence",
        ),
        (
            "return self.drift_evidence >= 1 / self.level",
            "return self.drift_evidence >= 2 / self.level",
            "an alarm of drift at twice the evidence",
        ),
    ],
    "evaluation/power.py": [
        (
            "return round(min(coverage.n, coverage.effective_n))",
            "return round(coverage.n)",
            "snippets of a query as independent evidence",
        ),
        (
            "beta_binomial_cdf(m, k, units + 1 - k)",
            "beta_binomial_cdf(m, k, units + 2 - k)",
            "a Beta-binomial law off by one",
        ),
        (
            "[:-1]]) < level",
            "[:-1]]) <= 2 * level",
            "two tails where one is meant",
        ),
        (
            "fewest = m + 1 - np.count_nonzero(",
            "fewest = m - np.count_nonzero(",
            "one query fewer rules a coverage out",
        ),
        (
            "return enough if m < enough else _first(enough_at, m)",
            "return enough",
            "a number that was measured called needed",
        ),
    ],
    "evaluation/verdict.py": [
        (
            "return self.unscorable >= measures.MOSTLY",
            "return self.unscorable > MOSTLY",
            "half without a score tests the guarantee",
        ),
        (
            "worst.among(len(given))",
            "worst.among(1)",
            "the worst of many groups tested as if alone",
        ),
        (
            "max(given, key=lambda verdict: verdict.needed - verdict.n)",
            "worst",
            "a group of a few queries unseen behind a large one",
        ),
        (
            "return not self.fails and self.n < self.needed",
            "return not self.fails and self.n <= self.needed",
            "exactly enough queries called too few",
        ),
        (
            "return not self.fails and self.n < self.needed",
            "return self.n < self.needed",
            "a failure called too few to tell",
        ),
        (
            "group, power.SIGNIFICANT / tests)",
            "group, power.SIGNIFICANT)",
            "enough for one group called enough for many",
        ),
    ],
    "evaluation/measures.py": [
        (
            "return np.nan_to_num(c.relevant + c.missed)",
            "return c.relevant + np.nan_to_num(c.missed)",
            "recall of 100 % where missed snippets are unknown",
        ),
        (
            "    checks.check_unique_ids(queries.ids.tolist())\n",
            "",
            "a query that counts many times",
        ),
    ],
    "evaluation/findings.py": [
        (
            "removal <= LITTLE_REMOVED * scored",
            "removal <= LITTLE_REMOVED",
            "the scores blamed for what has none",
        ),
    ],
}


class Mutant(NamedTuple):
    """`old`, which must occur once in the file, becomes `new`; `why` names the mistake."""

    file: str
    old: str
    new: str
    why: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--file", nargs="*", action="extend", default=[], help="only these files or packages"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--check", action="store_true", help="only whether each mutant fits")
    given = parser.parse_args()
    mutants = [
        Mutant(file, *row)
        for file, rows in MUTANTS.items()
        for row in rows
        if file.startswith(tuple(given.file or [""]))
    ]
    if misfits := [mutant for mutant in mutants if not fits(mutant)]:
        print(*(f"{m.file}: {m.old!r} does not occur once" for m in misfits), sep="\n")
        sys.exit(2)
    if given.check:
        return
    check_that_the_tests_pass({test for mutant in mutants for test in tests_of(mutant.file)})
    start, verdicts = time.perf_counter(), []
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, (killer, seconds) in zip(mutants, pool.map(verdict, mutants), strict=True):
            verdicts.append((killer, seconds))
            line = f"{mutant.file}: {mutant.why}: {killer or 'SURVIVED'}"
            print(line, file=sys.stderr, flush=True)
    table = Table(box=box.SIMPLE)
    for heading in ("file", "mutant", "killed by", "s"):
        table.add_column(heading)
    for mutant, (killer, seconds) in zip(mutants, verdicts, strict=True):
        table.add_row(mutant.file, mutant.why, killer or "SURVIVED", f"{seconds:.0f}")
    Console(width=150).print(table, markup=False)
    survivors = sum(killer is None for killer, _ in verdicts)
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed in {minutes:.0f} minutes")
    sys.exit(1 if survivors else 0)


def fits(mutant: Mutant) -> bool:
    path = source(ROOT, mutant.file)
    return path.exists() and path.read_text(encoding="utf-8").count(mutant.old) == 1


def tests_of(file: str) -> list[str]:
    return TESTS.get(file) or TESTS[file.partition("/")[0]]


def check_that_the_tests_pass(names: set[str]) -> None:
    with copied() as folder:
        where = python(folder, "-c", "import conformal_retrievers as c; print(c.__file__)").stdout
        if not Path(where.strip()).is_relative_to(folder):
            print(f"the tests would import {where.strip()}, not the copy", file=sys.stderr)
            sys.exit(2)
        tested = run_tests(folder, sorted(names))
    if tested.returncode:
        print("the tests fail without any mutant:", tested.stdout, file=sys.stderr)
        sys.exit(2)


def verdict(mutant: Mutant) -> tuple[str | None, float]:
    """Return the test that kills a mutant, None if it survives, and the seconds that it took."""
    start = time.perf_counter()
    with copied() as folder:
        path = source(folder, mutant.file)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            tested = run_tests(folder, tests_of(mutant.file))
        except subprocess.TimeoutExpired:
            return f"time: more than {SECONDS} s", SECONDS
    seconds = time.perf_counter() - start
    if tested.returncode == 0:
        return None, seconds
    killer = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", tested.stdout, re.MULTILINE)
    return killer.group(1) if killer else "an error while collecting", seconds


def run_tests(folder: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    paths = [f"tests/{name}" for name in names]
    return python(folder, "-m", "pytest", "-xq", "-m", "not slow", "-p", "no:cacheprovider", *paths)


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
