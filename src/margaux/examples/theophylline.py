"""One-compartment pharmacokinetics of theophylline by MCMC-SAEM.

Concentration after an oral dose, for subject i with phi_i = log(ka, V, CL) ~ N(log pop, diag(omega2)):

    C(t) = Dose ka / (V (ka - ke)) (exp(-ke t) - exp(-ka t)) + a eps,   ke = CL / V.

A curved exponential family: its statistics are phi, phi^2 and the residual sum of squares.
"""

import jax.numpy as jnp
from jax.scipy.stats import norm

import margaux as mx
from margaux.datasets import load_theophylline

NAMES = ("ka", "V", "CL")
#: by adaptive Gauss-Hermite quadrature
EXACT = {
    "CL": 2.747982,
    "V": 31.626020,
    "a": 0.737977,
    "ka": 1.579417,
    "omega2_CL": 0.070749,
    "omega2_V": 0.017888,
    "omega2_ka": 0.394652,
}
EXACT_SE = {
    "CL": 0.234703,
    "V": 1.470719,
    "a": 0.056271,
    "ka": 0.302783,
    "omega2_CL": 0.036194,
    "omega2_V": 0.011017,
    "omega2_ka": 0.189396,
}
EXACT_LOGLIK = -172.7175


def concentration(phi, dose, time):
    """mg/L at `time` hours after an oral `dose` in mg, phi = log(ka 1/h, V L, CL L/h)."""
    ka, volume, clearance = jnp.exp(phi)
    ke = clearance / volume
    # expm1 keeps the curve smooth where ka meets ke.
    gap = (ka - ke) * time
    ratio = jnp.where(jnp.abs(gap) < 1e-8, 1.0, -jnp.expm1(-gap) / jnp.where(jnp.abs(gap) < 1e-8, 1.0, gap))
    return dose * ka / volume * time * jnp.exp(-ke * time) * ratio


class Theophylline(mx.AbstractExponentialFamily):
    """One subject: times and concentrations padded to one length, with a mask."""

    def log_joint(self, params, phi, subject):
        expected = concentration(phi, subject["Dose"][0], subject["Time"])
        data = norm.logpdf(subject["Concentration"], expected, params["a"])
        mean = jnp.log(jnp.stack([params[name] for name in NAMES]))
        sd = jnp.sqrt(jnp.stack([params[f"omega2_{name}"] for name in NAMES]))
        return jnp.sum(subject["mask"] * data) + jnp.sum(norm.logpdf(phi, mean, sd))

    def init_latents(self, key, params, subject):
        return jnp.log(jnp.stack([params[name] for name in NAMES]))

    def suffstats(self, phi, subject):
        residual = subject["Concentration"] - concentration(phi, subject["Dose"][0], subject["Time"])
        squares = jnp.sum(subject["mask"] * residual**2)
        return {"phi": phi, "phi2": phi**2, "squares": squares, "count": jnp.sum(subject["mask"])}

    def m_step(self, s):
        omega2 = s["phi2"] - s["phi"] ** 2
        out = {name: jnp.exp(s["phi"][j]) for j, name in enumerate(NAMES)}
        out |= {f"omega2_{name}": omega2[j] for j, name in enumerate(NAMES)}
        return out | {"a": jnp.sqrt(s["squares"] / s["count"])}


START = {"ka": 1.0, "V": 20.0, "CL": 2.0, "omega2_ka": 0.5, "omega2_V": 0.5, "omega2_CL": 0.5, "a": 1.0}


def data():
    """Twelve subjects, padded."""
    frame = load_theophylline()
    units, _ = mx.pad_ragged(frame[["Dose", "Time", "Concentration"]], frame["Id"])
    return units


def fit(key=1, n_iter=1000, **settings):
    """SAEM: gain one for 300 iterations, then decaying; random-walk chains adapted subject by subject."""
    return mx.fit(
        Theophylline(),
        data(),
        mx.saem(mx.ConstantThenDecay(1.0, 300, 0.8)),
        mx.MCMC(mx.RandomWalk(0.3), n_steps=10, thin=10, n_chains=8),
        params=START,
        space=mx.Positive(),
        n_iter=n_iter,
        key=key,
        **settings,
    )
