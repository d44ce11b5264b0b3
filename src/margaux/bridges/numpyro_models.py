"""Margaux models that a NumPyro model becomes: with latents by unit, with all in one unit, or with both kinds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..compiling import compiled
from ..model import AbstractModel, AbstractPointwise, AbstractPredictive, AbstractShared, Latents, Params, Unit
from ..naming import default_dtype, precision, settle
from .numpyro_program import Program, expanded, one, squeezed, units_back, units_first


class NumPyroModel(AbstractModel, AbstractPointwise, AbstractPredictive):
    """One unit of a NumPyro model: latents are unconstrained, by site name.

    Without a unit plate the one unit is all the data.
    """

    program: Program

    def _units(self, y: Unit) -> Unit:
        return y if self.program.plate is None else one(y)

    def _latents(self, z: Latents) -> Latents:
        return expanded(z, self.program.latents)

    def log_joint(self, params, z, y):
        return self.program.log_density(params, self._units(y), self._latents(z))

    def init_latents(self, key, params, y):
        return squeezed(self.program.started(key, params, self._units(y)), self.program.latents)

    def constrained(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Latents of one unit on their own scale, by site."""
        what = self.program.latents
        return squeezed(self.program.values(params, self._units(y), self._latents(z), what), what)

    def deterministic(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Deterministic sites of one unit."""
        what = self.program.deterministic
        return squeezed(self.program.values(params, self._units(y), self._latents(z), what), what)

    def pointwise(self, params, z, y):
        each = squeezed(self.program.pointwise(params, self._units(y), self._latents(z)), self.program.observed)
        return _joined(list(each.values()))

    def simulate(self, key, params, z, y):
        return squeezed(self.program.simulated(key, params, self._units(y), self._latents(z)), self.program.observed)

    def posterior(self, fit: Any, n_draws: int = 1000, thin: int = 1, key: int = 0) -> dict[str, np.ndarray]:
        """Posterior draws at the estimate by site, on their own scale, deterministic sites with them: see `Fit.draws`.

        Returns:
            Arrays (n_draws, chains, n, ...).
        """
        return _natural(self, fit, n_draws, thin, key)


class NumPyroSharedModel(AbstractShared, AbstractPointwise, AbstractPredictive):
    """A NumPyro model with latents by unit and latents that all units share; the data are one unit that holds them all."""

    program: Program

    def _latents(self, z: Latents) -> Latents:
        return z["shared"] | units_back(z["units"], self.program.latents)

    def log_shared(self, params, shared, y):
        # The density outside the plate does not depend on what is inside, which is why any values will do there.
        nothing = self._nothing(params, y)
        return self.program.log_density(params, y, shared | nothing, inside=False)

    def log_unit(self, params, shared, z, y):
        inside = tuple(site for site in self.program.latents if site.axis is not None)
        return self.program.log_density(params, one(y), shared | expanded(z, inside), inside=True)

    def _nothing(self, params: Params, y: Unit) -> Latents:
        shapes = jax.eval_shape(lambda: self.program.started(jax.random.key(0), params, y))
        return {site.name: jnp.zeros(s.shape, s.dtype) for site in self.program.latents if site.axis is not None
                for s in [shapes[site.name]]}  # fmt: skip

    def init_latents(self, key, params, y):
        return self._split(self.program.started(key, params, y))

    def _split(self, values: dict[str, Array]) -> Latents:
        inside = {site.name for site in self.program.latents if site.axis is not None}
        values = units_first(values, self.program.latents)
        return {
            "shared": {name: value for name, value in values.items() if name not in inside},
            "units": {name: value for name, value in values.items() if name in inside},
        }

    def constrained(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Latents on their own scale by site, those of units with the units on the leading axis."""
        what = self.program.latents
        return units_first(self.program.values(params, y, self._latents(z), what), what)

    def deterministic(self, params: Params, z: Latents, y: Unit) -> dict[str, Array]:
        """Deterministic sites, those in the unit plate with the units on the leading axis."""
        what = self.program.deterministic
        return units_first(self.program.values(params, y, self._latents(z), what), what)

    def pointwise(self, params, z, y):
        return _joined(list(units_first(self.program.pointwise(params, y, self._latents(z)), self.program.observed).values()))

    def simulate(self, key, params, z, y):
        return units_first(self.program.simulated(key, params, y, self._latents(z)), self.program.observed)

    def posterior(self, fit: Any, n_draws: int = 1000, thin: int = 1, key: int = 0) -> dict[str, np.ndarray]:
        """Posterior draws at the estimate by site, on their own scale, deterministic sites with them: see `Fit.draws`.

        Returns:
            Arrays (n_draws, chains, 1, ...), those of units (n_draws, chains, 1, n, ...).
        """
        return _natural(self, fit, n_draws, thin, key)


def _joined(each: list[Array]) -> Array:
    return each[0] if len(each) == 1 else jnp.concatenate([jnp.ravel(one) for one in each])


def _natural(model: Any, fit: Any, n_draws: int, thin: int, key: int) -> dict[str, np.ndarray]:
    z, dtype = fit.draws(n_draws, thin, key), default_dtype(None)
    with precision(dtype):
        parts = settle((model, jax.tree.map(np.asarray, (fit.params, z, fit.data))), dtype)
        return jax.tree.map(np.asarray, _by_site(parts[0], *parts[1]))


@compiled
def _by_site(model: Any, params: PyTree, z: PyTree, data: PyTree) -> dict[str, Array]:
    unit = lambda z, y: model.constrained(params, z, y) | model.deterministic(params, z, y)  # noqa: E731
    return jax.vmap(jax.vmap(jax.vmap(unit), (0, None)), (0, None))(z, data)
