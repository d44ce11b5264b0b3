"""Incremental EM and MISO with an exact E-step reach the EM fixed point of a Gaussian mixture."""

import numpy as np
import pytest

import margaux as mx
from helpers import MIXTURE_SPACE, MIXTURE_START, Mixture, mixture_em, simulate_mixture


def fit(x, algorithm, n_iter, batch_size, **settings):
    return mx.fit(Mixture(), x, algorithm, mx.Exact(), params=MIXTURE_START, space=MIXTURE_SPACE, n_iter=n_iter,
                  batch_size=batch_size, polish=False, progress=False, **settings)  # fmt: skip


def gap(fit, truth) -> float:
    return max(np.abs(fit.params[name] - truth[name]).max() for name in truth)


def test_incremental_em_and_miso_reach_the_em_fixed_point():
    x = simulate_mixture(300, seed=1)
    truth, loglik = mixture_em(x)
    em = fit(x, mx.incremental_em(), 150 * 30, 10)
    assert gap(em, truth) < 1e-8
    assert float(em.loglik("exact")) == pytest.approx(loglik, abs=1e-7)
    miso = fit(x, mx.miso(lipschitz=6.0), 6000 * 6, 50)
    assert gap(miso, truth) < 1e-8


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", [mx.saga, mx.svrg], ids=["saga", "svrg"])
def test_variance_reduced_em_needs_no_tuning(algorithm, batch_size):
    x = simulate_mixture(1000, seed=2)
    truth, _ = mixture_em(x)
    found = fit(x, algorithm(of="suffstats"), 40 * 1000 // batch_size, batch_size)
    assert gap(found, truth) < 1e-4


def test_online_em_by_single_units_keeps_the_components_apart():
    x = simulate_mixture(1000, seed=3)
    truth, _ = mixture_em(x)
    found = fit(x, mx.online_em(mx.Polynomial(1.0, 0.7)), 20_000, 1, runs=9, spread=0.0)
    gaps = [max(np.abs(found.run_params[name][r] - truth[name]).max() for name in truth) for r in range(9)]
    assert np.median(gaps) < 0.05  # one unit at a time, a run in ten strays at first and is late


@pytest.mark.slow
def test_reference_mixture(data_folder, reference):
    x = np.genfromtxt(data_folder / "gmm1d_n2000.csv", skip_header=1)
    told = reference("soul")["gmm1d"]
    truth, loglik = mixture_em(x)
    assert loglik == pytest.approx(told["loglik"], abs=2e-5)
    for name in ("weights", "means", "variances"):
        np.testing.assert_allclose(truth[name], told[name], atol=2e-5)
    em = fit(x, mx.incremental_em(), 50 * 300, 40)
    assert gap(em, truth) < 1e-8
    miso = fit(x, mx.miso(lipschitz=6.0), 3000 * 10, 200)
    assert gap(miso, truth) < 1e-8
