"""What a filter would do for judged queries: calibrated on a random half, measured on the other.

One split depends on which queries happen to calibrate. So there are several, and all measures are
means over them. Every query is in every split: the splits are not independent, and their spread
divided by the root of their number is no standard error.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.calibration.calibrate import calibrate
from conformal_retrievers.calibration.checks import check_unique_ids
from conformal_retrievers.calibration.fitting import FEWEST
from conformal_retrievers.calibration.guarantees import n_needed
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.data.checks import check_count
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation.bootstrap import spans
from conformal_retrievers.evaluation.equal_recall import EqualRecall, Row
from conformal_retrievers.evaluation.evaluate import evaluate
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.extras import with_bar
from conformal_retrievers.scoring.scorer import Scorer, judged_queries, score_queries
from conformal_retrievers.scoring.shared_scores import shared_in
from conformal_retrievers.theory.intervals import Interval, percent
from conformal_retrievers.theory.ranks import exact_alpha

SPREAD = 0.8  # the share of the splits between the ends of each estimate


@dataclass(frozen=True, kw_only=True)
class Splits(EqualRecall):
    """Means over splits, with the ends of 8 in 10 of them, of `evaluate` and its table."""

    n_splits: int
    target: float  # 1 − alpha
    coverage: Interval  # of the relevant snippets that were retrieved
    fewer: int  # splits in which the filter passes fewer snippets than the best top k there
    chose_later: bool  # whether all judged queries are enough to fit the score, and a half is not

    @property
    def comparison(self) -> str:
        """The coverage, and the filter and the best top k in words."""
        best, snippets = self.best_top_k, self.scales[1]
        text = say(
            "split coverage",
            coverage=self.coverage,
            target=percent(self.target, exact=True),
            at=self.at_recall,
            passed=f"{snippets.parts(self.filter.measured)[0]} {self.items}",
        )
        if best is None:
            return say("split no top k", text=text)
        passed, counts = snippets.parts(best.measured)[0], {"fewer": self.fewer, "n": self.n_splits}
        text = say("split top k", text=text, of=best.source, passed=passed, **counts)
        top, ours = (row.measured["snippets"].estimate for row in (best, self.filter))
        loses = top < ours and 2 * self.fewer < self.n_splits
        return f"{text} {say('split loses')}" if loses else text

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know, in sentences."""
        notes = [say("splits", n_splits=self.n_splits, n=self.n_queries), say("split hindsight")]
        if self.chose_later:
            notes.append(say("chose later", n=self.n_queries))
        return [*notes, *super().notes[1:]]


def try_splits(
    judged: Iterable[JudgedQuery],
    scorer: Scorer | Sequence[Scorer] | None = None,
    *,
    alpha: float,
    splits: int = 20,
    seed: int = 0,
    progress: bool = False,
) -> Splits:
    """Calibrate on random halves of judged queries, and measure each time on the other half.

    Parameters
    ----------
    judged, scorer, alpha
        As in `calibrate`. Each scorer scores a query once.
    splits
        How often to split the queries.
    seed
        Draws the halves.
    progress
        Whether to show a progress bar.

    Raises
    ------
    ValueError
        As `calibrate`, for splits below 1, and if half of the queries with a relevant snippet are
        too few for a finite threshold.
    """
    check_count(splits, "splits")
    target, needed = 1 - exact_alpha(alpha), n_needed("query-recall", alpha, None)
    queries = judged_queries(judged)
    check_unique_ids(query.id for query in queries)
    check_copies(queries)
    some = sum(any(query.relevant) for query in queries)
    stated = [query for query in queries if query.missed is not None] or queries
    if some // 2 < needed:
        raise ValueError(say("halves too few", n=some, alpha=alpha, needed=needed, all=2 * needed))
    coverages, tables, choices = [], [], []
    drawn = list(halves(shared_in(queries), splits, seed))
    scorer = scorer if scorer is None or isinstance(scorer, Scorer) else [*scorer]
    given = [scorer] if isinstance(scorer, Scorer) else scorer or []
    for calibrating, others in with_bar(drawn, "split") if progress else drawn:
        calibration = calibrate(calibrating, scorer, alpha=alpha)
        evaluation = evaluate(calibration, score_queries(scorer_for(calibration, given), others))
        coverages.append(evaluation.coverage[calibration.guarantee].estimate)
        if evaluation.equal_recall:
            tables.append(evaluation.equal_recall)
        choices.append(calibration.choice)
    best = [table.best_top_k for table in tables]
    return Splits(
        rows=tuple(_rows(tables)),
        n_queries=len(queries),
        n_relevant=sum(any(query.relevant) or bool(query.missed) for query in stated),
        drawn_from=len(queries),
        end_to_end=all(table.end_to_end for table in tables),
        ranked=all(table.ranked for table in tables),
        token_unit=tables[0].token_unit,
        level=SPREAD,
        items=tables[0].items,
        n_splits=splits,
        target=float(target),
        coverage=_estimate(coverages),
        fewer=sum(bool(row and row.more["snippets"].estimate > 0) for row in best),
        chose_later=some >= FEWEST and all(made and not made.n_fit for made in choices),
    )


def halves(
    judged: Sequence[JudgedQuery], splits: int, seed: int
) -> Iterator[tuple[list[JudgedQuery], list[JudgedQuery]]]:
    """Yield random halves of the queries, with as many that have a relevant snippet up to one."""
    rng = np.random.default_rng(seed)
    of_some = np.array([any(query.relevant) for query in judged])
    for _ in range(splits):
        order = rng.permutation(len(judged))
        order = order[np.argsort(of_some[order], kind="stable")[::-1]].tolist()
        yield [judged[i] for i in order[::2]], [judged[i] for i in order[1::2]]


def _rows(tables: Sequence[EqualRecall]) -> Iterator[Row]:
    """Yield the mean of each row over the tables."""
    of_way: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in (row for table in tables for row in table.rows):
        of_way[row.rule, row.source].append(row)
    for (rule, source), rows in of_way.items():
        settings = [row.setting for row in rows if row.setting is not None]
        some = math.nan if settings else None  # in some splits alone, or in none
        yield Row(
            rule,
            source,
            measured=_means([row.measured for row in rows]),
            more=_means([row.more for row in rows]),
            setting=float(np.mean(settings)) if len(settings) == len(rows) else some,
            equal=all(row.equal for row in rows),
            needed=math.nan,
        )


def _means(of_splits: Sequence[Mapping[str, Interval]]) -> dict[str, Interval]:
    return {name: _estimate([part[name].estimate for part in of_splits]) for name in of_splits[0]}


def _estimate(values: Sequence[float]) -> Interval:
    """Return the mean over splits, and where 8 in 10 of them are."""
    return Interval(float(np.mean(values)), *spans(np.array(values)[:, None], SPREAD)[0])
