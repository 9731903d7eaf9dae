"""The environments as other libraries see them."""
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from ltf_nb.env import ENV_ID, LongTermFairnessEnv, LongTermFairnessVectorEnv
from ltf_nb.populations import GaussianPopulation

SETTINGS = [
    dict(population="gaussian"),
    dict(population="adult", loss="zero_one", disparity="qr", reward="lagrangian", terminate_at_horizon=True),
    dict(population=GaussianPopulation(3), loss="tp_tn", disparity="eo", start=[0.2, 0.4, 0.9]),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=["gaussian", "adult", "three groups"])


def play(env, seed, actions):
    "Observations, rewards and ends of the steps that `actions` take."
    seen = [env.reset(seed=seed)[0]]
    for action in actions:
        obs, *rest = env.step(action)
        seen += [obs, *rest[:3]]
    return seen


@each_setting
@pytest.mark.filterwarnings("error")
def test_gymnasium_finds_nothing_to_complain_about(setting):
    gymnasium_check(gymnasium.make(ENV_ID, horizon=5, **setting).unwrapped, skip_render_check=True)


@each_setting
def test_stable_baselines_finds_nothing_to_complain_about(setting):
    from stable_baselines3.common.env_checker import check_env

    with pytest.warns(UserWarning, match="symmetric and normalized") as caught:
        check_env(LongTermFairnessEnv(horizon=5, **setting))
    # Thresholds live in [0, 1]; Stable-Baselines3 would like [-1, 1] and rescales by itself.
    assert all("symmetric and normalized" in str(w.message) for w in caught)


@each_setting
def test_same_seed_same_episodes(setting):
    single, batch = LongTermFairnessEnv(horizon=3, **setting), LongTermFairnessVectorEnv(4, horizon=3, **setting)
    n = single.problem.population.n_groups
    actions = np.random.default_rng(0).random((3, 4, n)).astype(np.float32)
    for env, moves in ((single, actions[:, 0]), (batch, actions)):
        for x, y in zip(play(env, 5, moves), play(env, 5, moves), strict=True):
            np.testing.assert_array_equal(x, y)
    for x, y in zip(play(single, 5, actions[:, 0]), play(batch, 5, actions), strict=True):
        np.testing.assert_allclose(x, np.asarray(y)[0], rtol=1e-6)


def test_other_seeds_other_starts():
    env = LongTermFairnessVectorEnv(50)
    starts = np.concatenate([env.reset(seed=s)[0] for s in range(20)])
    assert len(np.unique(starts, axis=0)) == 1000
    assert starts.min() >= 0.01 and starts.max() <= 0.99
    # Uniform on [0.01, 0.99]: the mean of 2,000 draws has a standard error of 0.0063.
    assert abs(starts.mean() - 0.5) < 0.026


def test_autoreset_is_next_step():
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode="vector_entry_point", horizon=2)
    assert isinstance(envs.unwrapped, LongTermFairnessVectorEnv)
    assert envs.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
    first, _ = envs.reset(seed=0)
    lenient = np.zeros((3, 2), dtype=np.float32)
    ends = []
    for _ in range(7):
        obs, reward, terminated, truncated, info = envs.step(lenient)
        ends.append(bool(truncated.all()))
        assert not terminated.any()
        if ends[-2:-1] == [True]:
            assert (reward == 0).all() and "loss" not in info and not np.array_equal(obs, first)
        else:
            np.testing.assert_array_equal(info["cost"], info["disparity"])
    assert ends == [False, True, False, False, True, False, False]


def test_refused_actions_are_no_steps():
    "Neither towards the end of the episode nor in the weights of the Lagrangian."
    refused, plain = (LongTermFairnessVectorEnv(2, horizon=2, start=[0.3, 0.6], reward="lagrangian") for _ in range(2))
    for envs in (refused, plain):
        envs.reset(seed=0)
    for _ in range(2):
        with pytest.raises(ValueError, match="a must lie in"):
            refused.step(np.full((2, 2), 2.0))
    for _ in range(2):
        for x, y in zip(refused.step(np.full((2, 2), 0.5))[:4], plain.step(np.full((2, 2), 0.5))[:4], strict=True):
            np.testing.assert_array_equal(x, y)


def test_state_is_not_shared_with_the_caller():
    env = LongTermFairnessEnv(start=[0.3, 0.6])
    _, info = env.reset(seed=0)
    info["q"][:] = 0
    untouched = env.step([0.5, 0.5])[4]["q"]
    env.reset(seed=0)
    np.testing.assert_array_equal(env.step([0.5, 0.5])[4]["q"], untouched)
    assert env.problem.start.tolist() == [0.3, 0.6]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "TD3"])
@pytest.mark.parametrize("population", ["gaussian", "adult"])
def test_stable_baselines_trains(algorithm, population):
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    env = gymnasium.make(ENV_ID, population=population, horizon=50)
    sizes = {"PPO": dict(n_steps=100, batch_size=50), "TD3": dict(learning_starts=100)}[algorithm]
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, seed=0, **sizes)
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(300)
    assert model.num_timesteps >= 300
    assert any(not torch.equal(x, y) for x, y in zip(before, model.policy.parameters(), strict=True))
    action, _ = model.predict(env.reset(seed=1)[0], deterministic=True)
    assert env.action_space.contains(action)
