"""Work that takes some long and others not, side by side in a few lanes, each of which takes the next when it is done.

What is mapped goes on until the slowest of all is done, and the others wait. Here the lanes are as many as keep a core busy, and
none waits for long: where a quarter of them has come to a halt these go on, and where a quarter is done they begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import PyTree

#: lanes, and the share of them that is waited for
LANES, SHARE = 16, 4


class Work(NamedTuple):
    """How work is done, in lanes: named tuples that tell, among others, whether they are `halted` and `over`.

    Attributes:
        begin: job -> lane, which is halted. step: (job, lane) -> lane, one that is not halted. onwards: (job, lane) -> lane, one
            that is, to its next step or its end. read: lane -> what comes of it.
    """

    begin: Callable[[PyTree], Any]
    step: Callable[[PyTree, Any], Any]
    onwards: Callable[[PyTree, Any], Any]
    read: Callable[[Any], PyTree]


def done(work: Work, job: PyTree, lanes: bool = True) -> PyTree:
    """What comes of one job; of many, where this is mapped, by lanes if so wanted. These are to be mapped first and
    differentiated then: see `margaux.numerics.forward`. Neither can be transposed."""
    if not lanes:
        return _alone(work, job)

    @custom_vmap
    def every(jobs: PyTree) -> PyTree:
        return _by_lanes(work, jobs)

    @every.def_vmap
    def _(size: int, batched: Any, jobs: PyTree) -> tuple[PyTree, PyTree]:
        (flags,) = batched
        if not any(jax.tree.leaves(flags)):
            out = _by_lanes(work, jobs)
            return out, jax.tree.map(lambda _: False, out)
        whole = mapped(size, jobs, flags)
        count = jax.tree.leaves(whole)[0].shape[1]
        out = every(jax.tree.map(lambda leaf: leaf.reshape(size * count, *leaf.shape[2:]), whole))
        out = jax.tree.map(lambda leaf: leaf.reshape(size, count, *leaf.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    single = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], job)
    return jax.tree.map(lambda leaf: leaf[0], every(single))


def _alone(work: Work, job: PyTree) -> PyTree:
    """Of one job, however it is mapped."""

    def go_on(lane: Any) -> Any:
        lane = jax.lax.while_loop(lambda lane: ~(lane.halted | lane.over), lambda lane: work.step(job, lane), lane)
        return jax.lax.cond(lane.over, lambda lane: lane, lambda lane: work.onwards(job, lane), lane)

    return work.read(jax.lax.while_loop(lambda lane: ~lane.over, go_on, work.begin(job)))


def mapped(size: int, tree: PyTree, flags: PyTree) -> PyTree:
    """With all leaves mapped, of which some are."""
    return jax.tree.map(lambda leaf, own: leaf if own else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), tree, flags)


def _by_lanes(work: Work, jobs: PyTree) -> PyTree:
    count = jax.tree.leaves(jobs)[0].shape[0]
    size = min(count, LANES)
    few = math.ceil(size / SHARE)
    step, onwards = jax.vmap(work.step), jax.vmap(work.onwards)

    def until(enough: Any, own: PyTree, lanes: Any) -> Any:
        """On, until so many are over."""

        def some_step(lanes: Any) -> Any:
            halted = lanes.halted & ~lanes.over
            return jnp.any(~(lanes.halted | lanes.over)) & (jnp.sum(halted) < few)

        def on(lanes: Any) -> Any:
            return _where(~(lanes.halted | lanes.over), step(own, lanes), lanes)

        def go_on(lanes: Any) -> Any:
            lanes = jax.lax.while_loop(some_step, on, lanes)
            return _where(lanes.halted & ~lanes.over, onwards(own, lanes), lanes)

        return jax.lax.while_loop(lambda lanes: jnp.sum(lanes.over) < enough, go_on, lanes)

    def filled(state: tuple) -> tuple:
        """Lanes that are done with the jobs that follow, and on until some are done again, whose results are written."""
        following, ids, own, lanes, out = state
        ids = jnp.where(lanes.over, jnp.minimum(following + jnp.cumsum(lanes.over) - 1, count), ids)
        following = jnp.minimum(following + jnp.sum(lanes.over), count)
        fresh = jax.tree.map(lambda leaf: leaf[jnp.minimum(ids, count - 1)], jobs)
        own, lanes = _where(lanes.over, (fresh, jax.vmap(work.begin)(fresh)), (own, lanes))
        lanes = lanes._replace(over=lanes.over | (ids >= count))
        lanes = until(jnp.where(following < count, few, size), own, lanes)
        # Places beyond the last are nobody's: what is not over is not written.
        place = jnp.where(lanes.over, ids, count)
        read = jax.vmap(work.read)(lanes)
        out = jax.tree.map(lambda whole, some: whole.at[place].set(some, mode="drop"), out, read)
        return following, ids, own, lanes, out

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), jobs)
    lane = jax.eval_shape(work.begin, first)
    own, lanes, out = _blank(size, first), _blank(size, lane), _blank(count, jax.eval_shape(work.read, lane))
    begun = (jnp.asarray(0), jnp.full(size, count), own, lanes._replace(over=jnp.ones(size, bool)), out)
    return jax.lax.while_loop(lambda state: (state[0] < count) | ~jnp.all(state[3].over), filled, begun)[-1]


def _blank(size: int, like: PyTree) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), like)


def _where(flags: Any, new: Any, old: Any) -> Any:
    """Those new lanes, and old ones."""

    def one(new: Any, old: Any) -> Any:
        return jnp.where(flags.reshape(flags.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(one, new, old)
