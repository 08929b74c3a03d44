"""The features of a query: what its snippets as a whole say of whether they answer it.

Each source (`hit_features.py`) gives the snippets of a query the values v_1 ≤ … ≤ v_n, lower = more
relevant, and has three features, or four if there are several:

    best            v_1
    last            v_n
    fall            (v_10 − v_1) / (1 + log(1 + w)) in a query of w words
    best elsewhere  log(1 + rank) of its best snippet by another source, the mean over these

Best and last are absolute: they alone can see that everything is far away. So these are counted in
a unit of the source: from the mean of v_1, in standard deviations of v_1, over answerable queries
of the fit. With fewer than ten, of which one is enough, it is half the mean of v_n − v_1.

The other features are the share of the query's words that the first five snippets have, by rank
fusion, else by the first source, else as retrieved; the most that one snippet has; and each given
score of the query, in standard deviations. Nothing else of the query counts: its length alone would
give away the source of a question.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from conformal_retrievers.data.hits import C
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hit_features import Sources, Values, numbers_of
from conformal_retrievers.scoring.learned.features import GIVEN, Column
from conformal_retrievers.scoring.overlap import asked

OF_SOURCES = ("best", "last", "fall")
OF_QUERIES = ("words found", "words of one", "intercept")
BEGINS = ("best", "number")  # the first feature of a source, and the only one of a query scorer
TENTH, FIRST = 10, 5
ENOUGH = 10  # answerable queries, for a standard deviation of their best
PART = 0.5  # of v_n − v_1 is about that, otherwise
AWAY, BEHIND = 3.0, 3.0  # where a retriever found nothing: units from the mean, log of the rank
UNKNOWN = 0.25  # the scale of numbers of which no two differ, as if they were from 0 to 1


class Unit(NamedTuple):
    """What the numbers of a source are counted from, and in."""

    middle: float
    scale: float


def columns(sources: Sources, query_scorers: Sequence[str] = ()) -> list[Column]:
    """Return the columns of `query_features`.

    >>> [str(column) for column in columns(Sources((("dense", "rank"),), (), "none"), ["v"])][2:]
    ['fall by dense', 'words found', 'words of one', 'intercept', "scorer's number by v"]
    """
    of_each = [*OF_SOURCES, *(["best elsewhere"] if len(sources.names) > 1 else [])]
    of_names = [Column(f, name) for name, _ in sources.retrievers for f in of_each]
    of_names += [Column(GIVEN + f, name) for name in sources.scorers for f in of_each]
    of_numbers = [Column(f"{GIVEN}number", name) for name in query_scorers]
    return [*of_names, *map(Column, OF_QUERIES), *of_numbers]


def query_features(
    sources: Sources, query: str, found: Sequence[Any], snippets: Retrieved
) -> Values:
    """Return the features (d,) of a query; NaN if unknown, and of retrievers that found nothing.

    `found` are the scores of the snippets by each scorer of these, (n,), and then the query scores.

    >>> from conformal_retrievers.data.snippets import as_snippets
    >>> sources, scores = Sources((), ("s",), "none"), np.array([0.2, 0.4])
    >>> query_features(sources, "red", [scores], as_snippets(["a red a", "b"])).round(2)
    array([0.2 , 0.4 , 0.12, 1.  , 1.  , 1.  ])
    """
    m, r = len(sources.scorers), len(sources.retrievers)
    known = np.zeros(len(snippets), dtype=np.bool_)
    if snippets:
        known, numbers = numbers_of(sources, found[:m], snippets)
    if not known.any():
        return np.full(len(columns(sources)) + len(found) - m, np.nan)
    values, ranks = numbers.values, np.log1p(numbers.ranks)
    ordered = np.sort(values, axis=1)
    of_order = values[0] if len(values) else np.arange(len(snippets), dtype=np.float64)
    if r > 1:
        of_order = -(numbers.found / (C + 1 + numbers.ranks[:r])).sum(axis=0)
    words = [*dict.fromkeys(asked(query))]
    best, last = ordered[:, 0], ordered[:, -1]
    fall = (ordered[:, :TENTH][:, -1] - best) / (1 + np.log1p(len(words)))
    table = np.array([best, last, fall, *([_elsewhere(values, ranks)] if len(values) > 1 else [])])
    table[:, np.flatnonzero(~numbers.found.any(axis=1))] = np.nan
    lower = [text.lower().replace("ς", "σ") for text in snippets.texts]  # as in `asked`
    texts = [text for text, k in zip(lower, known.tolist(), strict=True) if k]
    has = np.array([[word in text for word in words] for text in texts]).reshape(len(texts), -1)
    first = of_order <= np.sort(of_order)[:FIRST][-1]  # and equal ones
    n = max(1, len(words))
    shares = [has[first].any(axis=0).sum() / n, has.sum(axis=1).max() / n] if words else [1.0, 1.0]
    return np.concatenate([table.T.ravel(), shares, [1.0], found[m:]])


def _elsewhere(values: Values, ranks: Values) -> Values:
    """Return the mean log rank by others of what is best by each, (m,), from (m, n) of both."""
    bests = values == values.min(axis=1, keepdims=True)
    lowest = np.where(bests[:, np.newaxis], ranks, np.inf).min(axis=2)
    return np.asarray((lowest.sum(axis=1) - lowest.diagonal()) / (len(values) - 1))


def units_of(own: Sequence[Column], table: Values) -> tuple[Unit, ...]:
    """Return the unit of each source and query scorer, from features (n, d) of answerable queries.

    >>> own = columns(Sources((("dense", "similarity"),), (), "none"))
    >>> units_of(own, np.array([[-0.7, -0.2] + [0.0] * 4, [-0.5, -0.2] + [0.0] * 4]))
    (Unit(middle=-0.6, scale=0.2),)
    """
    units = []
    for i, (feature, _) in enumerate(own):
        if (kind := feature.removeprefix(GIVEN)) in BEGINS:
            known = table[np.isfinite(table[:, i]), i : i + 2]  # best and last, or a number
            known = known if len(known) else np.zeros((1, 2))
            spread = known[:, 0].std()
            if kind == "best" and (len(known) < ENOUGH or np.ptp(known[:, 0]) == 0):
                spread = PART * np.ptp(known, axis=1).mean()
            units.append(Unit(float(known[:, 0].mean()), float(spread) or UNKNOWN))
    return tuple(units)


def in_units(own: Sequence[Column], units: Sequence[Unit], table: Values) -> Values:
    """Return features (n, d) or (d,) in the units of their sources.

    >>> own = columns(Sources((("dense", "similarity"),), (), "none"))
    >>> in_units(own, [Unit(-0.5, 0.125)], np.array([-0.75, -0.25, 0.25, 0.5, 0.5, 1.0]))
    array([-2. ,  2. ,  2. ,  0.5,  0.5,  1. ])
    """
    rules, each = [], iter(units)  # subtracted, divided by, and where a retriever found nothing
    middle, scale = 0.0, 1.0
    for feature, _ in own:
        kind = feature.removeprefix(GIVEN)
        if kind in BEGINS:
            middle, scale = next(each)
        own_rule = {
            "best": (middle, scale, AWAY),
            "last": (middle, scale, AWAY),
            "fall": (0.0, scale, 0.0),
            "best elsewhere": (0.0, 1.0, BEHIND),
            "number": (middle, scale, np.nan),
        }
        rules.append(own_rule.get(kind, (0.0, 1.0, np.nan)))
    middles, scales, nothing = np.array(rules).T
    return np.asarray(np.where(np.isnan(table), nothing, (table - middles) / scales))
