r"""Proposals of importance sampling for the latents of PLN-PCA, and their draws.

Draws are a Sobol net that every unit shifts by digits of its own, so that estimates of different units, and of different
replicates, are unbiased and uncorrelated: the spread between replicates is the error (Owen 1997; L'Ecuyer and Lemieux 2002).
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, UInt32

from ...numerics.nets import sobol

LOG_2PI = float(np.log(2 * np.pi))
#: beyond the normal quantiles of numbers of 32 bits
FARTHEST = 6.5


class Proposal(NamedTuple):
    r"""$(1 - \alpha)N(\mu_i, S_i) + \alpha N(\mu_i, \delta I_q)$ (eq. 14), or a Student t of location $\mu_i$ and scale $S_i$.

    With $\alpha > 0$ and $\delta > 1$ ratios are bounded (lemma 5.1). `gaussian` says what $\mu_i$ and $S_i$ are: "given", the
    posterior that is passed; "hessian", its mean and the inverse curvature there (eq. 18); "laplace", the mode and the inverse
    curvature there.

    Attributes:
        degrees: of freedom of the Student t; 0 is the Gaussian.
    """

    gaussian: Literal["given", "hessian", "laplace"] = "given"
    alpha: float = 0.0
    delta: float = 1.1
    degrees: int = 0

    @property
    def extra(self) -> int:
        """Uniform numbers a draw needs beyond q."""
        return int(self.alpha > 0) + int(self.degrees > 0)


#: the paper's proposals with its alpha and delta (section 6), and three more
PROPOSALS = {
    "vem": Proposal(),
    "vem mixture": Proposal(alpha=1e-3),
    "hessian": Proposal("hessian", alpha=1e-3),
    "laplace": Proposal("laplace"),
    "student": Proposal(degrees=8),
    "laplace student": Proposal("laplace", degrees=16),
}


def chosen(proposal: Proposal | str) -> Proposal:
    """A proposal by its name, or as it is.

    Raises:
        ValueError: if there is none of this name, or its numbers make no distribution.
    """
    if isinstance(proposal, str):
        if proposal not in PROPOSALS:
            raise ValueError(f"proposal must be one of {', '.join(map(repr, PROPOSALS))}, not {proposal!r}")
        return PROPOSALS[proposal]
    if not (0 <= proposal.alpha < 1 and proposal.delta > 0 and proposal.degrees >= 0):
        raise ValueError(f"alpha must be in [0, 1[, delta above 0 and degrees at least 0, not {proposal}")
    return proposal


class Plan(NamedTuple):
    """How draws are made: a power of two of them, replicated, by a Sobol net or independently."""

    draws: int = 512
    replicates: int = 8
    sobol: bool = True
    seed: int = 0


def nets(plan: Plan, proposal: Proposal, q: int, mirrored: bool = False) -> list[np.ndarray]:
    r"""The digits that draws start from, (N, q + extra) for each replicate.

    Args:
        mirrored: a Sobol net of N/2 points and its mirror image, which stays one when a unit shifts both: $\mu_i\pm s$. What is
            odd about $\mu_i$ then cancels, as does most of a log-density's departure from a Gaussian; a mean of latents, whose
            deviation is odd itself, is better without.

    Raises:
        ValueError: if the number of draws is no power of two from 2 on.
    """
    size = q + proposal.extra
    if plan.draws < 2 or plan.draws & (plan.draws - 1):
        raise ValueError(f"draws must be at least 2 and a power of two, not {plan.draws}")
    if not plan.sobol:
        return [np.zeros((plan.draws, size), np.uint32)] * plan.replicates
    power = plan.draws.bit_length() - 1 - mirrored
    points = (
        sobol(size, power, np.random.default_rng([plan.seed, replicate]).spawn(1)[0]) for replicate in range(plan.replicates)
    )
    digits = [(2.0**32 * net).astype(np.uint32) for net in points]
    if not mirrored:
        return digits
    mirror = np.where(np.arange(size) < q, np.uint32(0xFFFFFFFF), np.uint32(0))
    return [np.stack([net, net ^ mirror], axis=1).reshape(plan.draws, size) for net in digits]


@functools.cache
def log_chi_square(degrees: int) -> np.ndarray:
    r"""Coefficients, the highest power first, of $\log(x/\nu)$ in $z/6.5$, where z is the normal quantile and x that of
    $\chi^2_\nu$ of the same number: a Chebyshev interpolant, to 1e-10 from four degrees on.

    A uniform number a draw then makes its chi-square variable, whatever its degrees: a sum of exponentials would need many.

    >>> float(np.exp(np.polyval(log_chi_square(8), -1.2815515655446 / 6.5)) * 8)  # the 10% point of chi-square, 8 degrees
    3.489539...
    """

    def exact(z):
        below, above = scipy.special.gammaincinv, scipy.special.gammainccinv
        half = np.where(z < 0, below(degrees / 2, scipy.special.ndtr(z)), above(degrees / 2, scipy.special.ndtr(-z)))
        return np.log(2 * half / degrees)

    series = np.polynomial.Chebyshev.interpolate(exact, 36, domain=[-FARTHEST, FARTHEST]).trim(1e-12)
    return np.polynomial.chebyshev.cheb2poly(series.coef)[::-1]


class Proposed(NamedTuple):
    """Draws of one unit (N, q), and the logarithms of the proposal and of its Gaussian there (N,)."""

    v: Float[Array, "N q"]
    log_proposal: Float[Array, " N"]
    log_gaussian: Float[Array, " N"]


def proposed(
    mean: Float[Array, " q"],
    factor: Float[Array, "q q"],
    bits: UInt32[Array, "M size"],
    net: UInt32[Array, "N size"],
    proposal: Proposal,
) -> Proposed:
    """Draws of one unit from random digits of its own: one row of them, which shifts the net, or a row a draw.

    Args:
        factor: of Cholesky, of the covariance matrix.
    """
    q, dtype = mean.size, mean.dtype
    u = ((net ^ bits).astype(dtype) + 0.5) / 2.0**32
    u = jnp.minimum(u, 1 - jnp.finfo(dtype).epsneg)
    z = jax.scipy.special.ndtri(u[:, :q])
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
    step, square = z @ factor.T, jnp.sum(z**2, axis=1)
    if proposal.degrees:
        series = jnp.asarray(log_chi_square(proposal.degrees), dtype)
        stretch = jnp.exp(-jnp.polyval(series, jax.scipy.special.ndtri(u[:, -1]) / FARTHEST, unroll=len(series)))
        step, square = step * jnp.sqrt(stretch)[:, None], square * stretch
    if proposal.alpha:
        step = jnp.where(u[:, q, None] < proposal.alpha, jnp.sqrt(proposal.delta) * z, step)
        square = jnp.sum((step @ jnp.linalg.inv(factor).T) ** 2, axis=1)
    log_gaussian = -square / 2 - log_det - q * LOG_2PI / 2
    log_proposal = log_gaussian
    if proposal.degrees:
        nu, half = proposal.degrees, jax.scipy.special.gammaln
        scale = half((nu + q) / 2) - half(nu / 2) - q / 2 * float(np.log(nu * np.pi))
        log_proposal = scale - log_det - (nu + q) / 2 * jnp.log1p(square / nu)
    if proposal.alpha:
        wide = -jnp.sum(step**2, axis=1) / (2 * proposal.delta) - q / 2 * (LOG_2PI + float(np.log(proposal.delta)))
        log_proposal = jnp.logaddexp(float(np.log1p(-proposal.alpha)) + log_proposal, float(np.log(proposal.alpha)) + wide)
    return Proposed(mean + step, log_proposal, log_gaussian)
