"""Properties of the Adult population: weights, table, coordinates, and what happens to damaged files."""
import bz2
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.interpolate import RegularGridInterpolator
from scipy.special import expit, logit

from ltf_nb import adult
from ltf_nb.adult import COORDINATES, DATA, AdultPopulation, build_table, importance_weights, load_adult, read_table, table_error

rates = arrays(float, (7, 2), elements=st.floats(0, 1))


@pytest.fixture(scope="module")
def table():
    return load_adult()


@pytest.fixture(scope="module", params=COORDINATES)
def population(request):
    return AdultPopulation.load(request.param)


def copy_table(folder):
    for name in ("adult_scores.npz", "SHA256SUMS"):
        (folder / name).write_bytes((DATA / name).read_bytes())
    return folder / "adult_scores.npz"


# The data


def test_table_is_typed_and_complete(table):
    assert table.shape == (48842, 17)
    assert all(table[c].dtype == "int64" for c in adult.NUMERIC + ["fnlwgt"])
    assert all(table[c].dtype == "category" for c in adult.CATEGORICAL + ["income"])
    assert set(table["label"]) == {-1, 1} and set(table["group"]) == {0, 1}
    assert ((table["sex"] == "Female") == (table["group"] == 0)).all()
    assert ((table["income"] == ">50K") == (table["label"] == 1)).all()
    assert table["income"].value_counts().to_dict() == {"<=50K": 37155, ">50K": 11687}
    assert {c: int((table[c] == "?").sum()) for c in ("workclass", "occupation", "native_country")} == {
        "workclass": 2799, "occupation": 2809, "native_country": 857}
    assert (table["age"].iloc[[0, 32561]] == [39, 25]).all()  # the first rows of the two files


@pytest.mark.parametrize("damage", [lambda raw: raw[:-50], lambda raw: raw[:4000] + b"x" + raw[4001:],
                                    lambda raw: bz2.compress(bz2.decompress(raw)[:-1])])
def test_damaged_data_is_refused(tmp_path, damage):
    for name in adult.UCI_SHA256:
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    broken = tmp_path / "adult.test.bz2"
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(ValueError, match=r"adult\.test\.bz2.*[0-9a-f]{64}.*" + adult.UCI_SHA256["adult.test.bz2"]):
        load_adult(tmp_path)


@settings(deadline=None, max_examples=25)
@given(q=arrays(float, 2, elements=st.floats(adult.Q_MIN, 1 - adult.Q_MIN)))
def test_weights_are_exact(table, q):
    group, positive = table["group"].to_numpy(), (table["label"] == 1).to_numpy()
    w = importance_weights(q, group, table["label"])
    assert (w > 0).all()
    np.testing.assert_allclose(w.sum(), len(w), rtol=1e-12)
    for g in (0, 1):
        np.testing.assert_allclose(w[group == g].sum(), len(w) / 2, rtol=1e-12)
        np.testing.assert_allclose(w[(group == g) & positive].sum() / w[group == g].sum(), q[g], rtol=1e-10)


def test_weights_ask_for_two_groups_and_both_labels():
    with pytest.raises(ValueError, match="q has 3 groups"):
        importance_weights([.1, .2, .3], [0, 1], [-1, 1])
    with pytest.raises(ValueError, match="four pairs"):
        importance_weights([.1, .2], [0, 0, 1], [-1, 1, 1])


# The population


@settings(deadline=None, max_examples=60)
@given(q=rates, a=rates, b=rates)
def test_accept_is_a_falling_rate(population, q, a, b):
    low, high = (population.accept(q, z) for z in (np.minimum(a, b), np.maximum(a, b)))
    assert low.shape == (7, 2, 2)
    assert high.min() >= 0 and low.max() <= 1
    assert (low - high).min() >= -1e-12


@settings(deadline=None, max_examples=60)
@given(q=rates, a=rates)
def test_quantile_accepts_the_top(q, a):
    A = AdultPopulation.load("quantile").accept(q, a)
    np.testing.assert_allclose(q * A[..., 1] + (1 - q) * A[..., 0], 1 - a, atol=1e-9)


def test_everyone_and_no_one():
    q = np.random.default_rng(0).random((100, 2))
    for name in ("score", "quantile"):
        pop = AdultPopulation.load(name)
        np.testing.assert_allclose(pop.accept(q, np.zeros(2)), 1, atol=1e-12)
        np.testing.assert_allclose(pop.accept(q, np.ones(2)), 0, atol=1e-12)
        assert np.isfinite(pop.accept_slope(q, np.array([0., 1.]))).all()


def test_coordinates_are_one_population():
    """The same people, named by score, by logit and by quantile."""
    rng = np.random.default_rng(1)
    by_score, by_logit, by_quantile = (AdultPopulation.load(c) for c in COORDINATES)
    q, x = rng.uniform(.01, .99, (500, 2)), rng.uniform(.01, .99, (500, 2))
    A = by_score.accept(q, x)
    np.testing.assert_allclose(by_logit.accept(q, .5 + logit(x) / 24), A, atol=1e-9)
    np.testing.assert_allclose(by_quantile.accept(q, 1 - q * A[..., 1] - (1 - q) * A[..., 0]), A, atol=1e-6)


def test_slope_is_the_derivative(population):
    rng, h = np.random.default_rng(2), 1e-6
    q, a = rng.uniform(.001, .999, (2000, 2)), rng.uniform(.001, .999, (2000, 2))
    here = population.accept(q, a)
    up, down = (population.accept(q, a + h) - here) / h, (here - population.accept(q, a - h)) / h
    smooth = np.abs(up - down) < 1e-3 * (1 + np.abs(up))  # no kink between a - h and a + h
    assert smooth.mean() > .95
    slope = population.accept_slope(q, a)
    assert (slope <= 0).all()
    np.testing.assert_allclose(slope[smooth], ((up + down) / 2)[smooth], rtol=2e-3, atol=1e-3)


def test_slope_integrates_to_accept(population):
    """A second derivation that does not shun the kinks: the fundamental theorem on a fine grid."""
    a = np.linspace(.05, .95, 200_001)
    q = np.array([.3, .8])
    middle = ((a[1:] + a[:-1]) / 2)[:, None] * np.ones(2)
    total = population.accept_slope(q, middle).sum(0) * (a[1] - a[0])
    first, last = population.accept(q, a[[0, -1]][:, None] * np.ones(2))
    np.testing.assert_allclose(total, last - first, atol=1e-4)


def test_interpolation_is_trilinear():
    """The same numbers from SciPy's interpolator, which knows nothing of flat rows and corners."""
    t, ell, cells = read_table()
    rates = cells.reshape(2, len(t), len(t), len(ell), 2, 2)[..., 0, :]
    rng = np.random.default_rng(4)
    q, a = expit(rng.uniform(-11, 11, (400, 2))), rng.uniform(.01, .99, (400, 2))
    expected = np.stack([RegularGridInterpolator((t, t, ell), rates[g].astype(float))(
        np.column_stack([logit(q), logit(a[:, g]) - logit(q[:, g])])) for g in (0, 1)], axis=1)
    np.testing.assert_allclose(AdultPopulation.load().accept(q, a), expected, atol=1e-9)


def test_two_exact_refits_agree_with_the_table():
    for e in table_error(2, np.random.default_rng(5)).values():
        assert np.quantile(e, .99) <= .005


def test_broadcasting(population):
    rng = np.random.default_rng(3)
    q, a = rng.random((5, 1, 2)), rng.random((4, 2))
    A, S = population.accept(q, a), population.accept_slope(q, a)
    assert A.shape == S.shape == (5, 4, 2, 2)
    for i, j in np.ndindex(5, 4):
        np.testing.assert_allclose(population.accept(q[i, 0], a[j]), A[i, j], atol=1e-12)
        np.testing.assert_allclose(population.accept_slope(q[i, 0], a[j]), S[i, j], rtol=1e-6, atol=1e-12)


def test_each_group_has_its_own_threshold(population):
    q, a = np.array([.3, .6]), np.array([.5, .5])
    moved = population.accept(q, np.array([.5, .7])) - population.accept(q, a)
    assert (moved[0] == 0).all() and (moved[1] < 0).all()


def test_two_groups_only(population):
    assert population.n_groups == 2 and population.share.tolist() == [.5, .5]
    for q, a in (([.5] * 3, [.5] * 3), ([.5] * 2, [.5] * 3), ([.5], [.5])):
        with pytest.raises(ValueError, match=r"has [13] groups on its last axis, but the population has 2"):
            population.accept(q, a)


def test_arguments_are_checked(population):
    for q, a in (([.5, 1.2], [.5, .5]), ([.5, .5], [-.1, .5]), ([.5, np.nan], [.5, .5])):
        for method in (population.accept, population.accept_slope):
            with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
                method(q, a)
    with pytest.raises(ValueError, match="unknown coordinate 'probit'; known: score, logit, quantile"):
        AdultPopulation.load("probit")
    with pytest.raises(ValueError, match="logit_limit must be positive"):
        AdultPopulation.load("logit", logit_limit=-1)


# The table


def test_table_is_small_and_within_its_range():
    assert sum(f.stat().st_size for f in DATA.iterdir()) <= 5e6
    table = read_table()
    assert table.cells.min() == 0 and table.cells.max() == 1
    rates = table.cells.reshape(2, len(table.t), len(table.t), len(table.ell), 2, 2)[..., 0, :]
    assert (np.diff(rates, axis=3) <= 0).all()
    assert (rates[..., :2, :] == 1).all() and (rates[..., -2:, :] == 0).all()
    np.testing.assert_array_equal(table.t, adult.rate_nodes())
    np.testing.assert_array_equal(table.ell, adult.ell_nodes())


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"",
                                    lambda raw: raw[:999] + bytes([raw[999] ^ 1]) + raw[1000:]])
def test_damaged_table_is_refused(tmp_path, damage):
    path = copy_table(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"adult_scores\.npz is damaged: .*[0-9a-f]{64}.*[0-9a-f]{64}"):
        AdultPopulation.load(data_dir=tmp_path)


def test_table_without_its_hash_is_refused(tmp_path):
    copy_table(tmp_path)
    (tmp_path / "SHA256SUMS").write_text("")
    with pytest.raises(ValueError, match="SHA256SUMS must hold a line for adult_scores.npz"):
        AdultPopulation.load(data_dir=tmp_path)


def test_loading_needs_neither_pandas_nor_sklearn():
    code = ("import sys; from ltf_nb.adult import AdultPopulation; AdultPopulation.load().accept([.5, .5], [.5, .5]); "
            "sys.exit(any(m in sys.modules for m in ('pandas', 'sklearn', 'joblib', 'matplotlib')))")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_rebuilt_rows_are_the_shipped_ones(table):
    """One row of states, fitted again, agrees with the table to its last digits."""
    data, shipped = adult.design(table), read_table()
    shape = (2, len(shipped.t), len(shipped.t), len(shipped.ell), 4)
    row = adult.table_row(shipped.t[20], shipped.t, shipped.ell, data)
    np.testing.assert_allclose(row / 65535, shipped.cells.reshape(shape)[:, 20, :, :, :2], atol=1e-3)


@pytest.mark.slow
def test_build_is_whole_and_loads(tmp_path):
    for name in adult.UCI_SHA256:
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    build_table(tmp_path, n_jobs=1, t=[-1., 0., 1.])
    assert sorted(f.name for f in tmp_path.iterdir()) == ["SHA256SUMS", "adult.data.bz2", "adult.test.bz2", "adult_scores.npz"]
    small, q, a = AdultPopulation.load(data_dir=tmp_path), np.array([.5, .5]), np.array([.4, .6])
    np.testing.assert_allclose(small.accept(q, a), AdultPopulation.load().accept(q, a), atol=1e-3)  # q is a node of both


@pytest.mark.slow
def test_table_error_is_below_half_a_percent():
    errors = table_error(60, np.random.default_rng(2026))
    for name, e in errors.items():
        assert np.quantile(e, .99) <= .005, name
