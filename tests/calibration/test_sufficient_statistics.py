"""A calibration from columns: that of the definition, and that of any parts merged."""

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from calibrations import GUARANTEES, alphas, calibration_of, every_guarantee, three_queries
from hypothesis import assume, given
from hypothesis import strategies as st

from conformal_retrievers import Calibration, ScoredQueries, ScoredQuery
from conformal_retrievers.calibration.sufficient_statistics import Reduced

SCORES = st.sampled_from([-math.inf, -1.5, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, math.inf, math.nan])
quiet = pytest.mark.filterwarnings("ignore:relevant snippets score higher")


@st.composite
def scored(draw, most=12):
    """Queries with any scores, groups and missed snippets, one of which has a relevant one."""
    queries = [
        ScoredQuery(
            draw(st.lists(SCORES, min_size=size, max_size=size)),
            draw(st.lists(st.booleans(), min_size=size, max_size=size)),
            id=draw(st.sampled_from([None, f"q{place}"])),
            group=draw(st.sampled_from("gh")),
            missed=draw(st.integers(0, 2)),
        )
        for place, size in enumerate(draw(st.lists(st.integers(0, 5), min_size=1, max_size=most)))
    ]
    assume(any((query.relevant & ~np.isnan(query.scores)).any() for query in queries))
    return queries


def parts_of(queries, cuts):
    return [queries[start:end] for start, end in pairwise([0, *sorted(cuts), len(queries)])]


def file_of(calibration):
    """Return the fields of a calibration's file, without the time."""
    return json.loads(calibration.to_json()) | {"created": "", "sha256": ""}


@quiet
@given(data=st.data(), queries=scored(), alpha=alphas)
def test_the_parts_of_a_calibration_give_the_file_of_all_queries(data, queries, alpha):
    cuts = data.draw(st.lists(st.integers(0, len(queries)), max_size=4))
    parts = [Reduced.of(ScoredQueries.of(part)) for part in parts_of(queries, cuts)]
    options = {
        "guarantee": data.draw(st.sampled_from(GUARANTEES)),
        "by_group": data.draw(st.booleans()),
        "count_missed": data.draw(st.booleans()),
        "on_unscorable": "keep",
    }
    whole = calibration_of(queries, float(alpha), **options)
    assert file_of(calibration_of(Reduced.merged(parts), float(alpha), **options)) == file_of(whole)


def rejected(queries, **options):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        calibration_of(queries, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("last", "options"),
    [
        (ScoredQuery([0.5, math.nan], [False, True], missed=0, unscorable={1: "empty"}), {}),
        (ScoredQuery([0.5], [True], id="a", missed=0), {}),
        (ScoredQuery([0.5], [True]), {"count_missed": True}),
        (ScoredQuery([0.5], [True]), {"by_group": True}),
        (ScoredQuery([0.5], [True], silenced=False), {}),
    ],
)
def test_what_is_wrong_in_a_part_is_named_as_in_all_queries(last, options):
    queries = [*three_queries(), last]
    parts = [Reduced.of(ScoredQueries.of(part)) for part in parts_of(queries, [2])]
    assert rejected(Reduced.merged(parts), **options) == rejected(queries, **options)


def test_parts_that_are_cut_differently_are_refused():
    parts = [ScoredQueries([1], [1], [0, 1], split=split) for split in (None, "sentences")]
    with pytest.raises(ValueError, match="split"):
        Reduced.merged(map(Reduced.of, parts))


def test_reversed_scores_warn_by_the_pairs_within_parts():
    parts = [
        ScoredQueries([0.9, 0.2, 0.5, 0.1], [1, 1, 0, 0], [0, 4]),  # one of four pairs in order
        ScoredQueries([5, 6, 6], [1, 0, 1], [0, 2, 3]),  # one and a half of two
    ]
    with pytest.warns(UserWarning, match="AUC 0.42") as caught:  # 2.5 of 6
        Calibration.from_scores(Reduced.merged(map(Reduced.of, parts)), alpha=0.4, scorer="s")
    assert caught[0].filename == __file__.replace(".pyc", ".py")


def threshold(queries, alpha, guarantee, count_missed):
    """Return the threshold from its definition, in fractions."""
    units = []  # (score, mass) of each unit
    masses = 0
    for query in queries:
        found = [-math.inf if math.isnan(s) else s for s in query.scores[query.relevant].tolist()]
        found = sorted(found) + [math.inf] * (query.n_missed * count_missed)
        if guarantee in ("all", "any") and found:
            found = [max(found) if guarantee == "all" else min(found)]
        mass = Fraction(1, len(found) or 1) if guarantee == "query-recall" else Fraction(1)
        units += [(score, mass) for score in found]
        masses += mass * len(found)
    needed = (1 - alpha) * (masses + 1)
    reached = [v for v, _ in units if sum(m for s, m in units if s <= v) >= needed]
    return min(reached, default=math.inf)


@quiet
@every_guarantee
@given(queries=scored(), alpha=alphas, count_missed=st.booleans(), by_group=st.booleans())
def test_thresholds_of_columns_are_those_of_the_definition(
    guarantee, queries, alpha, count_missed, by_group
):
    calibration = calibration_of(
        queries,
        float(alpha),
        guarantee,
        by_group=by_group,
        count_missed=count_missed,
        on_unscorable="keep",
    )
    for group in calibration.n_units:
        members = [query for query in queries if group in (None, query.group)]
        assert calibration.threshold(group) == threshold(members, alpha, guarantee, count_missed)
    finite = [query.scores[np.isfinite(query.scores)] for query in queries]
    assert [*calibration.lowest_scores] == sorted(s.min() for s in finite if len(s))
