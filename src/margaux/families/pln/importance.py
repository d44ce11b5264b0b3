r"""The marginal likelihood of the Poisson log-normal model of rank q, by importance sampling.

For draws $v_r\sim\nu_i$ with ratios $\rho_r = p(y_i, v_r)/\nu_i(v_r)$, $p(y_i)$ is the mean of the ratios and
$E[h(w_i)\mid y_i]\approx\sum_r\omega_rh(v_r)$, $\omega_r = \rho_r/\sum_s\rho_s$ (Batardiere, Chiquet, Kwon and Stoehr, eqs. 5
and 7). Units pass a block at a time and draws a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...engine.share import ALONE, Share
from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from ...numerics.sampling import pareto_shapes
from .filling import LARGE, Filled, at_zero, emptied, filled
from .fitting import Design
from .proposals import LOG_2PI, Plan, Proposal, chosen, nets, proposed
from .variational import HIGHEST, Loadings, Posterior, Units, product

#: rates and draws that are held at once, at most
BLOCK, HELD = 1 << 20, 1 << 23
#: draws of a unit that one call makes
DRAWS = 64
#: Newton steps to a mode at most, and the square of the step, in the metric of the curvature, at which they end
MODE_STEPS, SETTLED = 200, 1e-12


class Draws(NamedTuple):
    r"""Of a block of units: v (b, N, q), $\log\rho$ (b, N), and the log-ratio of the Gaussian $N(\mu_i, S_i)$ to the proposal."""

    v: Float[np.ndarray, "b N q"] | Float[Array, "b N q"]
    log_ratio: Float[np.ndarray, "b N"] | Float[Array, "b N"]
    log_gaussian: Float[np.ndarray, "b N"] | Float[Array, "b N"]


class Marginal(NamedTuple):
    r"""What importance sampling says of units.

    Attributes:
        loglik, error: $\log p(y_i)$ and its standard error, by the spread of replicates. draws: N, of a replicate.
        ess: the effective sample size of a replicate's draws. even: it, relative to that of the draws for $N(\mu_i, S_i)$.
        pareto: the shape of the largest weights of all replicates (see `margaux.numerics.sampling.pareto_shape`): from 0.7 on
            the error is not to be trusted.
        kl_from_proposal, kl_from_conditional: $\mathrm{KL}[\nu_i\|p(\cdot\mid y_i)]$ and $\mathrm{KL}[p(\cdot\mid
            y_i)\|\nu_i]$ (section 6.1). mean, spread: of w given y, by all replicates. logs: $\log p(y_i)$ by replicate.
        share: which of the units of all processes these are. Totals are those of all, and all ask for them together.
    """

    loglik: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    draws: Float[np.ndarray, " n"]
    ess: Float[np.ndarray, " n"]
    even: Float[np.ndarray, " n"]
    pareto: Float[np.ndarray, " n"]
    kl_from_proposal: Float[np.ndarray, " n"]
    kl_from_conditional: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, "n q"]
    spread: Float[np.ndarray, "n t"]
    logs: Float[np.ndarray, "R n"]
    share: Share = ALONE

    @property
    def replicates(self) -> Float[np.ndarray, " R"]:
        """The sum of the logarithms over units, by replicate."""
        return self.share.summed(self.logs.sum(axis=1))

    @property
    def total(self) -> tuple[float, float]:
        """The log-likelihood of all units and its standard error."""
        value, variance = self.share.summed((self.loglik.sum(), np.sum(self.error**2)))
        return float(value), float(np.sqrt(variance))


class Block(NamedTuple):
    """Consecutive units: which they are of the table, and of those of all processes; their data, and the Gaussian of their
    proposal; what programs are given of them, and whether these serve other tables."""

    span: slice
    numbers: slice
    units: Units
    gaussian: Posterior
    full: Filled
    shared: bool

    def emptied(self, tree: Any) -> Any:
        """Arrays with a row a unit, of these alone."""
        return emptied(tree, len(self.units.x))


def blocks(design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal, size: int) -> Iterator[Block]:
    """The table, at most `size` units at a time, and about as many in each."""
    dtype, n, entries, place = loadings.C.dtype, design.counts.n, design.counts.n * design.counts.p, design.share.first
    if not n:  # of units that were chosen from all, none may be here
        return
    projected = design.counts.times(np.asarray(loadings.C))
    whole: Any = Posterior(*map(np.asarray, posterior))  # type: ignore[arg-type]
    size = -(-n // -(-n // max(size, 1)))
    for first in range(0, n, size):
        span = slice(first, min(first + size, n))
        leaves: Any = (np.asarray(leaf[span], dtype) for leaf in (design.x, design.offset, projected))
        units, part = Units(*leaves), Posterior(*(leaf[span] for leaf in whole))
        full = filled(loadings, units, part, entries)
        if proposal.gaussian != "given":
            steps: Any = np.asarray(MODE_STEPS if proposal.gaussian == "laplace" else 0)
            full = full._replace(gaussian=curvature(full.loadings, full.gaussian, full.units, steps))
            part = emptied(full.gaussian, len(units.x))
        yield Block(span, slice(place + span.start, place + span.stop), units, part, full, entries <= LARGE)


def marginal(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem", plan: Plan = Plan(),  # noqa: B008
) -> Marginal:  # fmt: skip
    r"""$\log p(y_i)$ of every unit.

    The mean of the ratios is divided by that of $N(v_r;\mu_i, S_i)/\nu_i(v_r)$, which is 1 but for the draws: heavy tails then
    cost nothing where latents are near to Gaussian. The bias of a logarithm of means is estimated and taken off: it would
    accumulate over units faster than the error does.

    Args:
        proposal: one of `PROPOSALS`, or a `Proposal`.

    Raises:
        ValueError: with less than two replicates, which leave the error unknown, or as of `chosen` and `nets`.
    """
    if plan.replicates < 2:
        raise ValueError("the error of a log-likelihood needs at least two replicates")
    proposal = chosen(proposal)
    constant = _constants(design, loadings)
    digits = nets(plan, proposal, loadings.C.shape[1], mirrored=True)
    parts = [_of_nobody(posterior, plan)]
    size = min(BLOCK // (16 * design.counts.p), HELD // (plan.draws * plan.replicates))
    for block in blocks(design, loadings, posterior, proposal, size):
        draws = [drawn(block, proposal, plan, net, replicate) for replicate, net in enumerate(digits)]
        log_ratio = np.stack([each.log_ratio for each in draws]).astype(float)
        logs, *rest = _summaries(log_ratio)
        control = np.exp(np.stack([each.log_gaussian for each in draws]).astype(float))
        gaussian = control.mean(axis=2)
        log_mean, error = _controlled(logs, gaussian)
        each = np.full(len(error), float(plan.draws))
        ess, forward, backward = (leaf.mean(axis=0) for leaf in rest)
        even = ess / np.mean(plan.draws * gaussian**2 / np.mean(control**2, axis=2), axis=0)
        mean, spread = _moments([each.v for each in draws], log_ratio, np.asarray(block.gaussian.mean))
        pareto = pareto_shapes(np.concatenate(list(log_ratio), axis=1))
        parts.append((log_mean, error, each, ess, even, pareto, forward, backward, mean, spread, (logs - np.log(gaussian)).T))
    loglik, *others, logs = map(np.concatenate, zip(*parts, strict=True))
    leaves: Any = loglik + constant, *others, logs.T + constant
    return Marginal(*leaves, share=design.share)


def _of_nobody(posterior: Posterior, plan: Plan) -> tuple[np.ndarray, ...]:
    """What is said of no units."""
    moments = (np.zeros((0, *leaf.shape[1:]), np.float32) for leaf in posterior)
    return (*(np.zeros(0) for _ in range(8)), *moments, np.zeros((0, plan.replicates)))


def drawn(block: Block, proposal: Proposal, plan: Plan, net: np.ndarray, replicate: int = 0) -> Draws:
    """Draws of a block of units and their log-ratios, less what is linear in the counts and free of w.

    They are made so many at a time, so that one program serves all numbers of draws.
    """
    full, units, gaussian = block.full
    bits = at_zero(random_bits(plan, replicate, block.numbers, net.shape), len(units.x))
    if block.shared and plan.draws < DRAWS:
        net, bits = at_zero(net, DRAWS), bits if plan.sobol else at_zero(bits, len(bits), DRAWS)
    size = min(DRAWS, len(net))
    chunk = 1 << int(np.log2(max(min(BLOCK // (len(full.C) * len(units.x)), size), 1)))
    parts = [
        block.emptied(_drawn(full, units, gaussian, bits if plan.sobol else bits[:, rows], net[rows], proposal, chunk))
        for rows in (slice(first, first + size) for first in range(0, plan.draws, size))
    ]
    return Draws(*(np.concatenate(leaf, axis=1)[:, : plan.draws] for leaf in zip(*parts, strict=True)))


def random_bits(plan: Plan, replicate: int, numbers: slice, shape: tuple[int, int]) -> np.ndarray:
    """Random digits of units: what shifts their net, or all of them. A unit has its own, in whatever block or process it is."""
    rows, columns = 1 if plan.sobol else shape[0], shape[1]
    count, words = numbers.stop - numbers.start, -(-rows * columns // 2)
    stream = np.random.PCG64([plan.seed, replicate]).advance(numbers.start * words)
    digits = stream.random_raw(count * words).view(np.uint32).reshape(count, 2 * words)
    return digits[:, : rows * columns].reshape(count, rows, columns)


def _constants(design: Design, loadings: Loadings) -> Float[np.ndarray, " n"]:
    r"""$\sum_j[y_{ij}(o_{ij} + b_j^\top x_i) - \log y_{ij}!]$ of each unit, in float64."""
    counts = design.counts
    fixed = np.sum(design.x * counts.times(np.asarray(loadings.B, float).T), axis=1)
    return fixed + counts.row_products(np.asarray(design.offset, float)) - counts.row_log_factorials()


@compiled
def curvature(loadings: Loadings, posterior: Posterior, units: Units, steps: int) -> Posterior:
    """A centre after Newton steps to the mode, none of which moves a predictor by more than 1, and the inverse curvature.

    The density is log-concave, so that the steps lead to the mode; `steps` bounds them, and all units at rest end them.
    """
    C = loadings.C
    j, k, _ = lower_indices(C.shape[1])
    fixed = units.offset + units.x @ loadings.B

    def inverse(w: Array) -> tuple[Array, Array]:
        A = jnp.exp(jnp.minimum(fixed + w @ C.T, HIGHEST))
        return A, jnp.linalg.inv(symmetric(A @ (C[:, j] * C[:, k])) + jnp.eye(len(C.T), dtype=C.dtype))

    def move(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        w, made, _ = state
        A, S = inverse(w)
        gradient = units.projected - A @ C - w
        step = jnp.einsum("bij,bj->bi", S, gradient)
        w = w + step / jnp.maximum(jnp.max(jnp.abs(step @ C.T), axis=1, keepdims=True), 1)
        return w, made + 1, jnp.max(jnp.sum(step * gradient, axis=1))

    far = jnp.asarray(jnp.inf, C.dtype)
    small = max(SETTLED, float(jnp.finfo(C.dtype).eps))

    def moving(state):
        return (state[1] < steps) & (state[2] > small)

    w = jax.lax.while_loop(moving, move, (posterior.mean, jnp.asarray(0), far))[0]
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
        A = weight[:, None] * jnp.exp(jnp.minimum(fixed + product(v, C.T), HIGHEST))
        return (total[0] + weight[:, None] * v, total[1] + A, total[2] + A.T @ v), None

    return jax.lax.scan(add, start, (jnp.swapaxes(draws.v, 0, 1), weight.T))[0]


@compiled
def _drawn(
    loadings: Loadings, units: Units, gaussian: Posterior, bits: Array, net: Array, proposal: Proposal, chunk: int
) -> Draws:  # fmt: skip
    C = loadings.C
    b, (n_draws, _), q = len(units.x), net.shape, C.shape[1]
    fixed = units.offset + units.x @ loadings.B

    def make(mean, factor, bits):
        return proposed(mean, factor, bits, net, proposal)

    factors = jnp.linalg.cholesky(symmetric(gaussian.spread))
    v, log_proposal, log_gaussian = jax.vmap(make)(gaussian.mean, factors, bits)

    def total_rates(v: Array) -> Array:
        linear = product(v.reshape(b * chunk, q), C.T).reshape(b, chunk, -1)
        return jnp.sum(jnp.exp(jnp.minimum(fixed[:, None] + linear, HIGHEST)), axis=2)

    parts = jax.lax.map(total_rates, jnp.moveaxis(v.reshape(b, n_draws // chunk, chunk, q), 1, 0))
    log_joint = jnp.einsum("bnq,bq->bn", v, units.projected) - jnp.moveaxis(parts, 0, 1).reshape(b, n_draws)
    log_joint = log_joint - jnp.sum(v**2, axis=2) / 2 - q * LOG_2PI / 2
    return Draws(v, log_joint - log_proposal, log_gaussian - log_proposal)


def _controlled(logs: Float[np.ndarray, "R b"], gaussian: Float[np.ndarray, "R b"]) -> tuple[np.ndarray, np.ndarray]:
    """Log of the ratios' mean over replicates by that of the Gaussian's, without its bias to second order; and its error."""
    top = logs.max(axis=0)
    ratio = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, count = np.log(ratio.mean(axis=0) / gaussian.mean(axis=0)), len(logs)
        ratio, gaussian = ratio / ratio.mean(axis=0), gaussian / gaussian.mean(axis=0)
        bias = (ratio.var(axis=0, ddof=1) - gaussian.var(axis=0, ddof=1)) / (2 * count)
        error = (ratio - gaussian).std(axis=0, ddof=1) / np.sqrt(count)
    return np.where(np.isfinite(top), top + mean + bias, top), error


def _summaries(log_ratio: Float[np.ndarray, "R b N"]) -> tuple[np.ndarray, ...]:
    """Log-mean of the ratios, effective sample size, and both divergences (section 6.1), (R, b) each."""
    size, top = np.log(log_ratio.shape[2]), log_ratio.max(axis=2)
    free = log_ratio - top[..., None]
    ratio = np.exp(free)
    total = ratio.sum(axis=2)
    log_total = np.log(total)
    forward = log_total - size - free.mean(axis=2)
    backward = size + np.einsum("rbn,rbn->rb", ratio, free) / total - log_total
    return top + log_total - size, total**2 / np.einsum("rbn,rbn->rb", ratio, ratio), forward, backward


def _moments(
    draws: list[np.ndarray | Array], log_ratio: Float[np.ndarray, "R b N"], near: Float[np.ndarray, "b q"]
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and covariance matrix of the latents by all replicates, summed about a point that is near."""
    weight = np.exp(log_ratio - log_ratio.max(axis=(0, 2))[:, None]).astype(near.dtype)
    first, second = np.zeros_like(near), np.zeros((*near.shape, near.shape[1]), near.dtype)
    for v, w in zip(draws, weight, strict=True):
        free = v - near[:, None]
        weighed = np.swapaxes(free * w[..., None], 1, 2)
        first, second = first + weighed.sum(axis=2), second + np.matmul(weighed, free)
    total = weight.sum(axis=(0, 2))[:, None]
    j, k, _ = lower_indices(near.shape[1])
    shift = first / total
    return near + shift, second[:, j, k] / total - shift[:, j] * shift[:, k]
