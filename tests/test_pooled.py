"""The pooled variant: invariants, resuming, files, bad input, and that it learns."""
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from threadpoolctl import threadpool_info, threadpool_limits

from ltf_nb.env import Problem
from ltf_nb.evaluation import Rollout, rollout
from ltf_nb.features import GroupwiseHatFeatures, grid_loci
from ltf_nb.policies import UniformPolicy
from ltf_nb.pooled import PooledSettings, empty_memory, load_pooled, node_rates, node_weights, plan, remember, save_pooled, train_pooled
from ltf_nb.populations import GaussianPopulation

TINY = PooledSettings(feature_map=GroupwiseHatFeatures(5, 5, 3), n_loci=16, utility_target=9.9, dual_lr=.5)
SHORT = Problem(horizon=10)
UNIT = arrays(float, (7,2), elements=st.floats(0, 1))


def episodes(n, seed=0):
    rng = np.random.default_rng(seed)
    return [rollout(UniformPolicy(), SHORT.draw_start(rng), "gaussian", horizon=10, rng=rng) for _ in range(n)]


def remembered(runs, s=TINY):
    memory = empty_memory(s)
    for run in runs:
        memory = remember(memory, run, s)
    return memory


def same(one, two):
    assert one.nu == two.nu and one.policy.nu == two.policy.nu
    for name in one.curves:
        np.testing.assert_array_equal(one.curves[name], two.curves[name])
    for name in ("w","xi","score","C"):
        np.testing.assert_array_equal(getattr(one.policy, name), getattr(two.policy, name))


@settings(max_examples=50)
@given(UNIT, UNIT, st.sampled_from([(5,3),(7,4),(9,2),(9,5)]), st.sampled_from(["rate","logit"]))
def test_nodes_carry_every_linear_function(q, a, sizes, coordinate):
    feature_map = GroupwiseHatFeatures(sizes[0], 4, sizes[1], coordinate=coordinate)
    w, nodes = np.random.default_rng(0).normal(size=feature_map.dim), node_rates(feature_map)
    psi = node_weights(q, feature_map)
    assert psi.min() >= 0
    np.testing.assert_allclose(psi.sum(-1), 1)
    np.testing.assert_allclose(feature_map(q, a) @ w, (psi*(feature_map(nodes[:,None], a) @ w).T).sum(-1), atol=1e-8)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 20), st.sampled_from([1e-6,1e-3,1.]), st.sampled_from([0,.05,1.]))
def test_costs_stay_between_nothing_and_the_steps_left(seed, nu, ridge, bonus_scale):
    s = replace(TINY, ridge=ridge, bonus_scale=bonus_scale)
    policy = plan(remembered(episodes(3, seed), s), s, nu, 10)
    assert policy.C.min() >= 0
    assert (policy.C.max((1,2)) <= np.arange(10, 0, -1) + 1e-9).all()
    a = policy.act(np.random.default_rng(seed).random((50,2)), np.random.default_rng(1), 3)
    assert a.shape == (50,2) and a.min() >= 0 and a.max() <= 1


def test_more_bonus_promises_more():
    memory, q = remembered(episodes(10)), np.random.default_rng(0).random((200,2))
    sharp = replace(TINY, sharpness=1e6)
    values = [plan(memory, replace(sharp, bonus_scale=b), 1., 1).value(q) @ [1,1] for b in (0.,.01,.1,1.)]
    assert all((high >= low - 1e-6).all() for low,high in zip(values[:-1], values[1:], strict=True))


def test_order_of_the_past_does_not_matter():
    runs = episodes(6)
    forth, back = remembered(runs), remembered(runs[::-1])
    for name in ("Lam","cost","place"):
        np.testing.assert_allclose(getattr(forth, name), getattr(back, name), atol=1e-12)


def test_swapped_groups_give_the_swapped_plan():
    runs = episodes(8)
    mirrored = [Rollout(r.loss, r.disparity, r.q[:,::-1], r.a[:,::-1]) for r in runs]
    one, two = plan(remembered(runs), TINY, .7, 10), plan(remembered(mirrored), TINY, .7, 10)
    np.testing.assert_allclose(one.score.reshape(10,5,5,4,4), two.score.reshape(10,5,5,4,4).transpose(0,2,1,4,3), atol=2e-3) # single precision


def test_pooling_uses_every_step():
    "A run of 10 steps says the same as 10 runs of one step."
    run, = episodes(1)
    pieces = [Rollout(run.loss[h:h+1], run.disparity[h:h+1], run.q[h:h+2], run.a[h:h+1]) for h in range(10)]
    for name in ("Lam","cost","place"):
        np.testing.assert_allclose(getattr(remembered([run]), name), getattr(remembered(pieces), name), atol=1e-12)


def test_plan_equals_value_iteration_that_keeps_its_data():
    "Ridge regression as least squares with d more rows, from the last step to the first, on the transitions themselves."
    s, nu = replace(TINY, ridge=.01, bonus_scale=0., sharpness=20.), .7
    runs = episodes(8)
    policy = plan(remembered(runs, s), s, nu, 10)
    phi = np.concatenate([s.feature_map(r.q[:-1], r.a) for r in runs])
    c = np.concatenate([np.stack([r.loss, r.disparity], -1) for r in runs])
    q_next = np.concatenate([r.q[1:] for r in runs])
    rows, zeros = np.concatenate([phi, .1*np.eye(s.feature_map.dim)]), np.zeros((s.feature_map.dim,2))
    pairs, C = s.feature_map(node_rates(s.feature_map)[:,None], grid_loci(16)), np.zeros((25,2))
    for h in range(9, -1, -1):
        later = np.stack([node_weights(q, s.feature_map) @ C for q in q_next])
        w = np.linalg.lstsq(rows, np.concatenate([c + later, zeros]), rcond=None)[0]
        cost = np.clip(pairs @ w, 0, 10-h)
        weight = np.exp(-20*(cost @ [1,nu]))
        C = (weight[...,None]*cost).sum(1)/weight.sum(1)[:,None]
        np.testing.assert_allclose(policy.C[h], C, atol=1e-3) # the plan's weights are in single precision


def test_training_remembers():
    curves = train_pooled(SHORT, replace(TINY, bonus_scale=0.), 30, np.random.default_rng(0)).curves
    assert curves["promised"][-5:,0].mean() < 9.5 # 10 as long as nothing is known


def test_same_seed_same_run_and_another_seed_another():
    one, two, other = (train_pooled(SHORT, TINY, 5, np.random.default_rng(s)) for s in (3,3,4))
    same(one, two)
    assert (one.curves["start"] != other.curves["start"]).all()


def test_resumed_equals_uninterrupted(tmp_path):
    whole = train_pooled(SHORT, TINY, 9, np.random.default_rng(3))
    file = tmp_path/"run.npz"
    train_pooled(SHORT, TINY, 4, np.random.default_rng(3), checkpoint=file, every=3)
    same(train_pooled(SHORT, TINY, 9, np.random.default_rng(3), checkpoint=file), whole)
    same(train_pooled(SHORT, TINY, 9, np.random.default_rng(3), checkpoint=file), whole) # nothing is left to do
    assert len(np.unique(whole.curves["nu"])) > 1 # the dual variable was part of it
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_interrupted_run_falls_back_to_its_last_checkpoint(tmp_path, monkeypatch):
    import ltf_nb.pooled as pooled
    whole, file, calls, episode = train_pooled(SHORT, TINY, 8, np.random.default_rng(3)), tmp_path/"run.npz", [], pooled.run_episode
    def dies(learner, problem):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        episode(learner, problem)
    monkeypatch.setattr(pooled, "run_episode", dies)
    with pytest.raises(KeyboardInterrupt):
        train_pooled(SHORT, TINY, 8, np.random.default_rng(3), checkpoint=file, every=2)
    monkeypatch.setattr(pooled, "run_episode", episode)
    same(train_pooled(SHORT, TINY, 8, np.random.default_rng(3), checkpoint=file), whole)


def test_first_episodes_do_not_depend_on_how_many_follow():
    short, long = (train_pooled(SHORT, TINY, n, np.random.default_rng(5)) for n in (3,6))
    for name in short.curves:
        np.testing.assert_array_equal(short.curves[name], long.curves[name][:3])


@pytest.mark.parametrize("problem,setting,seed", [
    (Problem("adult", horizon=10), TINY, 3), (Problem(GaussianPopulation(high=4.), horizon=10), TINY, 3),
    (Problem(horizon=11), TINY, 3), (Problem(loss="tp_tn", horizon=10), TINY, 3), (SHORT, replace(TINY, ridge=.1), 3), (SHORT, TINY, 4),
])
def test_checkpoint_of_another_run_is_refused(tmp_path, problem, setting, seed):
    train_pooled(SHORT, TINY, 2, np.random.default_rng(3), checkpoint=tmp_path/"run.npz")
    with pytest.raises(ValueError, match="another problem, other settings or another seed"):
        train_pooled(problem, setting, 3, np.random.default_rng(seed), checkpoint=tmp_path/"run.npz")


def test_policy_file_round_trip_and_damage(tmp_path):
    policy = plan(remembered(episodes(4)), TINY, .3, 10)
    save_pooled(policy, tmp_path)
    again, q = load_pooled(tmp_path), np.random.default_rng(0).random((20,3,2))
    np.testing.assert_array_equal(again.act(q, np.random.default_rng(1), 5), policy.act(q, np.random.default_rng(1), 5))
    np.testing.assert_array_equal(again.value(q, 2), policy.value(q, 2))
    file = tmp_path/"policy.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\1\2\3\4")
    with pytest.raises(ValueError, match="sha256"):
        load_pooled(tmp_path)


def test_training_keeps_to_one_thread(monkeypatch):
    """A sharp softmax amplifies rounding, and rounding depends on how many threads share a sum."""
    seen = []

    def watched(*args):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return plan(*args)

    monkeypatch.setattr("ltf_nb.pooled.plan", watched)
    with threadpool_limits(2):
        train_pooled(SHORT, replace(TINY, growth=1e-6), 3, np.random.default_rng(0))
    assert len(seen) >= 2 and set(seen) == {1}


def test_dual_variable_goes_where_the_target_drives_it():
    impossible = train_pooled(SHORT, replace(TINY, utility_target=10., dual_lr=5., nu_max=3.), 8, np.random.default_rng(0))
    assert impossible.nu == 3.
    assert train_pooled(SHORT, replace(TINY, utility_target=0.), 3, np.random.default_rng(0)).nu == 0.
    assert (train_pooled(SHORT, replace(TINY, utility_target=None, nu=.4), 3, np.random.default_rng(0)).curves["nu"] == .4).all()


def test_realised_is_what_happened():
    result = train_pooled(SHORT, TINY, 4, np.random.default_rng(0))
    np.testing.assert_allclose(result.curves["realised"][:,0], 10*(1-result.curves["loss"]))
    np.testing.assert_allclose(result.curves["realised"][:,1], 10*(1-result.curves["disparity"]))
    np.testing.assert_array_equal(result.curves["promised"][0], [10,10]) # nothing is known yet


@pytest.mark.parametrize("call,message", [
    (lambda: train_pooled(Problem(GaussianPopulation(3))), "population must have 2 groups"),
    (lambda: train_pooled(Problem(reward="lagrangian")), "reward must be 'plain'"),
    (lambda: train_pooled(SHORT, PooledSettings(utility_target=11.)), "utility_target must be at most the horizon 10"),
    (lambda: train_pooled(SHORT, TINY, 0), "n_episodes must be a whole number of at least 1"),
    (lambda: train_pooled(SHORT, TINY, 2, every=0), "every must be a whole number of at least 1"),
    (lambda: PooledSettings(sharpness=0), r"sharpness must lie in \(0, inf\)"),
    (lambda: PooledSettings(growth=-1.), r"growth must lie in \(0, inf\)"),
    (lambda: PooledSettings(nu=float("nan")), r"nu must lie in \[0, inf\)"),
    (lambda: PooledSettings(n_loci=24), "n_loci must be"),
])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_learns_within_forty_episodes():
    "Far below the best constant threshold (.250), which is far below random (.61); the optimum has .181."
    curves = train_pooled(Problem(), n_episodes=40, rng=np.random.default_rng(0)).curves
    assert curves["loss"][20:].mean() < .21 and curves["disparity"][20:].mean() < .01
