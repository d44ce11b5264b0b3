"""Everything that can be wrong with a fit, said before anything is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ..algorithms.average import AbstractAverage
from ..algorithms.base import AbstractAlgorithm
from ..algorithms.updates import Problem
from ..esteps import AbstractEStep
from ..esteps.mcmc import lacks_prior
from ..numerics.compiling import compiled, shapes_of
from ..numerics.keys import key_of
from ..numerics.naming import path_name
from ..problem.model import AbstractModel
from .rows import is_chunked, release

if TYPE_CHECKING:
    from jaxtyping import Array


def whole(name: str, value: object, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_untraced(given: PyTree) -> None:
    """Raises: TypeError: the call stands in a function that jax transforms."""
    # Under jit what is put on the device is a tracer too, whatever came from outside.
    for leaf in [*jax.tree.leaves(given), jax.device_put(np.zeros(()))]:
        if isinstance(leaf, Tracer):
            raise TypeError(
                "margaux.fit is called within jax.jit, jax.vmap, jax.grad or the like, whose values are no numbers yet. A fit is "
                "a loop on the host that compiles its own programs: call it outside, with runs= for several fits at a time, and "
                "pass NumPy or jax arrays"
            )


def check_types(model: object, algorithm: object, estep: object, average: object) -> None:
    """The four things a fit is made of, and the commonest ways to mix them up."""
    for name, value, kind, example in [
        ("model", model, AbstractModel, "an instance of your subclass of margaux.AbstractModel"),
        ("algorithm", algorithm, AbstractAlgorithm, "a recipe's result such as mx.soul(step=0.1)"),
        ("estep", estep, AbstractEStep, "an E-step such as mx.MCMC() or mx.Quadrature()"),
    ]:
        if isinstance(value, type):
            raise TypeError(f"{name} is the class {value.__name__} itself; pass {value.__name__}(...), an instance")
        if callable(value) and not isinstance(value, kind):
            shown = getattr(value, "__name__", type(value).__name__)
            raise TypeError(f"{name} is the function or object {shown}; call it first: pass {example}")
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {example}; got {type(value).__name__}")
    if average is not None and not isinstance(average, AbstractAverage):
        raise TypeError(f"average must be mx.PolyakRuppert(), mx.StepWeighted(step) or mx.LastIterate(); got {average!r}")


def check_data(data: PyTree) -> int:
    """n, the common leading axis of finite numeric arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(data)[0]
    if not leaves:
        raise ValueError("data is empty: pass a pytree of arrays whose leading axis runs over units")
    sizes: dict[str, int] = {}
    for path, leaf in leaves:
        name = path_name(path) or "data"
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"data {name} is a {type(leaf).__name__}; make it an array with numpy.asarray")
        if leaf.dtype.kind in "OUSMm":
            raise TypeError(f"data {name} has dtype {leaf.dtype}; encode it as numbers first (dates as time since a start)")
        if leaf.dtype.kind == "c":
            raise TypeError(f"data {name} is complex; pass its real and imaginary parts")
        if len(leaf.shape) == 0:
            raise ValueError(f"data {name} is a single number; every leaf needs a leading axis over units (see mx.one_unit)")
        sizes[name] = leaf.shape[0]
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"leading axes of data differ ({told}); every leaf needs one entry a unit")
    n = next(iter(sizes.values()))
    if n == 0:
        raise ValueError("data has no units (leading axis 0); pass at least one")
    for path, leaf in leaves:
        if np.issubdtype(leaf.dtype, np.floating):
            _check_finite(f"data {path_name(path)}".strip(), leaf)
    return n


def check_stored(data: PyTree) -> None:
    """Raises: TypeError: single units cannot be read from where the data are stored, as mini-batches want them."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]:
        if is_chunked(leaf):
            raise TypeError(
                f"data {path_name(path)} is a {type(leaf).__name__}, which is read in whole chunks, and a mini-batch has units "
                "of all of them; copy it once by margaux.on_disk(data, folder) and pass what that returns, or numpy.asarray of "
                "it where there is memory"
            )


def _check_finite(name: str, leaf: Array | np.ndarray, block: int = 1 << 20) -> None:
    """By blocks of units, so that a memmap is never in memory as a whole."""
    width = max(int(np.prod(leaf.shape[1:])), 1)
    rows = max(block // width, 1)
    for first in range(0, leaf.shape[0], rows):
        part = np.asarray(leaf[first : first + rows])
        bad = ~np.isfinite(part)
        release(leaf)
        if bad.any():
            where = np.argwhere(bad)[0]
            value = part[tuple(where)]
            where[0] += first
            raise ValueError(
                f"{name} holds {value} at index {tuple(map(int, where))} (unit {int(where[0])}), the first of "
                f"{int(bad.sum())} such values in that block; drop or impute it, or fill it and add a mask to your model"
            )


def check_params(params: PyTree) -> None:
    """Float, finite starting parameters."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    if not leaves:
        raise ValueError('params is empty: give starting values such as {"mu": 0.0}')
    for path, leaf in leaves:
        name = path_name(path) or "params"
        try:
            value = np.asarray(leaf)
        except Exception as error:
            raise TypeError(f"parameter {name} is not an array: {error}") from error
        if value.dtype.kind in "iub":
            shown = value.tolist() if value.size < 10 else "integers"
            raise TypeError(f"parameter {name} = {shown} has integer type; start from floats (write 0.0, not 0)")
        if value.dtype.kind != "f":
            raise TypeError(f"parameter {name} has dtype {value.dtype}; parameters are real numbers")
        if value.size == 0:
            raise ValueError(f"parameter {name} has no entries (shape {value.shape})")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"parameter {name} = {value} is not finite; start from finite values")


def check_model(problem: Problem, estep: AbstractEStep, algorithm: AbstractAlgorithm, params: PyTree, unit: PyTree) -> None:
    """Shapes by abstract evaluation, capabilities, and a finite differentiable start at the first unit."""
    model, key = problem.model, key_of(0)
    name = type(model).__name__
    try:
        latents = shapes_of(model.init_latents, key, params, unit)
    except Exception as error:
        raise _about_shapes(f"{name}.init_latents fails on one unit", error, unit) from error
    floats = [leaf for leaf in jax.tree.leaves(latents) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    discrete = hasattr(model, "support") or estep.averages_objective  # whose integers are random signs
    if not jax.tree.leaves(latents):
        raise ValueError(f"{name}.init_latents returns no array; return the unit's starting latents")
    if len(floats) != len(jax.tree.leaves(latents)) and not discrete:
        raise TypeError(f"{name}.init_latents returns integer latents; return floats, or inherit from mx.AbstractDiscrete")
    try:
        value = shapes_of(model.log_joint, params, latents, unit)
    except Exception as error:
        raise _about_shapes(f"{name}.log_joint fails on one unit", error, unit) from error
    if getattr(value, "shape", None) != ():
        shape = getattr(value, "shape", type(value).__name__)
        raise ValueError(f"{name}.log_joint returns shape {shape}; it must return a scalar: sum over the unit's observations")
    for part in (algorithm.requires(problem), lacks_prior(model, estep), estep.requires(model, latents)):
        if part is not None:
            raise TypeError(part)
    algorithm.check(estep)
    z = _check_start(problem, params, unit)
    if (trouble := estep.refused(model, params, z, unit)) is not None:
        raise ValueError(f"{trouble} (asked of the first unit)")


def _check_start(problem: Problem, params: PyTree, unit: PyTree) -> PyTree:
    """The first unit's starting latents."""
    model, name = problem.model, type(problem.model).__name__
    # One small program, of one unit: operation by operation this takes seconds.
    try:
        z, value, gradient = _at_the_start(model, params, unit)
    except TypeError as error:
        raise TypeError(f"{name}.log_joint cannot be differentiated in the parameters: {error}") from error
    for path, leaf in jax.tree_util.tree_flatten_with_path(z)[0]:
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise ValueError(f"{name}.init_latents gives non-finite {path_name(path) or 'latents'} at the first unit")
    value = float(value)
    if not np.isfinite(value):
        raise ValueError(
            f"{name}.log_joint is {value} at the starting parameters and latents of the first unit; "
            "start inside the support (check logs and divisions), or mend init_latents"
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient)[0]:
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise ValueError(
                f"the gradient of {name}.log_joint in {path_name(path) or 'the parameters'} is not finite at the start; "
                "a square root or log at zero, or jnp.where around a NaN, is the usual cause"
            )
    return z


def check_key(key: int | Array) -> tuple[Any, int]:
    """A typed PRNG key, and the int it was made from (-1 for a key)."""
    if isinstance(key, bool) or not isinstance(key, int | np.integer | jax.Array):
        raise TypeError(f"key must be an int or a PRNG key, got {key!r}")
    if isinstance(key, jax.Array):
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        return key, -1
    if key < 0:
        raise ValueError(f"key must be a non-negative int, got {key}")
    return key_of(int(key)), int(key)


def check_same(params: PyTree, other: PyTree, r: int) -> None:
    """Starting values of one run like those of the fit."""
    check_params(other)
    same = jax.tree.structure(params) == jax.tree.structure(other)
    if not same or [np.shape(a) for a in jax.tree.leaves(params)] != [np.shape(a) for a in jax.tree.leaves(other)]:
        raise ValueError(
            f"starting values {r} of runs differ from params in structure or shape; give each the same names and shapes"
        )


def check_distinct(starts: list[PyTree]) -> None:
    """No two runs from the same start."""
    flat = [tuple(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(p)])) for p in starts]
    if len(set(flat)) < len(flat):
        raise ValueError("two of the runs start from the same values: their agreement would prove nothing; give distinct starts")


@compiled(small=True)
def _at_the_start(model: AbstractModel, params: PyTree, unit: PyTree) -> tuple[PyTree, Any, PyTree]:
    """Starting latents, log joint there, and its gradient in the parameters."""
    z = model.init_latents(key_of(0), params, unit)
    return z, *jax.value_and_grad(model.log_joint)(params, z, unit)


def _about_shapes(what: str, error: Exception, unit: PyTree) -> Exception:
    shapes = ", ".join(
        f"{path_name(path) or 'y'}: {tuple(leaf.shape)}" for path, leaf in jax.tree_util.tree_flatten_with_path(unit)[0]
    )
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kind = type(error) if isinstance(error, TypeError | ValueError | KeyError) else ValueError
    return kind(f"{what} ({type(error).__name__}: {first}). One unit has {shapes}; the library maps the model over units")
