"""Bad input gets a clear error that names the argument, the value and what is allowed, before any work."""
import gymnasium
import numpy as np
import pytest

from ltf_nb.adult import AdultPopulation
from ltf_nb.comparison import best_constant, draw_panels, paired_rollouts
from ltf_nb.dynamics import U_DEFAULT, check_payoffs, trajectory
from ltf_nb.env import ENV_ID, LongTermFairnessEnv, LongTermFairnessVectorEnv, Problem, transition
from ltf_nb.evaluation import ask, attractors, draw_portraits, interval, phase_portrait, regret, rollout, uniform_starts
from ltf_nb.experiments import Cell, check_parameters, profile_folder
from ltf_nb.features import HatFeatures, train_network_features
from ltf_nb.lucbfair import PopulationTask, train_lucbfair
from ltf_nb.metrics import disparity, loss, loss_weights
from ltf_nb.oracle import make_choices
from ltf_nb.plotting import draw_flow, flow_row, save_figure
from ltf_nb.policies import ConstantPolicy, GreedyPolicy, RaiseThenHold, UniformPolicy
from ltf_nb.pooled import train_pooled
from ltf_nb.populations import GaussianPopulation, bayes_threshold, density, sample_gaussian
from ltf_nb.rtd3 import train

HALF = np.array([0.5, 0.5])
RATES = np.full((2, 2), 0.5)
gaussian = GaussianPopulation()
adult = AdultPopulation.load()
rng = np.random.default_rng(0)


def stepped(action):
    env = LongTermFairnessEnv()
    env.reset(seed=0)
    return env.step(action)


def stepped_batch(actions):
    envs = LongTermFairnessVectorEnv(3)
    envs.reset(seed=0)
    return envs.step(actions)


class Wrong:
    "A policy whose answer is given."

    def __init__(self, answer):
        self.answer = answer

    def act(self, q, rng, h=None):
        return self.answer


class Shares:
    "A population with given shares, which accepts all alike."

    n_groups = 2

    def __init__(self, share=(0.5, 0.5), rate=0.5):
        self.share, self.rate = share, rate

    def accept(self, q, a):
        return np.full((*np.shape(q), 2), self.rate)


CASES = {
    "a kernel of no population": (lambda: transition(HALF, HALF, "credit"), "unknown population 'credit'; known: gaussian, adult"),
    "a class for a kernel": (lambda: transition(HALF, HALF, GaussianPopulation), "population must be an object, not a class"),
    "payoffs with a zero": (lambda: transition(HALF, HALF, gaussian, U=[[0, 5], [0.5, 1]]), "U must be positive"),
    "payoffs with a negative": (lambda: Problem(U=[[0.1, 5], [0.5, -1]]), "U must be positive"),
    "payoffs with NaN": (lambda: Problem(U=[[0.1, np.nan], [0.5, 1]]), "U must be positive and finite"),
    "payoffs of another shape": (lambda: Problem(U=[1, 2, 3]), r"U must have shape \(2, 2\)"),
    "payoffs that are no numbers": (lambda: Problem(U="high"), r"U must be a \(2, 2\) array of numbers; got 'high'"),
    "q above 1": (lambda: gaussian.accept([0.5, 1.1], HALF), r"q must lie in \[0, 1\]; got 1.1"),
    "q below 0": (lambda: transition([-0.1, 0.5], HALF, gaussian), r"q must lie in \[0, 1\]; got -0.1"),
    "q NaN": (lambda: transition([np.nan, 0.5], HALF, gaussian), r"q must lie in \[0, 1\]; got nan"),
    "q NaN, Adult": (lambda: transition([np.nan, 0.5], HALF, adult), r"q must lie in \[0, 1\]; got nan"),
    "q that is no number": (lambda: gaussian.accept("half", HALF), "q must be an array of numbers"),
    "q a scalar": (lambda: gaussian.accept(0.5, HALF), r"q must have shape \(\.\.\., n_groups\)"),
    "batches of another size": (lambda: gaussian.accept([HALF] * 3, [HALF] * 4), r"q and a must have shapes that broadcast; .*\(3, 2\) and \(4, 2\)"),
    "a kernel of other batches": (lambda: transition([HALF] * 3, [HALF] * 4, gaussian), r"q and a must have shapes that broadcast; got \(3, 2\)"),
    "a population that accepts NaN": (lambda: transition(HALF, HALF, Shares(rate=np.nan)), r"accept must lie in \[0, 1\]; got nan"),
    "a population that accepts thrice": (lambda: transition(HALF, HALF, Shares(rate=3)), r"accept must lie in \[0, 1\]; got 3.0"),
    "q empty": (lambda: loss([], np.empty((0, 2))), "at least one entry"),
    "threshold above 1": (lambda: transition(HALF, [0.5, 1.5], gaussian), r"a must lie in \[0, 1\]; got 1.5"),
    "threshold NaN": (lambda: transition(HALF, [np.nan, 0.5], gaussian), r"a must lie in \[0, 1\]; got nan"),
    "threshold below 0, Adult": (lambda: transition(HALF, [0.5, -0.5], adult), r"a must lie in \[0, 1\]; got -0.5"),
    "groups of q": (lambda: transition([0.5] * 3, HALF, gaussian), "q has 3 groups on its last axis, but the population has 2"),
    "groups of a": (lambda: transition(HALF, [0.5] * 3, gaussian), "a has 3 groups on its last axis, but the population has 2"),
    "three groups on Adult": (lambda: adult.accept([0.5] * 3, [0.5] * 3), "2"),
    "one group": (lambda: GaussianPopulation(1), "n_groups must be a whole number of at least 2; got 1"),
    "two groups and a half": (lambda: GaussianPopulation(2.5), "n_groups must be a whole number of at least 2; got 2.5"),
    "groups as a text": (lambda: GaussianPopulation("2"), "n_groups must be a whole number of at least 2; got '2'"),
    "a feature range without a start": (lambda: GaussianPopulation(low=-np.inf), "low must be below high, and both finite; got low=-inf, high=3.0"),
    "a feature range without an end": (lambda: GaussianPopulation(high=np.inf), "low must be below high, and both finite; .* high=inf"),
    "an empty feature range": (lambda: GaussianPopulation(low=1, high=1), "low must be below high"),
    "shares of another number": (lambda: GaussianPopulation(share=[0.2, 0.3, 0.5]), "share has 3 groups"),
    "shares that do not sum to 1": (lambda: GaussianPopulation(share=[0.5, 0.6]), "share must sum to 1"),
    "an unknown coordinate": (lambda: AdultPopulation.load(coordinate="rank"), "unknown coordinate 'rank'; known: score, logit, quantile"),
    "acceptance rates of other groups": (lambda: loss(HALF, np.full((3, 2), 0.5)), r"accept must have shape \(\.\.\., 2, 2\)"),
    "acceptance rates above 1": (lambda: disparity("dp", HALF, RATES * 3), r"accept must lie in \[0, 1\]; got 1.5"),
    "shares of a loss": (lambda: loss(HALF, RATES, share=[1.0]), r"share must have shape \(2,\)"),
    "shares of a loss that sum to 2": (lambda: loss(HALF, RATES, share=[1, 1]), r"share must lie in \[0, 1\] and sum to 1; got \[1.0, 1.0\]"),
    "shares of a loss below 0": (lambda: loss(HALF, RATES, share=[-1, 2]), r"share must lie in \[0, 1\] and sum to 1; got \[-1.0, 2.0\]"),
    "shares of a loss NaN": (lambda: loss(HALF, RATES, share=[0.5, np.nan]), r"share must lie in \[0, 1\] and sum to 1; got \[0.5, nan\]"),
    "a weight of a loss above 1": (lambda: loss(HALF, RATES, tp_weight=3), r"tp_weight and tn_weight must lie in \[0, 1\].*; got 3 and 0.0"),
    "a weight of a loss NaN": (lambda: loss(HALF, RATES, tn_weight=np.nan), r"tp_weight and tn_weight must lie in \[0, 1\].*; got 1.0 and nan"),
    "a disparity of one group": (lambda: disparity("dp", [0.5], RATES[:1]), "q must have at least 2 groups for a disparity; got 1"),
    "a disparity of other batches": (lambda: disparity("qr", [HALF] * 3, [RATES] * 4), r"q and accept\[...,0\] must have shapes that broadcast"),
    "an unknown loss": (lambda: loss_weights("f1"), "unknown loss 'f1'; known: tp, tp_tn, zero_one"),
    "an unknown loss, environment": (lambda: gymnasium.make(ENV_ID, loss="f1"), "unknown loss 'f1'; known: tp, tp_tn, zero_one"),
    "an unknown disparity": (lambda: disparity("dpp", HALF, RATES), "unknown disparity 'dpp'; known: dp, eop, eo, qr"),
    "an unknown disparity, environment": (lambda: Problem(disparity="dpp"), "unknown disparity 'dpp'; known: dp, eop, eo, qr"),
    "a loss that is no name": (lambda: Problem(loss=1), "unknown loss 1; known"),
    "an unknown population": (lambda: LongTermFairnessEnv(population="credit"), "unknown population 'credit'; known: gaussian, adult"),
    "no population": (lambda: Problem(population=3), "population must be one of gaussian, adult or have n_groups"),
    "a class for a population": (lambda: Problem(GaussianPopulation), r"an object, not a class; got GaussianPopulation without \(\)"),
    "shares of a population": (lambda: Problem(Shares([0.8, 0.8])), r"share of the population must sum to 1; got \[0.8, 0.8\]"),
    "shares of other groups": (lambda: Problem(Shares([0.2, 0.3, 0.5])), "share has 3 groups"),
    "a greedy policy without a slope": (lambda: GreedyPolicy(Shares([0.5, 0.5])), r"population must have accept_slope\(q, a\).*Shares has none"),
    "a greedy policy of an unknown population": (lambda: GreedyPolicy("credit"), "unknown population 'credit'; known: gaussian, adult"),
    "a plan for an unknown population": (lambda: RaiseThenHold("credit"), "unknown population 'credit'; known: gaussian, adult"),
    "an unknown reward": (lambda: Problem(reward="sum"), "unknown reward 'sum'; known: plain, lagrangian"),
    "horizon 0": (lambda: LongTermFairnessEnv(horizon=0), "horizon must be a whole number of at least 1; got 0"),
    "half a step": (lambda: Problem(horizon=2.5), "horizon must be a whole number of at least 1; got 2.5"),
    "horizon None": (lambda: gymnasium.make(ENV_ID, horizon=None), "horizon must be a whole number of at least 1; got None"),
    "horizon a text": (lambda: gymnasium.make(ENV_ID, horizon="100"), "horizon must be a whole number of at least 1; got '100'"),
    "horizon NaN": (lambda: Problem(horizon=np.nan), "horizon must be a whole number of at least 1; got nan"),
    "horizon infinite": (lambda: rollout(UniformPolicy(), HALF, gaussian, horizon=np.inf), "horizon must be a whole number of at least 1; got inf"),
    "a floor of one half": (lambda: Problem(q_min=0.5), r"q_min must lie in \[0, 0.5\); got 0.5"),
    "a negative floor": (lambda: transition(HALF, HALF, gaussian, q_min=-1e-3), r"q_min must lie in \[0, 0.5\); got -0.001"),
    "a floor None": (lambda: rollout(UniformPolicy(), HALF, gaussian, q_min=None), r"q_min must lie in \[0, 0.5\); got None"),
    "a start outside": (lambda: Problem(start=[0.5, 2]), r"start must lie in \[0, 1\]; got 2.0"),
    "a start of other groups": (lambda: LongTermFairnessEnv(start=[0.5] * 3), "start has 3 groups"),
    "a batch of starts": (lambda: LongTermFairnessEnv(start=RATES), r"start must have shape \(2,\); got \(2, 2\)"),
    "an action outside": (lambda: stepped([0.5, 2]), r"a must lie in \[0, 1\]; got 2.0"),
    "an action of other groups": (lambda: stepped([0.5]), "a has 1 groups"),
    "a batch of actions": (lambda: stepped([HALF]), r"action must have shape \(2,\); got \(1, 2\)"),
    "no environment in a batch": (lambda: LongTermFairnessVectorEnv(0), "num_envs must be a whole number of at least 1; got 0"),
    "no number of environments": (lambda: LongTermFairnessVectorEnv("3"), "num_envs must be a whole number of at least 1; got '3'"),
    "actions of another batch": (lambda: stepped_batch(np.full((2, 2), 0.5)), r"actions must have shape \(3, 2\); got \(2, 2\)"),
    "no render mode": (lambda: LongTermFairnessEnv(render_mode="human"), "render_mode must be None; got 'human'"),
    "no steps": (lambda: trajectory(lambda q: q, HALF, 0), "n_steps must be a whole number of at least 1; got 0"),
    "one step and a half": (lambda: trajectory(lambda q: q, HALF, 1.5), "n_steps must be a whole number of at least 1; got 1.5"),
    "a density outside": (lambda: density([1.5, 0.5], [0.0]), r"q must lie in \[0, 1\]; got 1.5"),
    "a sample outside": (lambda: sample_gaussian([1.5, 0.5], 10, rng), r"q must lie in \[0, 1\]; got 1.5"),
    "weights of a threshold": (lambda: bayes_threshold(HALF, gaussian, tp_weight=0), "tp_weight must be positive"),
    "a policy with NaN": (lambda: rollout(Wrong([0.1, np.nan]), HALF, gaussian), r"Wrong .* got \[0.1, nan\] in state q = \[0.5, 0.5\] at h = 0"),
    "a policy out of range": (lambda: ask(Wrong(np.array([0.1, 1.5])), HALF, rng), r"got \[0.1, 1.5\] in state q = \[0.5, 0.5\]"),
    "a policy of another shape": (lambda: phase_portrait(Wrong(HALF), gaussian, n=3), r"Wrong must return one threshold for each group"),
    "a policy by its name": (lambda: rollout("greedy", HALF, gaussian), r"policy must be an object with act\(q, rng, h\); got 'greedy'"),
    "a class for a policy": (lambda: phase_portrait(UniformPolicy, gaussian, n=3), r"policy must be an object with act"),
    "a seed for a generator": (lambda: rollout(UniformPolicy(), HALF, gaussian, rng=0), r"rng must be a generator, such as .*; got 0"),
    "a seed for L-UCBFair": (lambda: train_lucbfair(PopulationTask(Problem()), HatFeatures(), 0), r"rng must be a generator, such as .*; got 0"),
    "a seed for the pooled variant": (lambda: train_pooled(Problem(), rng=0), r"rng must be a generator, such as .*; got 0"),
    "a seed for R-TD3": (lambda: train(rng=0), r"rng must be a generator, such as .*; got 0"),
    "a seed for features": (lambda: train_network_features("gaussian", "tp", "dp", 0), r"rng must be a generator, such as .*; got 0"),
    "a seed for starts": (lambda: uniform_starts(3, 0), r"rng must be a generator, such as .*; got 0"),
    "a seed for pairs": (lambda: paired_rollouts({}, 3, gaussian, 0), r"rng must be a generator, such as .*; got 0"),
    "cells without a generator": (lambda: make_choices(n_cells=4).draw(np.zeros(2, int), None), "rng must be a generator, such as .*; got None"),
    "a seed for cells": (lambda: make_choices(n_cells=4).draw(np.zeros(2, int), 0), "rng must be a generator, such as .*; got 0"),
    "fewer than no starts": (lambda: uniform_starts(-1, rng), "n must be a whole number of at least 1; got -1"),
    "starts of other groups": (lambda: rollout(UniformPolicy(), [0.5] * 3, gaussian), "q0 has 3 groups"),
    "a coarse grid": (lambda: phase_portrait(UniformPolicy(), gaussian, n=2), "n must be a whole number of at least 3; got 2"),
    "half a grid point": (lambda: phase_portrait(UniformPolicy(), gaussian, n=3.5), "n must be a whole number of at least 3; got 3.5"),
    "half a draw": (lambda: phase_portrait(UniformPolicy(), gaussian, n=3, draws=1.5), "draws must be a whole number of at least 1; got 1.5"),
    "no portraits": (lambda: draw_portraits({}), "portraits must hold at least one title and portrait; got none"),
    "an unknown shade": (lambda: draw_portraits({"one": None}, shade="gap"), "unknown shade 'gap'; known: disparity, loss, next_gap"),
    "an unknown shade of panels": (lambda: draw_panels(None, [], shade="gap"), "unknown shade 'gap'; known: disparity, loss, next_gap"),
    "ends that share nothing": (lambda: attractors(None, merge=0), "merge must be positive, or no end would be near itself; got 0"),
    "ends NaN apart": (lambda: attractors(None, merge=np.nan), "merge must be positive, or no end would be near itself; got nan"),
    "an interval of nothing": (lambda: interval([]), r"values must have shape \(n,\) with at least one value; got shape \(0,\)"),
    "an interval of a table": (lambda: interval(np.ones((5, 2))), r"values must have shape \(n,\) with at least one value; got shape \(5, 2\)"),
    "no draws": (lambda: phase_portrait(UniformPolicy(), gaussian, draws=0), "draws must be a whole number of at least 1; got 0"),
    "a portrait of three groups": (lambda: phase_portrait(UniformPolicy(), GaussianPopulation(3)), "population must have 2 groups"),
    "a negative multiplier": (lambda: best_constant(gaussian, nu=-1), r"nu must lie in \[0, inf\); got -1"),
    "a multiplier NaN": (lambda: best_constant(gaussian, nu=np.nan), r"nu must lie in \[0, inf\); got nan"),
    "a target NaN": (lambda: regret([1.0], np.ones((1, 2)), np.nan), "utility_target must be a finite number; got nan"),
    "values of other episodes": (lambda: regret([1.0, 2.0], np.ones((3, 2)), 1.0), r"values must have shape \(2, 2\); got \(3, 2\)"),
    "a constant outside": (lambda: ConstantPolicy([0.5, -1]), r"a must lie in \[0, 1\]; got -1.0"),
    "a constant of other groups": (lambda: rollout(ConstantPolicy([0.5] * 3), HALF, gaussian), "one for each of the 2 groups of q; got"),
    "a constant for a batch": (lambda: ConstantPolicy(np.full((5, 2), 0.5)), r"a must be one threshold or have shape .*; got shape \(5, 2\)"),
    "a weight above 1": (lambda: GreedyPolicy(gaussian, disparity_weight=2), r"disparity_weight must lie in \[0, 1\]; got 2"),
    "no step": (lambda: GreedyPolicy(gaussian, step_size=0), "step_size must be positive; got 0"),
    "no iterations": (lambda: GreedyPolicy(gaussian, n_iterations=0), "n_iterations must be a whole number of at least 1; got 0"),
    "half an iteration": (lambda: GreedyPolicy(gaussian, n_iterations=2.5), "n_iterations must be a whole number of at least 1; got 2.5"),
    "a greedy policy of an unknown loss": (lambda: GreedyPolicy(gaussian, loss="f1"), "unknown loss 'f1'"),
    "a level in percent": (lambda: RaiseThenHold(gaussian, level=95), r"level must lie in \[0, 1\]; got 95"),
    "a portrait of another shape": (lambda: draw_flow(None, np.arange(3), np.arange(4), np.ones((4, 3)), np.ones((3, 4))), "u must have shape"),
    "titles of portraits": (lambda: flow_row(np.arange(3), [], ["one"]), "titles must have one entry for each of the 0 flows; got 1"),
    "a file format": (lambda: save_figure(None, "x", ("gif",)), "formats holds 'gif'; known formats are png, pdf, svg"),
    "a profile": (lambda: profile_folder("figures", "huge"), "unknown profile 'huge'; known: smoke, quick, paper"),
    "no variant": (lambda: Cell("uniform", "gaussian", variant="dual"), "uniform has no variants; got 'dual'"),
    "a variant that is no name": (lambda: Cell("greedy", "gaussian", variant=None), "unknown variant of greedy None; known: unconstrained"),
    "a papermill parameter NaN": (lambda: check_parameters(["", "n: float = 1.", "# Parameters\nn = float('nan')", ""]), "n must be a plain value"),
    "a papermill parameter": (lambda: check_parameters(["", "n: int = 1", "# Parameters\nm = 1", ""]), "unknown parameter 'm'; known: n"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case):
    call, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("entry", "value", "sentence"), [
    ((0, 0), 6.0, "the unqualified should prefer acceptance"),
    ((1, 0), 1.5, "the qualified should prefer acceptance"),
    ((0, 1), 0.9, "among the accepted the unqualified should gain more"),
    ((1, 0), 0.05, "no label may dominate"),
])
def test_broken_ordering_warns(entry, value, sentence):
    U = U_DEFAULT.copy()
    U[entry] = value
    with pytest.warns(UserWarning, match=sentence):
        check_payoffs(U)


@pytest.mark.parametrize("make", [LongTermFairnessEnv, LongTermFairnessVectorEnv])
def test_step_before_reset(make):
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        make().step([HALF])
