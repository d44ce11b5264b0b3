r"""The general location model: rows with missing discrete covariates as mixtures of their completions.

With d the discrete covariates of a row, of which some are missing, $d\sim\pi(c)$ with log odds linear in features of the cell,
and $x\mid d\sim N(B^\top(c, w(d)), \Sigma)$ with w its dummies (Olkin and Tate 1961; Little and Schluchter 1985). Given d a row
is one of `exact`, so that
$\log p(y_i, x_{i,o}, d_{i,o}) = \log\sum_{d\supset d_{i,o}}\pi_d(c_i)\,p(x_{i,o}, y_i\mid d)$ takes a sum over what d may be, and
nothing else is new: its gradient is that of the completions, each weighted by its probability given the row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .observed import Params


class Completions(NamedTuple):
    """Of N completions of n rows: the row and the cell of each, what `Cells` says of all C cells, and designs c of rows.

    turn: see `Cells.turn`. design: (n,), the place of a row's c among the g different ones, `designs`.
    """

    owner: Int[Array, " N"]
    cell: Int[Array, " N"]
    features: Float[Array, "C m"]
    turn: Float[Array, "r t"]
    designs: Float[Array, "g k"]
    design: Int[Array, " n"]

    def log_prior(self, gamma: Float[Array, "k m"]) -> Float[Array, " N"]:
        r"""$\log\pi_d(c)$ of each completion."""
        logits = self.designs @ gamma @ self.features.T
        return jax.nn.log_softmax(logits, axis=1)[self.design[self.owner], self.cell]

    def gather(self, logs: Float[Array, " N"]) -> tuple[Float[Array, " n"], Float[Array, " N"]]:
        """Logarithms of the sums over the completions of each row, and their shares in them."""
        n = len(self.design)
        top = jax.ops.segment_max(logs, self.owner, n)
        parts = jnp.exp(logs - top[self.owner])
        total = jax.ops.segment_sum(parts, self.owner, n)
        return top + jnp.log(total), parts / total[self.owner]

    def widened(self, params: Params) -> Params:
        """Parameters of the completions as complete rows: beta of (c, dummies, x)."""
        out = {name: value for name, value in params.items() if name != "cells"}
        return out | {"beta": params["beta"] @ self.turn.T}
