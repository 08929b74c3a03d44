"""How many judged queries a guarantee needs, and the smallest alpha that n queries allow."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from calibrations import GUARANTEES, calibration_of, every_guarantee, relevant
from clustered import FALSE_ALARM
from scipy.stats import beta, binom

from conformal_retrievers.calibration.planning import chance_within, plan, smallest_alpha
from conformal_retrievers.theory.tolerance import betting_n, tolerance_n


def chance_by_scipy(n, alpha, within, delta=None):
    """P(|C − (1 − α)| ≤ within) for C ~ Beta(k, n + 1 − k)."""
    if delta is None:
        k = math.ceil((n + 1) * (1 - Fraction(str(alpha))))
    else:
        ranks = np.arange(1, n + 1)
        allowed = ranks[binom.cdf(n - ranks, n, alpha) <= delta]
        k = int(allowed[0]) if len(allowed) else n + 1
    if k > n:
        return float(within >= alpha)
    law = beta(k, n + 1 - k)
    return law.cdf(1 - alpha + within) - law.cdf(1 - alpha - within)


# --- a threshold that drops anything --------------------------------------------------------------


@every_guarantee
@pytest.mark.parametrize(("alpha", "n"), [(0.1, 9), (0.05, 19), (0.01, 99), (0.2, 4), (0.3, 3)])
def test_the_numbers_without_delta(guarantee, alpha, n):
    planned = plan(alpha, guarantee=guarantee)
    assert (planned.feasible, planned.enough) == (n, None)
    assert (planned.alpha, planned.delta, planned.guarantee) == (alpha, None, guarantee)


@pytest.mark.parametrize("guarantee", ["all", "any"])
@pytest.mark.parametrize(("alpha", "n"), [(0.1, 22), (0.05, 45), (0.01, 230)])
def test_the_numbers_with_delta_for_whole_queries(guarantee, alpha, n):
    assert plan(alpha, delta=0.1, guarantee=guarantee).feasible == n


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.05, 0.1), (0.2, 0.01)])
def test_query_recall_with_delta_needs_the_number_of_the_betting_bound(alpha, delta):
    planned = plan(alpha, delta=delta)
    assert planned.feasible == betting_n(alpha, delta) >= tolerance_n(alpha, delta)


@every_guarantee
@pytest.mark.parametrize("delta", [None, 0.1])
def test_the_planned_number_is_enough_to_calibrate_and_one_less_is_not(guarantee, delta):
    if guarantee == "snippet" and delta is not None:
        return
    n = plan(0.15, delta=delta, guarantee=guarantee).feasible
    queries = [relevant(float(i)) for i in range(n)]
    assert math.isfinite(calibration_of(queries, 0.15, guarantee, delta=delta).threshold())
    if delta is None:
        assert calibration_of(queries[1:], 0.15, guarantee).threshold() == math.inf
    else:
        with pytest.raises(ValueError, match=f"delta is 0.1 .*at least {n}"):
            calibration_of(queries[1:], 0.15, guarantee, delta=delta)


# --- a coverage within some distance --------------------------------------------------------------


@pytest.mark.parametrize(("within", "n"), [(0.05, 90), (0.03, 263), (0.02, 602), (0.01, 2429)])
def test_the_numbers_for_a_coverage_near_90_percent(within, n):
    assert plan(0.1, within=within).enough == n
    assert chance_by_scipy(n, 0.1, within) >= 0.9 > chance_by_scipy(n - 1, 0.1, within)


@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize(("alpha", "within"), [(0.1, 0.1), (0.1, 0.04), (0.3, 0.07), (0.37, 0.05)])
def test_enough_is_what_a_search_of_every_number_finds(alpha, within, delta):
    tooth = math.ceil(1 / alpha)
    planned = plan(alpha, within=within, guarantee="all", delta=delta)
    n, good = planned.feasible, 0
    while good < tooth:
        good = good + 1 if chance_within(n, alpha, within, delta) >= 0.9 else 0
        n += 1
    assert planned.enough == n - good


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.3])
def test_every_larger_number_is_enough_too(alpha):
    planned = plan(alpha, within=0.05)
    numbers = range(planned.enough, planned.enough + 200)
    assert all(chance_by_scipy(n, alpha, 0.05) >= 0.9 for n in numbers)


@pytest.mark.parametrize("delta", [None, 0.1, 0.01])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_the_chance_is_that_of_the_beta_law(alpha, delta):
    for within in (0.01, 0.05, alpha, 0.97):
        for n in (1, 9, 20, 45, 263, 1000):
            expected = chance_by_scipy(n, alpha, within, delta)
            assert chance_within(n, alpha, within, delta) == pytest.approx(expected, abs=1e-9)


def test_a_narrow_plan_is_enough_and_not_too_much():
    # sd ≈ √(.09/n), so that ± .001 with probability .9 takes about (1.645/.001)² × .09.
    enough = plan(0.1, within=0.001).enough
    assert enough == pytest.approx(1.6449**2 / 0.001**2 * 0.09, rel=1e-3)
    assert chance_within(enough, 0.1, 0.001) >= 0.9 > chance_within(enough - 1, 0.1, 0.001)


def test_a_calibration_of_the_planned_size_is_as_near_as_planned():
    # The threshold of U(0, 1) scores is its own coverage.
    n = plan(0.1, within=0.05).enough
    scores = np.random.default_rng(43).random((4000, n))
    k = math.ceil((n + 1) * (1 - Fraction("0.1")))
    near = int((np.abs(np.partition(scores, k - 1)[:, k - 1] - 0.9) <= 0.05).sum())
    assert binom(4000, 0.9).sf(near - 1) > FALSE_ALARM
    assert binom(4000, 0.9).cdf(near) > FALSE_ALARM


def test_a_design_effect_multiplies_the_numbers_and_rounds_up():
    plain = plan(0.1, within=0.03)
    for effect in (1, 1.5, 7.25):
        planned = plan(0.1, within=0.03, design_effect=effect)
        assert planned.feasible == math.ceil(plain.feasible * effect)
        assert planned.enough == math.ceil(plain.enough * effect)


def test_a_plan_prints_its_numbers():
    assert str(plan(0.1)).startswith("9 judged queries")
    assert str(plan(0.1, guarantee="snippet", within=0.05)).startswith("9 relevant snippets")
    assert "about 90 for a coverage within ± 0.05 of 0.9" in str(plan(0.1, within=0.05))


# --- the smallest alpha ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 19, 99])
def test_the_smallest_alpha_by_hand(n):
    for exact, options in (
        (1 / (n + 1), {}),
        (1 - 0.1 ** (1 / n), {"delta": 0.1, "guarantee": "all"}),
    ):
        assert exact <= smallest_alpha(n, **options) <= exact + 2e-6


@every_guarantee
@pytest.mark.parametrize("delta", [None, 0.1, 0.01])
def test_the_smallest_alpha_is_the_inverse_of_the_plan(guarantee, delta):
    if guarantee == "snippet" and delta is not None:
        return
    for n in (1, 2, 5, 9, 19, 22, 45, 99, 230):
        alpha = smallest_alpha(n, delta=delta, guarantee=guarantee)
        if alpha < 1:
            assert plan(alpha, delta=delta, guarantee=guarantee).feasible <= n
        assert plan(alpha - 2e-6, delta=delta, guarantee=guarantee).feasible > n


def test_units_in_clusters_allow_the_alpha_of_their_independent_number():
    for guarantee in GUARANTEES:
        clustered = smallest_alpha(100, guarantee=guarantee, design_effect=5)
        assert clustered == smallest_alpha(20, guarantee=guarantee)
    with pytest.raises(ValueError, match="n is 4 with design_effect 5"):
        smallest_alpha(4, design_effect=5)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {"alpha": 0}),
        (ValueError, {"alpha": math.nan}),
        (TypeError, {"alpha": "0.1"}),
        (ValueError, {"alpha": 1e-5, "within": 0.1}),
        (ValueError, {"delta": 1.0}),
        (TypeError, {"delta": True}),
        (ValueError, {"delta": 0.1, "guarantee": "snippet"}),
        (ValueError, {"guarantee": "most"}),
        (ValueError, {"within": 0.0}),
        (ValueError, {"within": 1e-5}),
        (ValueError, {"within": math.nan}),
        (ValueError, {"design_effect": 0.5}),
        (ValueError, {"design_effect": math.inf}),
        (ValueError, {"design_effect": math.nan}),
    ],
)
def test_an_argument_out_of_range_is_named(error, options):
    with pytest.raises(error, match=f"{next(iter(options))} is"):
        plan(**{"alpha": 0.1, **options})
    if not options.keys() & {"alpha", "within"}:
        with pytest.raises(error, match=f"{next(iter(options))} is"):
            smallest_alpha(9, **options)


@pytest.mark.parametrize(("error", "n"), [(ValueError, 0), (ValueError, -3), (TypeError, 2.5)])
def test_a_number_of_units_out_of_range_is_named(error, n):
    with pytest.raises(error, match=f"n is {n}"):
        smallest_alpha(n)
