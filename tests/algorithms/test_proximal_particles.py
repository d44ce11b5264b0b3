"""Proximal particle methods beside maxima by quadrature, and beside the limits of their own chains on a grid."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize

import margaux as mx
from margaux.algorithms import ParticleLangevin
from margaux.problem.schedule import as_schedule
from margaux.reproduce._proximal import Envelope, Location, Scale, maximum

#: of y_i ~ N(x_i, 1) with x_i ~ Laplace(place, e^scale), in pairs of equal |y_i| or not
PLACED = np.array([-1.2, 0.1, 0.6, 1.5, 1.9, 2.2, 4.5, 0.9])
SCALED = np.array([-2.6, -0.3, 0.5, 1.4, 1.1, -1.7, 3.6, 0.2])
MODELS = {"place": (Location(), PLACED), "scale": (Scale(), SCALED)}


def score(of, theta, x):
    return np.sign(x - theta) if of == "place" else np.abs(x) * np.exp(-theta) - 1


def near(of, theta, x, step):
    """The proximal map of the prior."""
    place, b = (theta, 1.0) if of == "place" else (0.0, np.exp(theta))
    return x - np.clip(x - place, -step / b, step / b)


def limit(of, y, h, smoothing=None):
    """Where the mean score of infinitely many particles vanishes, by the stationary laws of their chains on a grid."""
    offsets = (np.arange(240) - 119.5) * 0.08

    def total(theta):
        grid, found = offsets + (theta if of == "place" else 0.0), 0.0
        behind = near(of, theta, grid, h if smoothing is None else smoothing)
        for one in y:
            if smoothing is None:  # what lies before the map is a chain too
                mean, where = behind + h * (one - behind), (grid + behind) / 2
            else:
                mean, where = grid + h * (one - grid) - h / smoothing * (grid - behind), grid
            moves = np.exp(-((grid - mean[:, None]) ** 2) / (4 * h))
            moves /= moves.sum(axis=1, keepdims=True)
            law = np.linalg.solve(np.vstack([(moves.T - np.eye(240))[:-1], np.ones(240)]), np.eye(240)[-1])
            found += law @ score(of, theta, where)
        return found

    exact = maximum(y, of)
    return optimize.brentq(total, exact - 0.5, exact + 0.6, xtol=1e-3)


def error(of, algorithm, kernel, start=3.0, n=100, n_iter=4000):
    """Of four runs' means, and its standard error."""
    model, y = MODELS[of]
    fit = mx.fit(model, y, algorithm, mx.MCMC(kernel, n_chains=n), params={"theta": start}, n_iter=n_iter, runs=4, spread=0.0,
                 polish=False, progress=False)  # fmt: skip
    found = np.asarray(fit.run_params["theta"])
    return found.mean(), found.std(ddof=1) / 2


@pytest.mark.parametrize("of", MODELS)
def test_the_maximum_is_that_of_quadrature(of):
    y = MODELS[of][1]
    x = np.linspace(-30, 30, 60001)

    def negative(theta):
        place, b = (theta, 1.0) if of == "place" else (0.0, np.exp(theta))
        prior = np.exp(-np.abs(x - place) / b) / b
        return -sum(np.log(integrate.trapezoid(prior * np.exp(-((v - x) ** 2) / 2), x)) for v in y)

    found = optimize.minimize_scalar(negative, bounds=(-2, 3), method="bounded", options={"xatol": 1e-7}).x
    assert abs(found - maximum(y, of)) < 2e-4


#: step, and smoothing of the envelope or None for the proximal map
WAYS = {"mypgd": (mx.mypgd, 0.05, 0.1), "mypgd, smooth": (mx.mypgd, 0.05, 0.8), "myipla": (mx.myipla, 0.05, 0.8),
        "pipgla": (mx.pipgla, 0.05, None)}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("of", MODELS)
def test_maxima_are_found_up_to_the_bias_of_step_and_smoothing(of, name):
    """Four runs of 100 particles from three times off; one part in the number of particles is left to the noise of theta."""
    algorithm, h, smoothing = WAYS[name]
    found, se = error(of, algorithm(h), mx.ProximalULA(h) if smoothing is None else mx.MYULA(h, smoothing))
    expected, exact = limit(of, MODELS[of][1], h, smoothing), maximum(MODELS[of][1], of)
    print(of, name, round(found - exact, 4), "se", round(se, 4), "limit", round(expected - exact, 4))
    assert abs(found - expected) < 4 * se + 0.01
