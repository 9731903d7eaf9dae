"""What must hold for every state, threshold and payoff."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ltf_nb.dynamics import fitness, fixed_points, log_odds_shift, replicator_step
from ltf_nb.env import Problem, transition
from ltf_nb.metrics import DISPARITIES, LOSSES, disparity, loss
from ltf_nb.populations import GaussianPopulation

# Random payoffs break the orderings most of the time; that is the point here, and warned of.
pytestmark = pytest.mark.filterwarnings("ignore:unusual payoffs")
unit = st.floats(0, 1)
groups = st.integers(2, 5)
payoffs = arrays(float, (2, 2), elements=st.floats(0.01, 20))


@st.composite
def situation(draw):
    "A population, a state, an action and payoffs."
    n = draw(groups)
    vector = arrays(float, n, elements=unit)
    return GaussianPopulation(n), draw(vector), draw(vector), draw(payoffs)


@given(situation())
def test_rates_stay_between_the_floors(case):
    population, q, a, U = case
    after = transition(np.clip(q, 1e-5, 1 - 1e-5), a, population, U=U)
    assert ((after >= 1e-5) & (after <= 1 - 1e-5)).all()


@given(situation())
def test_the_fitter_label_spreads(case):
    population, q, a, U = case
    accept = population.accept(q, a)
    change = replicator_step(q, fitness(accept, U)) - q
    shift = log_odds_shift(accept, U)
    assert (np.sign(change) * np.sign(shift) >= 0)[np.abs(change) > 1e-12].all()


@given(situation())
def test_metrics_are_bounded_and_ignore_the_order_of_groups(case):
    population, q, a, _ = case
    accept = population.accept(q, a)
    for weights in LOSSES.values():
        value = loss(q, accept, None, *weights)
        assert -1e-12 <= value <= 1 + 1e-12
        assert np.isclose(value, loss(q[::-1], accept[::-1], None, *weights))
    for name in DISPARITIES:
        value = disparity(name, q, accept)
        assert 0 <= value <= 1 + 1e-12
        assert np.isclose(value, disparity(name, q[::-1], accept[::-1]))


@given(arrays(float, (2, 2), elements=unit))
def test_identical_groups_have_no_disparity(pairs):
    population, q, a = GaussianPopulation(), np.full(2, pairs[0, 0]), np.full(2, pairs[1, 0])
    for name in DISPARITIES:
        assert disparity(name, q, population.accept(q, a)) == 0


@given(situation(), st.integers(1, 100))
def test_a_batch_is_its_members(case, tau):
    population, q, a, U = case
    problem = Problem(population, "zero_one", "eo", U=U, reward="lagrangian")
    batch = problem.step(np.stack([q, a]), np.stack([a, q]), tau)
    for i, (state, action) in enumerate(((q, a), (a, q))):
        for whole, part in zip(batch, problem.step(state, action, tau), strict=True):
            np.testing.assert_allclose(whole[i], part, rtol=1e-12, atol=1e-15)


@given(arrays(float, (2, 2), elements=st.floats(0.05, 0.95)))
def test_corners_are_always_fixed_points(rates):
    found = {tuple(p.q) for p in fixed_points(lambda q: replicator_step(q, fitness(rates)), n_starts=2)}
    assert {(0, 0), (0, 1), (1, 0), (1, 1)} <= found
