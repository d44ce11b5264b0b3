"""Parameters that are held at given values instead of being estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problem.held import Held
from . import shaped
from .outcomes import AbstractOutcome, Continuous

if TYPE_CHECKING:
    from ...problem.space import AbstractSpace
    from .by_output import ErrorByOutput
    from .error import ResidualError
    from .individual import Individual
    from .model import MixedEffects


class HeldValues(eqx.Module):
    """Which entries of the engine's parameters are held, and at what: another value is no other program.

    Args:
        masks: of each of the engine's parameters that has entries held, which. values: vectors with these, and ones elsewhere.
    """

    masks: tuple[tuple[str, tuple[bool, ...]], ...] = eqx.field(static=True, default=())
    values: dict[str, Array | np.ndarray] = eqx.field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, np.ndarray]) -> HeldValues:
        """By vectors that are NaN where nothing is held."""
        kept = {name: np.asarray(value, float) for name, value in values.items() if not np.all(np.isnan(value))}
        masks = tuple((name, tuple((~np.isnan(value)).tolist())) for name, value in kept.items())
        return cls(masks, {name: np.where(np.isnan(value), 1.0, value) for name, value in kept.items()})

    def mask(self, name: str, size: int) -> np.ndarray:
        """Which of the entries of a parameter are held."""
        return np.asarray(dict(self.masks).get(name, (False,) * size), bool)

    def vector(self, name: str, size: int) -> np.ndarray:
        """The values of a parameter that are held, NaN where none is."""
        return np.where(self.mask(name, size), self.values.get(name, np.nan), np.nan)

    @property
    def names(self) -> set[str]:
        """Of the entries that are held, as `beta[1]`."""
        return {f"{name}[{place}]" for name, mask in self.masks for place in np.flatnonzero(mask)}

    @property
    def whole(self) -> tuple[str, ...]:
        """Names of the parameters of which every entry is held."""
        return tuple(name for name, mask in self.masks if all(mask))

    @property
    def count(self) -> int:
        return sum(sum(mask) for _, mask in self.masks)

    def imposed(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters with the values that are held, by NumPy."""
        return params | {name: np.where(mask, self.values[name], params[name]) for name, mask in self.masks}

    def kept(self, new: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """The new parameters of an M-step, whose held entries stay as they are."""
        return new | {name: jnp.where(np.asarray(mask), params[name], new[name]) for name, mask in self.masks if name in new}

    def within(self, space: dict[str, AbstractSpace]) -> dict[str, AbstractSpace]:
        """The space of the parameters that are left."""
        return space | {name: Held(space[name], mask, self.values[name]) for name, mask in self.masks}


NOTHING = HeldValues()


def least_squares(
    gram: Float[Array, "p p"], moment: Float[Array, " p"], held: np.ndarray, values: Float[Array, " p"]
) -> Float[Array, " p"]:
    """The solution of normal equations in the coefficients that are not held: $G_{ff}b_f = m_f - G_{fh}b_h$."""
    if not held.any():
        return jnp.linalg.solve(gram, moment)
    free, rest = np.flatnonzero(~held), np.flatnonzero(held)
    if not len(free):
        return values
    right = moment[free] - gram[np.ix_(free, rest)] @ values[rest]
    return values.at[free].set(jnp.linalg.solve(gram[np.ix_(free, free)], right))


def of_coefficients(individual: Mapping[str, Individual], owner: tuple[int, ...], labels: list[str]) -> np.ndarray:
    """Values of the coefficients that are held, NaN of the others, on the Gaussian scale.

    Args:
        owner, labels: of each coefficient, as `Design` has them.

    Raises:
        ValueError: a coefficient that there is not.
    """
    names, out = list(individual), np.full(len(owner), np.nan)
    for name, one in individual.items():
        # However the formula is spaced.
        own = {"".join(labels[k].split()): k for k, j in enumerate(owner) if names[j] == name}
        for label, value in one.coefficients:
            place = own.get("".join(label.split()))
            if not label or place is None:
                known = ", ".join(repr(labels[k]) for k in own.values() if labels[k])
                raise ValueError(
                    f"individual[{name!r}] holds the coefficient of {label!r}, but its covariates {one.covariates!r} have those "
                    f"of {known}"
                )
            if np.isfinite(out[place]):
                raise ValueError(f"individual[{name!r}] holds the coefficient of {labels[place]!r} twice")
            out[place] = value
        if one.fixed:
            assert one.start is not None  # see Individual
            out[own[""]] = float(one.gaussian(one.start))
    return out


def of_error(error: ResidualError | ErrorByOutput) -> np.ndarray:
    """Values of the error parameters that are held, NaN of the others."""
    held = error.held
    return np.asarray([held.get(name, np.nan) for name in error.names], float)


def refuse_blocks(individual: Mapping[str, Individual], blocks: list[tuple[str, ...]]) -> None:
    """Raises: ValueError: a variance is held whose effect is correlated with others."""
    for name in (name for block in blocks if len(block) > 1 for name in block):
        if individual[name].variance is not None:
            raise ValueError(
                f"individual[{name!r}] holds its variance, but omega correlates its effect with others, and no matrix is held in "
                f"part: leave {name} out of the block, or variance= out"
            )


def values(model: MixedEffects, individual: Mapping[str, Individual], outcome: AbstractOutcome, labels: list[str]) -> HeldValues:
    """What individual parameters and an error ask to hold: coefficients, variances of effects, parameters of the error.

    Args:
        labels: of the coefficients, as `Design` has them.

    Raises:
        ValueError: a coefficient that there is not, or nothing that is left to be estimated.
    """
    names = model.names
    every = of_coefficients(individual, model.owner + model.shifted, labels)
    ends = np.cumsum([model.split, len(model.owner) - model.split, model.followed])
    found: dict[str, np.ndarray] = dict(zip(("beta", "fixed", "delta", "drift"), np.split(every, ends), strict=True))
    found["omega2"] = np.asarray([individual[model.names_of_random[j]].variance for j in model.independent], float)
    found["gamma2"] = np.asarray([individual[names[j]].occasion_variance for j in model.varying], float)
    found["shape"] = shaped.held(individual)
    found["error"] = of_error(outcome.error) if isinstance(outcome, Continuous) else np.zeros(0)
    out = HeldValues.of({name: value for name, value in found.items() if value.size})
    if not model.blocks and out.count == sum(value.size for value in found.values()):
        raise ValueError("every parameter is held, and nothing is left to be estimated; leave fixed= or variance= out of one")
    return out


def told(held: Mapping[str, float]) -> str:
    """Which parameters are held, in words; "" if there are none."""
    return "" if not held else f"held, and not estimated: {', '.join(f'{name} = {value:g}' for name, value in held.items())}"


def refuse(names: list[str], held: Mapping[str, float]) -> None:
    """Raises: ValueError: one of the parameters is held."""
    for name in names:
        if name in held:
            raise ValueError(f"{name} is held at {held[name]:g} and was not estimated; fit it without fixed= or variance=")
