"""Feature maps, loci and the audit: what must hold for every state, threshold and set of loci."""
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ltf_nb.env import Problem, transition
from ltf_nb.features import (
    CosineFeatures,
    FourierFeatures,
    GroupwiseHatFeatures,
    HatFeatures,
    NetworkFeatures,
    OneHotFeatures,
    audit,
    check_features,
    draw_in_cell,
    effective_rank,
    grid_loci,
    locus_radius,
    nearest_locus,
    random_transitions,
    softmax_over_loci,
    train_network_features,
)
from ltf_nb.metrics import disparity, loss
from ltf_nb.populations import GaussianPopulation

unit = st.floats(0, 1)
HALF = np.array([0.5, 0.5])


def random_network(n_groups, rng=None):
    rng = np.random.default_rng(3) if rng is None else rng
    sizes = (2 * n_groups, 16, 8, 6)
    pairs = list(zip(sizes[1:], sizes[:-1], strict=True))
    return NetworkFeatures(tuple(rng.normal(size=p) for p in pairs), tuple(rng.normal(size=p[0]) for p in pairs))


def maps(n_groups):
    rng = np.random.default_rng(4)
    return [HatFeatures(3, 2, n_groups), HatFeatures(3, 2, n_groups, "logit"), GroupwiseHatFeatures(5, 4, 2, n_groups),
            GroupwiseHatFeatures(5, 4, 2, n_groups, "rate"), CosineFeatures(3, 2, n_groups), FourierFeatures.draw(rng, 20, n_groups=n_groups),
            OneHotFeatures(3, 2, n_groups), random_network(n_groups)]


@st.composite
def situation(draw):
    n = draw(st.integers(2, 3))
    return n, draw(arrays(float, (4, n), elements=unit)), draw(arrays(float, (3, n), elements=unit))


@given(situation())
def test_norm_is_at_most_one_and_a_batch_is_its_members(case):
    n, q, a = case
    for feature_map in maps(n):
        phi = check_features(feature_map(q[:, None], a), feature_map.dim)
        assert phi.shape == (4, 3, feature_map.dim) and phi.dtype == float and feature_map.n_groups == n
        np.testing.assert_allclose(phi[2, 1], feature_map(q[2], a[1]), rtol=1e-9, atol=1e-12)


@given(situation())
def test_partitions_of_unity(case):
    n, q, a = case
    q = np.broadcast_to(q[:1], a.shape)
    for feature_map in (HatFeatures(4, 3, n), HatFeatures(4, 3, n, "logit"), OneHotFeatures(4, 3, n), random_network(n)):
        phi = feature_map(q, a)
        assert phi.min() >= 0
        np.testing.assert_allclose(phi.sum(-1), 1, rtol=1e-12)


def test_groups_do_not_mix_in_the_groupwise_blocks():
    feature_map, rng = GroupwiseHatFeatures(5, 4, 2), np.random.default_rng(0)
    q, a = rng.random((50, 2)), rng.random((50, 2))
    other_q, other_a = q.copy(), a.copy()
    other_q[:, 1], other_a[:, 1] = rng.random(50), rng.random(50)
    same = (feature_map(q, a) == feature_map(other_q, other_a)).all(0)
    assert same[:20].all() and not same[20:40].any()


def test_groupwise_basis_has_the_rank_that_its_overlaps_leave():
    # The coarse mesh is part of the fine one: 9 functions of each group appear twice.
    rng = np.random.default_rng(0)
    phi = GroupwiseHatFeatures(coordinate="rate")(rng.random((5000, 2)), rng.random((5000, 2)))
    assert phi.shape[1] == 419 and np.linalg.matrix_rank(phi, tol=1e-6) == 419 - 18


def exact_nearest(a, m, n):
    "Voronoi cell of the regular grid in rational arithmetic, the corrected Def. 3.3 word by word."
    loci = [[Fraction(2 * i + 1, 2 * m) for i in np.unravel_index(k, (m,) * n)] for k in range(m**n)]
    d = [sum((Fraction(x) - y) ** 2 for x, y in zip(a, locus, strict=True)) for locus in loci]
    inside = [i for i in range(m**n) if all(d[i] <= d[j] for j in range(i + 1, m**n)) and all(d[i] < d[j] for j in range(i))]
    assert len(inside) == 1  # the partition lemma
    return inside[0]


@given(st.integers(1, 6), st.integers(2, 3), st.data())
def test_nearest_locus_against_rational_arithmetic(m, n, data):
    on_lattice = data.draw(st.lists(st.integers(0, 4 * m), min_size=n, max_size=n))
    a = [Fraction(k, 4 * m) for k in on_lattice]  # centres, borders and corners of cells: every kind of tie
    assert nearest_locus(np.array([float(x) for x in a]), grid_loci(m**n, n)) == exact_nearest(a, m, n)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**31))
def test_cells_of_random_loci_partition_the_actions(n_loci, n, seed):
    rng = np.random.default_rng(seed)
    loci, a = rng.random((n_loci, n)), rng.random((200, n))
    d = np.linalg.norm(a[:, None] - loci, axis=-1)
    cell = np.array([[all(x[i] <= x[i + 1:]) and all(x[i] < x[:i]) for i in range(n_loci)] for x in d])
    assert (cell.sum(1) == 1).all() and (cell.argmax(1) == nearest_locus(a, loci)).all()


@given(st.integers(1, 12), st.integers(2, 3), st.integers(0, 2**31))
def test_every_action_is_within_the_radius_and_draws_stay_in_their_cell(m, n, seed):
    rng, M = np.random.default_rng(seed), m**n
    loci, a = grid_loci(M, n), rng.random((300, n))
    assert np.linalg.norm(a - loci[nearest_locus(a, loci)], axis=-1).max() <= locus_radius(M, n) + 1e-12
    index = rng.integers(M, size=(5, 20))
    drawn = draw_in_cell(index, M, n, rng)
    assert (nearest_locus(drawn, loci) == index).all() and drawn.min() >= 0 and drawn.max() <= 1
    assert np.isclose(np.linalg.norm(loci[0]), locus_radius(M, n))  # attained at a corner


def test_draws_do_not_favour_a_part_of_the_cell():
    drawn = draw_in_cell(np.full(40_000, 7), 25, 2, np.random.default_rng(0))
    counts = np.histogram2d(*drawn.T, bins=4, range=[(0.2, 0.4), (0.4, 0.6)])[0]
    assert counts.sum() == 40_000
    assert ((counts - 2500) ** 2 / 2500).sum() < 37.7  # chi-squared with 15 degrees of freedom, level 0.001


@given(arrays(float, (3, 6), elements=st.floats(-1e4, 1e4)), st.floats(0, 1e4))
def test_softmax_is_a_distribution_with_its_regret_bound(score, sharpness):
    p = softmax_over_loci(score, sharpness)
    assert np.isfinite(p).all() and p.min() >= 0
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-12)
    assert (sharpness * (score.max(-1) - (p * score).sum(-1)) <= np.log(6) + 1e-9 * max(1, sharpness) * 1e4).all()
    order = np.argsort(score, axis=-1)
    assert (np.diff(np.take_along_axis(p, order, -1), axis=-1) >= 0).all()


@given(arrays(float, st.integers(1, 20), elements=st.floats(1e-6, 1e6)))
def test_effective_rank_is_bounded_and_scale_free(s):
    rank = effective_rank(s)
    assert 1 - 1e-9 <= rank <= len(s) + 1e-9
    assert np.isclose(rank, effective_rank(7 * s)) and np.isclose(rank, effective_rank(np.append(s, 0)))


def test_random_transitions_are_transitions():
    problem = Problem(GaussianPopulation(3), "tp_tn", "eo", horizon=7)
    q, a, y, q_next = random_transitions(problem, 50, np.random.default_rng(0))
    assert [x.shape for x in (q, a, y, q_next)] == [(50, 3), (50, 3), (50, 2), (50, 3)]
    accept = problem.population.accept(q, a)
    np.testing.assert_allclose(y[:, 0], 1 - loss(q, accept, None, 1.0, 0.8), rtol=1e-12)
    np.testing.assert_allclose(y[:, 1], 1 - disparity("eo", q, accept), rtol=1e-12)
    np.testing.assert_allclose(q_next, transition(q, a, problem.population), rtol=1e-12)
    np.testing.assert_array_equal(q[1:7], q_next[:6])  # one episode after the other
    assert (q[7] != q_next[6]).any()


SMALL = dict(n_samples=1500, epochs=2, sizes=(16, 8))


def test_training_repeats_itself_and_leaves_torch_alone():
    import torch

    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    runs = [train_network_features("gaussian", "tp", "dp", np.random.default_rng(s), **SMALL) for s in (1, 1, 2)]
    assert torch.equal(state, torch.random.get_rng_state()) and threads == torch.get_num_threads()
    (one, curve), (two, again), (three, _) = runs
    np.testing.assert_array_equal(curve, again)
    for x, y in zip(one.weights + one.biases, two.weights + two.biases, strict=True):
        np.testing.assert_array_equal(x, y)
    assert (one.weights[0] != three.weights[0]).any() and curve.shape == (2, 2)
    first, _ = train_network_features("gaussian", "tp", "dp", np.random.default_rng(1), **SMALL | dict(epochs=0))
    assert (first.weights[0] != one.weights[0]).any() and np.abs(first.weights[0]).max() <= 0.5  # 1/sqrt(fan-in)


def test_training_reduces_the_errors_for_three_groups():
    _, curve = train_network_features(GaussianPopulation(3), "zero_one", "eo", np.random.default_rng(0), n_samples=4000, epochs=8, sizes=(32, 16))
    assert curve[-1].sum() < 0.5 * curve[0].sum()


@dataclass
class Given:
    "Features from a function of (q, a)."

    function: callable
    dim: int
    n_groups: int = 2

    def __call__(self, q, a):
        return self.function(q, a)


def test_audit_finds_a_linear_problem_linear():
    problem = Problem(loss="zero_one", disparity="eop")

    def function(q, a):
        q_next, r, _, d = problem.step(q, a, 1)
        return np.stack([r, 1 - d, q_next[..., 0] * q_next[..., 1], np.ones(len(q))], -1) / 2

    found = audit(Given(function, 4), "gaussian", "zero_one", "eop", np.random.default_rng(0), n=2000)
    assert max(found.rms[k] for k in ("r", "g", "q1 q2")) < 1e-9 and found.max["r"] < 1e-8 and found.rank == 4
    assert found.rms["logit q1"] > 0.1 and 1 <= found.effective_rank <= 4


def test_audit_is_held_out_and_repeats_itself():
    rng = np.random.default_rng(0)
    noise = {"noise": lambda q: np.random.default_rng(int(q.sum() * 1e9)).normal(size=len(q))}
    found = audit(HatFeatures(3, 3), "gaussian", "tp", "dp", rng, n=400, test_functions=noise)
    assert found.rms["noise"] > 1  # a fit in sample would be below 1
    one, two = (audit(HatFeatures(2, 2), "adult", "tp", "dp", np.random.default_rng(5), n=400) for _ in range(2))
    assert one.rms == two.rms and one.max == two.max and one.lipschitz == two.lipschitz


@pytest.mark.slow
def test_the_papers_network_collapses():
    network, _ = train_network_features("gaussian", "tp", "dp", np.random.default_rng(0), epochs=5)
    trained = audit(network, "gaussian", "tp", "dp", np.random.default_rng(1))
    random = audit(FourierFeatures.draw(np.random.default_rng(2), dim=64), "gaussian", "tp", "dp", np.random.default_rng(1))
    assert trained.effective_rank < 4 and trained.rms["r"] < 0.1
    for name in ("g", "q1", "logit q1", "q1 q2"):
        assert trained.rms[name] > random.rms[name]


def test_import_stays_light():
    code = "import sys, ltf_nb.features; sys.exit(any(m in sys.modules for m in ('torch', 'safetensors', 'numba', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


rng = np.random.default_rng(0)


def train(loss="tp", **options):
    return train_network_features("gaussian", loss, "dp", rng, **options)


def audit_of(feature_map, population="gaussian", **options):
    return audit(feature_map, population, "tp", "dp", rng, **options)


TOO_LONG = Given(lambda q, a: q + a, 2)
NOT_FINITE = Given(lambda q, a: q / 0 * 0, 2)
CASES = {
    "loci that are no square": (lambda: grid_loci(24), r"n_loci must be m\*\*2 for a whole number m, such as 25 or 36; got 24"),
    "loci that are no cube": (lambda: grid_loci(25, 3), r"n_loci must be m\*\*3"),
    "no loci": (lambda: grid_loci(0), "n_loci must be a whole number of at least 1; got 0"),
    "a fraction of loci": (lambda: grid_loci(25.0), "n_loci must be a whole number of at least 1; got 25.0"),
    "the radius of no square": (lambda: locus_radius(10), "got 10"),
    "a cell that is not there": (lambda: draw_in_cell(-1, 25, 2, rng), "index must lie in 0, ..., 24; got -1"),
    "loci of other groups": (lambda: nearest_locus([0.5] * 3, grid_loci(25)), "a has 3 groups on its last axis"),
    "an action out of range": (lambda: nearest_locus([0.5, 1.5], grid_loci(25)), r"a must lie in \[0, 1\]; got 1.5"),
    "a negative sharpness": (lambda: softmax_over_loci([1.0, 2.0], -1), "sharpness must be at least 0 and finite; got -1"),
    "a sharpness that is NaN": (lambda: softmax_over_loci([1.0, 2.0], np.nan), "sharpness must be at least 0 and finite; got nan"),
    "features that are NaN": (lambda: check_features([np.nan, 0]), "features must be finite"),
    "features that are infinite": (lambda: check_features([np.inf, 0]), "features must be finite"),
    "features that are too long": (lambda: check_features([1.0, 0.1]), "features must have a norm of at most 1; got 1.004987562"),
    "features of another dimension": (lambda: check_features([1.0, 0], 3), r"features must have shape \(\.\.\., 3\); got \(2,\)"),
    "a map that is too long": (lambda: audit_of(TOO_LONG), "norm of at most 1"),
    "a map that is not finite": (lambda: audit_of(NOT_FINITE), "features must be finite"),
    "a map for other groups": (lambda: audit_of(HatFeatures(2, 2), GaussianPopulation(3)), "feature_map is for 2 groups, but the population has 3"),
    "states of other groups": (lambda: HatFeatures()([0.5] * 3, HALF), "q has 3 groups on its last axis, but the feature map is for 2"),
    "actions of other groups": (lambda: random_network(2)(HALF, [0.5] * 3), "a has 3 groups on its last axis, but the feature map is for 2"),
    "a rate that is NaN": (lambda: OneHotFeatures()([0.5, np.nan], HALF), r"q must lie in \[0, 1\]; got nan"),
    "an unknown coordinate": (lambda: HatFeatures(coordinate="odds"), "unknown coordinate 'odds'; known: rate, logit"),
    "an unknown coordinate, groupwise": (lambda: GroupwiseHatFeatures(coordinate=1), "unknown coordinate 1; known: rate, logit"),
    "one node": (lambda: HatFeatures(n_q=1), "n_q must be a whole number of at least 2; got 1"),
    "one node, groupwise": (lambda: GroupwiseHatFeatures(n_a=1), "n_a must be a whole number of at least 2; got 1"),
    "one node, joint": (lambda: GroupwiseHatFeatures(n_joint=1), "n_joint must be a whole number of at least 2; got 1"),
    "one frequency": (lambda: CosineFeatures(n_a=1), "n_a must be a whole number of at least 2; got 1"),
    "one cell": (lambda: OneHotFeatures(n_q=True), "n_q must be a whole number of at least 2; got True"),
    "no reach": (lambda: HatFeatures(reach=0), "reach must be positive and finite; got 0"),
    "an odd number of waves": (lambda: FourierFeatures.draw(rng, dim=5), "dim must be even"),
    "no width": (lambda: FourierFeatures.draw(rng, width=0), "width must be positive and finite; got 0"),
    "weights that are NaN": (lambda: NetworkFeatures((np.full((2, 4), np.nan),), (np.zeros(2),)), "weights and biases must be finite"),
    "negative epochs": (lambda: train(epochs=-1), "epochs must be a whole number of at least 0; got -1"),
    "no samples": (lambda: train(n_samples=0), "n_samples must be a whole number of at least 1; got 0"),
    "a layer of one unit": (lambda: train(sizes=(8, 1)), "sizes must be a whole number of at least 2; got 1"),
    "an unknown loss": (lambda: train(loss="f1"), "unknown loss 'f1'"),
    "few transitions": (lambda: audit_of(HatFeatures(), n=2000), "n must be at least 2500, four times the dimension; got 2000"),
    "a test function that is constant": (lambda: audit_of(HatFeatures(2, 2), n=400, test_functions={"one": lambda q: 0 * q[:, 0]}), "'one' does not"),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        call()
