"""R-TD3: the same bytes every time, whatever happens beside it or in between, and nothing taken on trust from a file."""
import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltf_nb import rtd3
from ltf_nb.evaluation import phase_portrait, rollout
from ltf_nb.populations import GaussianPopulation
from ltf_nb.rtd3 import PRESETS, RTD3Policy, Settings, load_policy, make_env, make_learner, make_settings, train

TINY = Settings(hidden=(16, 12), learning_starts=30, batch_size=16)
TASK = dict(steps=200, settings=TINY, horizon=20)


def saved_bytes(policy, folder):
    policy.save(folder)
    return [(folder / name).read_bytes() for name in ("policy.safetensors", "policy.json")]


def random_policy(rng, n_groups=2, observe_time=False):
    widths = (n_groups + observe_time, 7, 5, n_groups)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    layers = tuple((draw(o, i), draw(o)) for i, o in zip(widths, widths[1:], strict=False))
    return RTD3Policy(layers, 100, observe_time)


def run_python(code, *args):
    "Start another process that trains."
    env = os.environ | {"PYTHONPATH": str(Path(rtd3.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], env=env, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def alone():
    "Policy and curves of the run that the others are compared with."
    return train(**TASK)


# Determinism


def test_same_seed_same_bytes(alone, tmp_path):
    import torch

    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    again, curves = train(**TASK)
    assert saved_bytes(again, tmp_path / "a") == saved_bytes(alone[0], tmp_path / "b")
    for name in curves:
        np.testing.assert_array_equal(curves[name], alone[1][name])
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state), "training left its marks on torch"
    assert torch.tensor([1e-40]) * 1 > 0, "denormal numbers are back"


def test_other_seed_other_policy(alone, tmp_path):
    other, _ = train(**TASK, rng=np.random.default_rng(1))
    assert saved_bytes(other, tmp_path / "a")[0] != saved_bytes(alone[0], tmp_path / "b")[0]


def test_two_runs_in_one_process_do_not_meet(alone, tmp_path):
    "Two learners take turns, episode by episode, while the global generators are stirred."
    import torch

    env = make_env(settings=TINY, horizon=20)
    learners = [make_learner(env, 200, np.random.default_rng(seed)) for seed in (0, 1)]
    with rtd3.fast_torch():
        for _ in range(10):
            for learner in learners:
                np.random.random(3), torch.rand(3)  # noqa: NPY002
                rtd3.train_episode(learner)
    policy = RTD3Policy(rtd3.actor_layers(learners[0].networks), 20)
    assert saved_bytes(policy, tmp_path / "a") == saved_bytes(alone[0], tmp_path / "b")


@pytest.mark.slow
def test_same_bytes_in_another_process_beside_this_one(alone, tmp_path):
    code = """
import sys, numpy as np
from ltf_nb.rtd3 import Settings, train
settings = Settings(hidden=(16, 12), learning_starts=30, batch_size=16)
policy, _ = train(steps=200, settings=settings, horizon=20, rng=np.random.default_rng(int(sys.argv[1])))
policy.save(sys.argv[2])
"""
    beside = [run_python(code, seed, tmp_path / f"p{seed}") for seed in (0, 1)]
    here, _ = train(**TASK)
    assert [process.wait(120) for process in beside] == [0, 0]
    expected = saved_bytes(alone[0], tmp_path / "alone")
    assert saved_bytes(here, tmp_path / "here") == expected
    assert [(tmp_path / "p0" / name).read_bytes() for name in ("policy.safetensors", "policy.json")] == expected


def test_importing_costs_no_torch():
    code = "import sys, ltf_nb.rtd3; print([m for m in ('torch', 'stable_baselines3', 'safetensors') if m in sys.modules])"
    assert run_python(code).communicate(timeout=120)[0].strip() == "[]"


# Checkpoints


def interrupted(folder, settings=TINY, stop=100, interval=40):
    "Train to `stop` steps as a run of 200 that is then cut off."
    env, rng = make_env(settings=settings, horizon=20), np.random.default_rng(0)
    config = rtd3.run_config(env, 200, rng)
    learner = make_learner(env, 200, rng)
    with rtd3.fast_torch():
        while learner.n_steps < stop:
            rtd3.train_episode(learner)
            if learner.n_steps % interval == 0:
                rtd3.save_checkpoint(learner, folder, config)
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize("settings", [TINY, replace(TINY, keep_best=True, warp=20.0, observe_time=True), replace(TINY, buffer_size=70)],
                         ids=["plain", "best model, clock", "full replay"])
def test_resumed_run_ends_with_the_same_bytes(settings, tmp_path):
    whole, curves = train(**TASK | dict(settings=settings))
    assert interrupted(tmp_path, settings) == ["step000000040", "step000000080"]
    resumed, resumed_curves = train(**TASK | dict(settings=settings), checkpoints=tmp_path)
    assert saved_bytes(resumed, tmp_path / "a") == saved_bytes(whole, tmp_path / "b")
    for name in curves:
        np.testing.assert_array_equal(curves[name], resumed_curves[name])


@pytest.mark.parametrize("buffer_size", [1000, 80, 70, 7], ids=["in part", "just full", "wrapped", "shorter than an episode"])
def test_replay_comes_back_place_by_place(buffer_size, tmp_path):
    env, rng = make_env(settings=replace(TINY, buffer_size=buffer_size), horizon=20), np.random.default_rng(0)
    config = rtd3.run_config(env, 200, rng)
    learner, fresh = make_learner(env, 200, rng), make_learner(env, 200, np.random.default_rng(1))
    while learner.n_steps < 80:
        rtd3.play_episode(learner)
    rtd3.save_checkpoint(learner, tmp_path, config)
    rtd3.resume(fresh, tmp_path, config)
    np.testing.assert_array_equal(fresh.replay, learner.replay)
    rtd3.play_episode(learner), rtd3.play_episode(fresh)
    np.testing.assert_array_equal(fresh.replay, learner.replay)


def test_finished_run_is_not_trained_again(alone, tmp_path, monkeypatch):
    train(**TASK, checkpoints=tmp_path)
    monkeypatch.setattr(rtd3, "train_episode", None)
    again, _ = train(**TASK, checkpoints=tmp_path)
    assert saved_bytes(again, tmp_path / "a") == saved_bytes(alone[0], tmp_path / "b")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink], ids=["truncated", "flipped bit", "missing"])
@pytest.mark.parametrize("name", [*rtd3.CHECKPOINT_FILES, "SHA256SUMS"])
def test_damage_is_noticed(name, harm, tmp_path):
    interrupted(tmp_path, stop=40)
    assert rtd3.is_whole(tmp_path / "step000000040")
    harm(tmp_path / "step000000040" / name)
    assert not rtd3.is_whole(tmp_path / "step000000040")


@pytest.mark.parametrize("n_damaged", [1, 2])
def test_damaged_checkpoints_are_named_and_passed_over(alone, n_damaged, tmp_path):
    interrupted(tmp_path)
    (tmp_path / "unfinished").mkdir()
    damaged = ["step000000080", "step000000040"][:n_damaged]
    for name in damaged:
        truncate(tmp_path / name / "replay.npz")
    with pytest.warns(UserWarning, match="damaged: ") as said:
        resumed, _ = train(**TASK, checkpoints=tmp_path)
    message = str(said[0].message)
    assert all(name in message.split(";")[0] for name in damaged)
    assert message.endswith("starting anew" if n_damaged == 2 else "starting from " + str(tmp_path / "step000000040"))
    assert saved_bytes(resumed, tmp_path / "a") == saved_bytes(alone[0], tmp_path / "b")


@pytest.mark.parametrize("change, says", [
    (dict(loss="tp_tn"), "loss is 'tp' there and 'tp_tn' here"),
    (dict(disparity="eo"), "disparity is 'dp' there and 'eo' here"),
    (dict(steps=220), "steps is 200 there and 220 here"),
    (dict(horizon=25), "horizon is 20 there and 25 here"),
    (dict(settings=replace(TINY, gamma=1.0)), "settings.gamma is 0.99 there and 1.0 here"),
    (dict(population=GaussianPopulation(2, -4, 4)), "population is 'GaussianPopulation "),
    (dict(population="adult"), "and 'AdultPopulation "),
    (dict(rng=np.random.default_rng(1)), "seed is "),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_checkpoint_of_another_run_is_refused_and_named(change, says, tmp_path):
    interrupted(tmp_path, stop=40)
    with pytest.raises(ValueError, match="is of another run") as error:
        train(**TASK | change, checkpoints=tmp_path)
    assert says in str(error.value) and str(tmp_path / "step000000040") in str(error.value)
    assert rtd3.is_whole(tmp_path / "step000000040")


@pytest.mark.slow
def test_kill_9_costs_at_most_one_interval(tmp_path):
    code = """
import sys
from ltf_nb import rtd3
episode = rtd3.train_episode
def reported(learner):
    episode(learner); print(learner.n_steps, flush=True)
rtd3.train_episode = reported
rtd3.train(steps=3000, settings=rtd3.Settings(hidden=(16, 12), learning_starts=30, batch_size=16), horizon=20, checkpoints=sys.argv[1], interval=60)
"""
    process, folder, progress = run_python(code, tmp_path / "run"), tmp_path / "run", 0
    for line in process.stdout:
        progress = int(line)
        if progress >= 500:
            process.send_signal(signal.SIGKILL)
            break
    progress = int(([*process.stdout.read().split()] or [progress])[-1])  # what it still said before it died
    assert process.wait(60) == -signal.SIGKILL and progress < 3000
    newest = max(int(path.name[4:]) for path in folder.glob("step*"))
    assert 0 <= progress - newest <= 60 + 20, "an interval, and the episode under way"
    task = dict(steps=3000, settings=TINY, horizon=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed, _ = train(**task, checkpoints=folder, interval=60)
    assert saved_bytes(resumed, tmp_path / "a") == saved_bytes(train(**task)[0], tmp_path / "b")


# The update rule


RULES = {"ours": PRESETS["ours"], "text": PRESETS["text"], "other": Settings(gamma=1.0, policy_delay=3, target_rate=0.1)}


@pytest.mark.parametrize("settings", RULES.values(), ids=RULES)
def test_updates_are_those_of_stable_baselines(settings):
    import torch
    from stable_baselines3 import TD3
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    settings = replace(settings, hidden=(40, 30))
    env = make_env(settings=settings)
    learner = make_learner(env, 400, np.random.default_rng(3))
    stock = TD3("MlpPolicy", env, settings.learning_rate, gamma=settings.gamma, tau=settings.target_rate, policy_delay=settings.policy_delay,
                target_policy_noise=settings.target_noise, target_noise_clip=settings.target_noise_clip,
                policy_kwargs=dict(net_arch=[40, 30]), device="cpu")
    stock.set_logger(Logger(None, []))
    stock.policy.load_state_dict(learner.networks.state_dict())
    rtd3.play_episode(learner)
    n, batch = 12, settings.batch_size
    pair, obs_next, reward, discount, _ = rtd3.draw_block(learner, n)
    assert pair.shape == (n, batch, 4)
    rows = zip(pair, obs_next, reward, discount, strict=True)
    batches = iter(ReplayBufferSamples(p[:, :2], p[:, 2:], o, 1 - d / settings.gamma, r) for p, o, r, d in rows)
    stock.replay_buffer.sample = lambda *args, **kwargs: next(batches)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        noise = torch.stack([torch.empty(batch, 2).normal_(0, settings.target_noise) for _ in range(n)])
        noise = noise.clamp_(-settings.target_noise_clip, settings.target_noise_clip)
        torch.manual_seed(0)
        stock.train(n, batch)
    rtd3.update(learner, (pair, obs_next, reward, discount, noise))
    for name, x in learner.networks.state_dict().items():
        assert (x - stock.policy.state_dict()[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize("terminate", [True, False])
def test_only_a_termination_stops_the_bootstrap(terminate):
    env = make_env(settings=replace(TINY, terminate_at_horizon=terminate), horizon=20)
    learner = make_learner(env, 40, np.random.default_rng(0))
    rtd3.play_episode(learner), rtd3.play_episode(learner)
    np.testing.assert_array_equal(np.flatnonzero(learner.replay[:, -1]), [19, 39] if terminate else [])


@pytest.mark.parametrize("capacity, buffer_size", [(1000, 30), (30, 1000), (1000, 40), (1000, 7)],
                         ids=["settings' bound", "run's bound", "just full", "shorter than an episode"])
def test_full_replay_keeps_the_newest(capacity, buffer_size):
    env = make_env(settings=replace(TINY, buffer_size=buffer_size, observe_time=True), horizon=20)
    learner = make_learner(env, capacity, np.random.default_rng(0))
    rtd3.play_episode(learner), rtd3.play_episode(learner)
    # The clock says which step a row is; each place holds the newest of the 40 steps that belong there.
    size = min(capacity, buffer_size)
    newest = [max(range(place, 40, size)) % 20 for place in range(size)]
    np.testing.assert_allclose(learner.replay[:, 2] * 20, newest, atol=1e-5)


@pytest.mark.parametrize("n_episodes, filled", [(1, 20), (2, 30), (4, 30)], ids=["in part", "full", "wrapped"])
def test_batches_come_from_all_that_is_remembered_and_nothing_else(n_episodes, filled):
    import torch

    learner = make_learner(make_env(settings=replace(TINY, buffer_size=30), horizon=20), 1000, np.random.default_rng(0))
    for _ in range(n_episodes):
        rtd3.play_episode(learner)
    learner.replay[:, -2] = torch.arange(30)  # rewards say from which place they come
    assert set(rtd3.draw_block(learner, 100)[2].flatten().tolist()) == set(range(filled))


def test_best_model_is_one_that_acted(tmp_path):
    "Warm-up episodes are played by chance; the actor of that time has earned nothing."
    env = make_env(settings=replace(TINY, keep_best=True, learning_starts=40), horizon=20)
    learner = make_learner(env, 200, np.random.default_rng(0))
    for _ in range(4):
        rtd3.train_episode(learner)
        assert learner.best is None
    rtd3.train_episode(learner)
    assert learner.best[0] == pytest.approx(np.mean(learner.curves["returns"][-3:]))


@pytest.mark.slow
def test_one_step_problem_is_solved():
    "Episodes of one step, true positives alone: accept everyone, the loss is then one minus the mean rate."
    settings = replace(TINY, hidden=(64, 48), disparity_weight=0.0, action_noise=0.3)
    policy, _ = train(loss="tp", steps=1000, settings=settings, horizon=1)
    q = np.random.default_rng(0).uniform(0.01, 0.99, (500, 2))
    run = rollout(policy, q, "gaussian", horizon=1)
    assert run.loss.mean() - (1 - q.mean()) < 0.02


# Policies and their files


@given(st.integers(0, 2**32), st.sampled_from([(), (1,), (3,), (2, 3)]), st.booleans())
def test_policy_keeps_the_contract(seed, shape, observe_time):
    rng = np.random.default_rng(seed)
    policy, q = random_policy(rng, 3, observe_time), rng.random((*shape, 3))
    a = policy.act(q, rng, h=40)
    assert a.shape == q.shape and a.min() >= 0 and a.max() <= 1
    flat = np.array([policy.act(x, h=40) for x in q.reshape(-1, 3)]).reshape(q.shape)
    np.testing.assert_allclose(a, flat, atol=1e-6)
    np.testing.assert_array_equal(policy.act(q), policy.act(q, h=0))
    assert observe_time or np.array_equal(policy.act(q, h=40), policy.act(q, h=0))


def test_policy_works_in_portraits_and_long_batches():
    policy = random_policy(np.random.default_rng(0))
    assert phase_portrait(policy, "gaussian", n=30, draws=8).a.shape == (30, 30, 2)


@pytest.mark.parametrize("observe_time", [False, True])
def test_saved_policy_comes_back(observe_time, tmp_path):
    policy, q = random_policy(np.random.default_rng(0), observe_time=observe_time), np.random.default_rng(1).random((50, 2))
    policy.save(tmp_path)
    np.testing.assert_array_equal(load_policy(tmp_path).act(q, h=30), policy.act(q, h=30))


def edit(folder, **changes):
    about = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps(about | changes))


@pytest.mark.parametrize("harm, says", [
    (lambda f: flip(f / "policy.safetensors"), "does not have the sha256"),
    (lambda f: truncate(f / "policy.safetensors"), "does not have the sha256"),
    (lambda f: edit(f, sha256="0"), "does not have the sha256"),
    (lambda f: edit(f, shapes={"0.weight": [7, 2]}), "must hold the shapes"),
    (lambda f: edit(f, algorithm="lucbfair"), "must be of the algorithm rtd3; got 'lucbfair'"),
    (lambda f: edit(f, observe_time=True), r"layers\[0\] must have weights of shape \(7, 3\)"),
])
def test_policy_files_are_checked(harm, says, tmp_path):
    random_policy(np.random.default_rng(0)).save(tmp_path)
    harm(tmp_path)
    with pytest.raises(ValueError, match=says):
        load_policy(tmp_path)


# Bad input


@pytest.mark.parametrize("arguments, says", [
    (dict(settings="default"), "unknown preset 'default'; known: ours, supplement, text"),
    (dict(steps=99), "steps must be at least one episode of 100; got 99"),
    (dict(steps=400.5), "steps must be a whole number of at least 1; got 400.5"),
    (dict(steps=300), "steps must be more than learning_starts = 300, or nothing is learnt; got 300"),
    (dict(steps=140, population="adult", settings="supplement"), "steps must be at least one episode of 150; got 140"),
    (dict(population="credit"), "unknown population 'credit'"),
    (dict(loss="f1"), "unknown loss 'f1'"),
    (dict(disparity="gap"), "unknown disparity 'gap'"),
    (dict(interval=0), "interval must be at least 1; got 0"),
    (dict(settings=Settings(gamma=1.5)), "gamma must lie in [0, 1]; got 1.5"),
    (dict(settings=Settings(disparity_weight=-0.1)), "disparity_weight must lie in [0, 1]; got -0.1"),
    (dict(settings=Settings(learning_rate=0)), "learning_rate must lie in (0, inf); got 0"),
    (dict(settings=Settings(action_noise=-1)), "action_noise must lie in [0, inf); got -1"),
])
def test_bad_input_is_refused_before_any_work(arguments, says, monkeypatch):
    monkeypatch.setattr(rtd3, "make_learner", None)
    with pytest.raises(ValueError) as error:
        train(**arguments)
    assert says in str(error.value)


def test_presets_are_frozen_and_as_documented():
    with pytest.raises(AttributeError):
        PRESETS["ours"].gamma = 1.0
    assert make_settings("text") == Settings(learning_rate=1e-3, batch_size=100, learning_starts=100, action_noise=0.0)
    supplement = make_settings("supplement")
    assert (supplement.warp, supplement.keep_best, supplement.adult_horizon) == (20, True, 150)
    assert replace(supplement, warp=1.0, keep_best=False, adult_horizon=100) == make_settings("ours")
