"""The score of PLN-PCA by importance sampling, and steps along it that need no choosing."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...algorithms.statistics import AbstractStatistic, Score
from ...algorithms.updates import AbstractUpdate
from ...engine.share import ALONE, Share
from ...esteps.base import Present
from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from ...problem.schedule import AbstractSchedule
from .conditional import filling
from .model import PLN
from .weighted import span_score

#: the longest step of a coefficient, and what is least observed: of the complete-data information, and of a standard latent
LONGEST, FLOOR = 0.5, 2e-3


class ConditionalScore(AbstractStatistic):
    r"""$\nabla\log p(y_i)$ in (B, C), $\sum_i(y_{ij} - E[A_{ij}u_i\mid y_i])$ with $u_i = (x_i, w_i)$ (eqs. 5 and 7).

    With `moments` also its part within the span of C, $\sum_ix_iE[w_i]^\top$ and $\sum_iE[w_iw_i^\top] - I$, as
    `InformationAscent` needs it: of the whole score it is a small difference of large numbers, which draws lose. With
    `ConditionalSampling`, which makes weights and sums in one pass over the draws.
    """

    moments: bool = eqx.field(static=True, default=True)

    def total(self, model, params, z, w, batch):
        score = Score().total(model, params, z, w, batch)
        if not self.moments:
            return score
        second = jnp.einsum("mb,mbi,mbj->ij", w, z, z) - jnp.sum(w) * jnp.eye(z.shape[2], dtype=z.dtype)
        a, b, _ = lower_indices(z.shape[2])
        return score | {"slope": jnp.einsum("mb,bk,mbq->kq", w, batch["x"], z), "scale": second[a, b]}

    def per_unit(self, model, params, z, w, batch):
        def one(z, w, y):
            return self.total(model, params, z[:, None], w[:, None], jax.tree.map(lambda leaf: leaf[None], y))

        return jax.vmap(one, in_axes=(1, 1, 0))(z, w, batch)

    def averaged(self, model, estep, params, rows, batch, noise, k, each):
        assert not each, "only the sum over a batch is made"
        own: Any = estep.estep if isinstance(estep, Present) else estep
        present = estep.present if isinstance(estep, Present) else jnp.ones(len(batch["x"]))
        rows, batch = filling(present, rows, batch)
        moments, rows, info = own.expectations(noise, params, rows, batch)
        here = present.astype(moments.mean.dtype)
        counts, size = batch["counts"].astype(moments.pull.dtype), batch["x"].shape[1]
        B = batch["x"].T @ counts - moments.pull[:, :size].T
        score = {"B": B, "C": counts.T @ moments.mean - moments.pull[:, size:]}
        if self.moments:
            slope, scale = span_score(batch["x"], moments.mean, moments.spread, here)
            score |= {"slope": slope, "scale": scale}
        return score, rows, {name: figure * here for name, figure in info.items()}

    def requires(self, model):
        return None if isinstance(model, PLN) else "its model must be margaux.families.pln's PLN"


class Information(NamedTuple):
    """Of a unit: the inverse of the complete-data information of each feature's (b_j, c_j), and within the span of C the
    inverses of the complete-data (`fine`) and of the observed one, for the coordinates (M, lower triangle of R)."""

    inverse: Float[Any, "p u u"]
    fine: Float[Any, "r r"]
    observed: Float[Any, "r r"]


class InformationAscent(AbstractUpdate):
    r"""$\theta_k = \Pi_\Theta[\theta_{k-1} + \delta_kP\bar s_k]$ with a preconditioner of two levels,
    $P = H^{-1} - TF^{-1}T^\top + TI_T^{-1}T^\top$.

    H is the complete-data information of each feature's $(b_j, c_j)$, as in EM. With it alone, steps are short where the latents
    could take up a change of the parameters: in the directions T, which are $B\to MC^\top$ and $C\to CR$ with symmetric R.
    There the score of a unit is $x_iE[w_i]^\top$ and $E[w_iw_i^\top] - I$, and its covariance, with $V = I - \frac1n\sum_iS_i$
    that of the posterior means, the observed information $I_T$ in closed form; $F = T^\top HT$. The first term is the EM
    gradient algorithm (Lange 1995); the directions are those of parameter expansion (Liu, Rubin and Wu 1998).

    Args:
        step: $\delta_k$; one is a Newton step, nearly. information: see `two_levels`.
    """

    step: AbstractSchedule
    information: Information

    def init(self, params):
        return ()

    def __call__(self, problem, params, s, state, k):
        B, C = params["B"], params["C"]
        move = preconditioned(self.information, C, s)
        delta = self.step(k).astype(C.dtype)

        def limited(move):
            return delta * jnp.clip(move, -LONGEST, LONGEST)

        return problem.land({"B": B + limited(move["B"]), "C": C + limited(move["C"])}, delta), state


def preconditioned(information: Information, C: Array, s: dict[str, Array]) -> dict[str, Array]:
    """P s."""
    size, q = s["slope"].shape
    step = jnp.einsum("pij,pj->pi", information.inverse, jnp.concatenate([s["B"].T, s["C"]], axis=1))
    along, seen = _within(C, s)
    found = information.observed @ seen - information.fine @ along
    M, R = found[: size * q].reshape(size, q), symmetric(found[size * q :])
    return {"B": step[:, :size].T + M @ C.T, "C": step[:, size:] + C @ R}


def inverse_diagonal(information: Information, C: Float[np.ndarray, "p q"], size: int) -> Float[np.ndarray, "p u"]:
    """The diagonal of P."""
    inner = information.observed - information.fine
    moves = _moves(C, size)
    return np.einsum("puu->pu", information.inverse) + np.einsum("puv,vw,puw->pu", moves, inner, moves)


def dense(information: Information, C: Float[np.ndarray, "p q"], size: int) -> Float[np.ndarray, "pu pu"]:
    """P, a row a feature and coefficient."""
    moves = _moves(C, size)
    p, u, r = moves.shape
    flat = moves.reshape(p * u, r)
    whole = flat @ (information.observed - information.fine) @ flat.T
    j = np.arange(p)
    whole.reshape(p, u, p, u)[j, :, j] += information.inverse
    return whole


def decrement(information: Information, C: Array, s: dict[str, Array], n: int) -> float:
    r"""$\frac12s^\top Ps$ in nats for the score s of all n units: about what the likelihood lacks."""
    return float(_square(information, C, s)) / (2 * n)


@compiled
def _square(information: Information, C: Array, s: dict[str, Array]) -> Array:
    move = preconditioned(information, C, s)
    along, seen = _within(C, s)
    outside = jnp.sum(s["B"] * move["B"]) + jnp.sum(s["C"] * move["C"])
    return outside + (seen - along) @ (information.observed @ seen)


def _within(C: Array, s: dict[str, Array]) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """The score along the directions T, from (B, C) and from the moments of the latents."""
    a, b, twice = lower_indices(C.shape[1])
    span = C.T @ s["C"]
    along = jnp.concatenate([(s["B"] @ C).ravel(), jnp.where(a == b, span[a, b], span[a, b] + span[b, a])])
    return along, jnp.concatenate([s["slope"].ravel(), jnp.asarray(twice, C.dtype) * s["scale"]])


def two_levels(
    complete: Float[np.ndarray, "p u u"],
    C: Float[np.ndarray, "p q"],
    x: Float[np.ndarray, "n k"],
    means: Float[np.ndarray, "n q"],
    share: Share = ALONE,
) -> Information:
    """From the complete-data information of all units, and covariates and posterior means of those of this process."""
    (q, k), ones = (means.shape[1], x.shape[1]), float(len(means))
    n, of_means, of_x = share.summed((ones, means.T @ means, x.T @ x))
    information = complete / n
    ridge = 1e-8 * np.einsum("pii->p", information) / information.shape[1]
    inverse = np.linalg.inv(information + ridge[:, None, None] * np.eye(k + q))
    a, b, twice = lower_indices(q)
    size = k * q + len(a)
    fine = np.zeros((size, size))
    for first in range(0, len(C), 512):
        part = slice(first, first + 512)
        moves = _moves(C[part], k)
        fine += np.einsum("puv,puw->vw", moves, information[part] @ moves)
    V = of_means / n
    observed = np.zeros((size, size))
    observed[: k * q, : k * q] = np.kron(of_x / n, V)
    products = V[np.ix_(a, a)] * V[np.ix_(b, b)] + V[np.ix_(a, b)] * V[np.ix_(b, a)]
    observed[k * q :, k * q :] = np.outer(twice, twice) * products
    # Components that have nearly collapsed tell nothing of themselves but noise.
    return Information(inverse, _inverse(fine), _inverse(observed + FLOOR * (fine + np.eye(size))))


def _moves(C: Float[np.ndarray, "p q"], k: int) -> Float[np.ndarray, "p u r"]:
    """Of each feature, how (b_j, c_j) moves with (M, R)."""
    p, q = C.shape
    a, b, _ = lower_indices(q)
    moves = np.zeros((p, k + q, k * q + len(a)))
    for row in range(k):
        moves[:, row, row * q : (row + 1) * q] = C
    t = k * q + np.arange(len(a))
    moves[:, k + a, t] += C[:, b]
    moves[:, k + b, t] += np.where(a == b, 0.0, C[:, a])
    return moves


def _inverse(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.inv(matrix + 1e-8 * np.trace(matrix) / len(matrix) * np.eye(len(matrix)))
