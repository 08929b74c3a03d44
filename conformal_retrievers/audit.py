"""How good a labeler is: a sample of its judgements, judged again by a person.

The sample is stratified over the label and the decile of the score, each stratum sampled at least
once: an audit of the positives alone cannot see what the labeler misses, nor where. A row stands
for weight = N_h/n_h snippets, those of its stratum h over those sampled, so that a sum of weights
estimates a number of snippets without bias (Horvitz and Thompson 1952, JASA 47).

A calibration promises coverage of the snippets that are labelled relevant. With the share μ of the
truly relevant ones that the labeler misses,

    coverage of what is relevant = (1 − μ) · coverage of the found + μ · coverage of the missed

where the last is the lower, the higher the missed ones score.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.atomic import write_whole
from conformal_retrievers.conformal import Interval, cluster_interval
from conformal_retrievers.judged import JudgedQuery, ScoredQuery

if TYPE_CHECKING:
    from pydantic import JsonValue

SHEET = ("audited", "query", "snippet", "id")
KEY = (
    *("id", "query_number", "snippet_number", "query_id", "snippet_id", "label", "score"),
    *("decile", "stratum_size", "stratum_rows", "text", "ascii_text"),
)
YES = frozenset(["yes", "y", "true", "1", "relevant"])
NO = frozenset(["no", "n", "false", "0", "irrelevant"])

# --- the sample -----------------------------------------------------------------------------------


def audit_sample(
    judged: Sequence[JudgedQuery],
    scored: Sequence[ScoredQuery],
    path: str | Path,
    *,
    share: float = 0.1,
    rng: np.random.Generator,
) -> int:
    """Write a sample of judged snippets to a CSV file for a person to judge; return its rows.

    `scored` are the same queries, as `score_queries(scorer, judged)` returns them. Of each stratum
    ⌈share · N_h⌉ snippets are drawn, without replacement, and the rows shuffled. The person writes
    yes or no into the column "audited", as the labeler was asked. Labels and scores, which would
    sway the person, are not in the file but in its key, <path>.key, which only `audit_report`
    reads: each row has an id that is found there. A cell that a spreadsheet would read as a formula
    begins with an apostrophe. Raises FileExistsError rather than overwrite an audit, and ValueError
    where judged and scored differ, there is nothing to sample, or unless 0 < share ≤ 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; give the part of the snippets to audit, such as 0.1")
    _check_free(Path(path))
    _check_same(judged, scored)
    of_query = np.repeat(np.arange(len(scored)), [len(q.scores) for q in scored])
    of_snippet = np.concatenate([np.arange(len(q.scores)) for q in scored])
    scores = np.concatenate([q.scores for q in scored])
    labels = np.concatenate([q.relevant for q in scored])
    deciles = _deciles(scores)
    sheet, key = [], []
    for label in (True, False):
        for decile in range(11):
            members = np.flatnonzero((labels == label) & (deciles == decile))
            # As the decimal that was written: in floats 0.07 · 100 is 7.000000000000001.
            n = math.ceil(Fraction(str(share)) * len(members))
            drawn = rng.choice(members, n, replace=False)
            for i in drawn.tolist():
                query, places = judged[of_query[i]], (int(of_query[i]), int(of_snippet[i]))
                snippet = query.snippets[places[1]]
                row = _row_id(places)
                cells = (_cell(query.query), _cell(snippet.text))
                sheet.append(["", *cells, row])
                key.append(
                    [
                        row,
                        *places,
                        *(_cell(query.id), _cell(snippet.id)),
                        "yes" if label else "no",
                        "" if math.isnan(scores[i]) else repr(float(scores[i])),
                        decile or "",
                        len(members),
                        len(drawn),
                        *_digests(*cells),
                    ]
                )
    audit = _digest(repr(key))  # the same in all rows, so that it tells the label of none
    for shown, hidden in zip(sheet, key, strict=True):
        shown[-1] = hidden[0] = f"{hidden[0]}-{audit}"
    rng.shuffle(sheet)  # in the order of their strata, they would tell their labels
    _write_csv(key_of(path), [KEY, *key], what="key of an audit")
    _write_csv(path, [SHEET, *sheet], what="audit")
    return len(sheet)


def key_of(path: str | Path) -> Path:
    """Return where the labels and scores of an audit's rows are."""
    return Path(f"{path}.key")


def _check_free(sheet: Path) -> None:
    key = key_of(sheet)
    if sheet.exists():
        raise FileExistsError(f"{sheet} exists and may hold an audit; give another path")
    if key.exists():
        raise FileExistsError(
            f"{key} exists, the key of an audit, though there is no {sheet.name}; put that audit "
            "back beside it, or remove the key if there is none, or give another path"
        )


def _row_id(places: tuple[int, int]) -> str:
    # Begins with a letter that no number has: spreadsheets would make 1e5 or 3-4 another cell. The
    # place itself may be a rank, which would tell something of the score.
    return f"s{_digest(repr(places))}"


def _digests(query: str, snippet: str) -> tuple[str, str]:
    """Return what tells the texts of a row again: by letters and digits, and by those of ASCII.

    Spreadsheets change white space, quotes and case ("TRUE"), and some write what their encoding
    does not hold as "?".
    """
    written = f"{query}\0{snippet}".encode("utf-8", "backslashreplace").decode("utf-8")
    words = re.sub(r"[^\w\0]", "", unicodedata.normalize("NFKC", written).casefold())
    return _digest(words), _digest(re.sub(r"[^a-z0-9\0]", "", written.lower()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def _same_texts(row: Mapping[str, str], of_key: Mapping[str, str]) -> bool:
    texts = (row["query"], row["snippet"])
    words, ascii_words = _digests(*texts)
    marked = any(lost in text for text in texts for lost in "?\N{REPLACEMENT CHARACTER}")
    # An encoding that loses letters leaves none that are not of ASCII, or none that is read so.
    recoded = marked and not any(c.isalnum() and not c.isascii() for text in texts for c in text)
    return words == of_key["text"] or (recoded and ascii_words == of_key["ascii_text"])


def _write_csv(path: str | Path, rows: Iterable[Sequence[object]], what: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    # Spreadsheets take a file without the mark for one of another encoding.
    write_whole(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"), what=what)


def _check_same(judged: Sequence[JudgedQuery], scored: Sequence[ScoredQuery]) -> None:
    if len(judged) != len(scored):
        raise ValueError(
            f"{len(judged)} judged queries but {len(scored)} scored ones; give the same queries, "
            "as score_queries(scorer, judged) returns them"
        )
    for i, (one, other) in enumerate(zip(judged, scored, strict=True)):
        if one.id != other.id or list(one.relevant) != other.relevant.tolist():
            raise ValueError(
                f"judged[{i}] and scored[{i}] differ in id or judgements; give the same queries in "
                "the same order"
            )
    if not any(query.snippets for query in judged):
        raise ValueError(f"the {len(judged)} judged queries have no snippets; there is no audit")


def _deciles(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each score's decile, 1 to 10, the same for tied scores; 0 for what has no score."""
    ordered = np.sort(scores[~np.isnan(scores)])
    below = np.searchsorted(ordered, scores, side="left")
    decile = 1 + 10 * below // max(1, len(ordered))
    return np.where(np.isnan(scores), 0, decile)


_LONGEST = 32_000  # characters: spreadsheets cut a cell at 32,767 without a word
_FORMULA = r"[\s'=+\-@＝＋－＠]"


def _cell(text: str | None) -> str:
    """Return the text as no formula, not too long, without NUL, which csv cannot always read."""
    cell = (text or "").replace("\0", "␀")
    if len(cell) > _LONGEST:
        cell = f"{cell[:_LONGEST]}… [cut]"
    return f"'{cell}" if re.match(_FORMULA, cell) else cell


# --- the report -----------------------------------------------------------------------------------


class AuditedSnippet(NamedTuple):
    """A row of an audit: whose snippet it is, what the labeler and what the person said.

    `query` and `snippet` are its places in the sampled `judged` and in that query's snippets.
    `score` is NaN and `decile` None where it has none. It stands for `weight` snippets.
    """

    query: int
    snippet: int
    label: bool
    audited: bool
    score: float
    decile: int | None
    weight: float


class Confusion(NamedTuple):
    """Numbers of snippets: labelled relevant rightly, wrongly; irrelevant wrongly, rightly."""

    found: float
    false_alarms: float
    missed: float
    rejected: float


class Misses(NamedTuple):
    """Of a score decile (None: no score), the estimated numbers of relevant and missed snippets."""

    decile: int | None
    relevant: float
    missed: float


def audit_report(path: str | Path) -> AuditReport:
    """Read an audit that `audit_sample` wrote and a person filled in, with its key, <path>.key.

    Columns may be separated by commas, semicolons or tabs, in UTF-8 or UTF-16, as spreadsheets save
    them. Raises ValueError, naming lines and column, for a judgement that is missing or neither yes
    nor no, where columns, rows or texts have been lost or changed, and where the key is another
    audit's; FileNotFoundError without the file or its key. Texts may differ in what spreadsheets
    change: white space, punctuation, case, and letters that an encoding does not hold.
    """
    _check_there(Path(path))
    key = _key(key_of(path))
    sheet = list(_rows(Path(path), SHEET))
    _check_same_audit(Path(path), [row["id"] for _, row in sheet], key)
    rows: list[AuditedSnippet] = []
    faults: list[str] = []
    seen: set[str] = set()
    for place, row in sheet:
        audited, of_key = row["audited"].strip().lower(), key.get(row["id"].strip())
        if of_key is None:
            faults.append(f"{place}: id {row['id']!r} is not in {key_of(path).name}; restore it")
        elif of_key["id"] in seen:
            faults.append(f"{place}: repeats id {of_key['id']}; remove it")
        elif audited not in YES | NO:
            faults.append(f"{place}: audited is {row['audited']!r}; write yes or no")
        else:
            rows.append(_audited(key_of(path), of_key, audited in YES))
            if not _same_texts(row, of_key):
                faults.append(
                    f"{place}: its texts are not those that were sampled with id {of_key['id']}; "
                    "restore query and snippet"
                )
        seen.update([] if of_key is None else [of_key["id"]])
    if faults:
        more = f"\nand {len(faults) - 10} more" if len(faults) > 10 else ""
        raise ValueError(f"{path} has {len(faults)} faults:\n" + "\n".join(faults[:10]) + more)
    if lost := [row for row in key if row not in seen]:
        raise ValueError(
            f"{path} has {len(rows)} rows, but {len(key)} were sampled: {', '.join(lost[:10])} "
            "are missing; restore the rows"
        )
    if not rows:
        raise ValueError(f"{path} has 0 rows; restore what audit_sample wrote")
    return AuditReport(tuple(rows))


def _key(path: Path) -> dict[str, dict[str, str]]:
    key: dict[str, dict[str, str]] = {}
    for place, row in _rows(path, KEY):
        if row["id"] in key:
            raise ValueError(f"{path}, {place}: repeats id {row['id']}; {_RESTORE}")
        key[row["id"]] = row
    return key


_RESTORE = "restore what audit_sample wrote"


def _check_there(sheet: Path) -> None:
    if not sheet.exists():
        raise FileNotFoundError(
            f"there is no audit {sheet}; give the path of the file that audit_sample wrote"
        )
    if not key_of(sheet).exists():
        raise FileNotFoundError(
            f"the key {key_of(sheet)} is missing, which audit_sample wrote beside the file; put it "
            "there, under that name"
        )


def _check_same_audit(path: Path, rows: Iterable[str], key: Iterable[str]) -> None:
    """Raise ValueError where ids end in the digest of another audit's labels and scores."""
    sampled = {id.strip().partition("-")[2] for id in rows} - {""}
    known = {id.partition("-")[2] for id in key}
    if sampled and sampled.isdisjoint(known):
        raise ValueError(
            f"{key_of(path)} is not the key of {path}: its texts, labels or scores are others; put "
            "the key there that audit_sample wrote with that file"
        )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    raw = path.read_bytes()
    utf_16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # Ids and judgements are the same in whatever encoding a spreadsheet writes.
    text = raw.decode("utf-16" if utf_16 else "utf-8-sig", errors="replace")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        absent = [name for name in columns if name not in (reader.fieldnames or ())]
        if absent:
            raise ValueError(
                f"{path}: the columns {', '.join(absent)} are missing; save the file with all "
                "columns as CSV"
            )
        twice = [name for name in columns if list(reader.fieldnames or ()).count(name) > 1]
        if twice:
            raise ValueError(
                f"{path}: there are several columns {twice[0]!r}; remove all of them but one"
            )
        line = reader.line_num + 1
        for number, row in enumerate(reader, start=2):
            yield f"line {line} (row {number})", {k: v or "" for k, v in row.items() if k}
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path} is no complete CSV file: {error}") from None


def _audited(path: Path, row: Mapping[str, str], audited: bool) -> AuditedSnippet:
    def number(name: str, low: int, high: int = 2**31) -> int:
        found = int(row[name])
        if not low <= found <= high:
            raise ValueError(f"{name} is {found}, not from {low} to {high}")
        return found

    try:
        size = number("stratum_size", 1)
        return AuditedSnippet(
            number("query_number", 0),
            number("snippet_number", 0),
            {"yes": True, "no": False}[row["label"]],
            audited,
            float(row["score"] or "nan"),
            number("decile", 1, 10) if row["decile"] else None,
            size / number("stratum_rows", 1, size),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}, id {row['id']}: {error!r}; {_RESTORE}") from None


@dataclass(frozen=True)
class AuditReport:
    """What an audit says of a labeler, estimated for all snippets that were sampled from.

    Intervals are Wilson's at 95 %, with the query as the unit, since snippets of a query are judged
    alike (`conformal.cluster_interval`); nan where there is nothing that it would be a share of.
    """

    rows: tuple[AuditedSnippet, ...]

    @property
    def counts(self) -> Confusion:
        """The confusion matrix of the audited rows."""
        return Confusion(*(sum(cell) for cell in zip(*map(_one_hot, self.rows), strict=True)))

    @property
    def estimated(self) -> Confusion:
        """The confusion matrix of all snippets, estimated by weight."""
        weighted = [[row.weight * cell for cell in _one_hot(row)] for row in self.rows]
        return Confusion(*(sum(cell) for cell in zip(*weighted, strict=True)))

    @property
    def agreement(self) -> Interval:
        """The share of snippets on which labeler and auditor agree."""
        return self._share(self._labels == self._truth, np.ones(len(self.rows), bool))

    @property
    def precision(self) -> Interval:
        """The share truly relevant of those labelled relevant."""
        return self._share(self._truth, self._labels)

    @property
    def miss_rate(self) -> Interval:
        """The share μ labelled irrelevant of those truly relevant."""
        return self._share(~self._labels, self._truth)

    @property
    def false_alarm_rate(self) -> Interval:
        """The share labelled relevant of those truly irrelevant."""
        return self._share(self._labels, ~self._truth)

    @property
    def kappa(self) -> float:
        """Cohen's kappa, (p_o − p_e)/(1 − p_e), of all snippets; nan where all is one class.

        Cohen 1960, Educational and Psychological Measurement 20.
        """
        found, false_alarms, missed, rejected = np.array(self.estimated) / sum(self.estimated)
        labelled, relevant = found + false_alarms, found + missed
        by_chance = labelled * relevant + (1 - labelled) * (1 - relevant)
        if by_chance == 1:
            return math.nan
        return float((found + rejected - by_chance) / (1 - by_chance))

    @property
    def misses(self) -> tuple[Misses, ...]:
        """By score decile, how many snippets are relevant and how many of these are missed."""
        groups: dict[int | None, list[AuditedSnippet]] = {}
        for row in sorted(self.rows, key=lambda row: row.decile or 11):
            groups.setdefault(row.decile, []).append(row)
        return tuple(
            Misses(
                decile,
                sum(row.weight for row in rows if row.audited),
                sum(row.weight for row in rows if row.audited and not row.label),
            )
            for decile, rows in groups.items()
        )

    def coverage(self, threshold: float) -> Interval:
        """Return the share kept of the truly relevant snippets, pooled, at a score threshold.

        Kept is what scores at most the threshold, and what has no score. It compares with the
        coverage that is measured on the labels, which are all that a calibration knows.
        """
        return self._share(self._kept(threshold), self._truth)

    def labelled_coverage(self, threshold: float) -> Interval:
        """Return the share kept of the snippets labelled relevant, pooled, in the same sample."""
        return self._share(self._kept(threshold), self._labels)

    @property
    def statement(self) -> str:
        """One paragraph: how far the labels can be trusted, and what that means for coverage."""
        n, total = len(self.rows), round(sum(self.estimated))
        said = (
            f"Of {total:,} labelled snippets {n:,} were judged again. Labeler and auditor agree on "
            f"{_percent(self.agreement)} (Cohen's kappa {self.kappa:.2f}). Of the snippets "
            f"labelled relevant {_percent(self.precision)} are."
        )
        mu = self.miss_rate
        if math.isnan(mu.estimate):
            return f"{said} The auditor found no relevant snippet: nothing is known of misses."
        said += f" Of the relevant ones the labeler misses {_percent(mu)}"
        if not self.counts.missed:
            return (
                f"{said}: none was found. Coverage of the labelled ones then stands for that of "
                f"all relevant ones, but for up to {mu.high:.1%} of them."
            )
        return (
            f"{said}, {self._where_missed}. A calibration on these labels promises coverage of "
            "what is labelled relevant. Coverage of what is relevant is "
            f"{1 - mu.estimate:.3f} × coverage of the found + {mu.estimate:.3f} × coverage of the "
            "missed: coverage(threshold) estimates it."
        )

    @property
    def labels(self) -> dict[str, JsonValue]:
        """What a calibration stores in its `labels`: {"audit": {…}}, shares as [estimate, ends]."""
        shares = {
            name: [None if math.isnan(end) else end for end in getattr(self, name)]
            for name in ("agreement", "precision", "miss_rate", "false_alarm_rate")
        }
        return {
            "audit": {
                "audited": len(self.rows),
                "of": round(sum(self.estimated)),
                "counts": dict(zip(Confusion._fields, self.counts, strict=True)),
                "kappa": None if math.isnan(self.kappa) else self.kappa,
                **shares,
            }
        }

    def __str__(self) -> str:
        return self.statement

    @cached_property
    def _labels(self) -> NDArray[np.bool_]:
        return np.array([row.label for row in self.rows])

    @cached_property
    def _truth(self) -> NDArray[np.bool_]:
        return np.array([row.audited for row in self.rows])

    @property
    def _where_missed(self) -> str:
        at = {
            label: np.average([r.decile for r in some], weights=[r.weight for r in some])
            for label in (True, False)
            if (some := [r for r in self.rows if r.audited and r.label == label and r.decile])
        }
        if len(at) < 2:
            return "of which the scores say nothing"
        return f"in score decile {at[False]:.1f} on average; the found lie in {at[True]:.1f}"

    def _kept(self, threshold: float) -> NDArray[np.bool_]:
        scores = np.array([row.score for row in self.rows])
        return np.asarray((scores <= threshold) | np.isnan(scores))

    def _share(self, part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Interval:
        weights = np.array([row.weight for row in self.rows])
        _, queries = np.unique([row.query for row in self.rows], return_inverse=True)
        return cluster_interval(
            np.bincount(queries, weights * (part & whole)), np.bincount(queries, weights * whole)
        )


def _one_hot(row: AuditedSnippet) -> Confusion:
    said, true = row.label, row.audited
    return Confusion(said and true, said and not true, true and not said, not said and not true)


def _percent(share: Interval) -> str:
    return str(share).strip()
