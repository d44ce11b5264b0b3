"""The log prior as the engine sees it: each subject carries its share."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Scalar

#: parameters of the engine that have an inverse Wishart prior, entry by entry
VARIANCES = ("omega2", "gamma2")


class PriorDensity(eqx.Module):
    r"""$\log\pi(\theta)$, of which each of n subjects carries $\log\pi(\theta)/n$ beside $\log p(y_i, z_i\mid\theta)$.

    Sums over subjects are then those of the posterior density of $\theta$: likelihoods, scores, M-steps and information. What is
    constant in the latents changes no posterior of theirs.

    Args:
        places: of each of the engine's parameters that has a prior, which entries have one; of `omega`, which blocks.
        numbers: of these, (means, precisions) of normal priors, of errors those of logarithms, and (modes, weights) of inverse
            Wishart ones. constant: what normalises all. n: subjects.
    """

    places: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True, default=())
    numbers: dict[str, tuple[Any, Any]] = eqx.field(default_factory=dict)
    constant: Any = None
    n: Any = None

    def of(self, name: str) -> tuple[int, ...]:
        """Which entries of a parameter, or which blocks, have a prior."""
        return dict(self.places).get(name, ())

    def value(self, params: dict[str, Any]) -> Scalar:
        r"""$\log\pi(\theta)$, every constant included."""
        if not self.places:
            return jnp.zeros(())
        total = jnp.asarray(self.constant, jax.tree.leaves(params)[0].dtype)
        for name, at in self.places:
            first, second = self.numbers[name]
            if name == "omega":
                for block, mode, weight in zip(at, first, second, strict=True):
                    matrix = (params["omega"][block] + params["omega"][block].T) / 2
                    factor = jnp.linalg.cholesky(matrix)
                    trace = jnp.trace(jax.scipy.linalg.cho_solve((factor, True), jnp.asarray(mode, matrix.dtype)))
                    total -= weight / 2 * (2 * jnp.sum(jnp.log(jnp.diagonal(factor))) + trace)
                continue
            x = params[name][np.asarray(at)]
            if name in VARIANCES:
                total -= jnp.sum(second * (jnp.log(x) + first / x)) / 2
            else:
                total -= jnp.sum(second * ((jnp.log(x) if name == "error" else x) - first) ** 2) / 2
        return total

    def variables(self, params: dict[str, Any]) -> Array:
        """Variances, and lower triangles of covariance matrices, that inverse Wishart densities are of, flat. Normal ones are of
        coordinates themselves."""
        out = [params[name][np.asarray(self.of(name))] for name in VARIANCES if self.of(name)]
        for block in self.of("omega"):
            matrix = params["omega"][block]
            out.append(matrix[np.tril_indices(len(matrix))])
        return jnp.concatenate(out) if out else jnp.zeros(0)

    def share(self, params: dict[str, Any]) -> Any:
        """Of one subject."""
        return self.value(params) / self.n if self.places else 0.0

    def derivatives(self, params: dict[str, Any]) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        """Gradient and Hessian of a subject's share, in flat parameters."""
        flat, back = ravel_pytree(params)

        def of(flat: Array) -> Any:
            return self.share(back(flat))

        return jax.grad(of)(flat), jax.hessian(of)(flat)

    def in_normal_equations(self, name: str, gram: Array, moment: Array) -> tuple[Array, Array]:
        """Normal equations of coefficients, means over subjects in the precision of their effects, with the prior's."""
        if not self.of(name):
            return gram, moment
        at, (means, precisions) = np.asarray(self.of(name)), self.numbers[name]
        return gram.at[at, at].add(precisions / self.n), moment.at[at].add(precisions * means / self.n)

    def in_variances(self, name: str, squares: Array, count: Any = 1.0) -> Array:
        """The M-step of variances (m,) by means over subjects of squared effects and of their number."""
        plain = squares / count
        if not self.of(name):
            return plain
        at, (modes, weights) = np.asarray(self.of(name)), self.numbers[name]
        return plain.at[at].set((squares[at] + weights * modes / self.n) / (count + weights / self.n))

    def in_blocks(self, matrices: tuple[Array, ...]) -> tuple[Array, ...]:
        """The M-step of covariance matrices by the means over subjects of products of effects."""
        out = list(matrices)
        for block, mode, weight in zip(self.of("omega"), *self.numbers.get("omega", ((), ())), strict=True):
            out[block] = (out[block] + weight * mode / self.n) / (1 + weight / self.n)
        return tuple(out)


NO_PRIOR = PriorDensity()
