"""Every algorithm with every E-step that can serve it reaches the exact maximum likelihood estimate.

Each pair is run as 20 independent runs. Their mean must lie within three Monte Carlo standard errors
(the SD over runs / sqrt(20)) of the exact MLE, plus a hundredth of a statistical standard error for
the distance that a finite run leaves; and the SD itself must stay below 0.35 statistical standard
errors, so that the test can fail.
"""

import numpy as np
import pytest
from helpers import gamma_poisson, logistic_normal, random_intercept

import margaux as mx

SEEDS = 20

ALGORITHMS = {
    # name: (algorithm, batch size, iterations)
    "soul": (lambda: mx.soul(mx.Polynomial(2.0, 0.6, offset=10)), None, 4000),
    "souk": (lambda: mx.souk(mx.Polynomial(2.0, 0.6, offset=10)), 10, 8000),
    "isgd": (lambda: mx.isgd(mx.Polynomial(2.0, 0.6, offset=10)), 10, 8000),
    "aisgd": (lambda: mx.aisgd(mx.Polynomial(2.0, 0.6, offset=10)), None, 4000),
    "saem": (lambda: mx.saem(mx.ConstantThenDecay(1.0, 200, 0.9)), None, 3000),
    "mcem": (lambda: mx.mcem(), None, 2000),
    "online_em": (lambda: mx.online_em(mx.Polynomial(1.0, 0.7)), 10, 8000),
    "incremental_em": (lambda: mx.incremental_em(mx.PolyakRuppert()), 10, 4000),
    "misso": (lambda: mx.misso(2.0), 10, 8000),
    "sag": (lambda: mx.sag(0.4), 10, 8000),
    "saga": (lambda: mx.saga(0.3), 10, 8000),
    "fiem": (lambda: mx.saga(of="suffstats", weight=mx.Polynomial(1.0, 0.7), average=mx.PolyakRuppert()), 10, 6000),
    "svrg": (lambda: mx.svrg(0.3), 10, 8000),
    "sem-vr": (lambda: mx.svrg(of="suffstats", weight=mx.Polynomial(1.0, 0.7), average=mx.PolyakRuppert()), 10, 6000),
}
ESTEPS = {
    "rwm": lambda: mx.MCMC(mx.RandomWalk(1.0), n_steps=4),
    "mala": lambda: mx.MCMC(mx.MALA(0.5), n_steps=3),
    "imh": lambda: mx.MCMC(mx.IndependenceMH(), n_steps=2),
    "importance": lambda: mx.ImportanceSampling(64, quasi=True),
    "exact": lambda: mx.Exact(2),
    "quadrature": lambda: mx.Quadrature(15),
}


def check(problem, algorithm, batch_size, n_iter, estep, seed=7):
    """Run, compare, and return the errors in statistical standard errors."""
    fit = mx.fit(problem.model, problem.data, algorithm, estep, params=problem.start, space=problem.space, n_iter=n_iter,
                 batch_size=batch_size, runs=SEEDS, spread=0.3, key=seed, progress=False)  # fmt: skip
    for name, truth in problem.mle.items():
        values, se = fit.run_params[name], problem.se[name]
        spread = values.std(ddof=1)
        error = abs(values.mean() - truth)
        assert spread < 0.35 * se, f"{name}: SD over runs {spread / se:.3f} standard errors"
        assert error <= 3 * spread / np.sqrt(SEEDS) + 0.01 * se, (
            f"{name}: {error / se:.4f} standard errors from the MLE, Monte Carlo error {spread / np.sqrt(SEEDS) / se:.4f}"
        )
    return fit


@pytest.mark.parametrize("estep", ESTEPS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_random_intercept(algorithm, estep):
    make, batch_size, n_iter = ALGORITHMS[algorithm]
    check(random_intercept(), make(), batch_size, n_iter, ESTEPS[estep]())


@pytest.mark.parametrize("estep", ["mala", "importance", "exact"])
@pytest.mark.parametrize("algorithm", ["soul", "saem", "incremental_em", "saga"])
def test_gamma_poisson(algorithm, estep):
    make, batch_size, n_iter = ALGORITHMS[algorithm]
    check(gamma_poisson(), make(), batch_size, 3 * n_iter, ESTEPS[estep]())


@pytest.mark.parametrize("estep", ["rwm", "importance", "quadrature"])
@pytest.mark.parametrize("algorithm", ["soul", "saem", "incremental_em", "saga"])
def test_logistic_normal(algorithm, estep):
    make, batch_size, n_iter = ALGORITHMS[algorithm]
    check(logistic_normal(), make(), batch_size, 2 * n_iter, ESTEPS[estep]())
