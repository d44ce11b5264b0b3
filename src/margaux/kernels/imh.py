"""Independence Metropolis-Hastings from each unit's Gaussian approximation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..numerics import triangular
from ..numerics.gaussian import laplace
from ..problem.schedule import AbstractSchedule, Constant
from .base import AbstractMetropolis, accept, unvalued

if TYPE_CHECKING:
    from jaxtyping import Array


class IndependenceMH(AbstractMetropolis):
    r"""Proposals from the Laplace approximation of $p(z_i\mid y_i,\theta)$ at the current parameters.

    The mode is followed from one E-step to the next by a few Newton steps (f-SAEM: Karimi, Lavielle
    and Moulines 2020). Proposals do not depend on the chain's state; acceptance is per unit.

    Args:
        inflation: factor of the proposal's covariance; above one keeps its tails heavier than the target's.
        n_newton: Newton steps an E-step.
    """

    step_size: AbstractSchedule
    target_acceptance: None
    adjusted: ClassVar[bool] = True
    inflation: Array | np.ndarray
    n_newton: int

    def __init__(self, inflation: float = 1.2, n_newton: int = 2) -> None:
        if not inflation > 0:
            raise ValueError(f"inflation must be positive, got {inflation}")
        if n_newton < 1:
            raise ValueError(f"n_newton must be at least 1, got {n_newton}")
        self.step_size = Constant(1.0)
        self.target_acceptance = None
        self.inflation = np.asarray(inflation, float)
        self.n_newton = n_newton

    def init(self, z):
        flat, _ = ravel_pytree(z)
        return unvalued(z) | {"mode": flat, "cholesky": jnp.eye(flat.size, dtype=flat.dtype)}

    def refresh(self, z, kstate, logdensity):
        _, unravel = ravel_pytree(z)
        mode, cholesky = laplace(lambda x: logdensity(unravel(x)), kstate["mode"], self.n_newton)
        return self.valued(z, kstate | {"mode": mode, "cholesky": cholesky}, logdensity)

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)
        root = jnp.sqrt(jnp.asarray(self.inflation, flat.dtype)) * kstate["cholesky"]
        proposal = unravel(kstate["mode"] + root @ normal)
        current = triangular.solve(root, flat - kstate["mode"])
        new = self.valued(proposal, kstate, logdensity)
        log_ratio = new["value"] - kstate["value"] + jnp.sum(normal**2) / 2 - jnp.sum(current**2) / 2
        (z, kstate), probability = accept((z, kstate), (proposal, new), log_ratio, uniform)
        return z, kstate, probability
