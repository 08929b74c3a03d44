"""Whether unlabelled queries would help: coefficients in a collection's own units.

A coefficient of the prior is about a feature whose spread within a query differs from collection to
collection. What unlabelled queries tell is that spread. So each coefficient is multiplied by

    (spread in the other collections / spread in this one) ** share,   share = 1/2 or 1

and the snippets per query at equal end-to-end recall are compared with those of the prior alone, on
up to 200 queries of each set of `benchmarks/default.py`, of which none is judged. The prior is made
without the set and its relatives. A ratio below 1 is a gain.

    python -m benchmarks.unlabelled --data FOLDER [--cache FOLDER]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.default import SETS, cost_at, recall_of, united
from benchmarks.prior import coefficients, prior_from
from conformal_retrievers import JudgedQuery, score_queries
from conformal_retrievers.scoring.hit_features import Sources, sources_of
from conformal_retrievers.scoring.learned.features import columns
from conformal_retrievers.scoring.learned.score import fitted, table_of

QUERIES = 200
SHARES = (0.5, 1.0)


def spreads(judged: Sequence[JudgedQuery], sources: Sources) -> dict[str, float]:
    """Return the root mean square over queries of each feature's deviation within a query."""
    tables = [table_of(sources, (), [query])[1] for query in judged]
    spread = np.sqrt(np.mean([table.var(axis=1) for table in tables], axis=0))
    return dict(zip(map(str, columns(sources)), spread.tolist(), strict=True))


def factors(own: dict[str, float], others: Sequence[dict[str, float]]) -> NDArray[np.float64]:
    """Return the geometric mean of the others' spreads over the own one, from 1/4 to 4."""
    made = []
    for feature, spread in own.items():
        known = [other[feature] for other in others if other.get(feature, 0) > 0]
        made.append(np.exp(np.mean(np.log(known))) / spread if known and spread > 1e-6 else 1.0)
    return np.clip(made, 0.25, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    made = coefficients("snippets", arguments.data, arguments.cache)
    rng = np.random.default_rng(0)
    judged, sources, spread = {}, {}, {}
    for name in SETS:
        queries = united(arguments.data / name, arguments.cache)
        judged[name] = [queries[i] for i in rng.permutation(len(queries))[:QUERIES]]
        sources[name] = sources_of(judged[name], [])
        spread[name] = spreads(judged[name], sources[name])
    ratios = []
    for name in SETS:
        prior = prior_from("snippets", made, [name])
        with patch("conformal_retrievers.scoring.learned.score.prior_of", lambda item, p=prior: p):
            alone = fitted(sources[name], (), [], "snippets")
        factor = factors(spread[name], [of for other, of in spread.items() if other != name])
        rescaled = [
            replace(alone, coefficients=tuple(np.array(alone.coefficients) * factor**share))
            for share in SHARES
        ]
        recall = recall_of(name, judged[name])
        ones = [np.ones(len(query.snippets)) for query in judged[name]]
        kept = [cost_at(recall, score_queries(s, judged[name]), ones) for s in (alone, *rescaled)]
        ratios.append([one / kept[0] for one in kept[1:]])
        print(f"{name}: {kept[0]:.2f} snippets;", *(f"{ratio:.3f}" for ratio in ratios[-1]))
    means = np.exp(np.log(ratios).mean(axis=0))
    print("geometric mean:", *(f"{mean:.3f}" for mean in means))


if __name__ == "__main__":
    main()
