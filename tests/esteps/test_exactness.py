"""Every algorithm with every E-step that can serve it reaches the exact maximum likelihood estimate.

Each pair is run as 20 independent runs. Their mean must lie within three Monte Carlo standard errors
(the SD over runs / sqrt(20)) of the exact MLE, plus a hundredth of a statistical standard error for
the distance that a finite run leaves; and the SD itself must stay below 0.35 statistical standard
errors, so that the test can fail.
"""

import numpy as np
import pytest

import margaux as mx
from helpers import gamma_poisson, logistic_normal, random_intercept

SEEDS = 20
DECAY = mx.Polynomial(1.0, 0.7, offset=10)
STEP = mx.Polynomial(2.0, 0.6, offset=10)
TABLE_STEP = mx.Polynomial(1.0, 0.6, offset=20)

ALGORITHMS = {
    # name: (algorithm, batch size, iterations)
    "soul": (lambda: mx.soul(STEP), None, 4000),
    "souk": (lambda: mx.souk(STEP), 10, 8000),
    "isgd": (lambda: mx.isgd(STEP), 10, 8000),
    "aisgd": (lambda: mx.aisgd(STEP), None, 4000),
    "saem": (lambda: mx.saem(mx.ConstantThenDecay(1.0, 200, 0.9)), None, 3000),
    "mcem": (lambda: mx.mcem(), None, 600),
    "online_em": (lambda: mx.online_em(mx.Polynomial(1.0, 0.7)), 10, 8000),
    "incremental_em": (lambda: mx.incremental_em(mx.PolyakRuppert()), 10, 2000),
    "misso": (lambda: mx.misso(2.0), 10, 2000),
    "sag": (lambda: mx.sag(TABLE_STEP), 10, 8000),
    "saga": (lambda: mx.saga(TABLE_STEP), 10, 8000),
    "fiem": (lambda: mx.saga(of="suffstats", weight=DECAY, average=mx.PolyakRuppert()), 10, 6000),
    "svrg": (lambda: mx.svrg(TABLE_STEP, refresh_epochs=25), 10, 8000),
    "sem-vr": (lambda: mx.svrg(of="suffstats", weight=DECAY, refresh_epochs=25, average=mx.PolyakRuppert()), 10, 6000),
}
#: they average nothing away over iterations, so theory asks for growing Monte Carlo sizes
GROWING = {"mcem": mx.Growth(10, 0.2, 1.0), "incremental_em": mx.Growth(4, 0.05, 1.0), "misso": mx.Growth(4, 0.05, 1.0)}

ESTEPS = {
    "rwm": lambda n: mx.MCMC(mx.RandomWalk(1.0), n_steps=n or 4),
    "mala": lambda n: mx.MCMC(mx.MALA(0.5), n_steps=n or 3),
    "imh": lambda n: mx.MCMC(mx.IndependenceMH(), n_steps=n or 2),
    "importance": lambda n: mx.ImportanceSampling(64, quasi=True),
    "exact": lambda n: mx.Exact(128 if n else 2),
    "quadrature": lambda n: mx.Quadrature(15),
}


#: the longest, left to the slow suite
LONG = ("svrg", "sem-vr", "mcem", "incremental_em", "misso")
#: of the E-steps that are not exact, each once in the quick one
SOME = {("soul", "mala"), ("soul", "quadrature"), ("saem", "rwm"), ("saem", "imh")}


def pairs(algorithms, esteps, fast):
    """Parameter sets; those that `fast` rejects are left to the slow suite."""
    return [pytest.param(a, e, marks=() if fast(a, e) else pytest.mark.slow, id=f"{a}-{e}") for a in algorithms for e in esteps]


#: shape and rate are nearly collinear, so that first-order ascent needs longer runs and steps
FOR_GAMMA_POISSON = ALGORITHMS | {
    "soul": (lambda: mx.soul(STEP), None, 12_000),
    "saga": (lambda: mx.saga(mx.Polynomial(6.0, 0.6, offset=300)), 10, 16_000),
}
#: a variance near zero makes early steps wild
FOR_LOGISTIC_NORMAL = ALGORITHMS | {"saga": (lambda: mx.saga(mx.Polynomial(1.0, 0.6, offset=300)), 10, 8000)}


def set_up(algorithm, estep, settings=ALGORITHMS):
    make, batch_size, n_iter = settings[algorithm]
    return make(), batch_size, n_iter, ESTEPS[estep](GROWING.get(algorithm))


def check(problem, algorithm, batch_size, n_iter, estep, seed=7):
    """Run, compare, and return the errors in statistical standard errors."""
    fit = mx.fit(problem.model, problem.data, algorithm, estep, params=problem.start, space=problem.space, n_iter=n_iter,
                 batch_size=batch_size, runs=SEEDS, spread=0.3, key=seed, polish=False, progress=False)  # fmt: skip
    for name, truth in problem.mle.items():
        values, se = fit.run_params[name], problem.se[name]
        spread = values.std(ddof=1)
        error = abs(values.mean() - truth)
        assert spread < 0.35 * se, f"{name}: SD over runs {spread / se:.3f} standard errors"
        assert error <= 3 * spread / np.sqrt(SEEDS) + 0.01 * se, (
            f"{name}: {error / se:.4f} standard errors from the MLE, Monte Carlo error {spread / np.sqrt(SEEDS) / se:.4f}"
        )
    return fit


@pytest.mark.parametrize(
    ("algorithm", "estep"),
    pairs(ALGORITHMS, ESTEPS, lambda a, e: (e == "exact" and a not in LONG) or (a, e) in SOME),
)
def test_random_intercept(algorithm, estep):
    check(random_intercept(), *set_up(algorithm, estep))


OTHERS = ("soul", "saem", "mcem", "incremental_em", "saga")


@pytest.mark.parametrize(
    ("algorithm", "estep"), pairs(OTHERS, ("mala", "importance", "exact"), lambda a, e: (a, e) == ("saem", "mala"))
)
def test_gamma_poisson(algorithm, estep):
    check(gamma_poisson(), *set_up(algorithm, estep, FOR_GAMMA_POISSON))


@pytest.mark.parametrize(
    ("algorithm", "estep"), pairs(OTHERS, ("rwm", "imh", "quadrature"), lambda a, e: (a, e) == ("soul", "rwm"))
)
def test_logistic_normal(algorithm, estep):
    check(logistic_normal(), *set_up(algorithm, estep, FOR_LOGISTIC_NORMAL))
