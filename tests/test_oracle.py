"""The optimum against exhaustive search, against its own rollouts, and along the front."""
import itertools
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import logit

from ltf_nb.env import Problem
from ltf_nb.evaluation import rollout
from ltf_nb.oracle import Choices, grid_rates, make_choices, plan, solve, threshold_nodes
from ltf_nb.policies import ConstantPolicy, UniformPolicy
from ltf_nb.populations import GaussianPopulation

COARSE = dict(n_states=21, n_actions=65)
TINY = dict(n_states=9, n_actions=9, horizon=4)
STARTS = np.random.default_rng(0).uniform(0.01, 0.99, (40, 2))


class Ladder:
    "Three thresholds that move the log-odds by one node of a grid of 47 down, by none, or by one up."
    n_groups, share, n_states = 2, np.array([0.4, 0.6]), 47

    def accept(self, q, a):
        step = -2 * logit(1e-5) / (self.n_states - 1)
        qualified = np.broadcast_to(0.9 - 0.5 * a, np.broadcast_shapes(np.shape(q), np.shape(a)))
        return np.stack([((0.5 + 0.5 * qualified) * np.exp((1 - 2 * a) * step) - 0.1) / 5.4, qualified], -1)


def best_return(problem, q, thresholds, nu):
    "The largest return over every sequence of actions."
    pairs = list(itertools.product(thresholds, repeat=2))
    actions = np.array(list(itertools.product(pairs, repeat=problem.horizon)))
    state, total = np.repeat(q[:, None], len(actions), 1), 0.0
    for h in range(problem.horizon):
        state, _, loss, disparity = problem.step(state, actions[:, h], h + 1)
        total = total + 1 - loss + nu * (1 - disparity)
    return total.max(1)


@pytest.mark.parametrize("loss", ["tp", "tp_tn", "zero_one"])
@pytest.mark.parametrize("disparity", ["dp", "eop", "eo", "qr"])
def test_equals_exhaustive_search_where_nothing_is_interpolated(loss, disparity):
    problem, nu = Problem(Ladder(), loss, disparity, horizon=3), 1.7
    nodes = grid_rates(Ladder.n_states, 1e-5)
    q = np.concatenate([nodes[[0, 1, 46, -1]], nodes[np.random.default_rng(1).choice(len(nodes), 30)]])
    optimum = solve(Ladder(), loss, disparity, nu, horizon=3, n_states=Ladder.n_states, n_actions=3)
    best = best_return(problem, q, [0, 0.5, 1], nu)
    assert optimum.value(q) @ [1, nu] == pytest.approx(best, abs=1e-9)
    assert rollout(optimum.policy, q, Ladder(), loss, disparity, horizon=3).returns @ [1, nu] == pytest.approx(best, abs=1e-9)


def test_loses_little_to_exhaustive_search_where_it_interpolates():
    problem = Problem(loss="zero_one", disparity="qr", horizon=3)
    policy = plan(problem, make_choices(5), 1.0, 61)
    best = best_return(problem, STARTS, threshold_nodes(5), 1.0)
    realised = rollout(policy, STARTS, "gaussian", "zero_one", "qr", horizon=3).returns.sum(-1)
    lost = best - realised  # interpolation confuses choices that are almost equally good
    assert lost.min() > -1e-9 and lost.mean() < 3e-4 and lost.max() < 6e-3


@pytest.mark.parametrize(("population", "below"), [("gaussian", 1e-9), ("adult", 1e-4)])
def test_coarse_to_fine_finds_what_looking_at_all_pairs_finds(population, below):
    problem, nodes = Problem(population, horizon=12), threshold_nodes(65)
    for nu in (0.0, 1.0, 30.0):
        fine, quick = (plan(problem, Choices(nodes, stride=stride), nu, 15).mean_value @ [1, nu] for stride in (1, 4))
        assert quick == pytest.approx(fine, abs=12 * (1 + nu) * below)


@pytest.mark.parametrize(("loss", "disparity", "nu"), [("tp", "dp", 1.0), ("zero_one", "qr", 1.0), ("tp_tn", "eo", 10.0)])
@pytest.mark.parametrize("population", ["gaussian", "adult"])
def test_rollout_keeps_the_promise(population, loss, disparity, nu):
    optimum = solve(population, loss, disparity, nu, horizon=40, n_states=31, n_actions=129)
    realised = rollout(optimum.policy, STARTS, population, loss, disparity, horizon=40).returns
    error = (realised - optimum.value(STARTS)) / 40
    assert np.abs(error.mean(0)).max() < 4e-3 and np.abs(error).max() < 8e-3  # at half the default resolution


@pytest.mark.parametrize("population", ["gaussian", "adult"])
def test_more_weight_on_utility_gives_more_utility_and_less_reward(population):
    values = np.array([solve(population, nu=nu, horizon=30, **COARSE).mean_value for nu in (0, 0.3, 1, 3, 10, 100)])
    assert (np.diff(values[:, 1]) > -1e-3).all() and values[-1, 1] > values[0, 1]
    assert (np.diff(values[:, 0]) < 1e-3).all() and values[-1, 0] < values[0, 0]


def test_no_policy_of_the_yardsticks_is_better():
    optimum = solve("gaussian", nu=1.0, horizon=40, n_states=31, n_actions=129)
    rng = np.random.default_rng(0)
    for policy in (UniformPolicy(), ConstantPolicy(0.0), ConstantPolicy(0.51), ConstantPolicy(0.533)):
        others = rollout(policy, STARTS, "gaussian", horizon=40, rng=rng).returns.sum(-1)
        assert (others < optimum.value(STARTS).sum(-1)).all()


@pytest.mark.parametrize("n_cells", [None, 25])
def test_constrained_optimum_meets_its_target(n_cells):
    loose, tight = (solve("adult", nu=nu, horizon=40, n_cells=n_cells, **COARSE).mean_value[1] for nu in (0, 1e6))
    target = (loose + tight) / 2
    best = solve("adult", utility_target=target, horizon=40, n_cells=n_cells, **COARSE)
    assert best.mean_value[1] == pytest.approx(target, abs=1e-9)
    assert best.policies[0].mean_value[1] < target <= best.policy.mean_value[1]
    assert best.weights.sum() == pytest.approx(1) and (best.weights >= 0).all()
    assert best.margin == pytest.approx(tight - target) and 0 < best.nu <= 40 / best.margin
    assert best.value(STARTS) == pytest.approx(sum(w * p.value(STARTS) for w, p in zip(best.weights, best.policies, strict=True)))
    for nu in best.nu * np.array([0.5, 1, 2]):  # weak duality: each multiplier bounds the reward of every feasible policy
        dual = solve("adult", nu=nu, horizon=40, n_cells=n_cells, **COARSE).mean_value @ [1, nu] - nu * target
        assert best.mean_value[0] < dual + 5e-3
        if nu == best.nu:
            assert best.mean_value[0] == pytest.approx(dual, abs=1e-4 * 40 + 5e-3)


def test_slack_target_needs_no_multiplier():
    best = solve("gaussian", utility_target=10.0, horizon=20, **COARSE)
    assert best.nu == 0 and len(best.policies) == 1 and best.margin > 0
    assert best.mean_value == pytest.approx(solve("gaussian", horizon=20, **COARSE).mean_value)


def test_infeasible_target_says_the_range():
    most = solve("gaussian", disparity="qr", nu=1e6, horizon=20, **COARSE).mean_value[1]
    with pytest.raises(ValueError, match=f"utility_target must be at most {most:.6g}, .* got 20"):
        solve("gaussian", disparity="qr", utility_target=20, horizon=20, **COARSE)


@pytest.mark.parametrize("population", ["gaussian", "adult"])
def test_cells_are_never_better_and_finer_cells_are_better(population):
    free = solve(population, nu=1.0, horizon=30, n_states=31)
    means = []
    for n_cells in (1, 4, 25, 100):
        cells = solve(population, nu=1.0, horizon=30, n_cells=n_cells, n_states=31)
        assert (cells.value(STARTS).sum(-1) <= free.value(STARTS).sum(-1) + 1e-9).all()
        means.append(cells.mean_value.sum())
    assert (np.diff(means) > 0).all()


def test_cells_draw_inside_one_cell_from_the_given_generator():
    policy = solve("gaussian", nu=1.0, n_cells=25, **TINY).policy
    q = np.tile(STARTS[:3], (500, 1, 1))
    a = policy.act(q, np.random.default_rng(0), h=1)
    assert (np.floor(a * 5) == np.floor(a[:1] * 5)).all() and a.std(0).min() > 0.04
    assert (a == policy.act(q, np.random.default_rng(0), h=1)).all()


def test_one_cell_is_the_random_policy():
    starts = np.random.default_rng(2).uniform(0.01, 0.99, (20000, 2))
    random = rollout(UniformPolicy(), starts, "gaussian", horizon=30, rng=np.random.default_rng(3)).returns
    value = solve("gaussian", horizon=30, n_cells=1).value(starts).mean(0)
    assert value == pytest.approx(random.mean(0), abs=0.12)  # 4 standard errors


def test_policy_follows_the_protocol():
    policy = solve("gaussian", nu=1.0, **TINY).policy
    grid = STARTS.reshape(5, 8, 2)
    a = policy.act(grid, None)
    assert a.shape == grid.shape and (a == policy.act(grid, None, 0)).all() and (a == policy.act(grid, h=0)).all()
    assert (a[2, 3] == policy.act(grid[2, 3], None)).all()
    assert np.isfinite(policy.act(np.array([0.0, 1.0]), None)).all() and np.isfinite(policy.value([0.0, 1.0])).all()
    many = np.random.default_rng(4).uniform(0.01, 0.99, (1100, 2))  # more than one block of states
    assert (policy.act(many, None)[[0, 600, 1099]] == policy.act(many[[0, 600, 1099]], None)).all()
    assert (solve("gaussian", nu=1.0, **TINY).policy.V == policy.V).all()


def test_other_payoffs_floors_and_shares_are_used():
    base = solve("gaussian", **TINY).mean_value
    for other in (dict(U=np.array([[0.1, 12], [0.5, 1]])), dict(q_min=1e-2)):
        assert np.abs(solve("gaussian", **TINY | other).mean_value - base).max() > 1e-3
    uneven = GaussianPopulation(share=np.array([0.9, 0.1]))
    value = solve(uneven, horizon=1, n_states=151, n_actions=9).value([0.8, 0.2])
    assert value[0] == pytest.approx(0.9 * 0.8 + 0.1 * 0.2, abs=1e-3)  # one step of tp: accept everyone


CASES = {
    "negative nu": (dict(nu=-0.5), "nu must be a finite number of at least 0; got -0.5"),
    "nu NaN": (dict(nu=float("nan")), "nu must be a finite number of at least 0; got nan"),
    "nu no number": (dict(nu="one"), "nu must be a finite number of at least 0; got 'one'"),
    "two states": (dict(n_states=2), "n_states must be a whole number of at least 3; got 2"),
    "half a state": (dict(n_states=5.5), "n_states must be a whole number of at least 3; got 5.5"),
    "two actions": (dict(n_actions=2), "n_actions must be a whole number of at least 3; got 2"),
    "no horizon": (dict(horizon=0), "horizon must be a whole number of at least 1; got 0"),
    "no square": (dict(n_cells=24), "n_cells must be the square of a whole number, or None; got 24"),
    "no cell": (dict(n_cells=0), "n_cells must be the square of a whole number, or None; got 0"),
    "an unknown loss": (dict(loss="f1"), "unknown loss 'f1'; known: tp, tp_tn, zero_one"),
    "an unknown disparity": (dict(disparity="dpp"), "unknown disparity 'dpp'; known: dp, eop, eo, qr"),
    "an unknown population": (dict(population="credit"), "unknown population 'credit'; known: gaussian, adult"),
    "three groups": (dict(population=GaussianPopulation(3)), "population must have 2 groups, .*; got 3"),
    "no floor": (dict(q_min=0), r"q_min must lie in \(0, 0.5\), .*; got 0"),
    "payoffs": (dict(U=-np.ones((2, 2))), "U must be positive"),
    "a target beyond the horizon": (dict(utility_target=101), "utility_target must be .* at most the horizon 100; got 101"),
    "a target NaN": (dict(utility_target=float("nan")), "utility_target must be .* at most the horizon 100; got nan"),
    "both": (dict(utility_target=90, nu=1.0), "nu must be left at 0 where utility_target is given"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case):
    wrong, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        solve(**{"population": "gaussian"} | wrong)


def test_bad_questions_are_refused():
    policy = solve("gaussian", **TINY).policy
    for h in (4, -1, 0.5):
        with pytest.raises(ValueError, match=f"h must be a whole number from 0 to 3, .* got {h}"):
            policy.act([0.5, 0.5], None, h)
        with pytest.raises(ValueError, match=f"h must be a whole number from 0 to 3, .* got {h}"):
            policy.value([0.5, 0.5], h)
    with pytest.raises(ValueError, match=r"q must lie in \[0, 1\]; got 1.5"):
        policy.act([0.5, 1.5], None)


def test_importing_does_not_import_numba():
    code = "import ltf_nb.oracle, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("population", "loss", "disparity", "expected"), [
    ("gaussian", "tp", "dp", (0.1808, 0.0004)),
    ("gaussian", "zero_one", "qr", (0.1523, 0.0011)),
    ("adult", "tp", "dp", (0.2440, 0.0178)),
])
def test_reference_numbers_at_the_default_resolution(population, loss, disparity, expected):
    optimum = solve(population, loss, disparity, nu=1.0)
    assert 1 - optimum.mean_value / 100 == pytest.approx(expected, abs=3e-4)
    error = (rollout(optimum.policy, STARTS, population, loss, disparity).returns - optimum.value(STARTS)) / 100
    assert np.abs(error).max() < 1e-3


@pytest.mark.slow
def test_halving_the_grid_changes_little():
    for population in ("gaussian", "adult"):
        half, full = (1 - solve(population, nu=1.0, n_states=n, n_actions=m).mean_value / 100 for n, m in ((31, 193), (61, 385)))
        assert np.abs(full - half).max() < 1.2e-3
