"""What cannot be bridged, said with the reason and the way out. Each check reads sites of a trace."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

Sites = dict[str, Any]


class Refusal(ValueError):
    """A model that cannot be bridged: why, and what to do."""


def sampled(sites: Sites, observed: bool) -> Sites:
    """Latent sites, or observed ones; a `numpyro.factor` counts as observed."""
    return {name: s for name, s in sites.items() if s["type"] == "sample" and bool(s["is_observed"]) == observed}


def is_factor(site: dict[str, Any]) -> bool:
    """Whether a site is a `numpyro.factor`."""
    from numpyro.distributions import Unit

    inner = site["fn"]
    while hasattr(inner, "base_dist"):
        inner = inner.base_dist
    return isinstance(inner, Unit)


def check_sites(sites: Sites) -> None:
    """Refuse what no choice of units can mend."""
    _check_plates(sites)
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise Refusal(f'site "{name}" is mutable state, which a likelihood cannot have; leave batch statistics out')
    if not any(site["type"] == "param" for site in sites.values()):
        raise Refusal(
            "the model has no param site, so there is nothing to maximise over; write what is to be estimated as "
            'numpyro.param("mu", 0.0), or use numpyro.infer.MCMC for a posterior of sample sites'
        )
    latent = sampled(sites, False)
    for name, site in latent.items():
        _check_obs_mask(name, sites)
        _check_latent(name, site)
    if not sampled(sites, True):
        raise Refusal(
            f"the model observes nothing: none of its sample sites {list(latent)} got obs=; pass the data as arguments "
            "of the model, where obs= finds them (is one of them None?)"
        )
    if not latent:
        raise Refusal(
            "the model has no latent sample site, so its likelihood needs no integral; maximise it by scipy.optimize or optax, "
            "or write what varies between units as numpyro.sample"
        )


def _check_plates(sites: Sites) -> None:
    for name, site in sites.items():
        if site["type"] == "plate" and site["args"][1] is not None and site["args"][1] != site["args"][0]:
            size, part = site["args"]
            raise Refusal(
                f'plate "{name}" takes {part} of {size} by subsample_size, which hides from the fit whose latents are moved; '
                f"drop it and pass batch_size={part} to the fit, which slices the data itself"
            )


def check_drawn(name: str, fn: Any) -> None:
    """Refuse a latent that cannot be drawn, before NumPyro is asked to."""
    from numpyro.distributions import ImproperUniform

    inner = fn
    while hasattr(inner, "base_dist"):
        inner = inner.base_dist
    if isinstance(inner, ImproperUniform):
        raise Refusal(
            f'latent site "{name}" is ImproperUniform, whose density has no integral, so that the marginal likelihood over it '
            f'does not exist; estimate it, by numpyro.param("{name}", ..., constraint=...), or give it a proper prior such as '
            "numpyro.distributions.Normal(0, 10)"
        )


def _check_obs_mask(name: str, sites: Sites) -> None:
    """`numpyro.sample(..., obs_mask=)` makes two sites, under names that the user never wrote."""
    written = name.removesuffix("_unobserved")
    if written != name and f"{written}_observed" in sites:
        raise Refusal(
            f'site "{written}" has obs_mask=, by which NumPyro draws what is missing under a mask, where it has no density. '
            "What is missing integrates to one, so leave it out of the likelihood: with numpyro.handlers.mask(mask=...): "
            f'numpyro.sample("{written}", ..., obs=...). Where the model goes on to use what is missing, as of a covariate, '
            "sample it as a site of its own without a mask, and choose by jax.numpy.where"
        )


def _check_latent(name: str, site: dict[str, Any]) -> None:
    from numpyro.distributions import MaskedDistribution, biject_to

    support = site["fn"].support
    if support is None or support.is_discrete:
        raise Refusal(
            f'latent site "{name}" is discrete ({_kind(site)}), which gradients do not reach; sum it out in the model, as '
            "numpyro.distributions.MixtureSameFamily does, or write an mx.AbstractModel with mx.AbstractDiscrete. "
            "If it is to be observed, its obs= got None: pass the data"
        )
    inner = site["fn"]
    while hasattr(inner, "base_dist"):
        if isinstance(inner, MaskedDistribution):
            raise Refusal(
                f'latent site "{name}" is under a mask, and where that is False it has no density to be drawn from; '
                "put the observed sites alone under the mask"
            )
        inner = inner.base_dist
    try:
        biject_to(support)
    except NotImplementedError as error:
        raise Refusal(
            f'latent site "{name}" has the support {_told(support)}, for which NumPyro has no coordinates without constraints; '
            "build it in the model from a latent that is free, such as a normal one"
        ) from error


def check_same_flow(first: Sites, second: Sites) -> None:
    """Two runs with different latents must visit the same sites: their names, order, shapes and distributions."""
    if [*first] != [*second]:
        gone = [name for name in [*first, *second] if (name in first) != (name in second)] or [*second]
        raise Refusal(
            f"the model's control flow is random: two runs visit different sites ({', '.join(gone[:3])}); visit all sites "
            "always, and choose between their values by jax.numpy.where"
        )
    for name in first:
        here, there = _signature(first[name]), _signature(second[name])
        if here != there:
            raise Refusal(
                f'the model\'s control flow is random: site "{name}" is {here} in one run and {there} in another; give it one '
                "distribution and shape, and choose between their arguments by jax.numpy.where"
            )


def check_still_supports(sites: Sites, here: Sites, there: Sites) -> None:
    """Supports must be the same at other parameters: `here` and `there` are what they are made of, by site."""
    for name, edges in here.items():
        if all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(edges, there[name], strict=True)):
            continue
        site = sites[name]
        if site["is_observed"]:
            why = (
                "a likelihood whose support moves has a gradient that misses what the edge does; use a distribution with a "
                "fixed support, or maximise over that parameter by a profile (Fit.profile)"
            )
        else:
            why = (
                "its chain would be moved by theta itself; sample it on a fixed support and scale it in the model, as "
                'theta * numpyro.sample("unit", dist.Uniform(0, 1)) for Uniform(0, theta)'
            )
        kind = "observed" if site["is_observed"] else "latent"
        raise Refusal(f'the support of {kind} site "{name}" ({_told(site["fn"].support)}) moves with the parameters: {why}')


def plate_size(sites: Sites, unit_plate: str) -> int | None:
    """Size of the unit plate; None where there are no plates at all.

    Raises:
        Refusal: the model has plates, none of that name.
    """
    plates = {name: site["args"][0] for name, site in sites.items() if site["type"] == "plate"}
    if unit_plate in plates:
        return plates[unit_plate]
    if not plates and unit_plate == "units":
        return None
    raise Refusal(
        f'the model has no plate "{unit_plate}"; it has {", ".join(map(repr, plates)) or "none"}. Pass unit_plate= the one whose '
        "members are independent given the parameters, or unit_plate=None to take all the data as one unit"
    )


def check_outside(sites: Sites, inside: Sites) -> None:
    """With latents by unit alone, what is outside the plate belongs to no unit."""
    for name, site in sampled(sites, True).items():
        if name in inside:
            continue
        if is_factor(site):
            raise Refusal(
                f'numpyro.factor "{name}" is outside the unit plate, so it belongs to no unit; move it into the plate '
                "(its share of each unit), or pass penalty= to the fit if it penalises parameters"
            )
        raise Refusal(
            f'observed site "{name}" is outside the unit plate, while its latents are inside: rows that look up their unit by '
            "an index cannot be told apart. Put them into a plate nested in the unit plate (mx.pad_ragged pads a long table, "
            "with a mask), or pass unit_plate=None to take all the data as one unit"
        )


def check_width(sites: Sites, unit_plate: str, size: int, n: int) -> None:
    """On the data of one unit nothing in the plate may be wider than one."""
    for name, site in sites.items():
        frames = [frame for frame in site["cond_indep_stack"] if frame.name == unit_plate]
        if site["type"] != "sample" or not frames:
            continue
        batch = site["fn"].batch_shape
        shape = np.shape(site["value"])
        axis = frames[0].dim
        event = len(site["fn"].event_shape)
        wide = batch[axis] if len(batch) >= -axis else 1
        seen = shape[axis - event] if len(shape) >= event - axis else 1
        if max(wide, seen) > size:
            raise Refusal(
                f'site "{name}" has {max(wide, seen)} entries for one unit: it reads {n} rows that did not follow the data. Pass '
                "arrays over units as arguments of the model (a closure is not sliced; unit_args= names them where the leading "
                "axis is not the plate's), and give no unit a param of its own"
            )


def _signature(site: dict[str, Any]) -> tuple[Any, ...]:
    if site["type"] == "plate":
        return ("plate", site["args"][0])
    value = jax.tree.map(np.shape, site["value"])
    if site["type"] != "sample":
        return (site["type"], jax.tree.structure(value), tuple(jax.tree.leaves(value)))
    return (_kind(site), value, "observed" if site["is_observed"] else "latent")


def _kind(site: dict[str, Any]) -> str:
    inner = site["fn"]
    while hasattr(inner, "base_dist"):
        inner = inner.base_dist
    return type(inner).__name__


def _told(support: Any) -> str:
    return type(support).__name__.strip("_")
