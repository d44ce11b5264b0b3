r"""REML: variances at the maximum of the restricted likelihood, fixed effects by generalised least squares given those."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from ...algorithms.recipes import newton
from ...answers.certificate import Certificate, Check
from ...answers.certify import LARGE_ERROR
from ...answers.information import Information
from ...answers.polish import polish
from ...answers.rules import laplace_rule
from ...esteps import Laplace
from ...fitting import fit as run
from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from ...problem.space import as_space
from .fitting import is_exact
from .likelihood import qualified
from .restricted import Restricted

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .base import AbstractResponse
    from .fitting import Asked, Start
    from .formula import Design
    from .layout import Layout
    from .model import Mixed

#: under which a fit with fixed effects holds that of the restricted likelihood
RESTRICTED = "restricted fit"


def check(response: AbstractResponse, method: str, design: Design) -> None:
    """Raises: ValueError: the model has no restricted likelihood."""
    if not is_exact(response):
        link = getattr(response, "link", None)
        told = response.name + (f" with the {link.name} link" if link else "")
        raise ValueError(
            f"reml=True integrates the fixed effects of a Gaussian response with the identity link, and this one is {told}; "
            "use reml=False"
        )
    if method == "quadrature":
        raise ValueError('reml=True needs no quadrature, all its integrals being Gaussian; use method="auto"')
    rows, columns = design.X.shape
    if not columns:
        raise ValueError("reml=True integrates the fixed effects, and the formula has none; use reml=False, which is the same")
    if rows <= columns:
        raise ValueError(f"reml=True needs more rows than fixed effects, and there are {rows} rows and {columns} of these")


def estimate(model: Mixed, layout: Layout, start: Start, asked: Asked) -> Fit:
    r"""The fit at $(\hat\beta, \hat\theta)$, whose likelihood, information and certificate are of the restricted likelihood.

    `objective` gives the fit of the restricted likelihood itself.
    """
    space = model.space(start.sizes)
    fit, transform = _climbed(model, layout.units, start.params, space, asked)
    if fit.result.failed:
        p = len(transform)
        return _with_fixed(fit, model, space, layout.units, np.full(p, np.nan))
    rule = laplace_rule(fit)
    beta, covariance = _least_squares(fit, rule.rows["mean"][0], transform)
    whole = _with_fixed(fit, model, space, layout.units, beta)
    fit.remembered("examined", lambda: polish(fit, rule, most=0)[1])
    whole.remembered("information/louis", lambda: _information(fit.information(), covariance, space["beta"].scale))
    whole.remembered("loglik/auto/None", fit.loglik)
    whole.remembered("certificate", lambda: _certificate(fit))
    return whole


def estimate_again(model: Mixed, units: dict[str, Any], params: dict[str, Any], space: dict[str, Any], asked: Asked) -> Fit:
    """As `estimate`, of other responses: no more than the estimate and `objective` is worked out."""
    fit, transform = _climbed(model, units, params, space, asked)
    beta = np.full(len(transform), np.nan)
    if not fit.result.failed:
        beta, _ = _least_squares(fit, laplace_rule(fit).rows["mean"][0], transform)
    return _with_fixed(fit, model, space, units, beta)


def objective(fit: Fit) -> Fit:
    """The fit whose likelihood was maximised: the restricted one where there is one."""
    return fit.known(RESTRICTED) or fit


def _without(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "beta"}


def _orthogonal(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X T (N, p), whose columns are orthogonal in the weights with a mean square of one, and T (p, p)."""
    triangle: Any = np.linalg.qr(np.sqrt(weight)[:, None] * X, mode="r")
    transform = scipy.linalg.solve_triangular(triangle, np.eye(X.shape[1])) * np.sqrt(len(X))
    return X @ transform, transform


def _climbed(
    model: Mixed, units: dict[str, Any], params: dict[str, Any], space: dict[str, Any], asked: Asked
) -> tuple[Fit, np.ndarray]:
    """The fit of the restricted likelihood, and the T of its fixed effects (p, p)."""
    basis, transform = _orthogonal(units["X"][0], units["weight"][0])
    fit = run(
        Restricted(model, np.sum(np.log(np.abs(np.diagonal(transform))))),
        units | {"X": basis[None]},
        newton(),
        Laplace(),
        params=_without(params),
        space=_without(space),
        n_iter=asked.n_iter,
        key=asked.random_state,
        dtype=asked.dtype,
        progress=asked.verbose,
        polish=False,
        throw=False,
    )
    return fit, transform


def _with_fixed(fit: Fit, model: Mixed, space: dict[str, Any], units: dict[str, Any], beta: np.ndarray) -> Fit:
    """The fit of the model with its fixed effects, at the estimate."""
    trace = dict(fit.trace)
    if "params" in trace:  # fixed effects have no iterates
        unknown = np.full((*trace["params"].shape[:2], len(beta)), np.nan)
        trace["params"] = np.concatenate([unknown, trace["params"]], axis=2)
    params = fit.params | {"beta": beta}
    whole = dataclasses.replace(
        fit,
        problem=dataclasses.replace(fit._model(), model=model, space=as_space(space, params)),
        params=params,
        last_params=fit.last_params | {"beta": beta},
        run_params=fit.run_params | {"beta": beta[None]},
        data=fit.data | {"X": units["X"]},
        trace=trace,
        rows=None,
    )
    whole.remembered(RESTRICTED, lambda: fit)
    return whole


def _least_squares(fit: Fit, mode: np.ndarray, transform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fixed effects (p,) by generalised least squares, and their covariance (p, p)."""
    dtype, d = default_dtype(None), mode.size
    places = np.arange(d - len(transform), d)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), fit.params)
        model, unit = settle((fit._model().model, jax.tree.map(lambda leaf: np.asarray(leaf[0]), fit.data)), dtype)
        inverse = np.asarray(_inverse(model, at, unit, jnp.asarray(mode, dtype), places), float)
    covariance = transform @ inverse @ transform.T
    return transform @ np.asarray(mode, float)[places], (covariance + covariance.T) / 2


@compiled
def _inverse(model, params, unit, mode, places):
    """The block of the inverse curvature at some latents: for a Gaussian, their covariance given the data."""
    structure = model.structure(params, unit)
    factor = structure.factor(structure.curvature(None, mode), 0.0)
    seeds = jnp.zeros((len(places), mode.size), mode.dtype).at[jnp.arange(len(places)), places].set(1.0)
    return jax.vmap(lambda e: factor.solve(e)[places])(seeds)


def _information(found: Information, covariance: np.ndarray, scale: np.ndarray) -> Information:
    """Of all parameters: generalised least squares' of the fixed effects, beside that of the variances."""
    p = len(covariance)

    def blocks(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.linalg.block_diag(first, second))

    own = np.linalg.inv(covariance / np.outer(scale, scale))
    zeros = np.zeros((len(found.scores), p))
    return dataclasses.replace(
        found,
        matrix=blocks(own, found.matrix),
        covariance=blocks(covariance, found.covariance),
        scores=np.concatenate([zeros, found.scores], axis=1),
        newton=np.concatenate([np.zeros(p), found.newton]),
        matrices=np.stack([blocks(own, each) for each in found.matrices]),
        replicates=np.stack([blocks(covariance, each) for each in found.replicates]),
    )


def _certificate(fit: Fit) -> Certificate:
    """The checks of the restricted likelihood, by its name."""
    found = fit.certificate
    checks = []
    for one in found.checks:
        checks.append(one._replace(sentence=qualified(one.sentence, "restricted")))
        if one.name == "approximation" and one.level != "failed":
            # Its weighted draws would tell of rounding errors alone.
            checks[-1] = _exact(fit)
    return dataclasses.replace(found, checks=tuple(checks))


def _exact(fit: Fit) -> Check:
    value = fit.loglik()
    sentence = f"The restricted log-likelihood is {float(value):.3f}; its integrals are Gaussian, and exact."
    return Check("likelihood", float(value), value.se, LARGE_ERROR, "pass", sentence)
