"""The theorem's formulas, and a linear MDP whose values and optimum are known exactly."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltf_nb.features import grid_loci, locus_radius, nearest_locus
from ltf_nb.theory import (
    LinearMDP,
    StateHatFeatures,
    best_occupancy,
    bonus_scale_formula,
    cell_hats,
    distortion_bound,
    dual_lr_formula,
    locus_radius_formula,
    make_linear_mdp,
    n_loci_formula,
    nu_max_formula,
    proof_terms,
    regret_bound,
    sharpness_formula,
    weight_bound,
    zeta_formula,
)

sizes = st.integers(1, 10**6)
positive = st.floats(1e-3, 1e3)
seeds = st.integers(0, 2**32)


def world(seed, **kwargs):
    return make_linear_mdp(np.random.default_rng(seed), **kwargs)


@given(sizes, sizes, st.integers(1, 500), positive, positive)
def test_the_parts_of_the_proof_cost_what_they_simplify_to(K, H, d, nu_max, zeta):
    root = H * K**0.5
    for nu, dual in ((0, nu_max / 2), (nu_max, nu_max)):
        terms = proof_terms(K, H, d, nu_max, zeta, nu)
        assert terms["cells"] == pytest.approx(root)
        assert terms["dual"] == pytest.approx(dual * root)
        assert terms["learning"] == pytest.approx((nu + 1) * zeta * d**1.5 * H * root)
    assert proof_terms(K, H, d, nu_max, zeta, sqrt_dim=False)["cells"] == pytest.approx(d**0.5 * root)


@given(sizes, sizes, st.integers(1, 500), positive, positive, positive)
def test_both_bounds_are_linear_in_the_root_of_the_episodes(K, H, d, nu_max, zeta, b):
    for bound in (regret_bound, distortion_bound):
        assert bound(4 * K, H, d, nu_max, zeta, b) == pytest.approx(2 * bound(K, H, d, nu_max, zeta, b))
    learning = regret_bound(K, H, d, nu_max, zeta, b) - (nu_max + 1) * H * K**0.5
    assert distortion_bound(K, H, d, nu_max, zeta, b) * nu_max / (1 + nu_max) == pytest.approx(learning, rel=1e-6, abs=1e-6 * H * K**0.5 * nu_max)


@given(st.floats(0.02, 2), st.integers(1, 3), seeds)
def test_the_loci_asked_for_reach_the_radius(radius, n, seed):
    M = n_loci_formula(radius, n)
    assert locus_radius(M, n) <= radius * (1 + 1e-6)
    if M <= 2000:
        a, loci = np.random.default_rng(seed).random((20, n)), grid_loci(M, n)
        assert (np.linalg.norm(a - loci[nearest_locus(a, loci)], axis=-1) <= radius * (1 + 1e-6)).all()


def test_formulas_at_the_experiments_size():
    K, H, d = 2000, 100, 64
    assert nu_max_formula(H, 2.0) * 2 == nu_max_formula(H, 2.0, factor=2) == 100
    assert sharpness_formula(25, K, H, 1.0) == pytest.approx(31.557, abs=1e-3)
    assert sharpness_formula(1, K, H, 1.0) == 0
    assert dual_lr_formula(100.0, K, H) == pytest.approx(K**-0.5)
    assert n_loci_formula(locus_radius_formula(1.0, 1.0, K, H, d)) == pytest.approx(2.05e13, rel=0.01)
    assert n_loci_formula(1e12) == 1
    assert locus_radius_formula(1.0, 1.0, K, H) == pytest.approx(8 * locus_radius_formula(1.0, 1.0, K, H, d))
    assert zeta_formula(25, d, K, H, B1=1.0) - zeta_formula(25, d, K, H) == pytest.approx(np.log(2))
    assert bonus_scale_formula(d, H, 4.0, C1=0.5) == 6400
    assert weight_bound(H, d, 100, ridge=4.0) == 8000
    K_even = H**2 * d**3  # where the bound meets KH if b zeta = 1 and the cap is left out
    assert regret_bound(K_even, H, d, 1e-9, 1.0) == pytest.approx(K_even * H, rel=1e-4)


@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 3), seeds)
def test_features_are_convex_weights_and_lipschitz(n_states, n_hats, n, seed):
    features, rng = StateHatFeatures(n_states, n_hats, n), np.random.default_rng(seed)
    s, a, b = rng.integers(n_states, size=(30, 1)).astype(float), rng.random((30, n)), rng.random((30, n))
    phi = features(s, a)
    assert phi.shape == (30, features.dim) and phi.min() >= 0
    np.testing.assert_allclose(phi.sum(-1), 1)
    moved = np.linalg.norm(phi - features(s, b), axis=-1)
    assert (moved <= features.rho * np.linalg.norm(a - b, axis=-1) + 1e-12).all()
    np.testing.assert_array_equal(features(s[3], a[3]), phi[3])


@given(st.integers(1, 9), st.integers(2, 6))
def test_cell_means_are_gauss_quadrature_between_the_breaks(m, n_hats):
    breaks = np.unique(np.round(np.concatenate([np.linspace(0, 1, m + 1), np.linspace(0, 1, n_hats)]), 12))
    middle, width = (breaks[1:] + breaks[:-1]) / 2, np.diff(breaks)  # one node is exact for what is linear
    weights = StateHatFeatures(1, n_hats, 1)(np.zeros((len(middle), 1)), middle[:, None]) * width[:, None]
    means = np.zeros((m, n_hats))
    np.add.at(means, np.minimum((middle * m).astype(int), m - 1), weights * m)
    np.testing.assert_allclose(cell_hats(m, n_hats), means, atol=1e-9)


@given(seeds, st.integers(1, 2))
@settings(max_examples=30)
def test_backward_values_are_forward_occupancy(seed, n):
    rng = np.random.default_rng(seed)
    mdp = make_linear_mdp(rng, n_states=4, n_groups=n, horizon=3, start_probs=rng.dirichlet(np.ones(4)))
    pi = rng.dirichlet(np.ones(9**n), (3, 4))
    signal, P = mdp.tables(9**n)
    at, total = mdp.start_probs, np.zeros(2)
    for p in pi:
        x = at[:, None] * p
        total, at = total + np.einsum("si,sij->j", x, signal), np.einsum("si,sit->t", x, P)
    V = mdp.evaluate(pi)
    np.testing.assert_allclose(mdp.start_probs @ V[0], total)
    assert (V >= 0).all() and (V <= np.array([3, 2, 1])[:, None, None]).all()
    np.testing.assert_allclose(V, mdp.evaluate(pi @ cell_hats(9**n, 3, n), nodes=True))


@given(seeds, st.integers(1, 2), st.floats(0, 1))
@settings(max_examples=30)
def test_the_optimum_is_feasible_dual_and_better_than_anything_tried(seed, n, demand):
    rng = np.random.default_rng(seed)
    mdp = make_linear_mdp(rng, n_groups=n, horizon=4, start_probs=rng.dirichlet(np.ones(3)))
    free, most = mdp.solve(), mdp.solve(0.0).margin
    target = free.mean_value[1] + demand * (most - free.mean_value[1])
    best = mdp.solve(target)
    np.testing.assert_allclose(mdp.start_probs @ mdp.evaluate(best.policy, nodes=True)[0], best.mean_value, atol=1e-6)
    assert best.mean_value[1] >= target - 1e-6 and best.mean_value[0] <= free.mean_value[0] + 1e-6
    assert best.margin == pytest.approx(most - target, abs=1e-6) and best.nu >= -1e-9
    signal, P = mdp.tables()
    V = np.zeros(3)
    for _ in range(4):
        V = (signal @ [1, best.nu] + P @ V).max(-1)
    assert mdp.start_probs @ V - best.nu * target == pytest.approx(best.mean_value[0], abs=1e-5 * (1 + best.nu))  # strong duality
    if best.margin > 1e-3:
        assert best.nu <= nu_max_formula(4, best.margin) + 1e-6  # Lemma 3.1
    for M in (1, 4**n):
        pi = rng.dirichlet(np.full(M, 0.3), (4, 3))
        reward, utility = mdp.start_probs @ mdp.evaluate(pi)[0]
        assert reward + best.nu * (utility - target) <= best.mean_value[0] + 1e-5 * (1 + best.nu)


def test_cells_never_beat_all_actions_and_refining_helps():
    mdp = world(3, n_groups=2)
    values = [mdp.solve(n_loci=m * m).mean_value[0] for m in (1, 2, 4, 8, 16)] + [mdp.solve().mean_value[0]]
    assert (np.diff(values) > 0).all()
    one = mdp.solve(n_loci=1)
    np.testing.assert_allclose(mdp.start_probs @ mdp.evaluate(one.policy)[0], one.mean_value)


def test_the_largest_target_is_feasible_and_anything_more_is_not():
    mdp = world(0)
    most = mdp.solve(0.0).margin
    assert mdp.solve(most).mean_value[1] == pytest.approx(most, abs=1e-6)
    with pytest.raises(ValueError, match=f"utility_target must be at most {most:.6g}, the largest V_g"):
        mdp.solve(most + 1e-3)
    assert mdp.solve().nu == 0 and mdp.solve().margin == np.inf


def test_occupancies_are_distributions_that_follow_the_kernel():
    mdp = world(1, n_groups=2)
    x, _ = best_occupancy(mdp, np.array([1.0, 0.0]))
    np.testing.assert_allclose(x.sum((1, 2)), 1)
    np.testing.assert_allclose(x[1:].sum(-1), np.einsum("hsk,skt->ht", x[:-1], mdp.tables()[1]), atol=1e-9)


def test_a_batch_steps_like_its_members_and_follows_the_kernel():
    mdp, rng = world(2, n_groups=2), np.random.default_rng(0)
    s, a = rng.integers(3, size=(20000, 1)).astype(float), np.tile([0.3, 0.8], (20000, 1))
    after, reward, utility = mdp.step(s, a, np.random.default_rng(5))
    again = mdp.step(s, a, np.random.default_rng(5))
    np.testing.assert_array_equal(after, again[0])
    assert after.shape == (20000, 1) and reward.shape == utility.shape == (20000,)
    single = mdp.step(s[7], a[7], rng)
    assert single[0].shape == (1,) and single[1] == pytest.approx(reward[7]) and single[2] == pytest.approx(utility[7])
    for state in range(3):
        share = np.bincount(after[s[:, 0] == state, 0].astype(int), minlength=3) / (s == state).sum()
        np.testing.assert_allclose(share, mdp.feature_map(np.array([state]), a[0]) @ mdp.mu, atol=0.03)


def test_the_same_seed_gives_the_same_world():
    one, two, other = world(4), world(4), world(5)
    np.testing.assert_array_equal(one.mu, two.mu)
    np.testing.assert_array_equal(one.theta, two.theta)
    assert not np.array_equal(one.theta, other.theta)


toy = world(0)
BAD = {
    "no episode": (lambda: regret_bound(0, 5, 9, 1.0, 1.0), "n_episodes must be a whole number of at least 1; got 0"),
    "half a step": (lambda: sharpness_formula(25, 10, 2.5, 1.0), "horizon must be a whole number of at least 1; got 2.5"),
    "no dimension": (lambda: weight_bound(5, 0, 3), "dim must be a whole number of at least 1; got 0"),
    "no locus": (lambda: sharpness_formula(0, 10, 5, 1.0), "n_loci must be a whole number of at least 1; got 0"),
    "one locus": (lambda: zeta_formula(1, 9, 10, 5), "n_loci must be a whole number of at least 2; got 1"),
    "p of 0": (lambda: zeta_formula(25, 9, 10, 5, p=0), r"p must lie in \(0, 1\); got 0"),
    "p of NaN": (lambda: zeta_formula(25, 9, 10, 5, p=np.nan), r"p must lie in \(0, 1\); got nan"),
    "negative B1": (lambda: zeta_formula(25, 9, 10, 5, B1=-2), "B1 must be at least 0 and finite; got -2"),
    "no margin": (lambda: nu_max_formula(5, 0), r"gamma must lie in \(0, inf\); got 0"),
    "no cap": (lambda: dual_lr_formula(0.0, 10, 5), r"nu_max must lie in \(0, inf\); got 0.0"),
    "no Lipschitz constant": (lambda: locus_radius_formula(-1, 1.0, 10, 5), r"rho must lie in \(0, inf\); got -1"),
    "no radius": (lambda: n_loci_formula(0), r"radius must lie in \(0, inf\); got 0"),
    "no ridge": (lambda: weight_bound(5, 9, 3, ridge=0), r"ridge must lie in \(0, inf\); got 0"),
    "no b": (lambda: distortion_bound(10, 5, 9, 1.0, 1.0, b=-1), r"b must lie in \(0, inf\); got -1"),
    "a multiplier above the cap": (lambda: proof_terms(10, 5, 9, 1.0, 1.0, nu=2), r"nu must lie in \[0, 1\]; got 2"),
    "one hat": (lambda: world(0, n_hats=1), "n_hats must be a whole number of at least 2; got 1"),
    "no state": (lambda: world(0, n_states=0), "n_states must be a whole number of at least 1; got 0"),
    "no horizon": (lambda: world(0, horizon=0), "horizon must be a whole number of at least 1; got 0"),
    "starts that do not sum to 1": (lambda: world(0, start_probs=[0.5, 0.2, 0.2]), "start_probs must sum to 1"),
    "starts of other states": (lambda: world(0, start_probs=[0.5, 0.5]), r"start_probs must have shape \(3,\); got \(2,\)"),
    "rewards above 1": (lambda: LinearMDP(toy.feature_map, toy.theta * 3, toy.mu, toy.start_probs, 5), r"theta must lie in \[0, 1\]"),
    "a kernel of another shape": (lambda: LinearMDP(toy.feature_map, toy.theta, toy.mu[1:], toy.start_probs, 5), r"mu must have shape \(9, 3\)"),
    "a state out of range": (lambda: toy.feature_map([3.0], [0.5]), "hold indices from 0 to 2"),
    "a state that is a scalar": (lambda: toy.feature_map(1.0, [0.5]), r"s must have shape \(\.\.\., 1\)"),
    "an action out of range": (lambda: toy.step([1.0], [1.5], np.random.default_rng(0)), r"a must lie in \[0, 1\]; got 1.5"),
    "an action of two groups": (lambda: toy.feature_map([1.0], [0.5, 0.5]), "a has 2 groups on its last axis"),
    "a policy of another horizon": (lambda: toy.evaluate(np.ones((4, 3, 1))), r"pi must have shape \(5, 3, M\); got \(4, 3, 1\)"),
    "a policy that does not sum to 1": (lambda: toy.evaluate(np.full((5, 3, 2), 0.4)), "pi must sum to 1 over its last axis; got a sum of 0.8"),
    "a policy with NaN": (lambda: toy.evaluate(np.full((5, 3, 1), np.nan)), r"pi must lie in \[0, 1\]; got nan"),
    "a target that is no number": (lambda: toy.solve("high"), "utility_target must be a finite number or None; got 'high'"),
    "an infinite target": (lambda: toy.solve(np.inf), "utility_target must be a finite number or None; got inf"),
    "loci that are no grid": (lambda: world(0, n_groups=2).solve(n_loci=10), r"n_loci must be m\*\*2 for a whole number m"),
}


@pytest.mark.parametrize("call,message", BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
