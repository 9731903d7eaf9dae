"""L-UCBFair against a plain transcription of Alg. 1, and what a notebook is bad at: random cases, interruption, damaged files."""
import itertools
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_lucbfair import plain_lucbfair

from ltf_nb.adult import AdultPopulation
from ltf_nb.env import Problem
from ltf_nb.evaluation import rollout, uniform_starts
from ltf_nb.features import (
    CosineFeatures,
    FourierFeatures,
    GroupwiseHatFeatures,
    HatFeatures,
    NetworkFeatures,
    OneHotFeatures,
    draw_in_cell,
    grid_loci,
    nearest_locus,
)
from ltf_nb.lsvi import LUCBFairSettings, Memory, add_feature, locus_values, squared_width
from ltf_nb.lucbfair import LUCBFairPolicy, PopulationTask, join_gram, load_policy, save_policy, split_gram, train_lucbfair
from ltf_nb.populations import GaussianPopulation
from ltf_nb.theory import make_linear_mdp

HATS = HatFeatures(2, 3)
MDP = make_linear_mdp(np.random.default_rng(0), start_probs=[0.2, 0.3, 0.5])


class Noisy:
    """A stochastic task on [0, 1]^2 whose transitions use the task's generator."""

    horizon, n_groups = 4, 2

    def start(self, rng):
        return rng.random(2)

    def step(self, s, a, rng):
        return np.clip(s + 0.3 * (a - 0.5) + 0.1 * rng.normal(size=2), 0, 1), float(s.mean()), float(1 - abs(a[0] - a[1]))


def both(task, feature_map, seed, K, M=9, ridge=1.0, beta=0.5, alpha=5.0, nu=1.0, target=None, eta=None, refresh_every=7, quadrature=1):
    """Run the fast and the plain algorithm from the same seed."""
    fast = train_lucbfair(
        task,
        feature_map,
        np.random.default_rng(seed),
        LUCBFairSettings(K, M, ridge, beta, alpha, nu, target, dual_lr=eta, dtype="float64", quadrature=quadrature, refresh_every=refresh_every),
    )
    eta = 1 / (K**0.5 * task.horizon) if eta is None else eta
    loci = list(grid_loci(M, task.n_groups))

    def draw(i, rng):
        return draw_in_cell(i, M, task.n_groups, rng)

    width = 1 / round(M ** (1 / task.n_groups))
    steps = [width * ((j + 0.5) / quadrature - 0.5) for j in range(quadrature)]
    points = [[locus + step for step in itertools.product(steps, repeat=task.n_groups)] for locus in loci]
    plain = plain_lucbfair(task, feature_map, np.random.default_rng(seed), K, loci, draw, ridge, beta, alpha, nu, target, 1.0, eta, points)
    return fast, plain


def assert_same(fast, plain, tolerance=1e-6):
    for name in ("s", "a", "signal", "nu", "value"):
        np.testing.assert_allclose(getattr(fast, name), np.array(plain[name]), rtol=0, atol=tolerance)
    np.testing.assert_allclose(fast.policy.w, plain["w"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(fast.policy.Lam_inv, np.linalg.inv(plain["Lam"]), rtol=0, atol=tolerance)


class Costly(Noisy):
    """Rewards below 0, so that a floor on values would be seen."""

    def step(self, s, a, rng):
        s_next, reward, utility = super().step(s, a, rng)
        return s_next, reward - 1, utility - 1


CASES = {
    "nu fixed": dict(task=PopulationTask(Problem(horizon=4)), feature_map=HATS, seed=0, K=10),
    "dual": dict(task=PopulationTask(Problem(horizon=4, disparity="eo")), feature_map=HATS, seed=1, K=10, nu=0.4, target=3.5),
    "dual, large step": dict(task=Noisy(), feature_map=HATS, seed=2, K=10, nu=0.0, target=2.0, eta=0.5),
    "stochastic task": dict(task=Noisy(), feature_map=CosineFeatures(2, 2), seed=3, K=12, refresh_every=100),
    "sharp, wide bonus, clip at work": dict(task=Noisy(), feature_map=HATS, seed=4, K=10, beta=3.0, alpha=200.0, ridge=0.1),
    "values below 0": dict(task=Costly(), feature_map=HATS, seed=10, K=10, beta=0.1, ridge=0.1),
    "no bonus": dict(task=Noisy(), feature_map=HATS, seed=5, K=10, beta=0.0, ridge=0.01),
    "one locus": dict(task=Noisy(), feature_map=HATS, seed=6, K=6, M=1),
    "one step": dict(task=PopulationTask(Problem(horizon=1)), feature_map=HATS, seed=7, K=10),
    "one episode": dict(task=Noisy(), feature_map=HATS, seed=8, K=1),
    "linear MDP, one group": dict(task=MDP, feature_map=MDP.feature_map, seed=11, K=12, M=5, nu=0.0, target=3.0, eta=0.2),
    "cell quadrature": dict(task=Noisy(), feature_map=CosineFeatures(2, 3), seed=12, K=8, M=4, alpha=2.0, nu=0.3, target=2.0, eta=0.2, quadrature=3),
    "cell quadrature, one group": dict(task=MDP, feature_map=MDP.feature_map, seed=13, K=8, M=3, quadrature=5),
    "three groups": dict(task=PopulationTask(Problem(GaussianPopulation(3), horizon=2)), feature_map=HatFeatures(2, 2, n_groups=3), seed=9, K=4, M=8),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_runs_are_those_of_the_plain_algorithm(case):
    assert_same(*both(**CASES[case]))


@pytest.mark.slow
def test_a_longer_run_on_adult_is_that_of_the_plain_algorithm():
    task = PopulationTask(Problem(AdultPopulation.load(), horizon=5))
    rng = np.random.default_rng(0)
    network = NetworkFeatures((rng.normal(size=(16, 4)), rng.normal(size=(12, 16))), (rng.normal(size=16), rng.normal(size=12)))
    assert_same(*both(task, network, seed=1, K=25, M=9, nu=0.2, target=4.9, alpha=31.6))


def test_single_precision_on_the_same_transitions():
    """Errors of the weights and the values of a plan, features stored in float32, after 60 episodes."""
    task = PopulationTask(Problem(horizon=8))
    run = train_lucbfair(task, HatFeatures(3, 3), np.random.default_rng(0), LUCBFairSettings(60, dtype="float64"))
    policies = {}
    for dtype in ("float32", "float64"):
        memory = Memory(8, 81, LUCBFairSettings(60, dtype=dtype))
        for s, a, signal in zip(run.s[:, :-1], run.a, run.signal, strict=True):
            at_loci = HatFeatures(3, 3)(s[:, None], grid_loci(25))
            memory.add(at_loci, squared_width(at_loci, memory.Lam_inv), HatFeatures(3, 3)(s, a), signal)
            w = memory.plan(1.0)
        policies[dtype] = LUCBFairPolicy(HatFeatures(3, 3), w, memory.Lam_inv, 1.0, 25, 0.5, 31.6)
    np.testing.assert_allclose(policies["float64"].w, run.policy.w, atol=1e-9)
    states = uniform_starts(200, np.random.default_rng(1))
    for h in range(8):
        values = [policies[dtype].look(states, h)[4] for dtype in policies]
        np.testing.assert_allclose(*values, atol=1e-5)
    np.testing.assert_allclose(policies["float32"].w, policies["float64"].w, atol=1e-4)


def test_a_second_plan_from_the_same_data_is_the_same():
    memory, rng = Memory(3, 36, LUCBFairSettings(4, 9)), np.random.default_rng(0)
    for _ in range(4):
        s, a = rng.random((3, 2)), rng.random((3, 2))
        at_loci = HATS(s[:, None], grid_loci(9))
        memory.add(at_loci, squared_width(at_loci, memory.Lam_inv), HATS(s, a), rng.random((3, 2)))
        assert np.array_equal(memory.plan(1.0), memory.plan(1.0))


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.floats(0.01, 10))
def test_the_incremental_inverse_is_the_inverse(seed, dim, ridge):
    rng = np.random.default_rng(seed)
    phi, x = rng.normal(size=(30, 2, dim)) / dim**0.5, rng.normal(size=(2, 5, dim))
    Lam_inv = np.tile(np.eye(dim) / ridge, (2, 1, 1))
    widths = squared_width(x, Lam_inv)
    for row in phi:
        Lam_inv, v = add_feature(Lam_inv, row)
        widths = widths - (x @ v[..., None])[..., 0] ** 2
    inverse = np.linalg.inv(ridge * np.eye(dim) + np.einsum("khi,khj->hij", phi, phi))
    np.testing.assert_allclose(Lam_inv, inverse, atol=1e-9 / ridge)
    np.testing.assert_allclose(widths, squared_width(x, inverse), atol=1e-8 / ridge)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(0, 3), st.floats(0.01, 100))
def test_values_keep_their_bounds(seed, nu, sharpness):
    rng = np.random.default_rng(seed)
    mean, width2 = rng.normal(0, 8, (6, 9, 2)), rng.random((6, 9))
    Q, p, V = locus_values(mean, width2, nu, 0.5, sharpness, 10)
    assert (Q <= 10).all() and (Q >= np.minimum(mean, 10)).all()
    assert (Q <= mean + 0.5 * np.sqrt(width2)[..., None] + 1e-12).all()  # clipped from above only: nothing lifts a value to 0
    np.testing.assert_allclose(p.sum(-1), 1)
    score = Q @ [1, nu]
    assert (V @ [1, nu] <= score.max(-1) + 1e-9).all()
    assert (V @ [1, nu] >= score.max(-1) - np.log(9) / sharpness - 1e-9).all()


def test_one_hot_features_count_visits():
    run = train_lucbfair(PopulationTask(Problem(horizon=3)), OneHotFeatures(2, 2), np.random.default_rng(0), LUCBFairSettings(80, 4, ridge=0.5))
    visits = OneHotFeatures(2, 2)(run.s[:, :-1], run.a).sum(0)
    np.testing.assert_allclose(run.policy.Lam_inv, np.eye(16) * (1 / (visits + 0.5))[:, None], atol=1e-12)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    task = PopulationTask(Problem(horizon=5))
    runs = [train_lucbfair(task, HATS, np.random.default_rng(seed), LUCBFairSettings(12)) for seed in (0, 0, 1)]
    assert runs[0].policy.w.tobytes() == runs[1].policy.w.tobytes() and runs[0].s.tobytes() == runs[1].s.tobytes()
    assert not np.array_equal(runs[0].s, runs[2].s)


class Failing(Noisy):
    """Fails after a number of steps."""

    def __init__(self, steps):
        self.left = steps

    def step(self, s, a, rng):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("power cut")
        return super().step(s, a, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [5, 44, 82, 121])  # two probes, then: before a checkpoint, after one, at the end of an episode, in the last one
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, dtype, steps):
    some = LUCBFairSettings(30, 9, nu=0.3, utility_target=3.0, dtype=dtype, refresh_every=10)
    path = tmp_path / "run.npz"
    with pytest.raises(RuntimeError, match="power cut"):
        train_lucbfair(Failing(steps), HATS, np.random.default_rng(5), some, path)
    assert path.exists() == (steps > 42)
    again = train_lucbfair(Noisy(), HATS, np.random.default_rng(5), some, path)
    whole = train_lucbfair(Noisy(), HATS, np.random.default_rng(5), some)
    for name in ("s", "a", "signal", "nu", "value"):
        assert getattr(again, name).tobytes() == getattr(whole, name).tobytes(), name
    assert again.policy.w.tobytes() == whole.policy.w.tobytes() and again.policy.nu == whole.policy.nu
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    some, path = LUCBFairSettings(10, 9, refresh_every=5), tmp_path / "run.npz"
    train_lucbfair(Noisy(), HATS, np.random.default_rng(5), some, path)
    with pytest.raises(ValueError, match="another task or feature map"):
        train_lucbfair(Noisy(), CosineFeatures(2, 3), np.random.default_rng(5), some, path)
    with pytest.raises(ValueError, match="written with other settings"):
        train_lucbfair(Noisy(), HATS, np.random.default_rng(5), LUCBFairSettings(10, 9, refresh_every=5, nu=2.0), path)
    with pytest.raises(ValueError, match="begun with another seed"):
        train_lucbfair(Noisy(), HATS, np.random.default_rng(6), some, path)
    longer = Noisy()
    longer.horizon = 5
    with pytest.raises(ValueError, match="another task or feature map"):
        train_lucbfair(longer, HATS, np.random.default_rng(5), some, path)


@pytest.mark.parametrize("change", [dict(q_min=1e-3), dict(U=[[0.1, 5.5], [0.5, 1.1]]), dict(loss="tp_tn")], ids=lambda change: next(iter(change)))
def test_a_checkpoint_of_another_population_task_is_refused(tmp_path, change):
    some, path = LUCBFairSettings(4, 9, refresh_every=2), tmp_path / "run.npz"
    train_lucbfair(PopulationTask(Problem(horizon=3)), HATS, np.random.default_rng(5), some, path)
    with pytest.raises(ValueError, match="another task or feature map"):
        train_lucbfair(PopulationTask(Problem(horizon=3, **change)), HATS, np.random.default_rng(5), some, path)


def test_a_checkpoint_can_be_written_or_nothing_begins(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileExistsError):
        train_lucbfair(Failing(2), HATS, np.random.default_rng(5), LUCBFairSettings(4, 9), tmp_path / "file/run.npz")


MAPS = {
    "hat": HATS,
    "groupwise": GroupwiseHatFeatures(3, 3, 2),
    "cosine": CosineFeatures(2, 2),
    "fourier": FourierFeatures.draw(np.random.default_rng(0), dim=10),
    "one-hot": OneHotFeatures(2, 2),
    "network": NetworkFeatures((np.ones((6, 4), np.float32), np.eye(5, 6)), (np.zeros(6), np.arange(5.0))),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_policy_comes_back_from_its_files(tmp_path, name):
    run = train_lucbfair(PopulationTask(Problem(horizon=3)), MAPS[name], np.random.default_rng(0), LUCBFairSettings(5, 9))
    save_policy(run.policy, tmp_path)
    read, states = load_policy(tmp_path), uniform_starts(50, np.random.default_rng(1))
    ours, theirs = (rollout(policy, states, "gaussian", horizon=3, rng=np.random.default_rng(2)) for policy in (run.policy, read))
    assert np.array_equal(ours.a, theirs.a)
    np.testing.assert_allclose(read.Lam_inv, run.policy.Lam_inv, rtol=0, atol=1e-11)
    first = (tmp_path / "policy.safetensors").read_bytes()
    save_policy(run.policy, tmp_path)
    assert (tmp_path / "policy.safetensors").read_bytes() == first  # and the bytes are stable


@pytest.mark.parametrize("rank", [0, 1, 5, 12])
def test_gram_matrices_of_any_rank_come_back(rank):
    "Also where the steps of an episode saw different numbers of directions, and with any ridge."
    x = np.random.default_rng(rank).normal(size=(3, 40, rank)) @ np.random.default_rng(9).normal(size=(rank, 12))
    x[1, :, :4] = 0
    for ridge in (1e-3, 1.0, 7.0):
        L_inv = np.linalg.inv(np.linalg.cholesky(x.swapaxes(1, 2) @ x + ridge * np.eye(12)))
        Lam_inv = L_inv.swapaxes(1, 2) @ L_inv
        c, B = split_gram(Lam_inv)
        np.testing.assert_allclose(c, 1 / ridge if rank < 12 else np.linalg.eigvalsh(Lam_inv).max(), rtol=1e-9)
        assert B.shape == (3, 12, rank) or ridge < 1  # an inverse that is itself less exact takes more columns
        np.testing.assert_allclose(join_gram(c, B), Lam_inv, rtol=0, atol=12e-12 * c)


def test_damaged_policy_files_are_refused(tmp_path):
    policy = LUCBFairPolicy(HATS, np.zeros((2, 2, 36)), np.tile(np.eye(36), (2, 1, 1)), 1.0, 9, 0.5, 31.6)
    save_policy(policy, tmp_path)
    about = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps(about | {"shapes": about["shapes"] | {"w": [3, 2, 36]}}))
    with pytest.raises(ValueError, match=r"must hold the shapes .*'w': \[3, 2, 36\].*; got .*'w': \[2, 2, 36\]"):
        load_policy(tmp_path)
    (tmp_path / "policy.json").write_text(json.dumps(about | {"feature_map": about["feature_map"] | {"kind": "os"}}))
    with pytest.raises(ValueError, match="unknown feature map 'os'"):
        load_policy(tmp_path)
    (tmp_path / "policy.json").write_text(json.dumps(about))
    (tmp_path / "policy.safetensors").write_bytes((tmp_path / "policy.safetensors").read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="does not have the sha256"):
        load_policy(tmp_path)


def test_thresholds_of_all_states_are_drawn_from_their_own_cells():
    """A batch larger than a block: each state's draws lie in the cells that its own softmax allows."""
    w = np.zeros((1, 2, 36))
    w[0, 0] = np.random.default_rng(0).uniform(-0.9, 0.9, 36)  # below the clip at H = 1
    policy = LUCBFairPolicy(HATS, w, np.tile(np.eye(36), (1, 1, 1)), 0.0, 9, 0.0, 1e6)
    states = uniform_starts(1500, np.random.default_rng(1)).reshape(3, 500, 2)
    a = policy.act(states, np.random.default_rng(2))
    best = (HATS(states[..., None, :], grid_loci(9)) @ w[0, 0]).argmax(-1)
    assert a.shape == states.shape and np.array_equal(nearest_locus(a, grid_loci(9)), best)


BAD = {
    "K below 1": (lambda: LUCBFairSettings(n_episodes=0), "n_episodes must be a whole number of at least 1; got 0"),
    "K no number": (lambda: LUCBFairSettings(n_episodes="many"), "n_episodes must be a whole number of at least 1; got 'many'"),
    "ridge zero": (lambda: LUCBFairSettings(ridge=0), r"ridge must lie in \(0, inf\); got 0"),
    "ridge a word": (lambda: LUCBFairSettings(ridge="one"), r"ridge must lie in \(0, inf\); got 'one'"),
    "cap below 0": (lambda: LUCBFairSettings(nu_max=-0.5), r"nu_max must lie in \[0, inf\); got -0.5"),
    "nu infinite": (lambda: LUCBFairSettings(nu=np.inf), r"nu must lie in \[0, inf\); got inf"),
    "step below 0": (lambda: LUCBFairSettings(dual_lr=-1.0), r"dual_lr must lie in \[0, inf\); got -1.0"),
    "refresh never": (lambda: LUCBFairSettings(refresh_every=0), "refresh_every must be a whole number of at least 1; got 0"),
    "cap 0 with a target": (lambda: LUCBFairSettings(nu=0.0, nu_max=0.0, utility_target=1.0), r"nu_max must lie in \(0, inf\); got 0.0"),
    "M no square": (lambda: train(n_loci=24), r"n_loci must be m\*\*2 for a whole number m"),
    "target above H": (lambda: train(utility_target=4.5, nu=0.0), "utility_target must be at most the horizon 4; got 4.5"),
    "horizon 0": (lambda: train(task=type("Empty", (Noisy,), {"horizon": 0})()), "horizon must be a whole number of at least 1; got 0"),
    "map for three groups": (lambda: train(feature_map=HatFeatures(2, 2, n_groups=3)), "feature_map is for 3 groups, but the task has 2"),
    "features too long": (lambda: train(feature_map=Scaled(2.0)), "features must have a norm of at most 1"),
    "features not finite": (lambda: train(feature_map=Scaled(np.nan)), "features must be finite"),
    "features of another dimension": (lambda: train(feature_map=Scaled(1.0, dim=5)), r"features must have shape \(..., 5\)"),
}


class Scaled:
    """A feature map that breaks its promises."""

    n_groups = 2

    def __init__(self, scale, dim=36):
        self.scale, self.dim = scale, dim

    def __call__(self, q, a):
        return HATS(q, a) * self.scale


def train(task=None, feature_map=HATS, **kwargs):
    return train_lucbfair(task or Noisy(), feature_map, np.random.default_rng(0), LUCBFairSettings(**({"n_loci": 9} | kwargs)))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_any_work(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_features_that_go_bad_on_the_way_are_caught():
    class Later(Scaled):
        def __call__(self, q, a):
            return super().__call__(q, a) * np.where(np.asarray(q)[..., :1] > 0.9, np.nan, 1)

    with pytest.raises(ValueError, match="features must be finite"):
        train(feature_map=Later(1.0), n_episodes=200)


def test_memory_is_what_was_promised():
    """Stored features dominate: H K M d numbers of 4 bytes, and at most a third more."""
    tracemalloc.start()
    try:
        Memory(10, 64, LUCBFairSettings(100))
        assert tracemalloc.get_traced_memory()[1] < 10 * 100 * 25 * 64 * 4 * 4 / 3
    finally:
        tracemalloc.stop()
