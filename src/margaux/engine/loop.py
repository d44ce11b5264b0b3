"""The compiled part of a fit: a chunk of iterations as one loop, without recompilation for any number."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

from ..algorithms import average as averaging
from ..algorithms.average import AbstractAverage
from ..algorithms.base import AbstractAlgorithm, Visit
from ..algorithms.updates import Problem
from ..esteps import AbstractEStep
from ..numerics.arrays import as_array
from ..numerics.compiling import by_shape, compiled, is_large, is_short, shapes_of
from ..numerics.keys import key_of
from ..problem.model import AbstractWeighted, leading, mapped

#: folded into the key of a run in place of an iteration, where it starts
INIT = 2**31 - 1

#: scalar parameters whose every iterate is kept in the trace, at most; of more there is the norm
TRACED = 512

#: iterations whose noise is drawn at a time, at most, and its bytes
BLOCK, BLOCK_BYTES = 128, 1 << 20


class Settings(eqx.Module):
    """What a fit is made of. Arrays in it are traced: changing a number compiles nothing."""

    problem: Problem
    algorithm: AbstractAlgorithm
    estep: AbstractEStep
    average: AbstractAverage
    burn_in: Array


def settings_of(parts: tuple[Problem, Any, Any, Any], burn_in: int) -> Settings:
    """Of a fit's parts, whose number of units is one of the numbers that compile nothing."""
    problem, *others = parts
    algorithm, estep, average = others
    return Settings(dataclasses.replace(problem, n=as_array(problem.n)), algorithm, estep, average, as_array(burn_in))


class Carry(NamedTuple):
    """What passes from one iteration to the next. Every leaf has the runs in front, but inside a program of one run."""

    params: PyTree
    state: PyTree
    average: PyTree
    rows: PyTree  # of all units (full batch), or of those visited twice in the chunk (mini-batch)


class Visits(NamedTuple):
    """What a mini-batch chunk streams: ids, slots in the buffer (T, runs, b), data and rows (T, runs, b, ...).

    Of several processes each has a part of the batch, filled up by units whose ids are beyond the n of the problem.
    """

    ids: Array
    slots: Array
    data: PyTree
    rows: PyTree


def latent_struct(problem: Problem, params: PyTree, data: PyTree) -> PyTree:
    """Shapes of one unit's latents, from the data of any units (leading axis dropped)."""
    unit = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    return shapes_of(problem.model.init_latents, key_of(0), params, unit)


@by_shape
def statistic_struct(settings: Settings, params: PyTree, data: PyTree) -> PyTree:
    """Shape of one unit's statistic, from the data of any units."""
    latents = latent_struct(settings.problem, params, data)
    z = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, 1) + s.shape, s.dtype), latents)
    w = jax.ShapeDtypeStruct((1, 1), jnp.result_type(*jax.tree.leaves(latents)))
    unit = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1,) + leaf.shape[1:], leaf.dtype), data)

    def read(z, w, y):
        return settings.algorithm.statistics(settings.problem, params, z, w, y)

    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), jax.eval_shape(read, z, w, unit))


def draw_noise(settings: Settings, keys: Array, struct: PyTree, k: Array, ids: Array) -> PyTree:
    """Noise of units at iterations, which depends on (key, k, unit) alone.

    The three are broadcast to one shape S; the noise has leaves S + (...). It is drawn flat: XLA compiles a loop nest
    of four axes several times slower than one of two.
    """
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), struct)
    k = jnp.ones_like(k) if settings.algorithm.same_noise else k
    shape = jnp.broadcast_shapes(keys.shape, jnp.shape(k), jnp.shape(ids))
    before = jnp.broadcast_shapes(keys.shape, jnp.shape(k))

    def flat(x, shape):
        return jnp.ravel(jnp.broadcast_to(x, shape))

    # An iteration's key is made once, not once a unit.
    turns = jax.vmap(jax.random.fold_in)(flat(keys, before), flat(k, before)).reshape(before)

    def one(key, i):
        return settings.estep.noise(jax.random.fold_in(key, i), zeros)

    drawn = jax.vmap(one)(flat(turns, shape), flat(ids, shape))
    return jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[1:]), drawn)


def _block_size(settings: Settings, struct: PyTree, b: int, total: int, runs: int) -> int:
    """Iterations whose noise is drawn together."""
    zero = jnp.zeros((), jnp.int32)
    noise = jax.eval_shape(lambda: draw_noise(settings, key_of(0), struct, zero, zero))
    size = sum(leaf.size * 8 for leaf in jax.tree.leaves(noise)) * b * runs
    held = BLOCK_BYTES // max(size, 1)
    # A few at a time gain nothing, and XLA would index them again wherever it needs a number.
    return int(min(held, BLOCK, total)) if held >= 8 else 1


def one_iteration(settings: Settings, carry: Carry, visit: Visit) -> tuple[PyTree, PyTree, PyTree, PyTree, PyTree]:
    """One iteration of one run on a batch: carry without rows -> (params, state, average), rows, trace."""
    if visit.present is not None and isinstance(settings.problem.model, AbstractWeighted):
        visit = visit._replace(batch=settings.problem.model.counted(visit.batch, visit.present))
    params, state, rows, info = settings.algorithm.step(settings.problem, settings.estep, carry.params, carry.state, visit)
    average = averaging.include(settings.average, carry.average, params, visit.k, settings.burn_in)
    leaves = jax.tree.leaves(params)
    if sum(leaf.size for leaf in leaves) <= TRACED:
        trace = {"params": ravel_pytree(params)[0]}
    else:
        trace = {"norm": jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))[None]}
    return params, state, average, rows, trace | info


def _loop(carry, first, length, total, block, noise_of, iteration):
    """Run `length` (traced) of at most `total` iterations, noise drawn `block` at a time, outputs stacked."""
    zero = jnp.zeros((), jnp.int32)
    # Traced once, by the names of programs of their own: the second use below finds the first.
    iteration, noise_of = jax.jit(iteration, inline=True), jax.jit(noise_of, inline=True)
    noise_struct = jax.eval_shape(lambda: _at(noise_of(zero), zero))
    _, y_struct = jax.eval_shape(iteration, carry, first, zero, noise_struct)
    ys = jax.tree.map(lambda s: jnp.zeros((total,) + s.shape, s.dtype), y_struct)

    def outer(j, state):
        noise = noise_of(j * block)

        def inner(i, state):
            carry, ys = state
            t = j * block + i
            carry, y = iteration(carry, first + t, t, _at(noise, i))
            return carry, jax.tree.map(lambda out, new: jax.lax.dynamic_update_index_in_dim(out, new, t, 0), ys, y)

        return jax.lax.fori_loop(0, jnp.minimum(block, length - j * block), inner, state)

    return jax.lax.fori_loop(0, (length + block - 1) // block, outer, (carry, ys))


def _full_chunk(settings, keys, carry, data, span, total, ids, spread, may_be_padded):
    (first, length), (axis, devices) = span, spread
    present = ids < settings.problem.n if may_be_padded else None
    struct = latent_struct(settings.problem, _lone(carry.params), data)
    block = _block_size(settings, struct, ids.shape[0], total, len(keys))

    def noise_of(offset):
        ks = first + offset + jnp.arange(block)
        return draw_noise(settings, keys[None, :, None], struct, ks[:, None, None], ids)

    def single(key, carry, k, noise):
        params, state, average, rows, trace = one_iteration(
            settings, carry, Visit(carry.rows, data, noise, key, k, axis, devices, present)
        )
        return Carry(params, state, average, rows), trace

    if len(keys) > 1:
        run = jax.vmap(single, in_axes=(0, 0, None, 0))
        return _loop(carry, first, length, total, block, noise_of, lambda c, k, t, e: run(keys, c, k, e))

    def alone(offset):
        return _lone(noise_of(offset), 1)

    carry, trace = _loop(_lone(carry), first, length, total, block, alone, lambda c, k, t, e: single(keys[0], c, k, e))
    return _as_runs(carry), _as_runs(trace, 1)


def _large(inputs: tuple, carry: Carry, **static: Any) -> bool:
    return is_large(inputs[-1][0], len(inputs[1]))


@compiled(donate="all-except-first", large=_large, long=True)
def full_chunk(
    inputs: tuple, carry: Carry, *, total: int, mesh: jax.sharding.Mesh | None, may_be_padded: bool
) -> tuple[Carry, PyTree]:
    """A full-batch chunk: rows stay in the carry, since every iteration rewrites them all.

    Where data and rows may be padded, units beyond the n of the problem count for nothing.
    Params and average come with the inputs, and not in the carry: what is not donated is still there if the chunk diverges.
    """
    settings, keys, data, ids, first, length, (params, average) = inputs
    carry = carry._replace(params=params, average=average)
    ids = jnp.arange(leading(data)) if ids is None else ids
    if mesh is None:
        return _full_chunk(settings, keys, carry, data, (first, length), total, ids, (None, 1), may_be_padded)
    devices = mesh.size
    dynamic, static = eqx.partition(settings, eqx.is_array)
    units, same = PartitionSpec("units"), PartitionSpec()
    carry_spec = Carry(same, same, same, PartitionSpec(None, "units"))

    def local(dynamic, keys, carry, data, ids, first, length):
        settings = eqx.combine(dynamic, static)
        return _full_chunk(settings, keys, carry, data, (first, length), total, ids, ("units", devices), may_be_padded)

    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(same, same, carry_spec, units, units, same, same),
        out_specs=(carry_spec, same),
        check_vma=False,
    )
    return sharded(dynamic, keys, carry, data, ids, first, length)


@compiled(donate="all-except-first", large=_large, long=True)
def batch_chunk(
    inputs: tuple, carry: Carry, *, total: int, mesh: jax.sharding.Mesh | None = None, b: int | None = None
) -> tuple[Carry, PyTree]:
    """A mini-batch chunk: rows are streamed; those of repeated units are read from the carry's buffer, if there is one.

    Params and average come with the inputs, as in `full_chunk`. Over a mesh each device has its part of the b units.
    """
    settings, keys, visits, first, length, kept = inputs
    if mesh is None:
        return _batch_chunk(settings, keys, visits, (first, length), kept, carry, total, (None, 1, None))
    dynamic, static = eqx.partition(settings, eqx.is_array)
    same, streamed, buffer = PartitionSpec(), PartitionSpec(None, None, "units"), PartitionSpec(None, "units")
    carry_spec = Carry(same, same, same, buffer)

    def local(dynamic, keys, visits, first, length, kept, carry):
        settings = eqx.combine(dynamic, static)
        return _batch_chunk(settings, keys, visits, (first, length), kept, carry, total, ("units", mesh.size, b))

    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(same, same, streamed, same, same, same, carry_spec),
        out_specs=(carry_spec, (same, streamed)),
        check_vma=False,
    )
    return sharded(dynamic, keys, visits, first, length, kept, carry)


def _batch_chunk(settings, keys, visits, span, kept, carry, total, spread):
    (first, length), (params, average), (axis, devices, b) = span, kept, spread
    carry = carry._replace(params=params, average=average)
    struct = latent_struct(settings.problem, _lone(carry.params), jax.tree.map(lambda leaf: leaf[0, 0], visits.data))
    block = _block_size(settings, struct, visits.ids.shape[-1], total, len(keys))
    padded = -(-total // block) * block
    all_ids = jnp.concatenate([visits.ids, jnp.zeros((padded - total,) + visits.ids.shape[1:], visits.ids.dtype)])

    def noise_of(offset):
        ids = jax.lax.dynamic_slice_in_dim(all_ids, offset, block)
        ks = first + offset + jnp.arange(block)
        return draw_noise(settings, keys[None, :, None], struct, ks[:, None, None], ids)

    def single(key, carry, k, visit, noise):
        buffer = carry.rows
        buffered = bool(jax.tree.leaves(buffer))

        def read(slots, streamed):
            held = visit.slots < slots.shape[0] - 1
            return jnp.where(held.reshape(held.shape + (1,) * (streamed.ndim - 1)), slots[visit.slots], streamed)

        rows = jax.tree.map(read, buffer, visit.rows) if buffered else visit.rows
        present = None if axis is None else visit.ids < settings.problem.n
        if present is not None:  # what the algorithm remembers of no unit is nothing
            rows = rows[0], jax.tree.map(lambda leaf: leaf * present.reshape(-1, *(1,) * (leaf.ndim - 1)), rows[1])
        visited = Visit(rows, visit.data, noise, key, k, axis, devices, present, b)
        params, state, average, rows, trace = one_iteration(settings, carry, visited)
        if buffered:
            buffer = jax.tree.map(lambda slots, new: slots.at[visit.slots].set(new), buffer, rows)
        return Carry(params, state, average, buffer), (trace, rows)

    if len(keys) > 1:
        run = jax.vmap(single, in_axes=(0, 0, None, 0, 0))

        def several(carry, k, t, noise):
            return run(keys, carry, k, _at(visits, t), noise)

        return _loop(carry, first, length, total, block, noise_of, several)

    def alone(offset):
        return _lone(noise_of(offset), 1)

    def iteration(carry, k, t, noise):
        carry, out = single(keys[0], carry, k, _lone(_at(visits, t)), noise)
        # Rows get their axis here: after the loop it would copy all of the chunk's.
        return carry, _as_runs(out)

    carry, out = _loop(_lone(carry), first, length, total, block, alone, iteration)
    return _as_runs(carry), out


@compiled
def init_rows(settings: Settings, key: Array, params: PyTree, data: PyTree, ids: Array) -> PyTree:
    """E-step rows of some units."""
    key = jax.random.fold_in(key, INIT)

    def make(i, y):
        return settings.estep.init(jax.random.fold_in(key, i), settings.problem.model, params, y)

    return mapped(make, leading(data))(jnp.asarray(ids), data)


@compiled
def first_state(settings: Settings, params: PyTree, unit: PyTree) -> tuple[PyTree, PyTree]:
    """State of the algorithm and of the average before the first iteration; `unit` is the shape of a unit's statistic."""
    return settings.algorithm.init(settings.problem, params, unit), averaging.start(settings.average, params)


def _not_short(settings: Settings, key: Array, params: PyTree, data: PyTree, *rest: Any) -> bool:
    return not is_short(data)


# The first program of a fit, though short: with it the second thread has work as early as there is any. Of a short table that
# work is short too, and what the fit waits for comes first.
@compiled(long=_not_short)
def begin(settings: Settings, key: Array, params: PyTree, data: PyTree, ids: Array, unit: PyTree) -> tuple[PyTree, tuple]:
    """`init_rows` and `first_state`, by one program."""
    return init_rows(settings, key, params, data, ids), first_state(settings, params, unit)


@compiled(large=lambda settings, key, params, *rest: is_large(params))
def visit_all(
    settings: Settings, key: Array, params: PyTree, rows: PyTree, data: PyTree, ids: Array, k: Array
) -> tuple[tuple[PyTree, PyTree], PyTree]:
    """One E-step of some units at fixed parameters: their rows (E-step's, own), and the sum of their statistics.

    Ids rise, but for the last, which may be repeated and counts once.
    """
    struct = latent_struct(settings.problem, params, data)
    noise = draw_noise(settings, key, struct, k, ids)

    s, rows, _ = settings.algorithm.visited(settings.problem, settings.estep, params, rows, data, noise, jnp.maximum(k, 1))
    fresh = jnp.concatenate([jnp.ones(1, bool), ids[1:] > ids[:-1]])
    return (rows, s), jax.tree.map(lambda leaf: jnp.einsum("b,b...->...", fresh.astype(leaf.dtype), leaf), s)


def _at(tree: PyTree, t: Array) -> PyTree:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, t, keepdims=False, allow_negative_indices=False), tree)


def _lone(tree: PyTree, axis: int = 0) -> PyTree:
    """Of the first of several runs. Of one run it is no more than a view: mapped, a program takes twice as long to compile."""
    return jax.tree.map(lambda leaf: leaf[0] if axis == 0 else leaf[:, 0], tree)


def _as_runs(tree: PyTree, axis: int = 0) -> PyTree:
    """The axis of runs, put back for one."""
    return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), tree)
