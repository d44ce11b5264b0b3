"""Proximal particle methods beside maxima by quadrature, and beside the limits of their own chains on a grid."""

from typing import Any

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
    root: Any = optimize.brentq(total, exact - 0.5, exact + 0.6, xtol=1e-3)
    return root


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

    def negative(theta):
        place, b = (theta, 1.0) if of == "place" else (0.0, np.exp(theta))
        x = place + np.linspace(-30, 30, 60001)  # the kink on a node
        prior = np.exp(-np.abs(x - place) / b) / b
        return -sum(np.log(integrate.trapezoid(prior * np.exp(-((v - x) ** 2) / 2), x)) for v in y)

    found: Any = optimize.minimize_scalar(negative, bounds=(-2, 3), method="bounded", options={"xatol": 1e-7})
    assert abs(found.x - maximum(y, of)) < 1e-5


#: step, and smoothing of the envelope or None for the proximal map
WAYS = {"mypgd": (mx.mypgd, 0.05, 0.1), "mypgd, smooth": (mx.mypgd, 0.05, 0.8), "myipla": (mx.myipla, 0.05, 0.8),
        "pipgla": (mx.pipgla, 0.05, None), "pipgla, short": (mx.pipgla, 0.02, None)}  # fmt: skip


@pytest.mark.parametrize(
    ("of", "name"),
    [("scale", "mypgd, smooth"), ("scale", "pipgla")]
    + [
        pytest.param(of, name, marks=pytest.mark.slow)
        for of, name in [("scale", "mypgd"), ("scale", "myipla"), ("scale", "pipgla, short"), *(("place", name) for name in WAYS)]
    ],
)
def test_maxima_are_found_up_to_the_bias_of_step_and_smoothing(of, name):
    """Four runs of 100 particles from three times off; the noise of theta has a variance of one in 100 for each of 8 units."""
    algorithm, h, smoothing = WAYS[name]
    found, se = error(of, algorithm(h), mx.ProximalULA(h) if smoothing is None else mx.MYULA(h, smoothing))
    expected = limit(of, MODELS[of][1], h, smoothing)
    assert abs(found - expected) < 4 * se + 1 / 800
    if (of, name) == ("scale", "mypgd, smooth"):  # and the bias is there to be seen
        assert found - maximum(MODELS[of][1], of) > 10 * se


def test_biases_fall_with_step_and_smoothing():
    y = MODELS["scale"][1]
    bias = {key: limit("scale", y, *key) - maximum(y, "scale") for key in [(0.05, 0.8), (0.05, 0.2), (0.05, None), (0.02, None)]}
    assert bias[0.05, 0.8] > 1.5 * bias[0.05, 0.2] > 0
    assert bias[0.05, None] > 2 * bias[0.02, None] > 0


def once(algorithm, kernel, n=3, **settings):
    """A fit of one iteration of n particles of `SCALED`, from theta = 0.5."""
    return mx.fit(Scale(), SCALED, algorithm, mx.MCMC(kernel, n_chains=n), params={"theta": 0.5}, n_iter=1,
                  average=mx.LastIterate(), polish=False, progress=False, **settings)  # fmt: skip


def test_a_step_of_the_envelope_is_the_formula():
    fit = once(mx.mypgd(0.01), mx.MYULA(0.01, 0.1))
    x = np.asarray(fit.rows["z"])[0]
    assert x.shape == (8, 3)
    expected = 0.5 + 0.01 * np.mean(np.sum(score("scale", 0.5, x), axis=0))
    assert float(fit.params["theta"]) == pytest.approx(expected, abs=1e-12)


def test_a_step_of_the_splitting_is_the_formula():
    silent = ParticleLangevin(as_schedule(0.3), "none", np.asarray(1.0), mx.LastIterate(), "splitting")
    fit = once(silent, mx.ProximalULA(0.3))
    behind, fall = np.asarray(fit.rows["z"])[0], np.asarray(fit.rows["kernel"]["fall"])[0, ..., 0]
    np.testing.assert_allclose(near("scale", 0.5, behind + fall, 0.3), behind, atol=1e-12)
    assert 0 < np.mean(behind == 0) < 1  # some lie on the kink
    expected = 0.5 + 0.3 * np.mean(np.sum(score("scale", 0.5, behind + fall / 2), axis=0))
    assert float(fit.params["theta"]) == pytest.approx(expected, abs=1e-12)
    noise = [float(once(mx.pipgla(0.3), mx.ProximalULA(0.3), key=key).params["theta"]) for key in range(2)]
    assert noise[0] != noise[1] and abs(noise[0] - expected) < 5 * (2 * 0.3 / 3) ** 0.5 + 2


def test_a_scale_that_starts_small_comes_back():
    """Behind the map all particles are zero; the envelope's own score has the scale vanish, to where it is no number."""
    (found, se), exact = error("scale", mx.pipgla(0.05), mx.ProximalULA(0.05), start=-4.0, n=20), maximum(SCALED, "scale")
    assert abs(found - exact) < 0.1 + 4 * se
    fit = mx.fit(Envelope(Scale(), 0.1), SCALED, mx.pgd(0.05), mx.MCMC(mx.ULA(0.05), n_chains=20), params={"theta": -2.0},
                 n_iter=500, polish=False, progress=False, throw=False)  # fmt: skip
    assert not float(fit.last_params["theta"]) > -10


def test_one_particle_is_enough_for_a_mean():
    found, se = error("place", mx.pipgla(0.02), mx.ProximalULA(0.02), n=1, n_iter=4000)
    assert abs(found - maximum(PLACED, "place")) < 4 * se + 1 / 8 and se > 0


class Plain(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -0.5 * ((y - z) ** 2 + (z - params["theta"]) ** 2)

    def init_latents(self, key, params, y):
        return 0.0 * y


class Broken(Scale):
    """Whose smooth part is no number far out."""

    def log_smooth(self, params, x, y):
        return -0.5 * (y - x) ** 2 + jnp.where(jnp.abs(x) > 2, jnp.log(-jnp.abs(x)), 0.0)


def fitted(model, algorithm, kernel):
    estep = mx.MCMC(kernel, n_chains=2) if kernel is not None else mx.Quadrature(5)
    return mx.fit(model, SCALED, algorithm, estep, params={"theta": 0.0}, n_iter=200, polish=False, progress=False)


@pytest.mark.parametrize(
    ("error_type", "words", "call"),
    [
        (ValueError, "step_size 0.2 exceeds smoothing 0.1", lambda: mx.MYULA(0.2, smoothing=0.1)),
        (TypeError, "move by MYULA, those given by ULA", lambda: fitted(Scale(), mx.mypgd(0.01), mx.ULA(0.01))),
        (TypeError, "move by MYULA, those given by ProximalULA", lambda: fitted(Scale(), mx.myipla(0.01), mx.ProximalULA(0.01))),
        (TypeError, r"pass mx.MCMC\(mx.ProximalULA", lambda: fitted(Scale(), mx.pipgla(0.01), mx.MYULA(0.01, 0.1))),
        (ValueError, "one for both: pass step=0.02", lambda: fitted(Scale(), mx.mypgd(0.02), mx.MYULA(0.0002, 0.1))),
        (ValueError, "one for both", lambda: fitted(Scale(), mx.pipgla(0.02), mx.ProximalULA(0.01))),
        (TypeError, "those given by Quadrature", lambda: fitted(Scale(), mx.pipgla(0.01), None)),
        (TypeError, "log_smooth and prox, which Plain lacks", lambda: fitted(Plain(), mx.mypgd(0.01), mx.MYULA(0.01, 0.1))),
        (ValueError, "step", lambda: mx.pipgla(-0.1)),
        (mx.FitError, "finite", lambda: fitted(Broken(), mx.mypgd(0.05), mx.MYULA(0.05, 0.1))),
        (mx.FitError, "finite", lambda: fitted(Broken(), mx.pipgla(0.05), mx.ProximalULA(0.05))),
    ],
)
def test_refusals(error_type, words, call):
    with pytest.raises(error_type, match=words):
        call()


def test_particles_that_restart_are_refused():
    restarting = mx.MCMC(mx.ULA(0.01), n_chains=5, warm_start=False)
    for algorithm in (mx.pgd(0.01), mx.ipla(0.01)):
        with pytest.raises(ValueError, match="leave warm_start=False out"):
            mx.fit(Plain(), SCALED, algorithm, restarting, params={"theta": 0.0}, n_iter=2, progress=False)
