"""Information from a first-order expansion of the structural model: fast, approximate, and what other programs report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ...numerics.compiling import compiled

if TYPE_CHECKING:
    from jaxtyping import Array

    from ...problem.space import AbstractSpace
    from .estimator import NLME


@compiled
def linearised_information(model: Any, space: AbstractSpace, params: dict, modes: Array, units: dict) -> Any:
    r"""Minus the Hessian, in unconstrained coordinates, of the linearised log-likelihood
    $\sum_i\log N(y_i; f_i - J_i(\hat\phi_i - C_i\beta), J_i\Omega J_i^\top + \Sigma_i)$.

    The curve of subject i is replaced by its tangent at the conditional mode, $f(\phi)\approx f_i + J_i(\phi - \hat\phi_i)$;
    modes and residual weights stay where they are while parameters move (Monolix and saemix do the same). A prior adds its own.
    """
    u, back = ravel_pytree(space.to_unconstrained(params))

    def unit(mode, y, u):
        moving = space.from_unconstrained(back(u))
        outcome, error = model.outcome, model.outcome.error.at(y["rows"])
        scale = error.transformed

        def curve(phi, at):
            return scale(outcome.prediction(model.psi(at, phi, y["design"]), y["rows"]))

        f, slope = curve(mode, moving), jax.jacfwd(curve)(mode, params)
        centre, root = model.population(moving, y)
        mean = f - slope @ (mode - centre)
        plain = outcome.prediction(model.psi(params, mode, y["design"]), y["rows"])
        kept = y["mask"] > 0
        both = kept[:, None] & kept[None]
        whole = slope @ root @ root.T @ slope.T + error.covariance(moving["error"], plain)
        covariance = jnp.where(both, whole, jnp.eye(len(kept)))
        factor = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(factor, jnp.where(kept, scale(y["rows"]["y"]) - mean, 0.0), lower=True)
        return -jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(factor)))

    def total(u):
        prior = model.prior.value(space.from_unconstrained(back(u)))
        return jnp.sum(jax.vmap(unit, (0, 0, None))(modes, units, u)) + prior

    return -jax.hessian(total)(u)


def check_linearisable(fitted: NLME) -> None:
    """Raises: ValueError: no tangent to take, or a fit on the boundary."""
    if not fitted.model_.outcome.continuous:
        raise ValueError('linearised information is for continuous outcomes; use method="louis"')
    error: Any = getattr(fitted.model_.outcome, "error", None)
    if error is not None and error.multipliers:
        raise ValueError('linearised information has no effects on the residual error, and this fit has some; use method="louis"')
    if fitted.model_.shaped:
        raise ValueError('linearised information is for effects that are normal, and this fit has shapes; use method="louis"')
    if fitted.model_.classes > 1:
        raise ValueError('linearised information is of one population, and this fit has classes; use method="louis"')
    if not np.all(np.isfinite(list(fitted.result_.params["beta"]))) or "boundary" in fitted.message_:
        raise ValueError('the fit is on the boundary; use method="louis", which leaves degenerate parameters out')
