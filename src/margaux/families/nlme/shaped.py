"""Of a mixed-effects model with effects that are not normal: the parameters of their shapes, and what shapes make of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .shapes import LEAST, RECIPROCAL, StudentT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .estimator import NLME
    from .individual import Individual
    from .model import MixedEffects

#: nu from which on tails may be those of the normal distribution
NORMAL = 20.0
#: nu of heavy tails
HEAVY = 4.0


def places(individual: Any) -> list[int]:
    """Positions of the parameters, among (name, distribution) pairs, whose effects have a shape."""
    return [j for j, (_, one) in enumerate(individual) if one.random and one.shape is not None]


def names(model: MixedEffects) -> list[str]:
    """Of the parameters of shapes, as `params_` has them."""
    return [f"{one.shape.prefix}_{name}" for name, one in _shaped(model)]


def _shaped(model: MixedEffects) -> list[tuple[str, Any]]:
    return [model.individual[j] for j in model.shaped]


def scales(fitted: NLME) -> dict[str, Any]:
    """The scale that the interval of each is taken on, where it is another than its own."""
    own = [name for name in names(fitted.model_) if name.startswith(StudentT.prefix)]
    return dict.fromkeys([*own, *(name for name in fitted._dropped if name.startswith(StudentT.prefix))], RECIPROCAL)


def natural(model: MixedEffects, params: dict) -> list[Array]:
    """The parameters of shapes as `params_` has them."""
    return [one.shape.natural(params["shape"][k]) for k, (_, one) in enumerate(_shaped(model))]


def starts(individual: Mapping[str, Individual]) -> np.ndarray | None:
    """Where the engine's parameters of shapes start from; None where there are none."""
    pairs = list(individual.items())
    own: list[Any] = [pairs[j][1].shape for j in places(pairs)]
    return np.asarray([one.first for one in own], float) if own else None


def held(individual: Mapping[str, Individual]) -> np.ndarray:
    """Values that they are held at, NaN where they are estimated."""
    pairs = list(individual.items())
    own: list[Any] = [pairs[j][1].shape for j in places(pairs)]
    return np.asarray([one.first if one.fixed else np.nan for one in own], float)


def moving(model: MixedEffects) -> tuple[str, ...]:
    """Names of the engine's parameters that move curves at given latents by shapes: means of effects, of those whose shape is
    `scaled` variances, and shapes themselves. But for them M-steps of these would be closed."""
    if not model.shaped:
        return ()
    return ("beta", *(("omega2",) if any(one.shape.scaled for _, one in _shaped(model)) else ()), "shape")


def carried_over(source: MixedEffects, target: MixedEffects, params: dict) -> np.ndarray:
    """The parameters of one model's shapes as those of another's, where they start from if they are new."""
    known = dict(zip(source.shaped, np.ravel(params.get("shape", ())), strict=True))
    return np.asarray([known.get(j, first) for j, first in zip(target.shaped, np.ravel(target.first_shapes), strict=True)])


def shaped_effects(model: MixedEffects, params: dict, z: Array, design: Array) -> dict[str, Array]:
    """What shapes make of the random effects of a subject, less the effects themselves, by name; none where parameters have no
    `shape`, as on the way to starting values."""
    if not model.shaped or "shape" not in params:
        return {}
    eta, variances = z[: len(model.random)] - model.mean(params, design), jnp.diagonal(model.covariance(params))
    out = {}
    for k, j in enumerate(model.shaped):
        (name, one), at = model.individual[j], model.random.index(j)
        shape: Any = one.shape
        out[name] = shape.effect(eta[at], variances[at], params["shape"][k]) - eta[at]
    return out


def refuse(wanted: list[str], fitted: NLME) -> None:
    """Raises: ValueError: one of the parameters is of tails, whose normal ones are at infinity."""
    for name in wanted:
        if name in scales(fitted):
            raise ValueError(f"{name} is infinite of normal effects, where no Wald test holds; see margaux.nlme.lr_test")


def lost_shapes(asked: Any, left: Mapping[str, Individual]) -> list[str]:
    """Names of the shapes of (name, distribution) pairs that were estimated as those of normal effects."""
    return [f"{one.shape.prefix}_{name}" for name, one in asked if one.shape and left[name].random and not left[name].shape]


def note_of_shapes(fitted: NLME) -> str:
    """What is to be said of shapes; "" if there is nothing."""
    gone = [name for name in fitted._dropped if name.startswith(StudentT.prefix)]
    told = [f"{', '.join(gone)}: tails are no heavier than the normal distribution's, which is what was fitted"] if gone else []
    left = dict(fitted.model_.individual)
    without = [name for name, one in (fitted.individual or {}).items() if one.shape and not left[name].random]
    told += [f"the effect of {', '.join(without)} has no variance, and no shape"] if without else []
    return "; ".join(told)


def doubtful(fitted: NLME) -> dict[str, float]:
    """Degrees of freedom that are fewer than the expansion of `StudentT` holds for, by name."""
    return {name: fitted.params_[name] for name in scales(fitted) if fitted.params_[name] < LEAST}


def normal_tails(model: MixedEffects, params: dict) -> str | None:
    """The parameter whose effect has the least heavy tails, if they may be no heavier than the normal distribution's."""
    free = ~model.held.mask("shape", len(model.shaped))
    own = {
        name: float(one.shape.natural(params["shape"][k]))
        for k, (name, one) in enumerate(_shaped(model))
        if isinstance(one.shape, StudentT) and free[k]
    }
    least = max(own, key=own.__getitem__, default=None)
    return least if least is not None and own[least] > NORMAL else None


def with_heavy_tails(model: MixedEffects, params: dict, name: str) -> dict:
    """With those of t of `HEAVY` degrees of freedom."""
    shape = np.array(params["shape"])
    shape[model.shaped.index(model.names.index(name))] = np.log(HEAVY)
    return params | {"shape": shape}


def refuse_blocks(individual: Mapping[str, Individual], blocks: list[tuple[str, ...]]) -> None:
    """Raises: ValueError: omega correlates an effect whose shape depends on its variance."""
    for name in (name for block in blocks if len(block) > 1 for name in block):
        shape: Any = individual[name].shape
        if shape is not None and shape.scaled:
            raise ValueError(
                f"individual[{name!r}] has the shape {type(shape).__name__}, whose scale is its effect's own, and omega "
                f"correlates it with others: leave {name} out of the block, or take BoxCox, which may be in one"
            )


def check(individual: Mapping[str, Individual], fixed_effects: str) -> None:
    """Raises: ValueError: a parameter of a shape would be called as another one; fixed effects are exponentialised."""
    for name, one in individual.items():
        shape: Any = one.shape
        if shape is None:
            continue
        if (own := f"{shape.prefix}_{name}") in individual:
            raise ValueError(f"the shape of {name} has the parameter {own}, and individual has one of that name: rename it")
        if fixed_effects == "exponentialised":
            raise ValueError(
                f"individual[{name!r}] has a shape, with which the M-step that exponentialised fixed effects are for is not "
                "closed; leave fixed_effects= out, or shape="
            )
