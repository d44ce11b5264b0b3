"""Standard errors of PLN-PCA against the observed information by quadrature, and their coverage."""

from typing import get_args

import numpy as np
import pandas as pd
import pytest
import scipy
from test_pln import case, fitted
from test_pln_inference import assert_mean, at, quadrature

from margaux.families.pln import inference
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.proposals import Plan

pytestmark = pytest.mark.usefixtures("double")


def observed(design, B, C, nodes=20, step=1e-4):
    """Minus the Hessian of the log-likelihood in (b_1, c_1, ..., b_p, c_p), by differences of the score."""
    theta = np.concatenate([B.T, C], axis=1)

    def gradient(theta):
        _, dB, dC = quadrature(design, theta[:, : len(B)].T, theta[:, len(B) :], nodes)
        return np.concatenate([dB.T, dC], axis=1).ravel()

    rows = []
    for place in np.ndindex(theta.shape):
        move = np.zeros(theta.shape)
        move[place] = step
        rows.append((gradient(theta - move) - gradient(theta + move)) / (2 * step))
    return (np.array(rows) + np.array(rows).T) / 2


@pytest.mark.slow
def test_louis_information_is_the_observed_information():
    design, B, C = case(14, 30, 4, 2, 0.6, 0.5, 2, True)
    exact = observed(design, B, C, 16)
    where = at(design, B, C)
    found = [inference.louis(design, *where, Plan(1 << 12, 1, seed=seed)) for seed in range(12)]
    lower = np.tril_indices(len(exact))
    assert_mean([each[lower] for each in found], exact[lower])


def test_standard_errors_against_the_observed_information():
    design, *_ = case(15, 600, 4, 2, 0.6, 1.0, 2, False)
    solution = fitted(design, 2, tol=1e-8)
    B, C = (np.asarray(leaf) for leaf in solution.loadings)
    values, vectors = np.linalg.eigh(observed(design, B, C, 12))
    # The rotation of two columns is the one direction that the likelihood does not see.
    assert values[1] > 20 * abs(values[0])
    inverse = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
    exact = np.sqrt(np.diag(inverse).reshape(4, 4)[:, :2].T)
    found = {kind: inference.standard_errors(design, *solution[:2], kind) for kind in get_args(inference.Kind)}
    # The relative error of a variance by n scores of kurtosis K is the root of (K - 1) / n, and that of its root half of it:
    # for K = 5, four errors are 4 / sqrt(n).
    chance = 4 / np.sqrt(600)
    for kind, rtol in {"louis": 0.01, "adjusted": 0.02, "outer product": chance}.items():
        np.testing.assert_allclose(found[kind], exact, rtol=rtol, err_msg=kind)
    for kind, rtol in {"expected": 0.02, "sandwich": chance}.items():
        # With C as known, slopes are right and intercepts too certain.
        np.testing.assert_allclose(found[kind][1], exact[1], rtol=rtol, err_msg=kind)
        assert np.all((found[kind][0] > 0.8 * exact[0]) & (found[kind][0] < 1.05 * exact[0]))
    assert np.all(found["variational"] < exact)


def test_more_features_than_units():
    design, B, C = case(16, 30, 40, 1, 0.5, 1.0, 1, False)
    where = at(design, B, C)
    with pytest.raises(ValueError, match="'outer product' information of 40 parameters is not positive definite"):
        inference.covariance(design, *where, "outer product")
    found = inference.covariance(design, *where)
    assert found.shape == (40, 40) and np.linalg.eigvalsh(found)[0] > 0


@pytest.mark.slow
def test_coverage_on_the_papers_design():
    rng = np.random.default_rng(0)
    correlation = rng.uniform(0.6, 0.8)
    B = rng.normal(2, 1, (1, 150))
    values, vectors = np.linalg.eigh(3 * np.eye(150) + correlation ** np.abs(np.subtract.outer(np.arange(150), np.arange(150))))
    C = vectors[:, ::-1][:, :5] * np.sqrt(values[::-1][:5])
    standardised = {kind: [] for kind in get_args(inference.Kind) if kind != "louis"}
    for replicate in range(100):
        rng = np.random.default_rng(1000 + replicate)
        counts = Counts(rng.poisson(np.exp(rng.standard_normal((300, 5)) @ C.T + B)).astype(float))
        design = Design(counts, np.ones((300, 1)), np.zeros((300, 1)))
        solution = fitted(design, 5)
        error = np.asarray(solution.loadings.B) - B
        for kind, z in standardised.items():
            z.append(error / inference.standard_errors(design, solution.loadings, solution.posterior, kind))
    share = {kind: np.mean(np.abs(z) < 1.96, axis=(1, 2)) for kind, z in standardised.items()}
    error = {kind: each.std(ddof=1) / np.sqrt(len(each)) for kind, each in share.items()}
    mean = {kind: each.mean() for kind, each in share.items()}
    normal = lambda z: np.mean([scipy.stats.kstest(column, "norm").pvalue < 0.05 for column in np.array(z)[:, 0].T])  # noqa: E731
    rejected = {kind: normal(z) for kind, z in standardised.items()}
    print(pd.DataFrame({"coverage": mean, "error": error, "share that is not normal": rejected}).round(4))
    assert abs(mean["adjusted"] - 0.95) < min(0.02, 3.3 * error["adjusted"]) and rejected["adjusted"] <= 0.1
    # Those that take C as known cover a little less, and with kp near half of n the outer product covers more.
    assert all(0.92 < mean[kind] < mean["adjusted"] for kind in ("expected", "sandwich"))
    assert mean["outer product"] > mean["adjusted"] and mean["variational"] < 0.8
