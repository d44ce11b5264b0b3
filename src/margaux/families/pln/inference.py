r"""Standard errors of the regression coefficients B of the Poisson log-normal model of rank q.

Matrices of order kp have rows that run over `B.ravel()`. With $D_i$ the diagonal matrix of expected rates $E[A_{ij}\mid y_i]$
and $s_{ij} = y_{ij} - E[A_{ij}\mid y_i]$, so that the score of B is $\sum_ix_i\otimes s_i$, covariance matrices are

- "adjusted", the default of large tables: that of "expected", with $\big[(\sum_iE[A_{ij}u_{ij}u_{ij}^\top])^{-1}\big]_{bb} -
  (\sum_iE[A_{ij}]x_ix_i^\top)^{-1}$, $u_{ij} = (x_i, w_i)$, added to the block of each feature: the part of its variance that
  does not come from the latents is what it is when $c_j$ is estimated. Woodbury's identity for the joint information splits
  the variance in these two parts, and only the second part is taken as if C were known.
- "louis", the default of others (see `affordable`): from the observed information of (B, C) jointly, of order p(k + q).
- "expected": $\sum_ix_ix_i^\top\otimes(D_i^{-1} + CC^\top)^{-1}$ inverted: what a predictor that is seen with variance
  $D_i^{-1}$ tells of its mean. It takes C as known, which makes intercepts look too certain, by a quarter with low counts,
  for however many units; the coefficients of centred covariates are hardly affected.
- "outer product": $\sum_ix_ix_i^\top\otimes s_is_i^\top$ inverted (Batardiere, Chiquet, Kwon and Stoehr, eq. 21, on the
  coefficients). It has no inverse where kp exceeds n, and its inverse is too large where kp is near n.
- "sandwich": $J^{-1}KJ^{-1}$, J the information of "expected" and K that of "outer product": it does without a Poisson law
  given the latents, inverts J only, and takes C as known.
- "robust": $J^{-1}KJ^{-1}$ of (B, C) jointly, J that of "louis" and K the outer product of the scores: loadings are estimated,
  and counts need not be Poisson given the latents.
- "variational": $\sum_iE[A_{ij}]x_ix_i^\top$ inverted for each feature, from the bound's own curvature in its coefficients.
  It leaves out what the latents hide, and its intervals are far too short: it is here for comparison.

"adjusted" agrees with "louis" to a hundredth where counts are many, and may be a quarter off where they are few. It costs little
more than "expected", has an inverse whatever p and n once X has full rank, and needs no draws: under the variational posterior
its expectations are in closed form. In the paper's design its intervals of level 0.95 cover 0.95 of the truth, those of
"expected" 0.94, "outer product" 0.97 and "variational" 0.67; with 80 features and 60 units of low counts, 0.94, 0.90, none and
0.74.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float

from ...numerics.compiling import compiled
from ...numerics.inverse import LEAST, guarded
from ...numerics.packing import lower_indices, symmetric
from .closed import complete, observed
from .filling import at_zero
from .fitting import Design
from .importance import BLOCK, Block, Draws, blocks, conditional, drawn
from .leading import hidden_variances
from .proposals import PROPOSALS, Plan, Proposal, chosen, nets
from .variational import HIGHEST, Loadings, Posterior, Units, rates

#: draws of a unit behind Louis' information, at least
LOUIS = Plan(draws=32, replicates=1)

#: the work n N d^2 up to which Louis' information of order d is made from N draws a unit; draws at most, which units of a few
#: counts need, and how many times fewer where that is work
COST, MOST_LOUIS, THRIFT = 2e9, 512, 4

#: order of the largest matrix
LARGEST = 4096

Kind = Literal["adjusted", "louis", "expected", "outer product", "sandwich", "robust", "variational"]


def affordable(n: int, order: int, seed: int = 0) -> Plan | None:
    """The draws of Louis' information of n units and so many parameters; None where it would take too long."""
    draws = COST / (n * order**2)
    if draws < LOUIS.draws:
        return None
    return Plan(1 << int(np.log2(np.clip(draws / THRIFT, LOUIS.draws, MOST_LOUIS))), 1, True, seed)


def covariance(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    kind: Kind = "adjusted",
    plan: Plan | None = None,
    infinite: Bool[np.ndarray, "k p"] | None = None,
) -> Float[np.ndarray, "kp kp"]:
    """The covariance matrix of `B.ravel()`.

    Args:
        kind: see the head of this module. infinite: coefficients without a finite estimate, which need no information of their
            own; what is returned of them means nothing.
        plan: of the draws behind expected rates; without one they are those of the variational posterior. "louis" is in closed
            form (see `margaux.families.pln.closed`) unless there are so many that they tell more.

    Raises:
        ValueError: if there are too many coefficients for matrices of order kp, or the information is not positive definite.
    """
    k, p = loadings.B.shape
    _check_order(p * (k + loadings.C.shape[1]) if kind in ("louis", "robust") else k * p, kind)
    infinite = np.zeros((k, p), bool) if infinite is None else infinite
    if kind == "variational":
        return _by_feature(np.linalg.inv(variational(design, loadings, posterior)))
    if kind in ("louis", "robust"):
        q = loadings.C.shape[1]
        free = rotations(np.asarray(loadings.C, float), k)
        if plan is not None and plan.draws >= MOST_LOUIS:
            information = louis(design, loadings, posterior, plan, "student")
        else:
            information = observed(design, loadings, posterior)[1]
        jointly = np.concatenate([infinite.T, np.zeros((p, q), bool)], axis=1).ravel()
        whole = _inverse(information + np.mean(np.diag(information)) * free @ free.T, kind, jointly)
        if kind == "robust":
            whole = whole @ joint_outer_product(design, loadings, posterior) @ whole
        part = whole.reshape(p, k + q, p, k + q)[:, :k, :, :k]
        return part.transpose(1, 0, 3, 2).reshape(k * p, k * p)
    if kind == "outer product":
        return _inverse(outer_product(design, loadings, posterior, plan), kind, infinite.ravel())
    known = _inverse(expected(design, loadings, posterior, plan), kind, infinite.ravel())
    if kind == "adjusted":
        return known + _by_feature(_estimated_loadings(design, loadings, posterior))
    return known if kind == "expected" else known @ outer_product(design, loadings, posterior, plan) @ known


def standard_errors(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    kind: Kind | None = None,
    plan: Plan | None = None,
    infinite: Bool[np.ndarray, "k p"] | None = None,
) -> Float[np.ndarray, "k p"]:
    """Of B: see `covariance`. By default "louis" where it is affordable and positive definite, else "adjusted". For more than
    `LARGEST` coefficients there are "adjusted" and "expected", to a thousandth (see `margaux.families.pln.leading`), and
    "variational".

    Raises:
        ValueError: for another kind then, or as of `covariance`.
    """
    k, p = loadings.B.shape
    if kind is None:
        return _by_default(standard_errors, design, loadings, posterior, plan, infinite)

    def diagonal(matrices):
        return np.einsum("pkk->kp", matrices)

    if kind == "variational":
        return np.sqrt(diagonal(np.linalg.inv(variational(design, loadings, posterior))))
    if k * p <= LARGEST or kind not in ("adjusted", "expected"):
        variances = np.diag(covariance(design, loadings, posterior, kind, plan, infinite)).reshape(k, p)
        return np.sqrt(variances if infinite is None else np.where(infinite, 0.0, variances))
    known = hidden_variances(lambda: _rates(design, loadings, posterior, plan, p), loadings.C, share=design.share)
    return np.sqrt(known if kind == "expected" else known + diagonal(_estimated_loadings(design, loadings, posterior)))


def default_covariance(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    kind: Kind | None = None,
    infinite: Bool[np.ndarray, "k p"] | None = None,
) -> Float[np.ndarray, "kp kp"]:
    """The covariance matrix whose diagonal `standard_errors` gives."""
    if kind is not None:
        return covariance(design, loadings, posterior, kind, None, infinite)
    return _by_default(covariance, design, loadings, posterior, None, infinite)


def _by_default(
    of_kind: Callable[..., np.ndarray],
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    plan: Plan | None,
    infinite: Bool[np.ndarray, "k p"] | None,
) -> np.ndarray:
    """By Louis' information where it is affordable and positive definite."""
    several = affordable(design.share.n, loadings.B.size + loadings.C.size)
    try:
        return of_kind(design, loadings, posterior, "louis" if several else "adjusted", several, infinite)
    except ValueError:  # too few units for it, or a rank that is too high
        return of_kind(design, loadings, posterior, "adjusted", plan, infinite)


def _check_order(order: int, kind: str) -> None:
    if order > LARGEST:
        raise ValueError(
            f"the {kind!r} covariance matrix of so many coefficients needs a matrix of order {order}, more than {LARGEST}; "
            'ask for standard_errors with kind "adjusted", "expected" or "variational", which need no such matrix'
        )


def _estimated_loadings(design: Design, loadings: Loadings, posterior: Posterior) -> Float[np.ndarray, "p k k"]:
    """What the variance of each feature's coefficients gains when its loadings are estimated."""
    k = len(loadings.B)
    joint = np.linalg.inv(complete(design, loadings, posterior))[:, :k, :k]
    return joint - np.linalg.inv(variational(design, loadings, posterior))


def expected(design: Design, loadings: Loadings, posterior: Posterior, plan: Plan | None = None) -> Float[np.ndarray, "kp kp"]:
    r"""$\sum_ix_ix_i^\top\otimes(D_i - D_iC(I + C^\top D_iC)^{-1}C^\top D_i)$, the inverse by Woodbury's identity."""
    k, p = loadings.B.shape
    diagonal, rest = np.zeros((k * k, p)), np.zeros((k * p, k * p))
    for block, A in _rates(design, loadings, posterior, plan, k * p * loadings.C.shape[1]):
        full, units = block.full[:2]
        own, rows = _hidden(full.C, units.x, at_zero(A, len(units.x), len(full.C)))
        each = block.emptied(rows)[..., :p].reshape(-1, k * p)
        diagonal, rest = diagonal + np.asarray(own)[:, :p], rest - each.T @ each
    diagonal, rest = design.share.summed((diagonal, rest))
    j = np.arange(p)
    rest.reshape(k, p, k, p)[:, j, :, j] += np.moveaxis(diagonal.reshape(k, k, p), 2, 0)
    return rest


def outer_product(
    design: Design, loadings: Loadings, posterior: Posterior, plan: Plan | None = None
) -> Float[np.ndarray, "kp kp"]:
    r"""$\sum_ix_ix_i^\top\otimes s_is_i^\top$, with the counts of a block of units at a time."""
    k, p = loadings.B.shape
    total = np.zeros((k * p, k * p))
    for block, A in _rates(design, loadings, posterior, plan, k * p):
        counts = design.counts.values[block.span]
        residual = (counts.toarray() if scipy.sparse.issparse(counts) else counts) - np.asarray(A, float)
        rows = (np.asarray(block.units.x)[:, :, None] * residual[:, None]).reshape(len(residual), -1)
        total += rows.T @ rows
    return design.share.summed(total)


def joint_outer_product(design: Design, loadings: Loadings, posterior: Posterior) -> Float[np.ndarray, "t t"]:
    r"""$\sum_is_is_i^\top$ for the scores $s_{ij} = y_{ij}E[u_i] - E[A_{ij}u_i]$ of $\theta = (b_1, c_1, \dots, b_p, c_p)$, u =
    (x, w), under the variational posterior."""
    (k, p), q = loadings.B.shape, loadings.C.shape[1]
    C, total = np.asarray(loadings.C, float), np.zeros((p * (k + q), p * (k + q)))
    for block, A in _rates(design, loadings, posterior, None, p * (k + q)):
        counts, A = design.counts.values[block.span], np.asarray(A, float)
        y = np.asarray(counts.toarray() if scipy.sparse.issparse(counts) else counts, float)
        mean, S = np.asarray(block.gaussian.mean, float), np.asarray(symmetric(block.gaussian.spread), float)
        of_x = (y - A)[:, :, None] * np.asarray(block.units.x)[:, None]
        of_w = (y - A)[:, :, None] * mean[:, None] - A[:, :, None] * np.einsum("bij,pj->bpi", S, C)
        rows = np.concatenate([of_x, of_w], axis=2).reshape(len(y), -1)
        total += rows.T @ rows
    return design.share.summed(total)


def variational(design: Design, loadings: Loadings, posterior: Posterior) -> Float[np.ndarray, "p k k"]:
    r"""$\sum_iA_{ij}x_ix_i^\top$ for each feature."""
    k, p = loadings.B.shape
    total = np.zeros((p, k * k))
    for block, A in _rates(design, loadings, posterior, None, p):
        x = np.asarray(block.units.x)
        total += np.asarray(A).T @ (x[:, :, None] * x[:, None]).reshape(-1, k * k)
    return design.share.summed(total).reshape(p, k, k)


def louis(
    design: Design, loadings: Loadings, posterior: Posterior, plan: Plan = LOUIS, proposal: Proposal | str = "vem"
) -> Float[np.ndarray, "t t"]:
    r"""The observed information of $\theta = (b_1, c_1, \dots, b_p, c_p)$ by Louis' (1982) identity, $E[-\nabla^2\log p(y_i,
    w_i)] - \mathrm{Cov}[\nabla\log p(y_i, w_i)]$ given $y_i$, summed over units.

    In these latents it is a small difference of large matrices, and draws lose it. The identity holds for latents that move with
    the parameters too: with $w_i = v_i + K_i(\theta - \theta_0)$, $K_i = M_i^{-1}E[H_i]$, $M_i = I + C^\top D_iC$ and $H_i =
    \partial^2\log p/\partial w\,\partial\theta$, as the conditional mode moves, it reads
    $$E\big[-\nabla^2_\theta\log p\big] - E[H_i]^\top M_i^{-1}E[H_i] - \mathrm{Cov}\big[\nabla_\theta\log p + K_i^\top\nabla_w
    \log p\big],$$
    whose covariance is of what is not quadratic in w alone. The first two terms are, for B, the "expected" information.

    The likelihood does not change when C is rotated, so q(q - 1)/2 directions carry no information (at a maximum), and an
    inverse must leave them out; B does not move along them.
    """
    (k, p), q = loadings.B.shape, loadings.C.shape[1]
    size, proposal = p * (k + q), chosen(proposal)
    own, whole = np.zeros((p, k + q, k + q)), np.zeros((size, size))
    digits = nets(plan, proposal, q)
    for block in blocks(design, loadings, posterior, proposal, 4 * BLOCK // (plan.draws * size)):
        counts = design.counts.values[block.span]
        y = np.asarray(counts.toarray() if scipy.sparse.issparse(counts) else counts, loadings.C.dtype)
        full, units = block.full[:2]
        y = at_zero(y, len(units.x), len(full.C))
        for replicate, net in enumerate(digits):
            draws: Any = (at_zero(leaf, len(y)) for leaf in drawn(block, proposal, plan, net, replicate))
            part, *hidden = _louis(full, units, y, Draws(*draws))
            own += np.asarray(part)[:p] / plan.replicates
            for leaf in hidden:
                each = block.emptied(leaf)[:, :, :p].reshape(-1, size)
                whole -= each.T @ each / plan.replicates
    own, whole = design.share.summed((own, whole))
    j = np.arange(p)
    whole.reshape(p, k + q, p, k + q)[j, :, j] += own
    return whole


@compiled
def _louis(loadings: Loadings, units: Units, y: Array, draws: Draws) -> tuple[Array, Array, Array]:
    """The first term for each feature, (p, u, u), and rows (b, r, p, u) whose products are the second and the third."""
    B, C = loadings
    q, v = C.shape[1], draws.v
    weight = jax.nn.softmax(draws.log_ratio, axis=1)
    A = jnp.exp(jnp.minimum((units.offset + units.x @ B)[:, None] + v @ C.T, HIGHEST))
    u = jnp.concatenate([jnp.broadcast_to(units.x[:, None], (*v.shape[:2], len(B))), v], axis=2)
    weighted = weight[..., None] * A
    mean = jnp.sum(weighted, axis=1)
    first = jnp.einsum("bnp,bnu->bpu", weighted, u)
    own = jnp.einsum("bnp,bnu,bnv->puv", weighted, u, u)
    mixed = -jnp.einsum("pq,bpu->bqpu", C, first)
    latent = jnp.arange(q)
    mixed = mixed.at[:, latent, :, len(B) + latent].add((y - mean)[None])
    mixed = mixed.reshape(len(v), q, -1)
    M = jnp.einsum("pi,bp,pj->bij", C, mean, C) + jnp.eye(q, dtype=C.dtype)
    root = jnp.linalg.cholesky(M)
    rows = jax.scipy.linalg.solve_triangular(root, mixed, lower=True)
    path = jax.scipy.linalg.solve_triangular(root, rows, lower=True, trans=1)
    residual = y[:, None] - A
    score = (residual[..., None] * u[:, :, None]).reshape(*v.shape[:2], -1) + (residual @ C - v) @ path
    score = score - jnp.einsum("bn,bnt->bt", weight, score)[:, None]
    rows, score = (leaf.reshape(*leaf.shape[:2], len(C), -1) for leaf in (rows, jnp.sqrt(weight)[..., None] * score))
    return own, rows, score


@compiled
def _hidden(C: Array, x: Array, A: Array) -> tuple[Array, Array]:
    """Sums of xx' weighted by the rates, (kk, p), and rows whose products are what the latents hide, (b, q, k, p)."""
    j, k, _ = lower_indices(C.shape[1])
    root = jnp.linalg.cholesky(symmetric(A @ (C[:, j] * C[:, k])) + jnp.eye(C.shape[1], dtype=C.dtype))
    pulled = jax.scipy.linalg.solve_triangular(root, A[:, None] * C.T, lower=True)
    return (x[:, :, None] * x[:, None]).reshape(len(x), -1).T @ A, x[:, None, :, None] * pulled[:, :, None]


_expected_rates = compiled(rates)


def _rates(
    design: Design, loadings: Loadings, posterior: Posterior, plan: Plan | None, width: int
) -> Iterator[tuple[Block, Array]]:
    """Expected rates (b, p) of blocks of units of `width` numbers each: by importance sampling with a plan, else variational."""
    proposal: Proposal = PROPOSALS["vem"]
    digits = nets(plan, proposal, loadings.C.shape[1]) if plan else []
    for block in blocks(design, loadings, posterior, proposal, 4 * BLOCK // (width * (16 if plan else 1))):
        if plan is None:
            full, units, gaussian = block.full
            yield block, block.emptied(_expected_rates(full, gaussian, units))[:, : len(loadings.C)]
            continue
        draws = [drawn(block, proposal, plan, net, replicate) for replicate, net in enumerate(digits)]
        found = [conditional(loadings, block.units, block.gaussian, each, True)[1] for each in draws]
        yield block, jnp.mean(jnp.stack(found), axis=0)


def _by_feature(matrices: Float[np.ndarray, "p k k"]) -> Float[np.ndarray, "kp kp"]:
    """One matrix of order kp, with no covariance between features."""
    p, k, _ = matrices.shape
    whole = np.zeros((k, p, k, p))
    whole[:, np.arange(p), :, np.arange(p)] = matrices
    return whole.reshape(k * p, k * p)


def rotations(C: Float[np.ndarray, "p q"], k: int) -> Float[np.ndarray, "t r"]:
    r"""An orthonormal basis of the directions $(0, C\Omega)$, $\Omega$ skew-symmetric, in the order of `louis`."""
    p, q = C.shape
    pairs = [(a, b) for a in range(q) for b in range(a)]
    free = np.zeros((len(pairs), p, k + q))
    for row, (a, b) in zip(free, pairs, strict=True):
        row[:, k + a], row[:, k + b] = C[:, b], -C[:, a]
    return np.linalg.qr(free.reshape(len(pairs), p * (k + q)).T)[0]


def _inverse(information: np.ndarray, kind: str, infinite: Bool[np.ndarray, " t"]) -> np.ndarray:
    """Block by block: of several parameters that go to infinity together, so that the counts tell their sum alone, the block of
    the infinite ones has a pseudo-inverse that leaves the rest of their directions where they are."""
    size = np.sqrt(np.maximum(np.diag(information)[infinite], np.finfo(float).tiny))
    among = np.linalg.pinv(information[np.ix_(infinite, infinite)] / np.outer(size, size), LEAST, hermitian=True)
    among = among / np.outer(size, size)
    others = np.ix_(~infinite, ~infinite)
    path = among @ information[np.ix_(infinite, ~infinite)]
    of_others, trouble = guarded(information[others] - information[np.ix_(~infinite, infinite)] @ path)
    if trouble:
        raise ValueError(
            f"the {kind!r} information of {len(information)} parameters is not positive definite: there are too few units or "
            "draws for it, or the fit is not at a maximum"
        )
    inverse = np.empty_like(information)
    inverse[others] = of_others
    inverse[np.ix_(infinite, ~infinite)] = -path @ of_others
    inverse[np.ix_(~infinite, infinite)] = -of_others @ path.T
    inverse[np.ix_(infinite, infinite)] = among + path @ of_others @ path.T
    return inverse
