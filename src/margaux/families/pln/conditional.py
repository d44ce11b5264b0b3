r"""The E-step of algorithms 1 and 2: draws of the latents given the counts, from Gaussians that may follow the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...esteps import AbstractEStep
from ...numerics.packing import lower_indices, symmetric
from .importance import curvature
from .model import PLN
from .proposals import LOG_2PI, PROPOSALS, Plan, Proposal, nets, proposed
from .variational import HIGHEST, Loadings, Posterior, Units
from .weighted import Weighted, weighted

if TYPE_CHECKING:
    from jaxtyping import PyTree


Follow = Literal["nothing", "moments", "mean and curvature"]

#: an offset of which no rate is left
LOWEST = -1e4
#: the names of section 6, and one with heavy tails: the proposal, and what of it follows the weighted draws of the last visit
VARIANTS: dict[str, tuple[Proposal, Follow]] = {
    "isgd-vem": (Proposal(), "nothing"),
    "isgd-vemmix": (Proposal(alpha=1e-3), "nothing"),
    "aisgd-snis": (Proposal(alpha=1e-3), "moments"),
    "aisgd-hessian": (Proposal(alpha=1e-3), "mean and curvature"),
    "student": (PROPOSALS["student"], "mean and curvature"),
}


class ConditionalSampling(AbstractEStep):
    r"""Importance sampling of $w_i\mid y_i$ from $(1-\alpha)N(\mu_i, S_i) + \alpha N(\mu_i, \delta I)$ (Batardiere, Chiquet, Kwon
    and Stoehr, eq. 14, algorithms 1 and 2).

    $\mu_i$ and $S_i$ start at what the data give. With "moments" they become the weighted mean and covariance of the draws of
    the last visit (eq. 16), the covariance only where the draws are worth more than 4q; with "mean and curvature" $\mu_i$
    becomes the weighted mean and $S_i = (I + C^\top\mathrm{diag}(e^{f_i(\mu_i)})C)^{-1}$ at the current parameters (eq. 18).

    Args:
        n_draws: N; a power of two with `sobol`. proposal, follow: see `VARIANTS`. sobol: a Sobol net that every unit and
            iteration shifts, in place of independent draws. control: see `weighted`. seed: of the net.
    """

    may_be_padded: ClassVar[bool] = True
    proposal: Proposal = eqx.field(static=True)
    follow: Follow = eqx.field(static=True)
    sobol: bool = eqx.field(static=True)
    control: bool = eqx.field(static=True)
    net: Any

    def __init__(
        self, rank: int, n_draws: int = 128, proposal: Proposal = Proposal(), follow: Follow = "nothing", sobol: bool = True,  # noqa: B008
        control: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        self.proposal, self.follow, self.sobol, self.control = proposal, follow, sobol, control
        if sobol:
            self.net = nets(Plan(n_draws, 1, True, seed), proposal, rank)[0]
        else:
            self.net = np.zeros((n_draws, rank + proposal.extra), np.uint32)

    def requires(self, model, latents):
        return (
            None
            if isinstance(model, PLN)
            else f"it samples the latents of margaux.families.pln's PLN, not of {type(model).__name__}"
        )

    def init(self, key, model, params, y):
        return {"mean": y["mean"], "spread": y["spread"]}

    def noise(self, key, latents):
        n_draws, size = self.net.shape
        return jax.random.bits(key, (1 if self.sobol else n_draws, size), jnp.uint32)

    def expect(self, f, noise, model, params, rows, batch, k):
        loadings, units, gaussian = self._read(params, rows, batch)

        def make(mean, factor, bits):
            return proposed(mean, factor, bits, self._net, self.proposal)

        v, log_proposal, _ = jax.vmap(make)(gaussian.mean, jnp.linalg.cholesky(symmetric(gaussian.spread)), noise)
        eta = (units.offset + units.x @ loadings.B)[:, None] + v @ loadings.C.T
        log_joint = jnp.einsum("bnq,bq->bn", v, units.projected) - jnp.sum(jnp.exp(jnp.minimum(eta, HIGHEST)), axis=2)
        log_ratio = log_joint - jnp.sum(v**2, axis=2) / 2 - v.shape[2] * LOG_2PI / 2 - log_proposal
        w = jax.nn.softmax(log_ratio, axis=1)
        value = f(jnp.moveaxis(v, 1, 0), w.T)
        return value, rows, {"ess": 1 / jnp.sum(w**2, axis=1)}

    def expectations(self, noise: PyTree, params: PyTree, rows: PyTree, batch: PyTree) -> tuple[Weighted, Any, dict[str, Array]]:
        """What the score of a batch needs, the rows moved, and figures to trace, one a unit."""
        loadings, units, gaussian = self._read(params, rows, batch)
        count, draws = jnp.asarray(len(units.x)), jnp.asarray([0, len(self.net)])
        moments, _ = weighted(loadings, units, gaussian, noise, self._net, None, count, draws, self.proposal, self.control)
        if self.follow != "nothing":
            rows = rows | {"mean": moments.mean}
        if self.follow == "moments":
            worth = moments.ess > 4 * moments.mean.shape[1]
            rows = rows | {"spread": jnp.where(worth[:, None], moments.spread, rows["spread"])}
        counts = batch["counts"].astype(loadings.C.dtype)
        fixed = jnp.sum(counts * (units.offset + units.x @ loadings.B) - jax.scipy.special.gammaln(counts + 1), axis=1)
        return moments, rows, {"ess": moments.ess, "log_marginal": moments.log_mean + fixed}

    @property
    def _net(self) -> Array:
        return jnp.asarray(self.net, jnp.uint32)

    def _read(self, params: PyTree, rows: PyTree, batch: PyTree) -> tuple[Loadings, Units, Posterior]:
        loadings = Loadings(params["B"], params["C"])
        units = Units(batch["x"], batch["offset"], batch["counts"].astype(loadings.C.dtype) @ loadings.C)
        gaussian = Posterior(rows["mean"], rows["spread"])
        if self.follow == "mean and curvature":
            gaussian = curvature(loadings, gaussian, units, 0)
        elif self.follow == "moments":
            gaussian = gaussian._replace(spread=_definite(gaussian.spread))
        return loadings, units, gaussian


def filling(present: Array, rows: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
    """Units that are not present without counts, rates and covariates, and with latents of the prior."""

    def kept(leaf: Array, other: Any) -> Array:
        return jnp.where(present.reshape(-1, *[1] * (leaf.ndim - 1)) > 0, leaf, jnp.asarray(other, leaf.dtype))

    j, k, _ = lower_indices(rows["mean"].shape[1])
    rows = rows | {"mean": kept(rows["mean"], 0), "spread": kept(rows["spread"], j == k)}
    others = {"counts": 0, "x": 0, "offset": LOWEST}
    return rows, batch | {name: kept(batch[name], other) for name, other in others.items()}


def _definite(spread: Array) -> Array:
    """Covariance matrices with eigenvalues of at least 1e-4: draws may lie close to a plane."""
    values, vectors = jnp.linalg.eigh(symmetric(spread))
    whole = jnp.einsum("bij,bj,bkj->bik", vectors, jnp.maximum(values, 1e-4), vectors)
    j, k, _ = lower_indices(whole.shape[-1])
    return whole[:, j, k]
