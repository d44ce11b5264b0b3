"""The nonlinear mixed-effects model as the engine sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from ...algorithms.curved import AbstractCurvedFamily
from ...numerics.keys import key_of
from ...problem.mixed import AbstractMixed
from ...problem.model import (
    AbstractCostly,
    AbstractDifferentiated,
    AbstractPointwise,
    AbstractPopulation,
    AbstractPredictive,
    AbstractUneven,
)
from ...problem.space import Positive, PositiveDefinite, Real
from . import classes, derivatives, shaped
from .held import NOTHING, HeldValues, least_squares
from .individual import Individual
from .outcomes import DOSES, AbstractOutcome, Continuous, whole
from .prior_density import NO_PRIOR, PriorDensity

#: what a vanishing variance falls by an iteration
VANISHING = 0.985


class MixedEffects(
    AbstractCurvedFamily,
    AbstractDifferentiated,
    AbstractPopulation,
    AbstractUneven,
    AbstractPointwise,
    AbstractPredictive,
    AbstractCostly,
    AbstractMixed,
):
    r"""$y_{ij}\sim p(\cdot\mid\psi_i)$, $\psi_i = h(\phi_i)$, $\phi_i\sim N(C_i\beta, \Omega)$.

    The latent of a subject is $\phi$ of its random parameters (d,). Engine parameters: `beta`, coefficients of the
    random parameters on the Gaussian scale; `fixed`, those of parameters without random effect; `omega2`, variances of
    independent effects; `omega`, covariance matrices of blocks; `error`; `shape`, of effects that are not normal; `share` and
    `shift`, of classes of subjects (see `margaux.families.nlme.classes`). Groups that are empty are left out.

    A subject's data: `rows` (column -> (T,), the outcome under "y"), `mask` (T,), `design` (P,) of all coefficients (and, behind
    it, what `BetweenOccasions` says).

    Args:
        individual: (name, distribution) of each individual parameter.
        owner: the parameter that each coefficient belongs to, random parameters' coefficients first.
        blocks: correlated effects, as tuples of positions among the random parameters.
        vanishing: parameters without random effect that are given one whose variance vanishes ("exponentialised":
            Kuhn and Lavielle 2005, section 5), so that their M-step is closed. vanished: variances (of the
            independent effects) below which it does not fall, since EM no longer moves what hardly varies.
        groups: how many subjects, in the order of their data, have at most so many rows: see `by_size`.
        varying, shifted, most: see `margaux.families.nlme.occasions.BetweenOccasions`.
        typical: starting values of typical parameters on the natural scale, NaN where none is given. first_shapes: of `shape`,
            the engine's parameters of `margaux.families.nlme.shaped`. held: what is not estimated.
        prior: of the parameters; with one, sums over subjects are of the posterior density of theta instead of the likelihood.
    """

    outcome: AbstractOutcome = eqx.field(static=True)
    individual: tuple[tuple[str, Individual], ...] = eqx.field(static=True)
    owner: tuple[int, ...] = eqx.field(static=True)
    blocks: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    vanishing: tuple[str, ...] = eqx.field(static=True, default=())
    vanished: Any = None
    groups: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())
    varying: tuple[int, ...] = eqx.field(static=True, default=())
    shifted: tuple[int, ...] = eqx.field(static=True, default=())
    most: int = eqx.field(static=True, default=1)
    typical: Any = None
    first_shapes: Any = None
    held: HeldValues = NOTHING
    prior: PriorDensity = NO_PRIOR

    @property
    def costly(self):
        return isinstance(self.outcome, Continuous) and whole(self.outcome.structural) is not None

    def lengths(self, data):
        rows, mask = data["rows"], np.asarray(data["mask"]) > 0
        spans = np.max(np.where(mask, rows["time"], -np.inf), axis=1) - np.min(np.where(mask, rows["time"], np.inf), axis=1)
        return np.sum(mask, axis=1) * (1 + spans / np.median(spans)) if np.median(spans) > 0 else np.sum(mask, axis=1)

    def rough(self) -> MixedEffects:
        """The model with predictions near enough to be started from, where they take long."""
        return self._with(lambda dynamics: dataclasses.replace(dynamics.rough(), derivatives="first"))

    def for_searches(self) -> MixedEffects:
        return self._with(lambda dynamics: dynamics.for_searches())

    def forward(self) -> MixedEffects:
        """The model to be differentiated in few directions, by forward mode."""
        return self._with(lambda dynamics: dataclasses.replace(dynamics, derivatives="forward"))

    def _with(self, changed: Callable[[Any], Any]) -> MixedEffects:
        """With differential equations changed, where there are any."""
        if not self.costly:
            return self
        outcome: Any = self.outcome
        curve = dataclasses.replace(outcome.structural, function=changed(outcome.structural.function))
        return dataclasses.replace(self, outcome=dataclasses.replace(outcome, structural=curve))

    @property
    def random(self) -> list[int]:
        """Positions of the parameters with a random effect."""
        return [j for j, (_, one) in enumerate(self.individual) if one.random]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.individual]

    @property
    def shaped(self) -> list[int]:
        """Positions of the parameters whose random effect is not normal."""
        return shaped.places(self.individual)

    @property
    def classes(self) -> int:
        """How many classes of subjects there are: one where no parameter has any."""
        return classes.count(self.individual)

    @property
    def components(self):
        return self.classes

    def component_means(self, params, y):
        return classes.means(self, params, y["design"])

    @property
    def names_of_random(self) -> list[str]:
        """Names of the parameters with a random effect."""
        return [self.names[j] for j in self.random]

    @property
    def independent(self) -> list[int]:
        """Positions, among the random parameters, of effects in no block."""
        inside = {j for block in self.blocks for j in block}
        return [j for j in range(len(self.random)) if j not in inside]

    @property
    def split(self) -> int:
        """Number of coefficients of random parameters."""
        return sum(1 for j in self.owner if j in set(self.random))

    @property
    def followed(self) -> int:
        """Number of coefficients of occasions whose parameters vary between them, too: `delta`."""
        return sum(1 for j in self.shifted if j in self.varying)

    @property
    def changing(self) -> tuple[int, ...]:
        """Positions of the parameters that are others from occasion to occasion."""
        return tuple(dict.fromkeys((*self.varying, *self.shifted)))

    @property
    def drifting(self) -> int:
        """Number of the other ones: `drift`."""
        return len(self.shifted) - self.followed

    @property
    def closed_error(self) -> bool:
        closed = isinstance(self.outcome, Continuous) and self.outcome.error.closed and not self.outcome.censored
        return closed and not self.prior.of("error")

    @property
    def numerical(self) -> tuple[str, ...]:
        return tuple(name for name in self._without_closed_step if name not in self.held.whole)

    @property
    def _without_closed_step(self) -> tuple[str, ...]:
        without = (("fixed",) if self.split < len(self.owner) else ()) + (("drift",) if self.drifting else ())
        return without + (("error",) if self.outcome.error_names and not self.closed_error else ()) + shaped.moving(self)

    @property
    def curved(self) -> tuple[str, ...]:
        """Parameters in which the complete log-likelihood is differentiated: residuals move with those without random effect."""
        names = self._without_closed_step
        return tuple(dict.fromkeys((*names, "error"))) if names and self.outcome.error_names else names

    @property
    def variances(self) -> tuple[str, ...]:
        own = (("omega2",) if self.independent else ()) + (("omega",) if self.blocks else ())
        own += ("gamma2",) if self.varying else ()
        return own + (("error",) if self.closed_error else ())

    def trimmed(self, units, rows):
        shorter = {name: leaf if name == DOSES else leaf[:, :rows] for name, leaf in units["rows"].items()}
        return units | {"rows": shorter, "mask": units["mask"][:, :rows]}

    def space(self) -> dict[str, Any]:
        """Theta, by name of the parameters there are."""
        out: dict[str, Any] = {"beta": Real()} if self.random else {}
        out |= {"fixed": Real()} if self.split < len(self.owner) else {}
        out |= {"omega2": Positive()} if self.independent else {}
        out |= {"omega": tuple(PositiveDefinite() for _ in self.blocks)} if self.blocks else {}
        out |= {"gamma2": Positive()} if self.varying else {}
        out |= {"delta": Real()} if self.followed else {}
        out |= {"drift": Real()} if self.drifting else {}
        out |= {"error": Positive()} if self.outcome.error_names else {}
        out |= {"shape": Real()} if self.shaped else {}
        out |= {"share": Real(), "shift": Real()} if self.classes > 1 else {}
        return self.held.within(out)

    def _onehot(self, owners: list[int], positions: list[int]) -> np.ndarray:
        return np.asarray([[float(o == j) for j in positions] for o in owners]).reshape(len(owners), len(positions))

    def mean(self, params: dict, design: Float[Array, " P"]) -> Float[Array, " d"]:
        """C_i beta of the random parameters."""
        part = params["beta"] * design[: self.split]
        return part @ jnp.asarray(self._onehot(list(self.owner[: self.split]), self.random), part.dtype)

    @property
    def held_coefficients(self) -> np.ndarray:
        """Which coefficients, of all parameters, are held."""
        sizes = {"beta": self.split, "fixed": len(self.owner) - self.split}
        return np.concatenate([self.held.mask(name, size) for name, size in sizes.items()])

    @property
    def held_shifts(self) -> np.ndarray:
        """Which coefficients of occasions are held."""
        return np.concatenate([self.held.mask("delta", self.followed), self.held.mask("drift", self.drifting)])

    def coefficients(self, j: int) -> list[int]:
        """Positions of the coefficients of parameter j, its intercept first."""
        return [k for k, owner in enumerate(self.owner) if owner == j]

    def shifts(self, j: int) -> list[int]:
        """Positions, among the coefficients of occasions, of those of parameter j."""
        return [k for k, owner in enumerate(self.shifted) if owner == j]

    def means(self, params: dict, design: np.ndarray) -> np.ndarray:
        """C_i beta of many subjects (n, d), by NumPy."""
        weights = np.asarray(params["beta"])[:, None] * self._onehot(list(self.owner[: self.split]), self.random)
        return design[:, : self.split] @ weights

    def of_subject(self, params: dict, z: Float[Array, " d"], design: Float[Array, " P"]) -> dict[str, Array]:
        """A subject's parameters on the Gaussian scale, whatever the occasion."""
        gaussian = {self.names[j]: z[position] for position, j in enumerate(self.random)}
        if self.split < len(self.owner):
            rest = [j for j in range(len(self.names)) if j not in self.random]
            part = params["fixed"] * design[self.split : len(self.owner)]
            values = part @ jnp.asarray(self._onehot(list(self.owner[self.split :]), rest), part.dtype)
            gaussian |= {self.names[j]: values[position] for position, j in enumerate(rest)}
        for name, more in shaped.shaped_effects(self, params, z, design).items():
            gaussian[name] += more
        return gaussian

    def psi(self, params: dict, z: Float[Array, " d"], design: Float[Array, " P"]) -> dict[str, Array]:
        """Individual parameters on the natural scale."""
        gaussian = self.of_subject(params, z, design)
        return {name: one.natural(gaussian[name]) for name, one in self.individual}

    def covariance(self, params: dict) -> Float[Array, "d d"]:
        """Omega."""
        d = len(self.random)
        out = jnp.zeros((d, d), jax.tree.leaves(params)[0].dtype)
        own = np.asarray(self.independent, int)
        if len(own):
            out = out.at[own, own].set(params["omega2"])
        for block, matrix in zip(self.blocks, params.get("omega", ()), strict=True):
            out = out.at[np.ix_(block, block)].set(matrix)
        return out

    def covariances(self, params: dict) -> np.ndarray:
        """`covariance` by NumPy."""
        out = np.zeros((len(self.random), len(self.random)))
        if len(self.independent):
            out[self.independent, self.independent] = params["omega2"]
        for block, matrix in zip(self.blocks, params.get("omega", ()), strict=True):
            out[np.ix_(block, block)] = matrix
        return out

    def log_likelihoods(self, params: dict, phi: Array, unit: dict) -> Array:
        """log p(y_it | phi_i) of each row (T,), zero in the padding."""
        psi = self.psi(params, phi, unit["design"])
        error = params.get("error", jnp.zeros(0, phi.dtype))
        return jnp.where(unit["mask"] > 0, self.outcome.log_density(error, psi, unit["rows"]), 0.0)

    def pointwise(self, params, z, y):
        return jnp.where(y["mask"] > 0, self.log_likelihoods(params, z, y), jnp.nan)

    def simulate(self, key, params, z, y):
        error = params.get("error", jnp.zeros(0, z.dtype))
        return {"y": self.outcome.simulate(key, error, self.psi(params, z, y["design"]), y["rows"])}

    def log_likelihood(self, params: dict, phi: Array, unit: dict) -> Array:
        """log p(y_i | phi_i)."""
        return jnp.sum(self.log_likelihoods(params, phi, unit))

    def log_joint(self, params, z, y):
        return self.log_likelihood(params, z, y) + self.log_effects(params, z, y) + self.prior.share(params)

    def log_effects(self, params: dict, z: Array, y: dict) -> Any:
        """log p of the latents."""
        if not self.random:
            return jnp.sum(norm.logpdf(z))
        effect = z[: len(self.random)] - self.mean(params, y["design"])
        return self.log_normal(params, effect) if self.classes == 1 else classes.log_density(self, params, effect)

    def log_normal(self, params: dict, effect: Float[Array, " d"]) -> Any:
        """log N(effect; 0, Omega)."""
        total: Any = 0.0
        own = np.asarray(self.independent, int)
        if len(own):
            total += jnp.sum(norm.logpdf(effect[own], 0.0, jnp.sqrt(params["omega2"])))
        for block, matrix in zip(self.blocks, params.get("omega", ()), strict=True):
            factor = jnp.linalg.cholesky(matrix)
            # Through the inverse, as in `margaux.esteps.ModeMixture`: a solve for thousands of draws at once can hang.
            inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(block), dtype=effect.dtype), lower=True)
            white = inverse @ effect[np.asarray(block)]
            constant = len(block) / 2 * np.log(2 * np.pi)
            total += -jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(factor))) - constant
        return total

    def effects_of_occasions(self, params: dict, z: Array, y: dict) -> Float[Array, "m K"]:
        """Of each parameter that varies between occasions, its effects less those of covariates; zero where there is none."""
        return jnp.zeros((0, self.most), z.dtype)

    def derivatives(self, params, z, w, batch):
        return (derivatives if self.classes == 1 else classes).of_draws(self, params, z, w, batch)

    def init_latents(self, key, params, y):
        if not self.random:
            return jnp.zeros(1, y["design"].dtype)
        mean = self.mean(params, y["design"])
        return mean if self.classes == 1 else mean + classes.shift_of_one(self, key, params)

    def population(self, params, y):
        if self.classes > 1:
            return classes.moments(self, params, y["design"])
        centre = self.init_latents(key_of(0), params, y)
        return centre, jnp.linalg.cholesky(self.covariance(params)) if self.random else jnp.eye(1, dtype=centre.dtype)

    def suffstats(self, params, z, y):
        out = {}
        if self.random:
            design, phi = y["design"][: self.split], z[: len(self.random)]
            out = {"phi2": jnp.outer(phi, phi), "cross": jnp.outer(design, phi), "gram": jnp.outer(design, design)}
        if self.closed_error:
            outcome: Any = self.outcome
            squares = jnp.where(y["mask"] > 0, outcome.squares(self.psi(params, z, y["design"]), y["rows"]), 0.0)
            of_each = outcome.error.of_each
            out |= {"squares": of_each(squares, y["rows"]), "count": of_each(y["mask"], y["rows"])}
        return out

    def m_step(self, mean_stats, params):
        new = dict(params)
        if self.random:
            new |= self._gaussian_step(mean_stats, params)
        if self.closed_error:
            new["error"] = jnp.sqrt(mean_stats["squares"] / mean_stats["count"])
        return self.held.kept(new, params)

    def _gaussian_step(self, s: dict, params: dict) -> dict:
        """Generalised least squares of what is not held of beta at the current Omega, then Omega at the new beta, by
        their posterior."""
        owners = np.asarray([self.random.index(j) for j in self.owner[: self.split]])
        if self.blocks or self.prior.of("beta"):
            precision = jnp.linalg.inv(self.covariance(params))
            gram = s["gram"] * precision[np.ix_(owners, owners)]
            moment = jnp.sum(s["cross"] * precision[owners], axis=1)
        else:
            gram = s["gram"] * jnp.asarray(owners[:, None] == owners[None], s["gram"].dtype)
            moment = s["cross"][np.arange(len(owners)), owners]
        gram, moment = self.prior.in_normal_equations("beta", gram, moment)
        beta = least_squares(gram, moment, self.held.mask("beta", len(owners)), params["beta"])
        spread = beta[:, None] * jnp.asarray(self._onehot(owners.tolist(), list(range(len(self.random)))), beta.dtype)
        fitted = spread.T @ s["cross"]
        omega = s["phi2"] - fitted - fitted.T + spread.T @ s["gram"] @ spread
        out: dict[str, Any] = {"beta": beta}
        own = np.asarray(self.independent, int)
        if len(own):
            fading = jnp.asarray([self.names[self.random[j]] in self.vanishing for j in own])
            out["omega2"] = self.prior.in_variances("omega2", jnp.diagonal(omega)[own])
            if self.vanishing:
                held = jnp.maximum(VANISHING * params["omega2"], self.vanished)
                out["omega2"] = jnp.where(fading, held, out["omega2"])
        if self.blocks:
            out["omega"] = self.prior.in_blocks(tuple(omega[np.ix_(block, block)] for block in self.blocks))
        return out
