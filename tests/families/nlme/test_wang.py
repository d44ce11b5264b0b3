"""The objective of Wang (2007) at his parameters: exact, by Laplace's approximation, and by what NONMEM calls FOCEI."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import integrate, optimize

from margaux.families.nlme import LogNormal, Proportional
from margaux.families.nlme.data import group
from margaux.families.nlme.modes import conditional_modes
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.specification import built

#: elimination rate, variance of its logarithm between subjects, and variance of the error in proportion to the prediction
KE, OMEGA2, SIGMA2 = 0.5, 0.04, 0.1
#: -2 log-likelihood without its constant, by NONMEM's FOCE with interaction, as printed
FOCEI = 39.458


def decay(psi, row):
    return 10 * jnp.exp(-psi["ke"] * row["time"])


def _conditional(frame, eta):
    """-log p(y, eta) of one subject without n/2 log(2 pi), by NumPy."""
    f = 10 * np.exp(-KE * np.exp(eta) * frame["Time"].to_numpy())
    gap = (frame["Y"].to_numpy() - f) / f
    return np.sum(gap**2 / SIGMA2 + np.log(SIGMA2 * f**2)) / 2 + eta**2 / (2 * OMEGA2) + np.log(OMEGA2) / 2


def _focei(frame):
    """-2 log-likelihood: the curvature at the mode is that expected, of tangents of the prediction and of its variance."""
    found = optimize.minimize_scalar(
        lambda eta: _conditional(frame, eta), bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}
    )
    eta = float(found.x)  # type: ignore[attr-defined]
    tangent = -KE * np.exp(eta) * frame["Time"].to_numpy()  # of log f: the prediction's over f, and half the variance's over it
    curvature = np.sum(tangent**2 / SIGMA2 + 2 * tangent**2) + 1 / OMEGA2
    return 2 * _conditional(frame, eta) + np.log(curvature)


def test_the_exact_likelihood_laplaces_and_focei(data_folder):
    """They differ by what each takes for the curvature of log p(y, eta): FOCEI's is its expectation, Laplace's the Hessian."""
    frame = pd.read_csv(data_folder / "clinic" / "Wang2007.csv")
    roles = {"id": "ID", "time": "Time", "y": "Y"}
    outcome = Continuous(decay, Proportional())
    data = group(frame, dict(roles), outcome)
    model, units = built(outcome, [], data, {"ke": LogNormal(KE)})
    nodes, weights = hermegauss(21)
    constant = len(frame) * np.log(2 * np.pi)
    with jax.enable_x64(True):
        params = {"beta": jnp.log(jnp.asarray([KE])), "omega2": jnp.asarray([OMEGA2]), "error": jnp.sqrt(jnp.asarray([SIGMA2]))}
        units = jax.tree.map(jnp.asarray, units)
        mode, reached = conditional_modes(model, params, units)
        assert np.all(reached)

        @jax.jit
        def log_joint(z):
            return jax.vmap(lambda z, y: model.log_joint(params, z[None], y))(z, units)

        def slope(z):
            return jax.grad(lambda z: jnp.sum(log_joint(z)))(z)

        mode = mode[:, 0]
        sd = 1 / np.sqrt(-np.asarray(jax.jvp(slope, (mode,), (jnp.ones_like(mode),))[1]))
        laplace = np.asarray(log_joint(mode)) + np.log(2 * np.pi) / 2 + np.log(sd)
        pairs = list(zip(nodes, weights, strict=True))
        each = [np.asarray(log_joint(mode + sd * node)) + node**2 / 2 + np.log(sd * weight) for node, weight in pairs]
        exact = np.logaddexp.reduce(each, axis=0)
    subjects = [rows for _, rows in frame.groupby("ID")]

    def marginal(rows):
        def joint(eta):
            return np.exp(-_conditional(rows, eta)) / np.sqrt(2 * np.pi)

        return integrate.quad(joint, -2, 2, epsabs=0, epsrel=1e-10, points=[0.0])[0]

    outside = np.log([marginal(rows) for rows in subjects]) - constant / len(subjects) / 2
    np.testing.assert_allclose(exact, outside, atol=1e-7)
    assert sum(map(_focei, subjects)) == pytest.approx(FOCEI, abs=6e-4)
    objectives = -2 * np.array([exact.sum(), laplace.sum()]) - constant
    np.testing.assert_allclose(objectives, [39.355, 39.227], atol=6e-4)
