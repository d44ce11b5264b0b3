"""Reads a NumPyro model: what its sites are, which arguments run over units, and whether that is all it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from ...problem.space import AbstractSpace, as_space
from .arguments import COUNT, FIXED, UNITS, WHOLE, Arguments, check_unit_args, is_array, named_leaves, rows, taken_apart
from .checks import (
    Refusal,
    check_drawn,
    check_outside,
    check_same_flow,
    check_sites,
    check_still_supports,
    check_width,
    is_factor,
    plate_size,
    sampled,
)
from .program import Program, Site, Sites
from .spaces import space_of

#: what Python says where a program looks at a value that is not there yet
_LOOKS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def read(
    model: Callable[..., Any], args: tuple, kwargs: dict[str, Any], unit_plate: str | None, unit_args: Any
) -> tuple[Program, dict[str, Any], PyTree, AbstractSpace, bool]:
    """The model as a program, its data, starting parameters, their space, and whether some latents are shared by units.

    Raises:
        Refusal: what `numpyro_checks` refuses, and data that do not follow the plate.
    """
    leaves, structure = named_leaves(model, args, kwargs)
    whole, data = taken_apart(leaves, structure, lambda name, leaf: UNITS if is_array(leaf) else FIXED)
    program = Program(_refusing(model), whole, None)
    sites = abstract(program, {}, data, check_sites)
    params, space = _parameters(program, data, sites)
    _check_flow(program, data, params, space, sites)

    n = None if unit_plate is None else plate_size(sites, unit_plate)
    inside = {} if n is None else {name: s for name, s in sites.items() if Program(model, whole, unit_plate).within(s)}
    latent = sampled(sites, False)
    if n is None or not any(name in inside for name in latent):
        program = _with_sites(program, sites, {})
        return Program(model, *_rest(program)), {k: v[None] for k, v in data.items()} or _nothing(), params, space, False

    assert unit_plate is not None
    shared = [name for name in latent if name not in inside]
    if not shared:
        check_outside(sites, inside)
    arguments, data = _by_units(program.function, leaves, structure, unit_plate, n, unit_args, params)
    program = Program(program.function, arguments, unit_plate)
    axes = _axes(program, params, data, n)
    program = _with_sites(program, sites, axes)
    _check_apart(program, params, data, n)
    program = Program(model, *_rest(program))
    return program, {k: v[None] for k, v in data.items()} if shared else data, params, space, bool(shared)


def _rest(program: Program) -> tuple[Any, ...]:
    return program.arguments, program.plate, program.latents, program.observed, program.deterministic


def _nothing() -> dict[str, Any]:
    """Data of a model whose arguments hold none: the fit still needs its one unit."""
    return {"no data": np.zeros((1, 1))}


def _refusing(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, refused where it reaches a site that NumPyro cannot run or show."""
    from numpyro.primitives import Messenger

    class Refusing(Messenger):
        def process_message(self, msg: Any) -> None:
            if msg["type"] == "control_flow":
                raise Refusal(
                    "the model uses scan or cond of numpyro.contrib.control_flow, whose sites are not seen one by one; sample "
                    "the innovations of all steps in a plate outside, and use jax.lax.scan or jax.numpy.where on their values"
                )
            if msg["type"] == "sample" and not msg["is_observed"] and msg["value"] is None:
                check_drawn(msg["name"], msg["fn"])

    return Refusing(model)


def abstract(program: Program, params: PyTree, data: PyTree, check: Callable[[Sites], None] | None = None) -> Sites:
    """The trace of shapes alone: nothing is computed or compiled, and Python cannot look at a value.

    Raises:
        Refusal: it tries to, it fails, or what `check` raises.
    """
    found: Sites = {}

    def look(params: PyTree, data: PyTree, key: Any) -> None:
        found.update(program.run(params, data, key=key)[0])
        if check is not None:
            check(found)

    try:
        jax.eval_shape(look, params, data, key_of(0))
    except _LOOKS as error:
        raise Refusal(
            "the model's Python code looks at the value of a parameter, a latent or the data (if, while, float(), or NumPy), so "
            "its control flow is random: choose by jax.numpy.where or jax.lax.cond, and compute by jax.numpy. "
            + _first_line(error)
        ) from error
    except Refusal:
        raise
    except Exception as error:  # whatever the model raises
        told = ", ".join(f"{name} {np.shape(leaf)}" for name, leaf in data.items()) or "none"
        raise Refusal(
            f"the model fails on its arguments ({type(error).__name__}: {_first_line(error)}); its arrays are: {told}. What is "
            "observed in a plate must have the plate's length, on the axis of the plate"
        ) from error
    return found


def _parameters(program: Program, data: PyTree, sites: Sites) -> tuple[PyTree, AbstractSpace]:
    from numpyro.distributions import constraints

    found = {name: site for name, site in sites.items() if site["type"] == "param"}
    values = {name: site["value"] for name, site in found.items()}
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values)):
        values = _initial(program, data, tuple(found))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), values)
    limits = {name: site["kwargs"].get("constraint", constraints.real) for name, site in found.items()}
    return params, as_space({name: space_of(name, limits[name], params[name]) for name in found}, params)


@compiled
def _initial(program: Program, data: PyTree, names: tuple[str, ...]) -> PyTree:
    """Starting values that are computed, such as a network's."""
    sites, _ = program.run({}, data, key=key_of(0))
    return {name: sites[name]["value"] for name in names}


def _with_sites(program: Program, sites: Sites, axes: dict[str, int]) -> Program:
    def pick(names):
        return tuple(Site(name, axes.get(name)) for name in names)

    observed = [name for name, site in sampled(sites, True).items() if not is_factor(site)]
    deterministic = [name for name, site in sites.items() if site["type"] == "deterministic"]
    sets = pick(sampled(sites, False)), pick(observed), pick(deterministic)
    return Program(program.function, program.arguments, program.plate, *sets)


# -- control flow and supports --------------------------------------------------------------------


def _check_flow(program: Program, data: PyTree, params: PyTree, space: AbstractSpace, sites: Sites) -> None:
    """Twice more by shapes, with parameters that are no constants; supports by value where they are computed."""
    for _ in range(2):
        check_same_flow(sites, abstract(program, params, data))
    supports = [site["fn"].support for site in sites.values() if site["type"] == "sample"]
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(supports)):
        names = tuple(name for name, site in sites.items() if site["type"] == "sample")
        here, there = _edges(program, params, _moved(params, space), data, names)
        check_still_supports(sites, here, there)


@compiled
def _edges(program: Program, params: PyTree, moved: PyTree, data: PyTree, names: tuple[str, ...]) -> tuple[Sites, Sites]:
    """What supports are made of, by site, at two values of the parameters and the same latents."""
    sites, _ = program.run(params, data, key=key_of(0))
    given = {name: _free(site) for name, site in sampled(sites, False).items()}
    others, _ = program.run(moved, data, given)

    def read(sites):
        return {name: jax.tree.leaves(sites[name]["fn"].support) for name in names}

    return read(sites), read(others)


def _free(site: dict[str, Any]) -> Any:
    from numpyro.distributions import biject_to

    u = biject_to(site["fn"].support).inv(site["value"])
    return jnp.where(jnp.isfinite(u), u, 0.0)


def _moved(params: PyTree, space: AbstractSpace) -> PyTree:
    """Other parameters of the same space."""
    params = jax.tree.map(jnp.asarray, params)
    free = space.to_unconstrained(params)

    def step(u):
        return u + 0.3 + 0.1 * jnp.cos(jnp.arange(u.size, dtype=u.dtype)).reshape(u.shape)

    other = space.from_unconstrained(jax.tree.map(lambda u: step(jnp.where(jnp.isfinite(u), u, -1.0)), free))
    return jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(b), b, a), params, other)


def _first_line(error: Exception) -> str:
    """What an error says; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# -- units ----------------------------------------------------------------------------------------


def _by_units(
    function: Callable[..., Any], leaves: list, structure: PyTree, plate: str, n: int, unit_args: Any, params: PyTree
) -> tuple[Arguments, dict[str, Any]]:
    """Arguments taken apart so that the plate's size is the number of units given."""
    chosen = None if unit_args is None else check_unit_args(unit_args, leaves)

    def named(name):
        return chosen is not None and (name in chosen or name.split(".")[0] in chosen)

    for name, leaf in leaves:
        if named(name) and (not is_array(leaf) or leaf.shape[0] != n):
            shape = f"shape {leaf.shape}" if is_array(leaf) else f"is {leaf!r}"
            raise Refusal(
                f'unit_args names "{name}", which has {shape}, while plate "{plate}" has {n} units; '
                "its leading axis must run over them"
            )

    def kind(counts: bool) -> Callable[[str, Any], str]:
        def of(name: str, leaf: Any) -> str:
            if is_array(leaf):
                over = named(name) if chosen is not None else leaf.shape[0] == n
                return UNITS if over else WHOLE
            return COUNT if counts and type(leaf) is int and leaf == n else FIXED

        return of

    failure: Exception | None = None
    for counts in (False, True):
        arguments, data = taken_apart(leaves, structure, kind(counts))
        if not data:
            told = ", ".join(f"{name} {leaf.shape}" for name, leaf in leaves if is_array(leaf)) or "none"
            raise Refusal(
                f'plate "{plate}" has {n} units, but no argument of the model has a leading axis of {n} (its arrays: {told}); '
                "pass the data of units as arguments that are NumPy arrays, units on the leading axis, so that they can be sliced"
            )
        try:
            sites = abstract(Program(function, arguments, plate), params, rows(data, np.arange(1)))
        except Refusal as error:  # another reading, or told below
            failure = error
            continue
        if sites[plate]["args"][0] == 1:
            check_width(sites, plate, 1, n)
            return arguments, data
        failure = None
    over = [name for name, leaf in leaves if is_array(leaf) and leaf.shape[0] == n]
    if failure is not None:
        raise Refusal(
            f"the model fails on the data of one unit, arguments {over} sliced to length one "
            f'({_first_line(failure)}). The size of plate "{plate}" must follow the data: write '
            f'numpyro.plate("{plate}", len({over[0]})); unit_args= names the arguments that run over units'
        ) from failure
    raise Refusal(
        f'plate "{plate}" has {n} units whatever the data: its size must follow them, so that units can be taken one by one; '
        f'write numpyro.plate("{plate}", len({over[0]}))'
    )


def _axes(program: Program, params: PyTree, data: PyTree, n: int) -> dict[str, int]:
    """The axis of units in the value of each site: where two units differ in shape from one."""
    first = abstract(program, params, rows(data, np.array([0])))
    second = abstract(program, params, rows(data, np.array([0, 1 % n])))
    check_same_names(first, second)
    axes = {}
    for name, site in first.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        one, two = np.shape(site["value"]), np.shape(second[name]["value"])
        differ = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if (a, b) == (1, 2)]
        if differ:
            axes[name] = differ[0]
    return axes


def check_same_names(first: Sites, second: Sites) -> None:
    """The number of units may not change which sites there are."""
    if [*first] != [*second]:
        raise Refusal("the sites of the model depend on the number of units; give each unit the same sites, by a plate")


def _check_apart(program: Program, params: PyTree, data: PyTree, n: int) -> None:
    """The density of three units must be the sum of theirs."""
    together, apart = map(float, _densities(program, params, rows(data, np.arange(3) % n)))
    if np.isfinite(together) and abs(together - apart) > 1e-3 * (1 + abs(together)) ** 0.5:
        raise Refusal(
            f'the units of plate "{program.plate}" are not independent given the parameters (log density '
            f"{together:.6g} of three together, {apart:.6g} one by one): the model reads across units (a mean over "
            "the data, a lookup by index, a closure "
            "over an array), or a site outside the plate uses latents inside it. Work out such figures before, and pass them as "
            "arguments, or pass unit_plate=None to take all the data as one unit"
        )


@compiled
def _densities(program: Program, params: PyTree, units: PyTree) -> tuple[Any, Any]:
    """Of three units together, and one by one."""
    latents = program.started(key_of(3), params, units)
    apart, axes = program.log_density(params, units, latents, inside=False), dict(program.latents)
    for i in range(3):
        own = {name: u if axes[name] is None else jnp.take(u, jnp.array([i]), axes[name]) for name, u in latents.items()}
        apart += program.log_density(params, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], units), own, inside=True)
    return program.log_density(params, units, latents), apart
