"""Margaux models that a NumPyro model becomes: with latents by unit, with all in one unit, or with both kinds."""

from __future__ import annotations

import abc
from importlib import import_module
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...answers.arviz import latents, over_draws
from ...esteps import MCMC
from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from ...problem.model import AbstractModel, AbstractPointwise, AbstractPredictive, AbstractShared, Latents, Params, Unit
from .program import Program, Site, expanded, one, squeezed, units_back, units_first

if TYPE_CHECKING:
    from ...answers.fit import Fit


class BySite(AbstractPointwise, AbstractPredictive):
    """What is told of a unit by site, each value with the units it has on the leading axis."""

    program: eqx.AbstractVar[Program]

    def arviz_parts(self, fit: Fit, n_draws: int, key: int) -> Any:
        """What a fit gives to ArviZ, by site."""
        return import_module(f"{__package__}.arviz").of_numpyro(fit, n_draws, key)

    @abc.abstractmethod
    def _at(self, z: Latents, y: Unit) -> tuple[Unit, Latents]:
        """Data and latents as the program takes them."""

    @abc.abstractmethod
    def _told(self, values: dict[str, Array], sites: tuple[Site, ...]) -> dict[str, Array]:
        """Values of sites as they are told."""

    def _values(self, params: Params, z: Latents, y: Unit, sites: tuple[Site, ...]) -> dict[str, Array]:
        return self._told(self.program.values(params, *self._at(z, y), sites), sites)

    def constrained(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Latents on their own scale, by site."""
        return self._values(params, z, y, self.program.latents)

    def deterministic(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Deterministic sites."""
        return self._values(params, z, y, self.program.deterministic)

    def observations(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Observed values, by site."""
        return self._values(params, z, y, self.program.observed)

    def densities(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Log density of each observation, by site; NaN under a mask."""
        return self._told(self.program.pointwise(params, *self._at(z, y)), self.program.observed)

    def pointwise(self, params, z, y):
        each = list(self.densities(params, z, y).values())
        return each[0] if len(each) == 1 else jnp.concatenate([jnp.ravel(one) for one in each])

    def simulate(self, key, params, z, y):
        return self._told(self.program.simulated(key, params, *self._at(z, y)), self.program.observed)

    def posterior(self, fit: Fit, n_draws: int = 1000, thin: int = 1, key: int = 0) -> dict[str, np.ndarray]:
        """Posterior draws at the estimate by site, on their own scale, deterministic sites with them.

        From the fit's chains as in `Fit.draws`; where there are none, independent draws as in `Fit.to_arviz`.

        Returns:
            Arrays (n_draws, chains, n, ...); where some latents are shared (n_draws, chains, 1, ...), those of units
            (n_draws, chains, 1, n, ...).
        """
        if isinstance(fit.estep, MCMC) and fit.rows is not None:
            z = fit.draws(n_draws, thin, key)
        else:
            z = jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), latents(fit, n_draws, key)[0])
        return over_draws(natural, self, fit.params, z, fit.data)


class NumPyroModel(AbstractModel, BySite):
    """One unit of a NumPyro model: latents are unconstrained, by site name.

    Without a unit plate the one unit is all the data.
    """

    program: Program

    def _at(self, z, y):
        return y if self.program.plate is None else one(y), expanded(z, self.program.latents)

    def _told(self, values, sites):
        return squeezed(values, sites)

    def log_joint(self, params, z, y):
        return self.program.log_density(params, *self._at(z, y))

    def init_latents(self, key, params, y):
        units = y if self.program.plate is None else one(y)
        return squeezed(self.program.started(key, params, units), self.program.latents)


class NumPyroSharedModel(AbstractShared, BySite):
    """A NumPyro model with latents by unit and latents that all units share; the data are one unit that holds them all."""

    program: Program

    def _at(self, z, y):
        return y, z["shared"] | units_back(z["units"], self.program.latents)

    def _told(self, values, sites):
        return units_first(values, sites)

    @property
    def _inside(self) -> tuple[Site, ...]:
        return tuple(site for site in self.program.latents if site.axis is not None)

    def log_shared(self, params, shared, y):
        # The density outside the plate does not depend on what is inside, which is why any values will do there.
        shapes = jax.eval_shape(lambda: self.program.started(key_of(0), params, y))
        nothing = {name: jnp.zeros(shapes[name].shape, shapes[name].dtype) for name, _ in self._inside}
        return self.program.log_density(params, y, shared | nothing, inside=False)

    def log_unit(self, params, shared, z, y):
        return self.program.log_density(params, one(y), shared | expanded(z, self._inside), inside=True)

    def init_latents(self, key, params, y):
        values = units_first(self.program.started(key, params, y), self.program.latents)
        units = {name: values.pop(name) for name, _ in self._inside}
        return {"shared": values, "units": units}


@compiled
def natural(model: BySite, params: PyTree, z: PyTree, data: PyTree) -> dict[str, Array]:
    """Latents on their own scale and deterministic sites, of draws (m, n, ...)."""

    def unit(z, y):
        return model.constrained(params, z, y) | model.deterministic(params, z, y)

    each = jax.vmap(unit)
    return jax.lax.map(lambda draw: each(draw, data), z)
