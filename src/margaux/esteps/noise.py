"""The E-step of variational inference: latents are fixed noise, whatever the parameters."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.keys import key_of
from ..problem.model import leading
from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractEStep

#: bits of a word
WORD = 32


class Noise(AbstractEStep):
    r"""$z \sim N(0, I)$: the model's `log_joint` is then the reparameterised integrand
    $\log p(y_i \mid w) - d_i(\theta)$ at $w = t(\theta, z)$ (MISSO, example 2).

    Leaves of the latents that are integers are random signs in place of normals.

    Args:
        n_draws: draws a unit, a number or a growing schedule such as `margaux.Growth(0, power=1, epoch=430)` ($M_k=k$, k the
            epoch); one draw (or antithetic pair) is held at a time then.
        antithetic: draw pairs z, -z of the normals; signs are the same in both.

    Traces the mean log joint, which is the objective itself.
    """

    may_be_padded: ClassVar[bool] = True
    n_draws: int | AbstractSchedule
    antithetic: bool = eqx.field(static=True)

    def __init__(self, n_draws: int | AbstractSchedule = 1, antithetic: bool = False) -> None:
        if isinstance(n_draws, int):
            if n_draws < 1 or (antithetic and n_draws % 2):
                raise ValueError(f"n_draws must be at least 1, and even for antithetic pairs; got {n_draws}")
            self.n_draws = n_draws
        else:
            self.n_draws = as_schedule(n_draws, name="n_draws")
        self.antithetic = antithetic

    @property
    def averages_objective(self):
        return True

    def requires(self, model, latents):
        return None

    def init(self, key, model, params, y):
        return ()

    def noise(self, key, latents):
        # A schedule's draws are made one by one, from the key.
        return self._draw(key, latents, self.n_draws) if isinstance(self.n_draws, int) else key

    def _draw(self, key, latents, m):
        """m draws of one unit: all leaves of one type at once, for a program that is small however many there are."""
        leaves, structure = jax.tree.flatten(latents)
        types = list(dict.fromkeys(leaf.dtype for leaf in leaves))
        keys = jax.random.split(key, len(types)) if len(types) > 1 else [key]
        drawn = [jnp.zeros(0)] * len(leaves)
        for key, dtype in zip(keys, types, strict=True):
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            ends = np.cumsum([leaves[i].size for i in places]).tolist()
            flat = self._flat(key, dtype, m, ends[-1])
            for i, end in zip(places, ends, strict=True):
                drawn[i] = flat[:, end - leaves[i].size : end].reshape((m,) + leaves[i].shape)
        return jax.tree.unflatten(structure, drawn)

    def _flat(self, key, dtype, m, size):
        half = m // 2 if self.antithetic else m
        if jnp.issubdtype(dtype, jnp.integer):
            # Each bit of a word is a sign: a word for each would take as long as the products that they are for.
            words = jax.random.bits(key, (half, -(-size // WORD), 1), jnp.uint32)
            bits = (words >> jnp.arange(WORD, dtype=jnp.uint32)).reshape(half, -1)[:, :size] & 1
            signs = 2 * bits.astype(dtype) - 1
            return jnp.concatenate([signs, signs]) if self.antithetic else signs
        z = jax.random.normal(key, (half, size), dtype)
        return jnp.concatenate([z, -z]) if self.antithetic else z

    def expect(self, f, noise, model, params, rows, batch, k):
        b, dtype = leading(batch), jnp.result_type(*jax.tree.leaves(params))

        def first(tree):
            return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), tree)

        if isinstance(self.n_draws, int):
            return f(first(noise), jnp.full((self.n_draws, b), 1.0 / self.n_draws, dtype)), rows, {}
        size = 2 if self.antithetic else 1
        rounds = jnp.maximum(jnp.ceil(self.n_draws(k) / size).astype(jnp.int32), 1)
        unit = jax.tree.map(lambda leaf: leaf[0], batch)
        struct = jax.eval_shape(model.init_latents, key_of(0), params, unit)

        def average(r):
            z = jax.vmap(lambda key: self._draw(jax.random.fold_in(key, r), struct, size))(noise)
            return f(first(z), jnp.full((size, b), 1.0 / size, dtype) / rounds.astype(dtype))

        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(average, 0))
        return jax.lax.fori_loop(0, rounds, lambda r, sum: jax.tree.map(jnp.add, sum, average(r)), zero), rows, {}
