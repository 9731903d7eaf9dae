"""Losses and disparities against the counts of fairlearn and scikit-learn on sampled individuals."""
import numpy as np
import pytest
from fairlearn.metrics import MetricFrame, demographic_parity_difference, selection_rate, true_positive_rate
from sklearn.metrics import confusion_matrix, zero_one_loss

from ltf_nb.metrics import disparity, fractions, loss, loss_weights
from ltf_nb.populations import GaussianPopulation, sample_gaussian

N = 400_000
Q, A = np.array([0.35, 0.7]), np.array([0.5, 0.45])


@pytest.fixture(scope="module")
def people():
    population = GaussianPopulation()
    X, Y, G = sample_gaussian(Q, N, np.random.default_rng(1))
    return population.accept(Q, A), np.where(X >= population.threshold(A)[G], 1, -1), Y, G


def test_fractions_are_sklearns_confusion_matrix(people):
    accept, predicted, Y, _ = people
    (tn, _), (_, tp) = confusion_matrix(Y, predicted, labels=[-1, 1], normalize="all")
    assert fractions(Q, accept) == pytest.approx((tp, tn), abs=4e-3)


def test_zero_one_is_sklearns(people):
    accept, predicted, Y, _ = people
    assert loss(Q, accept, None, *loss_weights("zero_one")) == pytest.approx(zero_one_loss(Y, predicted), abs=4e-3)


def test_demographic_parity_is_fairlearns(people):
    accept, predicted, Y, G = people
    gap = demographic_parity_difference(Y, predicted == 1, sensitive_features=G)
    assert disparity("dp", Q, accept) == pytest.approx(gap**2 / 2, abs=3e-3)


def test_opportunity_odds_and_rates_are_fairlearns(people):
    accept, predicted, Y, G = people
    hit, qualified = (predicted == 1).astype(int), (Y == 1).astype(int)
    tpr = MetricFrame(metrics=true_positive_rate, y_true=qualified, y_pred=hit, sensitive_features=G).difference()
    fpr = MetricFrame(metrics=true_positive_rate, y_true=1 - qualified, y_pred=hit, sensitive_features=G).difference()
    rate = MetricFrame(metrics=selection_rate, y_true=qualified, y_pred=qualified, sensitive_features=G).difference()
    assert disparity("eop", Q, accept) == pytest.approx(tpr**2 / 2, abs=5e-4)
    assert disparity("eo", Q, accept) == pytest.approx((tpr**2 + fpr**2) / 2, abs=5e-4)
    assert disparity("qr", Q, accept) == pytest.approx(rate**2 / 2, abs=3e-3)
