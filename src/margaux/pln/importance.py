r"""The marginal likelihood of the Poisson log-normal model of rank q and its score, by importance sampling.

For draws $v_r\sim\nu_i$ with ratios $\rho_r = p(y_i, v_r)/\nu_i(v_r)$, $p(y_i)$ is the mean of the ratios and
$E[h(w_i)\mid y_i]\approx\sum_r\omega_rh(v_r)$, $\omega_r = \rho_r/\sum_s\rho_s$ (Batardiere, Chiquet, Kwon and Stoehr, eqs. 5
and 7). Draws are a Sobol net that every unit shifts by digits of its own, so that estimates of different units, and of different
replicates, are unbiased and uncorrelated: the spread between replicates is the error (Owen 1997; L'Ecuyer and Lemieux 2002).
Units pass a block at a time and draws a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..compiling import compiled
from ..packing import lower_indices, symmetric
from .fitting import Design
from .variational import HIGHEST, Loadings, Posterior, Units

#: rates that are held at once, at most
BLOCK = 1 << 20
#: Newton steps to a mode
MODE_STEPS = 12
LOG_2PI = float(np.log(2 * np.pi))


class Proposal(NamedTuple):
    r"""$(1 - \alpha)N(\mu_i, S_i) + \alpha N(\mu_i, \delta I_q)$ (eq. 14), or a Student t of location $\mu_i$ and scale $S_i$.

    With $\alpha > 0$ and $\delta > 1$ ratios are bounded (lemma 5.1). `gaussian` says what $\mu_i$ and $S_i$ are: "given", the
    posterior that is passed; "hessian", its mean and the inverse curvature there (eq. 18); "laplace", the mode and the inverse
    curvature there.

    Attributes:
        degrees: of freedom of the Student t, an even number; 0 is the Gaussian.
    """

    gaussian: Literal["given", "hessian", "laplace"] = "given"
    alpha: float = 0.0
    delta: float = 1.1
    degrees: int = 0

    @property
    def extra(self) -> int:
        """Uniform numbers a draw needs beyond q."""
        return int(self.alpha > 0) + self.degrees // 2


#: the paper's proposals with its alpha and delta (section 6), and two more
PROPOSALS = {
    "vem": Proposal(),
    "vem mixture": Proposal(alpha=1e-3),
    "hessian": Proposal("hessian", alpha=1e-3),
    "laplace": Proposal("laplace"),
    "student": Proposal(degrees=4),
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
    if not (0 <= proposal.alpha < 1 and proposal.delta > 0 and proposal.degrees >= 0 and proposal.degrees % 2 == 0):
        raise ValueError(f"alpha must be in [0, 1[, delta above 0 and degrees even, not {proposal}")
    return proposal


class Plan(NamedTuple):
    """How draws are made: a power of two of them, replicated, by a Sobol net or independently."""

    draws: int = 512
    replicates: int = 8
    sobol: bool = True
    seed: int = 0


class Draws(NamedTuple):
    r"""Of a block of units: v (b, N, q), $\log\rho$ (b, N), and the log-ratio of the Gaussian $N(\mu_i, S_i)$ to the proposal."""

    v: Float[Array, "b N q"]
    log_ratio: Float[Array, "b N"]
    log_gaussian: Float[Array, "b N"]


class Marginal(NamedTuple):
    r"""Of each unit (n,): $\log p(y_i)$ and its standard error, the effective sample size of a replicate's N draws, and the
    divergences $\mathrm{KL}[\nu_i\|p(\cdot\mid y_i)]$ and $\mathrm{KL}[p(\cdot\mid y_i)\|\nu_i]$ (section 6.1)."""

    loglik: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    ess: Float[np.ndarray, " n"]
    kl_from_proposal: Float[np.ndarray, " n"]
    kl_from_conditional: Float[np.ndarray, " n"]

    @property
    def total(self) -> tuple[float, float]:
        """The log-likelihood of all units and its standard error."""
        return float(self.loglik.sum()), float(np.sqrt(np.sum(self.error**2)))


class Block(NamedTuple):
    """Consecutive units: their numbers, their data, and the Gaussian of their proposal."""

    span: slice
    number: Array
    units: Units
    gaussian: Posterior


def blocks(design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal, size: int) -> Iterator[Block]:
    """The table, at most `size` units at a time."""
    dtype, n = loadings.C.dtype, design.counts.n
    projected = design.counts.times(np.asarray(loadings.C))
    for first in range(0, n, max(size, 1)):
        span = slice(first, min(first + max(size, 1), n))
        units = Units(*(jnp.asarray(leaf[span], dtype) for leaf in (design.x, design.offset, projected)))
        part = Posterior(posterior.mean[span], posterior.spread[span])
        if proposal.gaussian != "given":
            part = curvature(loadings, part, units, MODE_STEPS if proposal.gaussian == "laplace" else 0)
        yield Block(span, jnp.arange(span.start, span.stop, dtype=jnp.uint32), units, part)


def marginal(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem", plan: Plan = Plan(),  # noqa: B008
) -> Marginal:  # fmt: skip
    r"""$\log p(y_i)$ of every unit.

    The logarithm of a mean of relative variance $\sigma^2$ is too low by $\sigma^2/2$, which is added: it would accumulate over
    units faster than the error does.

    Args:
        proposal: one of `PROPOSALS`, or a `Proposal`.

    Raises:
        ValueError: with less than two replicates, which leave the error unknown, or as of `chosen` and `nets`.
    """
    if plan.replicates < 2:
        raise ValueError("the error of a log-likelihood needs at least two replicates")
    proposal = chosen(proposal)
    constant = _constants(design, loadings)
    digits = nets(plan, proposal, loadings.C.shape[1])
    parts = []
    for block in blocks(design, loadings, posterior, proposal, BLOCK // (16 * design.counts.p)):
        summaries = []
        for replicate, net in enumerate(digits):
            log_ratio = drawn(loadings, block, proposal, plan, net, replicate).log_ratio
            summaries.append(_summaries(log_ratio))
        logs, *rest = (np.asarray(leaf, float) for leaf in map(np.stack, zip(*summaries, strict=True)))
        top = logs.max(axis=0)
        relative = np.exp(logs - top)
        mean = relative.mean(axis=0)
        error = relative.std(axis=0, ddof=1) / mean / np.sqrt(plan.replicates)
        parts.append((np.log(mean) + top + error**2 / 2, error, *(leaf.mean(axis=0) for leaf in rest)))
    found = Marginal(*map(np.concatenate, zip(*parts, strict=True)))
    return found._replace(loglik=found.loglik + constant)


def score(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem",
    plan: Plan = Plan(replicates=1), control: bool = True,  # noqa: B008
) -> Loadings:  # fmt: skip
    r"""The gradient of the log-likelihood in (B, C), $\sum_i\sum_j(y_{ij} - E[A_{ij}u_i\mid y_i])$ with $u_i = (x_i, w_i)$ and
    $A_{ij}$ the rate at $w_i$.

    With `control`, the expectation of $h = A_{ij}(1, w_i)$ or $w_i$ is that under $g = N(\mu_i, S_i)$, in closed form, plus
    $\sum_r(\omega_r - \omega^g_r)h(v_r)$, where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal.
    What is left to the draws is the difference of $p(\cdot\mid y_i)$ from g.
    """
    proposal = chosen(proposal)
    digits = nets(plan, proposal, loadings.C.shape[1])
    B, C = (np.zeros(leaf.shape) for leaf in loadings)
    means = np.zeros((design.counts.n, C.shape[1]), loadings.C.dtype)
    for block in blocks(design, loadings, posterior, proposal, BLOCK // (16 * design.counts.p)):
        for replicate, net in enumerate(digits):
            found = drawn(loadings, block, proposal, plan, net, replicate)
            mean, rates, pull = conditional(loadings, block.units, block.gaussian, found, control)
            means[block.span] += np.asarray(mean) / plan.replicates
            B -= np.asarray(block.units.x.T @ rates) / plan.replicates
            C -= np.asarray(pull) / plan.replicates
    B += design.counts.transposed_times(np.asarray(design.x)).T
    C += design.counts.transposed_times(means)
    return Loadings(jnp.asarray(B, loadings.B.dtype), jnp.asarray(C, loadings.C.dtype))


def drawn(loadings: Loadings, block: Block, proposal: Proposal, plan: Plan, net: np.ndarray, replicate: int = 0) -> Draws:
    """Draws of a block of units and their log-ratios, less what is linear in the counts and free of w."""
    p = loadings.C.shape[0]
    chunk = 1 << int(np.log2(max(min(BLOCK // (p * len(block.number)), plan.draws), 1)))
    key = jax.random.fold_in(jax.random.key(plan.seed), replicate)
    return _drawn(loadings, block.units, block.gaussian, block.number, net, key, proposal, chunk, plan.sobol)


def nets(plan: Plan, proposal: Proposal, q: int) -> list[np.ndarray]:
    """The digits that draws start from, (N, q + extra) for each replicate.

    Raises:
        ValueError: if the number of draws is no power of two.
    """
    size = q + proposal.extra
    if plan.draws < 1 or plan.draws & (plan.draws - 1):
        raise ValueError(f"draws must be a power of two, not {plan.draws}")
    if not plan.sobol:
        return [np.zeros((plan.draws, size), np.uint32)] * plan.replicates
    power = plan.draws.bit_length() - 1
    points = (
        scipy.stats.qmc.Sobol(size, scramble=True, rng=np.random.default_rng([plan.seed, replicate])).random_base2(power)
        for replicate in range(plan.replicates)
    )
    return [(2.0**32 * net).astype(np.uint32) for net in points]


def _constants(design: Design, loadings: Loadings) -> Float[np.ndarray, " n"]:
    r"""$\sum_j[y_{ij}(o_{ij} + b_j^\top x_i) - \log y_{ij}!]$ of each unit, in float64."""
    values, offset = design.counts.values, np.asarray(design.offset, float)
    fixed = np.sum(design.x * design.counts.times(np.asarray(loadings.B, float).T), axis=1)
    if scipy.sparse.issparse(values):
        factorials = scipy.sparse.csr_matrix(values, dtype=float)
        factorials.data = scipy.special.gammaln(factorials.data + 1)
        weighted = values.multiply(offset).sum(axis=1)
        weighted, factorials = np.asarray(weighted).ravel(), np.asarray(factorials.sum(axis=1)).ravel()
    else:
        weighted, factorials = np.sum(values * offset, axis=1), scipy.special.gammaln(values + 1.0).sum(axis=1)
    return fixed + weighted - factorials


@compiled
def curvature(loadings: Loadings, posterior: Posterior, units: Units, steps: int) -> Posterior:
    """A centre after Newton steps to the mode, none of which moves a predictor by more than 1, and the inverse curvature."""
    C = loadings.C
    j, k, _ = lower_indices(C.shape[1])
    fixed = units.offset + units.x @ loadings.B

    def inverse(w: Array) -> tuple[Array, Array]:
        A = jnp.exp(jnp.minimum(fixed + w @ C.T, HIGHEST))
        return A, jnp.linalg.inv(symmetric(A @ (C[:, j] * C[:, k])) + jnp.eye(len(C.T), dtype=C.dtype))

    def move(_: int, w: Array) -> Array:
        A, S = inverse(w)
        step = jnp.einsum("bij,bj->bi", S, units.projected - A @ C - w)
        return w + step / jnp.maximum(jnp.max(jnp.abs(step @ C.T), axis=1, keepdims=True), 1)

    w = jax.lax.fori_loop(0, steps, move, posterior.mean)
    return Posterior(w, inverse(w)[1][:, j, k])


@compiled
def conditional(loadings: Loadings, units: Units, gaussian: Posterior, draws: Draws, control: bool) -> tuple[Array, Array, Array]:
    r"""$E[w_i\mid y_i]$ (b, q), $E[A_{ij}\mid y_i]$ (b, p) and $\sum_iE[A_{ij}w_i\mid y_i]$ (p, q) of a block of units, with the
    control variate of `score` or without."""
    B, C = loadings
    fixed = units.offset + units.x @ B
    weight = jax.nn.softmax(draws.log_ratio, axis=1)
    if control:
        weight = weight - jax.nn.softmax(draws.log_gaussian, axis=1)
        S = symmetric(gaussian.spread)
        pull = jnp.einsum("bij,pj->bpi", S, C)
        spread = jnp.einsum("bpi,pi->bp", pull, C)
        A = jnp.exp(jnp.minimum(fixed + gaussian.mean @ C.T + spread / 2, HIGHEST))
        start = gaussian.mean, A, A.T @ gaussian.mean + jnp.einsum("bp,bpi->pi", A, pull)
    else:
        start = jnp.zeros_like(gaussian.mean), jnp.zeros_like(fixed), jnp.zeros_like(C)

    def add(total: tuple, each: tuple) -> tuple:
        v, weight = each
        A = weight[:, None] * jnp.exp(jnp.minimum(fixed + v @ C.T, HIGHEST))
        return (total[0] + weight[:, None] * v, total[1] + A, total[2] + A.T @ v), None

    return jax.lax.scan(add, start, (jnp.swapaxes(draws.v, 0, 1), weight.T))[0]


@compiled
def _drawn(
    loadings: Loadings, units: Units, gaussian: Posterior, number: Array, net: Array, key: Array, proposal: Proposal,
    chunk: int, sobol: bool,
) -> Draws:  # fmt: skip
    C, q = loadings.C, loadings.C.shape[1]
    fixed = units.offset + units.x @ loadings.B
    factor = jnp.linalg.cholesky(symmetric(gaussian.spread))
    back = jnp.linalg.inv(factor)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), axis=1)[:, None]
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(number)

    def uniforms(net: Array, first: Array) -> Array:
        own = keys if sobol else jax.vmap(lambda key: jax.random.fold_in(key, first))(keys)
        shape = (1 if sobol else chunk, net.shape[1])
        bits = net ^ jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(own)
        u = (bits.astype(C.dtype) + 0.5) / 2.0**32
        return jnp.minimum(u, 1 - jnp.finfo(C.dtype).epsneg)

    def some(first: Array, net: Array) -> tuple[Array, Draws]:
        u = uniforms(net, first)
        z = jax.scipy.special.ndtri(u[..., :q])
        step = jnp.einsum("bij,bnj->bni", factor, z)
        if proposal.degrees:
            # A chi-square variable of an even number of degrees is a sum of exponentials.
            halves = proposal.degrees // 2
            step = step * jnp.sqrt(proposal.degrees / (-2 * jnp.sum(jnp.log(u[..., -halves:]), axis=-1)))[..., None]
        if proposal.alpha:
            step = jnp.where(u[..., q, None] < proposal.alpha, jnp.sqrt(proposal.delta) * z, step)
        v = gaussian.mean[:, None] + step
        square = jnp.sum(jnp.einsum("bij,bnj->bni", back, step) ** 2, axis=2)
        log_gaussian = -square / 2 - log_det - q * LOG_2PI / 2
        log_proposal = log_gaussian
        if proposal.degrees:
            nu, half = proposal.degrees, jax.scipy.special.gammaln
            scale = half((nu + q) / 2) - half(nu / 2) - q / 2 * np.log(nu * np.pi)
            log_proposal = scale - log_det - (nu + q) / 2 * jnp.log1p(square / nu)
        if proposal.alpha:
            wide = -jnp.sum(step**2, axis=2) / (2 * proposal.delta) - q / 2 * (LOG_2PI + np.log(proposal.delta))
            log_proposal = jnp.logaddexp(np.log1p(-proposal.alpha) + log_proposal, np.log(proposal.alpha) + wide)
        eta = fixed[:, None] + jnp.einsum("bnq,pq->bnp", v, C)
        log_joint = jnp.einsum("bnq,bq->bn", v, units.projected) - jnp.sum(jnp.exp(jnp.minimum(eta, HIGHEST)), axis=2)
        log_joint = log_joint - jnp.sum(v**2, axis=2) / 2 - q * LOG_2PI / 2
        return first + 1, Draws(v, log_joint - log_proposal, log_gaussian - log_proposal)

    parts = jax.lax.scan(some, jnp.uint32(0), net.reshape(-1, chunk, net.shape[1]))[1]
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(len(number), len(net), *leaf.shape[3:]), parts)


@compiled
def _summaries(log_ratio: Float[Array, "b N"]) -> tuple[Array, Array, Array, Array]:
    """Log-mean of the ratios, effective sample size, and both divergences (section 6.1)."""
    size = np.log(log_ratio.shape[1])
    log_weight = jax.nn.log_softmax(log_ratio, axis=1)
    weight = jnp.exp(log_weight)
    log_mean = jax.nn.logsumexp(log_ratio, axis=1) - size
    forward = -size - jnp.mean(log_weight, axis=1)
    backward = size + jnp.sum(weight * log_weight, axis=1)
    return log_mean, 1 / jnp.sum(weight**2, axis=1), forward, backward
