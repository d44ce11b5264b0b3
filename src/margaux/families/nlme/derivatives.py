r"""Derivatives of a mixed-effects model in its parameters. Of $\beta$, $\Omega$ and the scale of an error the complete
log-likelihood is linear in moments of $\phi$ and in squared residuals: these, and one evaluation of its curve, are all that it
takes of a draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...problem.model import leading, mapped
from .outcomes import PRESENT

#: what densities of effects depend on
EFFECTS = {"beta", "omega2", "omega", "gamma2", "delta"}

if TYPE_CHECKING:
    from .model import MixedEffects


def of_draws(model: MixedEffects, params: dict, z: Any, w: Float[Array, "m b"], batch: Any) -> tuple[Array, Array]:
    """As `margaux.problem.AbstractDifferentiated` has it: (m, b, p) and (p, p)."""
    units = mapped(lambda z, w, y: _of_unit(model, params, z, w, y), leading(batch))
    each, hessians = units(jnp.moveaxis(z, 1, 0), w.T, batch)
    each, hessian = jnp.moveaxis(each, 0, 1), jnp.sum(hessians, axis=0)
    if not model.prior.places:
        return each, hessian
    slope, bend = model.prior.derivatives(params)
    return each + slope, hessian + jnp.sum(w) * bend


def _of_unit(
    model: MixedEffects, params: dict, z: Float[Array, "m d"], w: Float[Array, " m"], y: dict
) -> tuple[Float[Array, "m p"], Float[Array, "p p"]]:
    """Of one subject's draws."""
    first, back = ravel_pytree({name: leaf for name, leaf in params.items() if name in EFFECTS or name not in model.curved})
    second, back_second = ravel_pytree({name: params[name] for name in model.curved})

    def log_likelihoods(flat: Array) -> Float[Array, " m"]:
        moved, own = params | back_second(flat), model.forward()
        return jax.vmap(lambda z: own.log_likelihood(moved, z, y))(z)

    def sloped(flat: Array) -> tuple[Array, Array]:
        each = jax.jacfwd(log_likelihoods)(flat)
        return w @ each, each

    slopes, bends = jnp.zeros((len(w), 0), w.dtype), jnp.zeros((0, 0), w.dtype)
    if second.size:
        bends, slopes = jax.jacfwd(sloped, has_aux=True)(second)
    # About where the effects are centred: their squares would be lost beside those of a mean far from zero.
    centre = model.mean(params, y["design"]) if model.random else jnp.zeros(0, z.dtype)
    moments = jax.vmap(lambda z: _moments(model, params, z, centre, y))(z)

    def slope(flat: Array, moments: Array) -> Array:
        return scores(model, params | back(flat), moments, params, y)

    # Linear in the moments, of which it takes the coefficients once for all draws.
    coefficients = jax.jacfwd(slope, argnums=1)(first, w @ moments)
    each = jnp.concatenate([moments @ coefficients.T, slopes], axis=1)
    none = jnp.zeros((first.size, second.size), w.dtype)
    hessian = jnp.block([[jax.jacfwd(slope)(first, w @ moments), none], [none.T, bends]])
    if not set(model.curved) & EFFECTS & set(params):
        # In the order of flat parameters.
        numbered = ravel_pytree(back(jnp.arange(first.size)) | back_second(first.size + jnp.arange(second.size)))[0]
        order = numbered.astype(int)
        return each[:, order], hessian[jnp.ix_(order, order)]
    # Densities of effects and of data depend on some alike: both add to their places.
    flat, unflat = ravel_pytree(params)
    numbers = unflat(jnp.arange(flat.size, dtype=flat.dtype))
    own = [ravel_pytree({name: numbers[name] for name in part})[0] for part in (back(first), back_second(second))]
    to = jax.nn.one_hot(jnp.concatenate(own).astype(int), flat.size, dtype=w.dtype)
    return each @ to, to.T @ hessian @ to


def _moments(model: MixedEffects, params: dict, z: Float[Array, " d"], centre: Float[Array, " d"], y: dict) -> Float[Array, " q"]:
    r"""One, $\phi$ and $\phi\phi^\top$ about a centre, sums of squared effects of occasions about theirs (and the effects, where
    they have covariates), and of squared residuals by output, flat."""
    squares: Any = jnp.zeros(1, z.dtype)
    if "error" in params and "error" not in model.curved:
        outcome: Any = model.outcome
        each = jnp.where(y["mask"] > 0, outcome.squares(model.psi(params, z, y["design"]), y["rows"]), 0.0)
        squares = outcome.error.of_each(each, y["rows"])
    gap, effects = z[: centre.size] - centre, model.effects_of_occasions(params, z, y)
    between = [jnp.sum(effects**2, axis=1)] + ([jnp.ravel(effects)] if model.followed else [])
    return jnp.concatenate([jnp.ones(1, z.dtype), gap, jnp.ravel(jnp.outer(gap, gap)), *between, squares])


def scores(model: MixedEffects, params: dict, moments: Float[Array, " q"], about: dict, y: dict) -> Float[Array, " p"]:
    r"""The sum over draws of $\nabla\log p(y_i,\phi\mid\theta)$ by their `_moments`, but for the parameters that are `curved`.

    With $e=\phi-C_i\beta$ and $P=\Omega^{-1}$: $C_i^\top Pe$ of $\beta$, $(Pee^\top P-P)/2$ of $\Omega$,
    $(\sum_k\epsilon_{ik}^2/\gamma^2-K_i)/(2\gamma^2)$ of a variance between its $K_i$ occasions,
    $\sum_k x_{ik}\epsilon_{ik}/\gamma^2$ of $\delta$ with $\epsilon_{ik}=\kappa_{ik}-\delta^\top x_{ik}$, and
    $\lVert r\rVert^2/a^3-T_i/a$ of the error's scale a, r being residuals at a scale of one, by output.

    Args:
        about: parameters whose means the moments are about.
    """
    d, weight, out = len(model.random), moments[0], {}
    if model.varying:
        out |= _scores_of_occasions(model, params, moments, about, y)
    if d:
        mean, phi = model.mean(params, y["design"]) - model.mean(about, y["design"]), moments[1 : 1 + d]
        cross = jnp.outer(phi, mean)
        spread = moments[1 + d : 1 + d + d * d].reshape(d, d) - cross - cross.T + weight * jnp.outer(mean, mean)
        precision, own = jnp.zeros((d, d), moments.dtype), np.asarray(model.independent, int)
        if len(own):
            each = 1 / params["omega2"]
            precision = precision.at[own, own].set(each)
            out["omega2"] = (jnp.diagonal(spread)[own] * each - weight) * each / 2
        if model.blocks:
            inverses = [jnp.linalg.inv((matrix + matrix.T) / 2) for matrix in params["omega"]]
            within = [spread[np.ix_(block, block)] for block in model.blocks]
            out["omega"] = tuple((p @ m @ p - weight * p) / 2 for p, m in zip(inverses, within, strict=True))
            for block, inverse in zip(model.blocks, inverses, strict=True):
                precision = precision.at[np.ix_(block, block)].set(inverse)
        owners = np.asarray([model.random.index(j) for j in model.owner[: model.split]])
        out["beta"] = y["design"][: model.split] * (precision @ (phi - weight * mean))[owners]
    if "error" in params and "error" not in model.curved:
        scale = params["error"]
        outcome: Any = model.outcome
        out["error"] = moments[-len(scale) :] / scale**3 - weight * outcome.error.of_each(y["mask"], y["rows"]) / scale
    return ravel_pytree(out)[0]


def _scores_of_occasions(model: Any, params: dict, moments: Float[Array, " q"], about: dict, y: dict) -> dict[str, Array]:
    """Those of gamma2 and delta."""
    d, m, weight, each = len(model.random), len(model.varying), moments[0], 1 / params["gamma2"]
    between = moments[1 + d + d * d : 1 + d + d * d + m]
    if not model.followed:
        return {"gamma2": (between * each - weight * jnp.sum(y[PRESENT])) * each / 2}
    first = 1 + d + d * d + m
    effects = moments[first : first + m * model.most].reshape(m, model.most)
    centre = model.centres(params, y["design"]) - model.centres(about, y["design"])
    between = between - 2 * jnp.sum(centre * effects, axis=1) + weight * jnp.sum(centre**2, axis=1)
    owners = np.asarray([model.varying.index(j) for j in model.shifted[: model.followed]])
    x = model.covariates(y["design"])[:, : model.followed]
    delta = jnp.sum(x.T * (effects - weight * centre)[owners], axis=1) * each[owners]
    return {"gamma2": (between * each - weight * jnp.sum(y[PRESENT])) * each / 2, "delta": delta}
