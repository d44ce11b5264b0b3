r"""How much of the variance fixed and random effects explain: R squared, and the intraclass correlation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.special

from ...numerics.precision import precision
from .continuous import Gamma, Gaussian, Student
from .counts import Binomial, NegativeBinomial1, NegativeBinomial2, Poisson
from .links import AbstractLink, AbstractUnitLink
from .model import fixed_effects
from .ordinal import Ordinal
from .prediction import mean_of, predictor
from .zeros import Hurdle, ZeroInflated

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .estimator import GLMM

#: variances of the distributions whose function the link is, of a latent variable that is cut
LATENT = {"logit": np.pi**2 / 3, "probit": 1.0, "cloglog": np.pi**2 / 6}
#: nodes of the average over random effects
NODES = 51


class Variances(NamedTuple):
    """On the scale of the predictor: of the fixed part over the rows, of random effects (their mean over rows), of effects of
    every row, and by the name of each approximation that of the response itself."""

    fixed: float
    random: float
    rows: float
    response: dict[str, float]


def variances(model: GLMM) -> Variances:
    r"""The parts of the variance on the scale of the predictor (Nakagawa, Johnson and Schielzeth 2017).

    Fixed effects: $\sigma_f^2 = \mathrm{Var}_i(x_i^\top\beta)$ over the rows, with N - 1 below. Random effects:
    $\sigma_\tau^2 = \sum_t\mathrm{mean}_i(z_{ti}^\top\Sigma_tz_{ti})$ (Johnson 2014); terms with a group for every row are
    overdispersion and go with the response. The response: "exact" of a Gaussian or Student response under the identity;
    "latent" of a variable that is cut, $\pi^2/3$ for the logit; "delta" $\mathrm{Var}(y\mid\lambda)\,g'(\lambda)^2$; under the
    logarithm, with $c = \mathrm{Var}(y\mid\lambda)/\lambda^2$, "lognormal" $\log(1 + c)$ and "trigamma" $\psi_1(1/c)$, which is
    exact for gamma. $\lambda$ is the mean of y over the rows and their random effects; of successes of trials it is that of one
    trial.

    Raises:
        ValueError: the family has no such definition.

    References: Nakagawa, Johnson and Schielzeth, J. R. Soc. Interface 14 (2017), 20170213; Johnson, Methods Ecol. Evol. 5 (2014),
    944-946; Nakagawa and Schielzeth, Methods Ecol. Evol. 4 (2013), 133-142.
    """
    response, design = model.model_.response, model.design_
    _check(response)
    beta = np.asarray(fixed_effects(model.result_.params), float)
    spread = {"random": np.zeros(len(design.y)), "rows": np.zeros(len(design.y))}
    for name, term in zip(model.layout_.names, design.terms, strict=True):
        each = np.einsum("ij,jk,ik->i", term.Z, model.covariance_(name), term.Z)
        spread["rows" if len(term.labels) == len(design.y) else "random"] += each
    fixed = float(np.var(design.X @ beta, ddof=1))
    random, rows = float(spread["random"].mean()), float(spread["rows"].mean())
    return Variances(fixed, random, rows, _of_response(model, spread["random"] + spread["rows"]))


def _check(response: AbstractResponse) -> None:
    if isinstance(response, (ZeroInflated, Hurdle)):
        raise ValueError(
            f"a {response.name} response has two predictors, and shares of variance are defined for one; ask a model of the "
            "counts or measurements alone"
        )


def _of_response(model: GLMM, spread: np.ndarray) -> dict[str, float]:
    response = model.model_.response
    link = response.link.name  # type: ignore[attr-defined]
    dispersion = {name: np.asarray(value, float) for name, value in model.result_.params["dispersion"].items()}
    if isinstance(response, Ordinal):
        return {"latent": LATENT[link]}
    if isinstance(response, (Gaussian, Student)) and link == "identity":
        with precision(np.dtype(np.float64)):
            found = float(np.asarray(response.variance(jnp.zeros(1), dispersion, None))[0])
        if not np.isfinite(found):
            raise ValueError("the variance of the Student response is infinite at two degrees of freedom or less; it has no R2")
        return {"exact": found}
    mean = _average(model, spread)
    c = _relative(response, mean, dispersion, model)
    slope = _slope(response.link, mean)  # type: ignore[attr-defined]
    out = {"latent": LATENT[link]} if isinstance(response, Binomial) else {}
    # Under the square root of a Poisson count the delta method is the same at every mean.
    out["delta"] = c * mean**2 * slope**2
    if link == "log":
        out |= {"lognormal": float(np.log1p(c)), "trigamma": float(scipy.special.polygamma(1, 1 / c))}
    return out


def _average(model: GLMM, spread: np.ndarray) -> float:
    """The mean of a response, of one trial, over the rows and their random effects."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    eta = predictor(model, None, False)[:, None] + np.sqrt(spread)[:, None] * nodes
    trials = None if model.design_.trials is None else np.ones_like(eta)
    return float(np.mean(mean_of(model, eta, trials) @ (weights / weights.sum())))


def _relative(response: AbstractResponse, mean: float, dispersion: dict, model: GLMM) -> float:
    """Var(y | mean) / mean^2."""
    if isinstance(response, Poisson):
        return 1 / mean
    if isinstance(response, NegativeBinomial1):
        return float(1 + dispersion["alpha"]) / mean
    if isinstance(response, NegativeBinomial2):
        return float(1 / mean + 1 / dispersion["theta"])
    if isinstance(response, Gamma):
        return float(dispersion["sigma"] ** 2)
    eta: Any = np.atleast_1d(response.link.of_mean(np.array([mean])))  # type: ignore[attr-defined]
    with precision(np.dtype(np.float64)):
        trials: Any = None if model.design_.trials is None else np.ones(1)
        return float(np.asarray(response.variance(eta, dispersion, trials))[0]) / mean**2


def _slope(link: AbstractLink, mean: float) -> float:
    r"""$g'(\mu)$."""
    room = min(mean, 1 - mean) if isinstance(link, AbstractUnitLink) else abs(mean)
    ends = link.of_mean(mean + 1e-5 * room * np.array([1.0, -1.0]))
    return float((ends[0] - ends[1]) / (2e-5 * room))


def r2(model: GLMM) -> pd.DataFrame:
    r"""Marginal and conditional $R^2$, a row an approximation of the response's own variance: see `variances`.

    With the total $\sigma_f^2 + \sigma_\tau^2 + \sigma_\varepsilon^2$, marginal is $\sigma_f^2$ of it, conditional
    $\sigma_f^2 + \sigma_\tau^2$.

    Raises:
        ValueError: the family has no definition.
    """
    found = variances(model)
    rows = {}
    for name, own in found.response.items():
        total = found.fixed + found.random + found.rows + own
        rows[name] = {"marginal": found.fixed / total, "conditional": (found.fixed + found.random) / total}
    return _told(rows, found)


def icc(model: GLMM) -> pd.DataFrame:
    r"""The intraclass correlation, a row an approximation of the response's own variance: see `variances`.

    "adjusted": $\sigma_\tau^2/(\sigma_\tau^2 + \sigma_\varepsilon^2)$; "conditional" (on the fixed effects):
    $\sigma_\tau^2/(\sigma_f^2 + \sigma_\tau^2 + \sigma_\varepsilon^2)$.

    Raises:
        ValueError: the family has no definition.
    """
    found = variances(model)
    rows = {}
    for name, own in found.response.items():
        left = found.random + found.rows + own
        rows[name] = {"adjusted": found.random / left, "conditional": found.random / (found.fixed + left)}
    return _told(rows, found)


def _told(rows: dict[str, dict[str, float]], found: Variances) -> pd.DataFrame:
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("variance of the response")
    frame.attrs["variances"] = found
    return frame
