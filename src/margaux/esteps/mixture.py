"""A proposal that can be trusted where the fit is over: all modes that are found, moments that are learned, heavy tails."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics import triangular
from ..numerics.arrays import mapped_as
from ..numerics.gaussian import NEGLIGIBLE, Mode, find_modes, normals
from ..numerics.sampling import pareto_shape
from ..problem.mixed import AbstractMixed, mixed
from ..problem.model import AbstractConcave, AbstractPopulation, costly, for_searches, leading
from .base import flat_start, flat_target
from .elsewhere import AROUND, FAR, TOLD, against, further, places, surroundings, told
from .proposals import LOG_2PI, AbstractProposal

#: successive draws come from the Gaussians (0), Student's t with four degrees of freedom (1), and the population (2)
PARTS, WITH_POPULATION = (0, 0, 1, 0, 0), (0, 0, 1, 0, 2)
#: scale of the t, in units of the Gaussians
STRETCH = 2.0
#: directions of further searches, and times as many searches as usual until each of several modes was found often
DIRECTIONS, MORE = 16, 5
#: places where other units have their modes at which each log density is looked at, and one that takes long
LOOKS, FEW_LOOKS = 32, 16
#: rounds in which moments are learned, and draws in each, a latent and component, and at most
ROUNDS, TRIAL, MOST_TRIAL = 3, 32, 256


class ModeMixture(AbstractProposal):
    r"""$\sum_k \alpha_k\,[0.75\,N(m_k, S_k) + 0.25\,t_4(m_k, 4\,S_k)]$ over the modes that a search from far away finds.

    Components start at the Laplace approximations of the modes, with shares by their masses, and are moved to weighted moments
    of trial draws (population Monte Carlo: Cappe, Douc, Guillin, Marin and Robert 2008, eqs. 13 to 15).
    The t bounds the weights of every posterior with lighter tails. A model with a Gaussian population gives a fifth of the draws
    to it, which bounds them wherever the likelihood of the latents is bounded. Once learned, the proposal is held where
    parameters move a little: with the same noise the likelihood is then a smooth function of them.

    Of a population that is a mixture modes are searched for from the mean of each of its components, too.

    Args:
        n_modes: components at most. searches: for modes, the first from the model's own start. most: searches where several modes
            are found, until each was found often; five times as many by default. rounds: in which moments are learned.
        starts: of one unit (p, d): where its searches after the first three begin; not finite: where they would without.
    """

    n_modes: int = eqx.field(static=True, default=3)
    searches: int | Array | np.ndarray = eqx.field(converter=np.asarray, default=3 + len(FAR))
    rounds: int | Array | np.ndarray = eqx.field(converter=np.asarray, default=ROUNDS)
    most: int | Array | np.ndarray | None = eqx.field(converter=lambda n: None if n is None else np.asarray(n), default=None)
    starts: Float[Array, "p d"] | np.ndarray | None = None

    @property
    def extra(self):
        return 2

    def init(self, key, model, params, y):
        target, _ = flat_target(for_searches(model), params, y)
        start = mapped_as(y, flat_start(key, model, params, y))
        d = start.size
        trial = normals(jax.random.fold_in(key, 1), min(TRIAL * self.n_modes * d, MOST_TRIAL), d, start.dtype, True, self.extra)
        pair = start, flat_start(jax.random.fold_in(key, 3), model, params, y)
        means = mapped_as(y, model.component_means(params, y)) if isinstance(model, AbstractMixed) and mixed(model) else None
        modes, mass, count, unseen = self._modes(target, pair, trial[:DIRECTIONS, :d], means)
        row = {
            "mean": modes.at,
            "cholesky": modes.root,
            "log_share": jax.nn.log_softmax(mass),
            "away": modes.away[0],
            "modes": count.astype(mass.dtype),
            "unseen": unseen,
            "against": jnp.zeros_like(unseen),
            "hints": jnp.full((TOLD, d), jnp.inf, start.dtype),
        }

        def moments(_, row):
            x, log_q, _ = self.draw(trial, model, params, row, y)
            log_w = jax.vmap(target)(x) - log_q
            w = jax.nn.softmax(jnp.where(jnp.isnan(log_w), -jnp.inf, log_w))
            return _learned(row, x, w)

        return jax.lax.fori_loop(0, self.rounds, moments, row)

    def _modes(
        self, target, pair: tuple[Array, Array], normal: Float[Array, "m d"], means: Float[Array, "c d"] | None = None
    ) -> tuple[Mode, Array, Array, Array]:
        """Distinct modes (K, ...), that of most mass first, searched for from the pair, from far away in normal directions and
        from the given means; their log masses (minus infinity: none); how many; and see `find_modes`."""
        start, other = pair
        directions = normal / jnp.sqrt(jnp.sum(normal**2, axis=1, keepdims=True))
        searches = self.searches if means is None else self.searches + len(means)

        def place(i, first, root):
            near = jnp.where(i == 0, start, jnp.where(i == 1, other, -first))
            turn, far = jnp.divmod(jnp.maximum(i - 3, 0), len(FAR))
            direction = directions[turn % len(directions)]
            step = triangular.solve_transposed(root, direction)
            step = jnp.where(jnp.isfinite(step), step, direction)
            at = jnp.where(i < 3, near, first + jnp.asarray(FAR, first.dtype)[far] * further(turn) * step)
            if self.starts is not None:
                spot = jnp.asarray(self.starts, at.dtype)[jnp.clip(i - 3, 0, len(self.starts) - 1)]
                given = (i >= 3) & (i < 3 + len(self.starts)) & jnp.isfinite(spot[0])
                at = jnp.where(given, spot, at)
            own = (i >= self.searches) & (i < searches)
            return at if means is None else jnp.where(own, means[i - self.searches], at)

        most = MORE * searches if self.most is None else self.most
        modes, mass, unseen = find_modes(target, place, start, searches, self.n_modes, most)
        best = jnp.argmax(mass)
        order = jnp.arange(self.n_modes).at[0].set(best).at[best].set(0)
        modes, mass = jax.tree.map(lambda leaf: leaf[order], modes), mass[order]
        kept = mass > jnp.max(mass) + np.log(NEGLIGIBLE)
        kept = kept | (~jnp.any(kept) & (jnp.arange(self.n_modes) == 0))
        return modes, jnp.where(kept, mass, -jnp.inf), jnp.sum(kept), unseen

    def blank(self, d: int) -> dict[str, np.ndarray]:
        """A row of the shapes of those that `init` makes for d latents."""
        k = self.n_modes
        means = {"mean": np.zeros((k, d)), "cholesky": np.zeros((k, d, d)), "log_share": np.zeros(k)}
        figures = {name: np.zeros(()) for name in ("away", "modes", "unseen", "against")}
        return means | figures | {"hints": np.full((TOLD, d), np.inf)}

    def compared(self, model, params, rows, data):
        """With signs of modes that were not met: places at which a unit's log density does not rise towards its own. `against` is
        how many there are where those beside it have theirs, which depends on who they are; `hints` are some of these, and of
        its own surroundings. A single search, or one without draws, does not look.
        """
        alone, slow = leading(data) == 1, costly(model)
        if (isinstance(model, AbstractConcave) and model.concave) or (alone and slow):
            return rows
        centres, roots = rows["mean"][:, 0], rows["cholesky"][:, 0]
        others = centres[:0] if alone else places(centres, FEW_LOOKS if slow else LOOKS)
        near = surroundings(centres.shape[1], alone)[: 0 if slow else AROUND].astype(centres.dtype)

        def of_unit(centre, root, y):
            x = jnp.concatenate([others, centre + near @ root.T])
            falls = against(flat_target(model, params, y)[0], centre, root, x)
            return {"against": jnp.sum(falls[: len(others)], dtype=x.dtype), "hints": told(x, falls)}

        thorough = (jnp.asarray(self.searches) > 1) & (jnp.asarray(self.rounds) > 0)
        signs = {name: rows[name] for name in ("against", "hints")}
        return rows | jax.lax.cond(thorough, lambda: jax.vmap(of_unit)(centres, roots, data), lambda: signs)

    def follow(self, model, params, row, y):
        return row

    def draw(self, noise, model, params, row, y):
        m, d = noise.shape[0], noise.shape[1] - self.extra
        e, pair = noise[:, :d], noise[:, d:]
        population = model.population(params, y) if isinstance(model, AbstractPopulation) else None
        pattern = np.asarray(PARTS if population is None else WITH_POPULATION)[np.arange(m) % len(PARTS)]
        # Draws go to the components by rank within each run of five, in proportions that are then counted, not estimated.
        rank = (jnp.arange(m) // len(PARTS) + 0.5) / -(-m // len(PARTS))
        ends = jnp.cumsum(jnp.exp(row["log_share"]))
        own = jnp.minimum(jnp.sum(rank[:, None] > ends / ends[-1], axis=1), len(ends) - 1)
        # Chi-squared with four degrees of freedom is minus twice the log of a product of two uniforms.
        heavy = np.flatnonzero(pattern == 1)
        chi = -2 * jnp.sum(jnp.log(pair[heavy]), axis=1)
        chi = jnp.maximum(chi, jnp.finfo(chi.dtype).eps)
        stretch = jnp.ones(m, chi.dtype).at[heavy].set(STRETCH * jnp.sqrt(4 / chi))
        x = row["mean"][own] + jnp.einsum("mij,mj->mi", row["cholesky"][own], e * stretch[:, None])
        if population is not None:
            mean, root = population
            x = jnp.where(jnp.asarray(pattern == 2)[:, None], mean + e @ root.T, x)
        log_c = math.lgamma((4 + d) / 2) - d / 2 * math.log(4 * math.pi) - d * math.log(STRETCH)

        def component(k, mean, root):
            square = jnp.sum(_whiten(root, (x - mean).T) ** 2, axis=0)
            gauss = -square / 2 - d / 2 * LOG_2PI
            student = log_c - (4 + d) / 2 * jnp.log(1 + square / (4 * STRETCH**2))
            own_kinds = (own == k) & np.stack([pattern == 0, pattern == 1])
            share = jnp.log(jnp.mean(own_kinds, axis=1, dtype=x.dtype))
            return jnp.stack([gauss, student]) + (share - jnp.sum(jnp.log(jnp.diagonal(root))))[:, None]

        parts = jax.vmap(component)(jnp.arange(len(ends)), row["mean"], row["cholesky"]).reshape(-1, m)
        if population is not None:
            square = jnp.sum(_whiten(root, (x - mean).T) ** 2, axis=0)
            share = np.log(np.mean(pattern == 2)) - jnp.sum(jnp.log(jnp.diagonal(root)))
            parts = jnp.concatenate([parts, (share - square / 2 - d / 2 * LOG_2PI)[None]])
        return x, jax.nn.logsumexp(parts, axis=0), x

    def learn(self, row, told, w):
        return row

    def figures(self, row, log_w):
        return {"pareto": pareto_shape(log_w), "away": row["away"], "modes": row["modes"]}


def _whiten(root: Array, gap: Array) -> Array:
    # Through the inverse: triangular solves for thousands of right sides at once can hang XLA's thread pool.
    return triangular.inverse_root(root) @ gap


def _learned(row, x: Float[Array, "m d"], w: Float[Array, " m"]):
    """Components moved to the weighted moments of draws, each as far as its own effective draws say enough of it."""
    d = x.shape[1]

    def density(mean, root, log_share):
        white = _whiten(root, (x - mean).T)
        return log_share - jnp.sum(white**2, axis=0) / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))

    logs = jax.vmap(density)(row["mean"], row["cholesky"], row["log_share"])
    # A draw in the tails of all components belongs to the nearest; one with share zero gets none.
    owned = w * jax.nn.softmax(jnp.maximum(logs, -1e300), axis=0)

    def one(mean, root, own):
        mass = jnp.sum(own)
        part = own / jnp.maximum(mass, 1e-300)
        size = 1 / jnp.maximum(jnp.sum(part**2), 1e-300)
        trust = jnp.where(mass > 1e-8, 0.9 * size / (size + 2 * (d + 1)), 0.0)
        centre = part @ x
        gap = x - centre
        old = root @ root.T + jnp.outer(mean - centre, mean - centre)
        moved = triangular.cholesky(trust * (gap * part[:, None]).T @ gap + (1 - trust) * old)
        good = jnp.all(jnp.isfinite(moved)) & (trust > 0)
        return jnp.where(good, centre, mean), jnp.where(good, moved, root), mass

    mean, root, mass = jax.vmap(one)(row["mean"], row["cholesky"], owned)
    known = row["log_share"] > -jnp.inf
    # No component that is a mode is starved: what trial draws missed is still there.
    share = jnp.where(known, 0.9 * mass + 0.1 * jnp.exp(row["log_share"]), 0.0)
    return row | {"mean": mean, "cholesky": root, "log_share": jnp.log(share / jnp.sum(share))}
