"""Groups of queries and missed snippets: by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from calibrations import calibration_of, every_guarantee, relevant

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.calibration.guarantees import loss


def two_groups(alpha=0.2, **options):
    """Twenty queries of group "long" with scores 1 to 20, and five of "short" with 101 to 105."""
    long = [relevant(i, group="long", id=f"l{i}") for i in range(1, 21)]
    short = [relevant(100 + i, group="short", id=f"s{i}") for i in range(1, 6)]
    return calibration_of([*long, *short], alpha, by_group=True, **options)


@every_guarantee
def test_each_group_has_its_own_threshold(guarantee):
    calibration = two_groups(guarantee=guarantee)
    assert calibration.threshold("long") == 17  # ⌈21 × .8⌉
    assert calibration.threshold("short") == 105  # ⌈6 × .8⌉
    assert calibration.n_units == {"long": 20, "short": 5}
    assert calibration.keep([17, 18, 105, 106], "long").tolist() == [True, False, False, False]
    assert calibration.keep([17, 18, 105, 106], "short").tolist() == [True, True, True, False]
    assert calibration.p_values([20, 105], "long").tolist() == [2 / 21, 1 / 21]
    assert calibration.p_values([20, 105], "short").tolist() == [1.0, 2 / 6]


@every_guarantee
@pytest.mark.parametrize("group", ["never seen", "", "Long", None])
def test_an_unknown_group_keeps_everything_with_a_p_value_of_1(guarantee, group):
    calibration = two_groups(guarantee=guarantee)
    assert calibration.threshold(group) == math.inf
    assert calibration.keep([-1e9, 1e9, math.inf, math.nan], group).all()
    p = calibration.p_values([-1e9, 1e9, math.nan], group)
    assert p[:2].tolist() == [1.0, 1.0]
    assert math.isnan(p[2])


def test_a_query_without_a_group_and_a_group_that_is_a_number_are_refused():
    with pytest.raises(ValueError, match="'a': group is None"):
        calibration_of([relevant(1, group="g"), relevant(2, id="a")], 0.5, by_group=True)
    with pytest.raises(TypeError, match=r"group is 0\.3.*at\(0\.3\)"):
        two_groups().threshold(0.3)


def test_missed_snippets_are_units_but_not_relevant_scores():
    queries = [relevant(*s, missed=m) for s, m in [((1,), 1), ((), 2), ((2,), 0), ((3,), 0)]]
    calibration = calibration_of(queries, 0.5, count_missed=True)
    assert (calibration.n_relevant, calibration.n_missed, calibration.n_queries) == (3, 3, 4)
    assert calibration.units().scores.tolist() == [1, math.inf, math.inf, math.inf, 2, 3]
    assert calibration.p_values([math.inf]).tolist() == [2.5 / 5]
    assert calibration.units().ceiling == 2.5 / 4


@pytest.mark.parametrize(
    ("guarantee", "keeps", "losses"),
    [
        ("query-recall", [True, False, True], (1 / 2, 3 / 4)),
        ("all", [True, False, True], (1, 1)),
        ("all", [True, True, False], (0, 1)),
        ("any", [True, False, True], (0, 0)),
        ("any", [False, False, True], (1, 1)),
    ],
)
def test_the_loss_of_a_query_by_hand(guarantee, keeps, losses):
    query = ScoredQuery([0.1, 0.2, 0.3], [True, True, False], missed=2)
    found = (loss(query, np.array(keeps), guarantee, count_missed=c) for c in (False, True))
    assert tuple(found) == losses
    irrelevant = ScoredQuery([0.3], [False], missed=1)
    assert loss(irrelevant, np.array([True]), guarantee, count_missed=False) is None
    assert loss(irrelevant, np.array([True]), guarantee, count_missed=True) == 1


def test_a_query_without_missed_snippets_is_not_one_whose_missed_snippets_are_unknown():
    known = calibration_of([relevant(0.1, 0.2, missed=0), relevant(0.3, missed=0)])
    unknown = calibration_of([relevant(0.1, 0.2, missed=0), relevant(0.3)])
    assert known.statement.endswith("does not return, here 0 of 3 known ones.")
    assert unknown.statement.endswith("does not return.")
    for calibration in (known, unknown):
        again = Calibration.from_json(calibration.to_json())
        assert [q.missed for q in again.queries] == [q.missed for q in calibration.queries]
    counting = replace(known, count_missed=True)
    assert counting.threshold() == known.threshold()
    assert "(retrieved or not)" in counting.statement
    with pytest.raises(ValueError, match="missed"):
        replace(unknown, count_missed=True)
    with pytest.raises(ValueError, match="1 of 2 queries have no `missed`"):
        calibration_of([relevant(1, missed=0), ScoredQuery([2], [False])], count_missed=True)
