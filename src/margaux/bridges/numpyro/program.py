"""A NumPyro model as densities: the same function is run on the data of any number of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, Scalar

from ...problem.model import Params, leading
from .arguments import Arguments
from .normals import by_inverse

Sites = dict[str, Any]


class Site(NamedTuple):
    """A site by name. axis: that of the unit plate in its value, None outside the plate."""

    name: str
    axis: int | None


class Program(eqx.Module):
    """Runs the model under NumPyro's handlers with given parameters, latents and units.

    Latents are unconstrained, by site name, with the units on the axis where the model has them.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    arguments: Arguments
    plate: str | None = eqx.field(static=True)
    latents: tuple[Site, ...] = eqx.field(static=True, default=())
    observed: tuple[Site, ...] = eqx.field(static=True, default=())
    deterministic: tuple[Site, ...] = eqx.field(static=True, default=())

    def run(
        self,
        params: Params,
        units: dict[str, Array],
        latents: dict[str, Array] | None = None,
        key: PRNGKeyArray | None = None,
        anew: bool = False,
    ) -> tuple[Sites, dict[str, Scalar]]:
        """The trace, and log |dx / du| of the latents given, by name.

        Args:
            key: for sites that are neither given nor observed. anew: draw the observations too.
        """
        from numpyro import handlers
        from numpyro.distributions import biject_to

        given, jacobians = latents or {}, {}

        def place(site: dict[str, Any]) -> Any:
            name = site["name"]
            if site["type"] == "param":
                return params.get(name)
            if site["type"] != "sample" or name not in given:
                return None
            transform = biject_to(site["fn"].support)
            x = transform(given[name])
            jacobians[name] = jnp.sum(transform.log_abs_det_jacobian(given[name], x))
            return x

        args, kwargs = self.arguments.put_together(units, leading(units) if units else 1)
        function = handlers.substitute(self.function, substitute_fn=place)
        if anew:
            function = handlers.uncondition(function)
        if key is not None:
            function = handlers.seed(function, key)
        return dict(handlers.trace(function).get_trace(*args, **kwargs)), jacobians

    def log_density(
        self, params: Params, units: dict[str, Array], latents: dict[str, Array], inside: bool | None = None
    ) -> Scalar:
        """Log density of the sites inside the unit plate (or outside it; None: of all), Jacobians included."""
        sites, jacobians = self.run(_with_units(params, latents), units, latents)
        total = jnp.zeros(())
        for name, site in sites.items():
            if site["type"] == "sample" and (inside is None or self.within(site) == inside):
                total = total + jnp.sum(log_prob(site)) + jacobians.get(name, 0.0)
        return total

    def within(self, site: dict[str, Any]) -> bool:
        """Whether a site is in the unit plate."""
        return any(frame.name == self.plate for frame in site["cond_indep_stack"])

    def started(self, key: PRNGKeyArray, params: Params, units: dict[str, Array]) -> dict[str, Array]:
        """Latents drawn from their prior, unconstrained; zero where a draw has no finite coordinate."""
        from numpyro.distributions import biject_to

        sites, _ = self.run(params, units, key=key)

        def free(site):
            return biject_to(site["fn"].support).inv(site["value"])

        starts = {name: free(sites[name]) for name, _ in self.latents}
        return {name: jnp.where(jnp.isfinite(u), u, 0.0) for name, u in starts.items()}

    def values(self, params: Params, units: dict[str, Array], latents: dict[str, Array], what: tuple[Site, ...]) -> Sites:
        """Values of some sites, units on the axis where the model has them."""
        sites, _ = self.run(params, units, latents)
        return {name: jnp.asarray(sites[name]["value"]) for name, _ in what}

    def pointwise(self, params: Params, units: dict[str, Array], latents: dict[str, Array]) -> dict[str, Array]:
        """Log density of each observation by site; NaN under a mask."""
        sites, _ = self.run(params, units, latents)
        return {name: _unmasked(sites[name]) for name, _ in self.observed}

    def simulated(self, key: PRNGKeyArray, params: Params, units: dict[str, Array], latents: dict[str, Array]) -> Sites:
        """New observations by site."""
        sites, _ = self.run(params, units, latents, key=key, anew=True)
        return {name: sites[name]["value"] for name, _ in self.observed}


def _with_units(params: Params, latents: dict[str, Array]) -> Params:
    """Scalars that vary with the latents' own vmap, though not in value.

    Their derivatives are then a number a unit, which XLA adds up in one pass. Scalars that all units share would be added up
    along the units with the plate's axes of length one kept apart, ten times slower on CPU.
    """
    first = next((u for u in latents.values() if u.size), None)
    if first is None:
        return params
    mark = jnp.ravel(first)[0]

    def apart(p):
        return jnp.where(mark == mark, p, jax.lax.stop_gradient(p)) if jnp.ndim(p) == 0 else p

    return jax.tree.map(apart, params)


def log_prob(site: dict[str, Any]) -> Array:
    """Log density of a site's value, with its masks and scale."""
    value = by_inverse(site["fn"]).log_prob(site["value"])
    return value if site["scale"] is None else site["scale"] * value


def _unmasked(site: dict[str, Any]) -> Array:
    """`log_prob`, without scale, and NaN where a mask has put a zero in place of the density."""
    from numpyro.distributions import MaskedDistribution

    fn = by_inverse(site["fn"])
    value, inner = fn.log_prob(site["value"]), fn
    while isinstance(inner, MaskedDistribution):
        inner = inner.base_dist
    if inner is fn:
        return value
    return jnp.where((value == 0) & (inner.log_prob(site["value"]) != 0), jnp.nan, value)


def squeezed(values: Sites, sites: tuple[Site, ...]) -> Sites:
    """Values of one unit without the axis of the unit plate."""
    axes: dict[str, Any] = dict(sites)
    return {name: v if axes[name] is None else jnp.squeeze(v, axes[name]) for name, v in values.items()}


def expanded(values: Sites, sites: tuple[Site, ...]) -> Sites:
    """The inverse of `squeezed`."""
    axes: dict[str, Any] = dict(sites)
    return {name: v if axes[name] is None else jnp.expand_dims(v, axes[name]) for name, v in values.items()}


def units_first(values: Sites, sites: tuple[Site, ...]) -> Sites:
    """Values of several units with these on the leading axis."""
    axes: dict[str, Any] = dict(sites)
    return {name: v if axes[name] is None else jnp.moveaxis(v, axes[name], 0) for name, v in values.items()}


def units_back(values: Sites, sites: tuple[Site, ...]) -> Sites:
    """The inverse of `units_first`."""
    axes: dict[str, Any] = dict(sites)
    return {name: v if axes[name] is None else jnp.moveaxis(v, 0, axes[name]) for name, v in values.items()}


def one(units: dict[str, Array]) -> dict[str, Array]:
    """Data of a unit as those of one unit."""
    return jax.tree.map(lambda leaf: leaf[None], units)
