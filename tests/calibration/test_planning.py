"""How many queries a promise takes, and what so many can promise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta, binom
from typer.testing import CliRunner

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.calibration.planning import chance_within, plan, smallest_alpha
from conformal_retrievers.cli import app
from conformal_retrievers.theory.tolerance import betting_n, tolerance_n

GUARANTEES = ("query-recall", "snippet", "all", "any")
every_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)


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


# --- feasible -------------------------------------------------------------------------------------


@every_guarantee
@pytest.mark.parametrize(("alpha", "n"), [(0.1, 9), (0.05, 19), (0.01, 99), (0.2, 4), (0.3, 3)])
def test_the_numbers_without_delta(guarantee, alpha, n):
    planned = plan(alpha, guarantee=guarantee)
    assert planned.feasible == n
    assert planned.enough is None
    assert (planned.alpha, planned.delta, planned.guarantee) == (alpha, None, guarantee)


@pytest.mark.parametrize("guarantee", ["all", "any"])
@pytest.mark.parametrize(("alpha", "n"), [(0.1, 22), (0.05, 45), (0.01, 230)])
def test_the_numbers_with_delta_for_whole_queries(guarantee, alpha, n):
    assert plan(alpha, delta=0.1, guarantee=guarantee).feasible == n == tolerance_n(alpha, 0.1)


def test_the_numbers_with_delta_for_query_recall_are_those_of_bets():
    for alpha, delta in ((0.1, 0.1), (0.05, 0.1), (0.2, 0.01)):
        planned = plan(alpha, delta=delta)
        assert planned.feasible == betting_n(alpha, delta)
        # Bets know less of the law than a rank does.
        assert planned.feasible >= tolerance_n(alpha, delta)


@every_guarantee
@pytest.mark.parametrize("delta", [None, 0.1])
def test_as_many_as_planned_are_enough_to_calibrate_and_one_less_is_not(guarantee, delta):
    if guarantee == "snippet" and delta is not None:
        return
    n = plan(0.15, delta=delta, guarantee=guarantee).feasible
    queries = [ScoredQuery([float(i)], [True]) for i in range(n)]
    options = {"alpha": 0.15, "guarantee": guarantee, "delta": delta, "scorer": "lookup"}
    assert math.isfinite(Calibration.from_scores(queries, **options).threshold())
    if delta is None:
        assert Calibration.from_scores(queries[1:], **options).threshold() == math.inf
    else:
        with pytest.raises(ValueError, match=f"at least {n}"):
            Calibration.from_scores(queries[1:], **options)


# --- within ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("within", "n"), [(0.05, 90), (0.03, 263), (0.02, 602), (0.01, 2429)])
def test_the_numbers_for_a_coverage_near_ninety_per_cent(within, n):
    assert plan(0.1, within=within).enough == n
    assert chance_by_scipy(n, 0.1, within) >= 0.9
    assert chance_by_scipy(n - 1, 0.1, within) < 0.9


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("within", [0.1, 0.05, 0.03])
def test_from_the_number_that_is_enough_on_every_number_is(alpha, within):
    planned = plan(alpha, within=within)
    n = planned.enough
    assert n >= planned.feasible
    assert all(chance_by_scipy(more, alpha, within) >= 0.9 for more in range(n, n + 300))
    assert n == planned.feasible or chance_by_scipy(n - 1, alpha, within) < 0.9


@pytest.mark.parametrize("delta", [None, 0.1, 0.01])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_the_chance_is_that_of_the_beta_law(alpha, delta):
    for within in (0.01, 0.05, alpha, 0.2, 0.97):
        for n in (1, 5, 9, 20, 45, 90, 263, 1000):
            expected = chance_by_scipy(n, alpha, within, delta)
            assert chance_within(n, alpha, within, delta) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_with_delta_as_many_as_planned_are_enough_too(guarantee):
    for alpha, within in ((0.1, 0.05), (0.2, 0.1), (0.05, 0.03)):
        planned = plan(alpha, delta=0.1, within=within, guarantee=guarantee)
        assert planned.enough >= planned.feasible
        assert chance_by_scipy(planned.enough, alpha, within, 0.1) >= 0.9
        # A rank that is on the safe side lies further from the target.
        assert planned.enough > plan(alpha, within=within).enough


def test_a_calibration_of_the_planned_size_is_as_near_as_planned():
    # Of U(0, 1) scores the threshold is its own coverage.
    n = plan(0.1, within=0.05).enough
    rng = np.random.default_rng(43)
    k = math.ceil((n + 1) * (1 - Fraction("0.1")))
    covered = np.sort(rng.random((4000, n)), axis=1)[:, k - 1]
    near = int((np.abs(covered - 0.9) <= 0.05).sum())
    assert binom(4000, 0.9).sf(near - 1) > 1e-4
    assert binom(4000, 0.9).cdf(near) > 1e-4


# --- clustered units ------------------------------------------------------------------------------


def test_a_design_effect_multiplies_the_numbers_and_rounds_up():
    plain = plan(0.1, within=0.03)
    for effect in (1, 1.5, 2.0, 7.25):
        planned = plan(0.1, within=0.03, design_effect=effect)
        assert planned.feasible == math.ceil(plain.feasible * effect)
        assert planned.enough == math.ceil(plain.enough * effect)
        assert planned.design_effect == effect


# --- the inverse ----------------------------------------------------------------------------------


@every_guarantee
@pytest.mark.parametrize("delta", [None, 0.1, 0.01])
def test_what_n_can_promise_is_the_inverse_of_how_many_a_promise_takes(guarantee, delta):
    if guarantee == "snippet" and delta is not None:
        return
    for n in (1, 2, 5, 9, 19, 22, 45, 99, 230):
        promised = smallest_alpha(n, delta=delta, guarantee=guarantee)
        assert (promised.n, promised.delta, promised.guarantee) == (n, delta, guarantee)
        alpha = promised.smallest_alpha
        if alpha < 1:
            assert plan(alpha, delta=delta, guarantee=guarantee).feasible <= n
        assert plan(alpha - 2e-6, delta=delta, guarantee=guarantee).feasible > n


def test_what_n_can_promise_by_hand():
    # Without delta 1/(n + 1), with delta for whole queries 1 − delta^(1/n).
    for n in (1, 9, 19, 99):
        assert smallest_alpha(n) == pytest.approx(1 / (n + 1), abs=2e-6)
        assert smallest_alpha(n) >= 1 / (n + 1)
        of_all = smallest_alpha(n, delta=0.1, guarantee="all")
        assert of_all == pytest.approx(1 - 0.1 ** (1 / n), abs=2e-6)
        assert of_all >= 1 - 0.1 ** (1 / n)


# --- bad arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "alpha is 0", {"alpha": 0}),
        (ValueError, "alpha is 1.5", {"alpha": 1.5}),
        (ValueError, "alpha is nan", {"alpha": math.nan}),
        (TypeError, "alpha is '0.1'", {"alpha": "0.1"}),
        (ValueError, "delta is 1", {"delta": 1.0}),
        (TypeError, "delta is True", {"delta": True}),
        (
            ValueError,
            "delta is 0.1 with guarantee 'snippet'",
            {"delta": 0.1, "guarantee": "snippet"},
        ),
        (ValueError, "guarantee is 'most'", {"guarantee": "most"}),
        (ValueError, "within is 0", {"within": 0.0}),
        (ValueError, "within is 1", {"within": 1.0}),
        (ValueError, "within is -0.1", {"within": -0.1}),
        (ValueError, "within is nan", {"within": math.nan}),
        (ValueError, "design_effect is 0.5", {"design_effect": 0.5}),
        (ValueError, "design_effect is inf", {"design_effect": math.inf}),
        (ValueError, "design_effect is nan", {"design_effect": math.nan}),
    ],
)
def test_a_plan_for_something_out_of_range_is_an_error_that_names_it(error, message, arguments):
    with pytest.raises(error, match=message):
        plan(**{"alpha": 0.1, **arguments})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("n is 0", {"n": 0}),
        ("n is -3", {"n": -3}),
        ("delta is 0", {"n": 9, "delta": 0.0}),
        ("delta is 0.1 with guarantee 'snippet'", {"n": 9, "delta": 0.1, "guarantee": "snippet"}),
        ("guarantee is 'most'", {"n": 9, "guarantee": "most"}),
    ],
)
def test_a_promise_of_something_out_of_range_is_an_error_that_names_it(message, arguments):
    with pytest.raises(ValueError, match=message):
        smallest_alpha(**arguments)


# --- in words, and on the command line ------------------------------------------------------------


@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize(
    ("alpha", "within"), [(0.1, 0.1), (0.1, 0.04), (0.3, 0.07), (0.05, 0.02), (0.37, 0.05)]
)
def test_how_many_are_enough_is_what_a_search_of_every_number_finds(alpha, within, delta):
    tooth = math.ceil(1 / alpha)
    planned = plan(alpha, within=within, guarantee="all", delta=delta)
    n, good = planned.feasible, 0
    while good < tooth:
        good = good + 1 if chance_within(n, alpha, within, delta) >= 0.9 else 0
        n += 1
    assert planned.enough == n - good


def test_a_narrow_plan_is_enough_and_not_too_much():
    # sd ≈ √(.09/n), so that ± .001 with probability .9 takes about (1.645/.001)² × .09.
    enough = plan(0.1, within=0.001).enough
    assert enough == pytest.approx(1.6449**2 / 0.001**2 * 0.09, rel=1e-3)
    assert chance_within(enough, 0.1, 0.001) >= 0.9 > chance_within(enough - 1, 0.1, 0.001)


@pytest.mark.parametrize("n", [1, 9, 12, 19, 24, 333, 1999, 20_010])
def test_a_promise_says_no_more_than_is_true(n):
    said = float(str(smallest_alpha(n)).split()[-1])
    assert said <= n / (n + 1) < said + 1.01e-4


def test_units_that_come_in_clusters_promise_as_much_as_their_share():
    for guarantee in ("query-recall", "all", "snippet"):
        clustered = smallest_alpha(100, guarantee=guarantee, design_effect=5)
        assert clustered.smallest_alpha == smallest_alpha(20, guarantee=guarantee)
        assert clustered.n == 100
    with pytest.raises(ValueError, match="n is 4 with design_effect 5; give at least so many"):
        smallest_alpha(4, design_effect=5)
    with pytest.raises(ValueError, match=r"design_effect is 0\.5"):
        smallest_alpha(4, design_effect=0.5)
    planned = on_the_command_line("--alpha", "0.1", "--have", "100", "--design-effect", "5")
    assert planned.output.splitlines()[-1] == f"{smallest_alpha(100, design_effect=5)}."


def test_a_plan_says_its_numbers():
    assert str(plan(0.1)) == "9 judged queries for a threshold that drops anything"
    assert str(plan(0.1, guarantee="snippet", within=0.05)) == (
        "9 relevant snippets for a threshold that drops anything; about 90 for a coverage within ± "
        "0.05 of 0.9 in 90% of calibrations"
    )
    assert str(smallest_alpha(19)) == "19 judged queries can promise up to 0.95"
    assert str(smallest_alpha(22, delta=0.1, guarantee="all")) == (
        "22 judged queries can promise up to 0.9006 with delta 0.1"
    )


def on_the_command_line(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["--alpha", "0.1"], [plan(0.1)]),
        (["--alpha", "0.1", "--within", "0.05"], [plan(0.1, within=0.05)]),
        (["--alpha", "0.05", "--guarantee", "snippet"], [plan(0.05, guarantee="snippet")]),
        (
            ["--alpha", "0.05", "--delta", "0.1", "--guarantee", "all"],
            [plan(0.05, delta=0.1, guarantee="all")],
        ),
        (["--alpha", "0.1", "--design-effect", "2.5"], [plan(0.1, design_effect=2.5)]),
        (["--alpha", "0.1", "--have", "19"], [plan(0.1), smallest_alpha(19)]),
        (
            ["--alpha", "0.1", "--delta", "0.1", "--have", "50"],
            [plan(0.1, delta=0.1), smallest_alpha(50, delta=0.1)],
        ),
        (
            ["--alpha", "0.1", "--have", "50", "--guarantee", "any", "--delta", "0.2"],
            [plan(0.1, delta=0.2, guarantee="any"), smallest_alpha(50, delta=0.2, guarantee="any")],
        ),
    ],
)
def test_the_command_line_plans_as_the_function_does(arguments, lines):
    done = on_the_command_line(*arguments)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    said = [f"It takes {lines[0]}.", *(f"{line}." for line in lines[1:])]
    assert done.output.split() == " ".join(said).split()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--alpha"),
        (["--alpha", "1.5"], "strictly between 0 and 1"),
        (["--alpha", "nan"], "strictly between 0 and 1"),
        (["--alpha", "much"], "--alpha"),
        (["--alpha", "0.1", "--delta", "2"], "strictly between 0 and 1"),
        (["--alpha", "0.1", "--delta", "0.1", "--guarantee", "snippet"], "guarantee 'snippet'"),
        (["--alpha", "0.1", "--guarantee", "most"], "--guarantee"),
        (["--alpha", "0.1", "--within", "0"], "within is 0.0"),
        (["--alpha", "0.1", "--design-effect", "0.9"], "design_effect is 0.9"),
        (["--alpha", "0.1", "--have", "0"], "Invalid value for '--have'"),
        (["--alpha", "0.1", "--have", "2.5"], "--have"),
        (["0.1"], "--alpha"),
    ],
)
def test_a_plan_that_is_not_understood_says_why_and_exits_with_2(arguments, said):
    done = on_the_command_line(*arguments)
    assert done.exit_code == 2
    words = " ".join(done.output.translate(str.maketrans("│╭╮╰╯─", "      ")).split())
    assert said in words
