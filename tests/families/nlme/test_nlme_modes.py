"""Conditional modes, and log-likelihoods around them, of curves that a few doses hardly bend."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from margaux.esteps import ImportanceSampling, ModeMixture
from margaux.families.nlme import LogNormal, Normal, emax, oral1cpt
from margaux.families.nlme.error import ConstantError
from margaux.families.nlme.individual import Individual
from margaux.families.nlme.model import MixedEffects
from margaux.families.nlme.modes import conditional_modes
from margaux.families.nlme.outcomes import Continuous
from margaux.numerics.compiling import compiled
from margaux.numerics.precision import precision

#: doses, Emax, EC50, their standard deviations on the logarithmic scale, and the residual error
DOSES, TYPICAL, SPREAD, ERROR = np.array([30.0, 1000.0]), np.array([100.0, 150.0]), np.array([0.5, 1.5]), 0.3


def _responses(n=60, seed=0):
    rng = np.random.default_rng(seed)
    largest, half = (TYPICAL * np.exp(SPREAD * rng.normal(size=(n, 2)))).T
    return largest[:, None] * DOSES / (half[:, None] + DOSES) + ERROR * rng.normal(size=(n, 2))


def _model(curve, individual: dict[str, Individual], params, columns, y):
    """A model of independent effects, its engine parameters and its units."""
    model = MixedEffects(Continuous(curve, ConstantError()), tuple(individual.items()), tuple(range(len(individual))), ())
    rows = {name: np.broadcast_to(value, y.shape).astype(float) for name, value in columns.items()} | {"y": y}
    return model, params, {"rows": rows, "mask": np.ones(y.shape), "design": np.ones((len(y), len(individual)))}


def _emax(y):
    params = {"beta": np.log(TYPICAL), "omega2": SPREAD**2, "error": np.array([ERROR])}
    return _model(emax, {"Emax": LogNormal(), "EC50": LogNormal()}, params, {"time": DOSES}, y)


def _log_joint(y, a, b):
    """log p(y, phi) over values a, b of the standardised effects."""
    largest, half = TYPICAL[0] * np.exp(SPREAD[0] * a), TYPICAL[1] * np.exp(SPREAD[1] * b)
    gap = y - largest[..., None] * DOSES / (half[..., None] + DOSES)
    return -(a**2 + b**2) / 2 - np.sum((gap / ERROR) ** 2, axis=-1) / 2 - 2 * np.log(2 * np.pi) - 2 * np.log(ERROR)


def _exact(y):
    """log p(y): Gauss-Hermite over the amplitude given EC50, around its own mode, and a grid over EC50."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(31)
    low, high = -8.0, 8.0
    for _ in range(2):
        b = np.linspace(low, high, 4001)
        share = DOSES / (TYPICAL[1] * np.exp(SPREAD[1] * b)[:, None] + DOSES)
        a = np.log(np.maximum(share @ y / np.sum(share**2, axis=1), 1e-3) / TYPICAL[0]) / SPREAD[0]
        for _ in range(50):
            f = TYPICAL[0] * np.exp(SPREAD[0] * a)[:, None] * share
            slope = -a + np.sum((y - f) * f, axis=1) * SPREAD[0] / ERROR**2
            curvature = 1 + np.sum(f**2, axis=1) * SPREAD[0] ** 2 / ERROR**2
            a = a + np.clip(slope / curvature, -1, 1)
        places = a[:, None] + nodes / np.sqrt(curvature)[:, None]
        inner = logsumexp(_log_joint(y, places, b[:, None]) + nodes**2 / 2 + np.log(weights), axis=1) - np.log(curvature) / 2
        inside = b[inner > inner.max() - 30]
        low, high = inside[0] - 0.01, inside[-1] + 0.01
    return logsumexp(inner) + np.log(b[1] - b[0])


def test_sharp_curved_posteriors_have_the_right_likelihood():
    """Fifteen steps of Newton's method from the population's mean left weights with an effective size of one."""
    y = _responses(30)
    exact = np.array([_exact(one) for one in y])
    model, params, units = _emax(y)
    with precision(np.dtype(float)):
        estep = ImportanceSampling(1000, ModeMixture(), quasi=True)

        def unit(y):
            row = estep.init(jax.random.key(0), model, params, y)
            one = jax.tree.map(lambda leaf: leaf[None], (row, y))
            noise = estep.noise(jax.random.key(1), jnp.zeros(2))[None]
            return estep.expect(lambda z, w: 0.0, noise, model, params, one[0], one[1], 1)[2]

        found = {name: np.asarray(value)[:, 0] for name, value in compiled(jax.vmap(unit))(units).items()}
    assert found["ess"].min() > 50
    error = np.sqrt(1 / found["ess"] - 1 / 1000)  # of independent draws; these are quasi-random
    gap = found["log_marginal"] - exact
    assert np.all(np.abs(gap) < 4 * error) and abs(gap.sum()) < 4 * np.sqrt(np.sum(error**2))


def test_modes_are_stationary_and_the_highest():
    y = _responses(40)
    model, params, units = _emax(y)
    with precision(np.dtype(float)):
        modes, reached = conditional_modes(model, params, units)
    assert np.all(reached)
    u = (np.asarray(modes) - np.log(TYPICAL)) / SPREAD
    grid = np.linspace(-5, 5, 201)
    for one, place in zip(y, u, strict=True):
        here = _log_joint(one, place[:1], place[1:])[0]
        step = 1e-4 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]])
        assert np.all(_log_joint(one, place[0] + step[:, 0], place[1] + step[:, 1]) <= here + 1e-7)
        assert _log_joint(one, grid[:, None], grid[None]).max() <= here + 1e-6


@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_units_of_a_parameter_do_not_matter(unit):
    """A normal parameter in grams or in milligrams: the same mode."""
    y = np.array([[1.0, 2.0, 2.5]]) * unit
    curve = lambda p, row: p["level"] + p["slope"] * row["time"]  # noqa: E731
    params = {"beta": np.array([1.0, 1.0]) * unit, "omega2": np.array([0.5, 0.3]) * unit**2, "error": np.array([0.2]) * unit}
    model, params, units = _model(curve, {"level": Normal(), "slope": Normal()}, params, {"time": np.arange(3.0)}, y)
    with precision(np.dtype(float)):
        (mode,), reached = conditional_modes(model, params, units)
    X = np.column_stack([np.ones(3), np.arange(3.0)])
    omega = np.diag([0.5, 0.3])
    exact = 1 + omega @ X.T @ np.linalg.solve(X @ omega @ X.T + 0.04 * np.eye(3), y[0] / unit - X @ np.ones(2))
    assert reached[0] and np.allclose(np.asarray(mode) / unit, exact, rtol=1e-6)


def test_a_subject_whose_mode_was_not_reached_is_told():
    """A curve that is not a number beyond a point: the climb ends at its edge, and says so."""
    curve = lambda p, row: jax.numpy.where(p["ka"] > 1.0, jax.numpy.nan, oral1cpt(p, row))  # noqa: E731
    params = {"beta": np.log([0.9, 20.0, 2.0]), "omega2": np.full(3, 0.3), "error": np.array([0.1])}
    individual: dict[str, Individual] = dict.fromkeys(("ka", "V", "CL"), LogNormal())
    times = np.array([0.25, 0.5, 1.0, 8.0])
    y = np.asarray([oral1cpt({"ka": 3.0, "V": 20.0, "CL": 2.0}, {"time": t, "dose": 100.0}) for t in times])[None]
    model, params, units = _model(curve, individual, params, {"time": times, "dose": 100.0}, y)
    with precision(np.dtype(float)):
        modes, reached = conditional_modes(model, params, units)
    assert not reached[0] and np.all(np.isfinite(modes)) and float(modes[0, 0]) <= 0.0
