"""What n judged queries give, how many a guarantee needs, and the smallest alpha for n."""

import math

import pytest
from calibrations import calibration_of, every_guarantee, relevant
from scipy.stats import beta

from conformal_retrievers.calibration.planning import coverage_of, plan, smallest_alpha


@every_guarantee
def test_the_planned_number_is_enough_to_calibrate_and_one_less_is_not(guarantee):
    queries = [relevant(float(i)) for i in range(plan(0.15, guarantee=guarantee).feasible)]
    assert math.isfinite(calibration_of(queries, 0.15, guarantee).threshold())
    assert calibration_of(queries[1:], 0.15, guarantee).threshold() == math.inf
    if guarantee != "snippet":
        needed = plan(0.15, delta=0.1, guarantee=guarantee).feasible
        enough = [relevant(float(i)) for i in range(needed)]
        assert calibration_of(enough, 0.15, guarantee, delta=0.1).n_needed == needed


@every_guarantee
@pytest.mark.parametrize("delta", [None, 0.1, 0.01])
@pytest.mark.filterwarnings("ignore:alpha is")
def test_the_smallest_alpha_is_the_inverse_of_the_plan(guarantee, delta):
    if guarantee == "snippet" and delta is not None:
        return
    for n in (1, 2, 5, 9, 19, 22, 45, 99, 230):
        alpha = smallest_alpha(n, delta=delta, guarantee=guarantee)
        if alpha < 1:
            assert plan(alpha, delta=delta, guarantee=guarantee).feasible <= n
        assert plan(alpha - 2e-6, delta=delta, guarantee=guarantee).feasible > n


@pytest.mark.parametrize(
    ("error", "named", "options"),
    [
        (ValueError, "alpha", {"alpha": 0}),
        (TypeError, "alpha", {"alpha": "0.1"}),
        (ValueError, "delta", {"delta": 0.1, "guarantee": "snippet"}),
        *((ValueError, "n", {"n": n}) for n in (0, 2.5, "x", ["x" * 100] * 9)),
    ],
)
def test_an_argument_out_of_range_is_named(error, named, options):
    with pytest.raises(error, match=f"{named} is") as refused:
        plan(**{"alpha": 0.1, **options})
    assert len(str(refused.value)) < 200
    if named != "alpha":
        with pytest.raises(error, match=f"{named} is"):
            smallest_alpha(**{"n": 9, **options})


# --- what n queries give --------------------------------------------------------------------------


def test_the_coverage_of_nine_queries_by_hand():
    """The threshold is the largest of nine scores: P(coverage ≤ x) = x^9."""
    assert coverage_of(9, 0.1) == pytest.approx((0.9, 0.1 ** (1 / 9), 0.9 ** (1 / 9)))
    assert coverage_of(8, 0.1) == (1, 1, 1)  # everything is kept


def test_delta_raises_the_coverage_of_eight_in_ten_calibrations_to_its_target():
    for n in (22, 50, 100, 500):
        mean, low, _ = coverage_of(n, 0.1, delta=0.1, guarantee="all")
        k = round(mean * (n + 1))
        assert beta(k - 1, n + 2 - k).ppf(0.1) < 0.9 <= low  # the lowest rank that does
    assert coverage_of(21, 0.1, delta=0.1, guarantee="all").low == 1


def test_what_delta_costs_by_hand():
    """Of 22 queries, delta takes the largest score, which covers 22/23 on average.

    None fits the score: delta needs 22. Of 44, 11 do, and 33 calibrate.
    """
    assert plan(0.1, 21, guarantee="all").outlooks[0].as_alpha is None
    of_22, of_44, of_88 = plan(0.1, 22, guarantee="all").outlooks
    assert of_22.as_alpha == pytest.approx(1 / 23)
    assert (of_22.n, of_44.n, of_88.n) == (22, 44, 88)
    assert (of_22.fit, of_44.fit, of_88.fit) == (5, 11, 22)  # without delta
    assert of_44.as_alpha == pytest.approx(1 / 34)
    assert of_22.as_alpha < of_88.as_alpha < 0.1
    assert plan(0.1, 24).outlooks[0].as_alpha is None  # its bound needs 25
    assert plan(0.1, 1000, guarantee="snippet").outlooks[0].as_alpha is None


def test_a_plan_says_what_it_knows():
    assert "about" not in plan(0.1, 50, guarantee="all").sentences
    assert "everything is kept" in plan(0.1, 8).sentences
    of_40 = "With 40 judged queries, of which 10 fit the score and 30 calibrate, "
    assert of_40 in plan(0.1, 40).sentences.replace("\n", " ")
    assert plan(0.1, 40).outlooks[0].coverage == coverage_of(30, 0.1)
    assert [plan(0.1, n).outlooks[0].fit for n in (15, 20, 10**4)] == [0, 5, 200]
    assert plan(0.1, 40, guarantee="snippet").outlooks[0].fit == 0
    assert "fit" not in str(plan(0.1, 40, guarantee="snippet"))
    assert "With" not in plan(0.1).sentences  # nothing is known of n


@every_guarantee
@pytest.mark.parametrize("n", [None, 3, 50, 123456])
def test_a_plan_fits_into_80_columns(guarantee, n):
    planned = plan(0.001, n, guarantee=guarantee)
    assert max(map(len, str(planned).split("\n"))) <= 80
    assert len(planned.table.split("\n")) == 2 + (8 if n is None else 3)


def test_the_share_to_be_kept_is_not_taken_for_the_risk():
    with pytest.warns(UserWarning, match=r"alpha is 0\.9, the risk"):
        plan(0.9)
