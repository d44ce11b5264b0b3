"""Coefficients of PLN-PCA that the likelihood raises without end."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from test_pln_inputs import table

import margaux as mx
from margaux.families.pln.answers import settled
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.inference import covariance
from margaux.families.pln.separation import diverging
from margaux.families.pln.table import diverging_message, read
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.precision import precision


@pytest.mark.parametrize("sparse", [False, True])
def test_features_absent_in_a_level(sparse):
    y = table() + 1
    site = np.array(list("abc") * 4)
    wet = np.arange(12) < 6
    y[site == "b", 2] = 0  # a level
    y[site == "a", 3] = 0  # the reference
    y[~wet, 4] = 0  # the reference of a 0-1 column
    frames = pd.DataFrame({"site": site, "wet": wet.astype(int), "depth": np.arange(12) % 5})
    got = read(scipy.sparse.csr_array(y) if sparse else y, frames)
    assert got.covariate_names == ["Intercept", "site[T.b]", "site[T.c]", "wet", "depth"]
    expected = np.zeros((5, 7), bool)
    expected[1, 2] = expected[[0, 1, 2], 3] = expected[[0, 3], 4] = True
    np.testing.assert_array_equal(got.diverging, expected)
    assert diverging_message(got) == (
        "3 features have counts at one end of a covariate or in some levels only, and no finite estimate there: "
        "y2 (site[T.b]), y3 (Intercept, site[T.b], site[T.c]), y4 (Intercept, wet)"
    )
    levels = read(y, frames, "~ 0 + site")
    np.testing.assert_array_equal(np.argwhere(levels.diverging), [[0, 3], [1, 2]])
    assert diverging_message(read(y)) is None and not read(y).diverging.any()


@pytest.mark.parametrize("sparse", [False, True])
def test_features_seen_at_one_end_of_a_numeric_covariate(sparse):
    y = table() + 1
    depth = np.arange(1, 13) / 3
    y[1:, 1] = 0  # at the smallest value alone
    y[:-1, 2] = 0  # at the largest
    y[:, 3] = np.where(np.arange(12) == 5, 4, 0)  # inside: the rates of others cannot fall on both sides
    y[2:, 4] = 0  # two values tell a slope
    got = read(scipy.sparse.csr_array(y) if sparse else y, depth)
    np.testing.assert_array_equal(got.diverging, [np.isin(np.arange(7), [1, 2])] * 2)
    bent = np.column_stack([depth, depth**2])
    np.testing.assert_array_equal(np.flatnonzero(read(y, bent).diverging.any(axis=0)), [1, 2, 3, 4])


def test_separated_directions_are_those_of_an_exhaustive_search():
    rng = np.random.default_rng(0)
    # Extreme rays of these cones are cross products of two rows, so this grid has them all.
    grid = np.stack(np.meshgrid(*[np.arange(-8.0, 9.0)] * 3), -1).reshape(-1, 3)
    for _ in range(40):
        x = np.column_stack([np.ones(8), rng.integers(-2, 3, (8, 2))]).astype(float)
        if np.linalg.matrix_rank(x) < 3:
            continue
        seen = rng.random(8) < 0.25
        seen[0] = True
        eta = grid @ x.T
        moving = (np.abs(eta[:, seen]) < 1e-9).all(axis=1) & (eta[:, ~seen] <= 1e-9).all(axis=1) & (np.abs(grid).max(axis=1) > 0)
        wanted = (np.abs(grid[moving]) > 1e-9).any(axis=0)
        np.testing.assert_array_equal(diverging(Counts(seen[:, None].astype(int)), x)[:, 0], wanted)


@pytest.mark.parametrize("kind", ["adjusted", "louis", "robust", "expected"])
def test_errors_of_others_are_those_of_a_coding_without_infinite_coefficients(kind):
    # The first feature is seen in level b alone: of treatment contrasts its intercept and that of b are both infinite, and
    # their sum is not; of cell means only those of a and c are.
    rng = np.random.default_rng(4)
    level = np.repeat([0, 1, 2], 30)
    cells, w = np.eye(3)[level], rng.normal(size=(90, 1))
    counts = rng.poisson(np.exp(1 + 0.6 * w + np.zeros((90, 4)))).astype(float)
    counts[level != 1, 0] = 0
    C = np.full((4, 1), 0.6)
    contrasts = np.column_stack([np.ones(90), cells[:, 1:]])
    means = np.where(np.arange(4) == 0, np.array([[-22.0], [1.0], [-24.0]]), 1.0)
    effects = np.vstack([means[0], means[1] - means[0], means[2] - means[0]])
    with precision(np.dtype(float)):
        found = []
        for x, B in ((contrasts, effects), (cells, means)):
            design = Design(Counts(counts), x, np.zeros((90, 1)))
            loadings = Loadings(jnp.asarray(B), jnp.asarray(C))
            posterior = Posterior(*map(jnp.asarray, settled(design, loadings)))
            infinite = np.zeros((3, 4), bool)
            infinite[:, 0] = [True, True, True] if x is contrasts else [True, False, True]
            found.append(covariance(design, loadings, posterior, kind, infinite=infinite).reshape(3, 4, 3, 4)[:, 1:, :, 1:])
    turn = np.array([[1.0, 0, 0], [-1, 1, 0], [-1, 0, 1]])
    wanted = np.einsum("ij,jakb,lk->ialb", turn, found[1], turn)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-7)
    assert np.all(np.einsum("iaia->ia", found[0]) > 0)


def test_a_feature_of_one_level_alone_has_a_summary():
    rng = np.random.default_rng(5)
    level = np.repeat([0, 1, 2], 30)
    counts = rng.poisson(np.exp(1 + rng.normal(size=(90, 1)) * np.full(5, 0.7)))
    counts[level != 1, 0] = 0
    with pytest.warns(UserWarning, match="in some levels only"):
        fitted = mx.PLNPCA(1, n_starts=2, verbose=False).fit(counts, np.eye(3)[level][:, 1:])
    for errors in ("model", "robust"):
        table = fitted.summary(errors=errors)
        assert table["se"].isna().to_numpy().reshape(3, 5)[:, 0].all() and table["se"].notna().to_numpy().sum() == 12
    assert np.isfinite(fitted.cov_params().to_numpy()).sum() == 144
