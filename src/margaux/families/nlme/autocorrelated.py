"""Residual errors of a subject that are the more alike the closer in time they are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from .error import ResidualError, as_error

if TYPE_CHECKING:
    from .data import LongData


@dataclasses.dataclass(frozen=True)
class AR1(ResidualError):
    r"""An error whose standardised residuals are a stationary autoregression in continuous time:
    $\mathrm{corr}(\epsilon_s,\epsilon_t)=\exp(-|s-t|/\tau)$.

    Parameters are those of the error that it is made of and `tau`, in units of time: residuals a distance of 0.69 tau apart
    have a correlation of a half. Densities of observations are given those before; a tau towards zero is the error without
    correlation.

    Args:
        of: the error of one observation, or its name. fixed: of the parameters of both.

    Reference: Karlsson, Beal and Sheiner, Three new residual error models for population PK/PD analyses (1995).

    >>> AR1("combined").names
    ('a', 'b', 'tau')

    Raises:
        ValueError: an unknown name, or an error that holds parameters itself.
    """

    of: ResidualError | str = "constant"
    closed = False

    def __post_init__(self) -> None:
        one = as_error(self.of)
        if isinstance(one, AR1) or one.held or one.random:
            raise ValueError(
                f"AR1 is of an error that holds nothing and is no AR1, got {one!r}; hold by AR1(fixed=...), and multiply by "
                "AR1(random=True)"
            )
        object.__setattr__(self, "of", one)
        super().__post_init__()

    @property
    def _one(self) -> Any:
        return self.of

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self._one.names, "tau")

    @property
    def scales(self):
        return self._one.scales

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return self._one.positive

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return self._one.relative

    def sd(self, error, f):
        return self._one.sd(error[:-1], f)

    def transformed(self, y):
        return self._one.transformed(y)

    def at(self, rows):
        return _Along(self.of, fixed=self.fixed, random=self.random, times=rows.get("time"))

    def parts(self, rows):
        return [(self.at(rows), np.ones(np.shape(rows["y"]), bool))]


@dataclasses.dataclass(frozen=True, eq=False)
class _Along(AR1):
    """The error of rows at these times (..., T)."""

    times: Any = None

    def _gaps(self) -> Float[Array, " T"]:
        return jnp.abs(jnp.diff(self.times, prepend=self.times[:1]))

    def _shares(self, gaps: Array, tau: Array) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """The correlation of each residual with the one before, and the SD of what is new in it."""
        distance, first = gaps / tau, jnp.arange(len(gaps)) == 0
        return jnp.where(first, 0.0, jnp.exp(-distance)), jnp.where(first, 1.0, jnp.sqrt(-jnp.expm1(-2 * distance)))

    def log_density(self, error, f, y):
        gaps = self._gaps()
        # Rows of the padding may have any time; those of the data are one after the other.
        share, new = self._shares(jnp.where(gaps > 0, gaps, 1.0), error[-1])
        z = (self.transformed(y) - self.transformed(f)) / self.sd(error, f)
        before = jnp.concatenate([jnp.zeros_like(z[:1]), z[:-1]])
        return self._one.log_density(error[:-1], f, y) + norm.logpdf(z, share * before, new) - norm.logpdf(z)

    def noisy(self, error, f, noise):
        def go_on(before: Array, row: Any) -> tuple[Array, Array]:
            share, new, own = row
            here = share * before + new * own
            return here, here

        _, correlated = jax.lax.scan(go_on, jnp.zeros_like(noise[0]), (*self._shares(self._gaps(), error[-1]), noise))
        return self._one.noisy(error[:-1], f, correlated)

    def covariance(self, error, f):
        sd = self.sd(error, f)
        return jnp.outer(sd, sd) * jnp.exp(-jnp.abs(self.times[:, None] - self.times[None]) / error[-1])

    def start(self, residual_sd, size):
        gaps = np.diff(np.asarray(self.times, float), axis=-1)
        usual = float(np.median(gaps[gaps > 0])) if np.any(gaps > 0) else 1.0
        return [*self._one.start(residual_sd, size), usual]


def check_times(outcome: Any, data: LongData) -> None:
    """That rows have times by which residuals can be correlated.

    Raises:
        ValueError: there is no time, or two observations of a subject that are not one after the other; limits.
    """
    if not isinstance(getattr(outcome, "error", None), AR1):
        return
    if "time" not in data.units["rows"]:
        raise ValueError("AR1 is a correlation in time: name its column, as fit(data, time=...)")
    if data.censored:
        raise ValueError("AR1 needs every observation, and some are limits; leave cens= or lloq= out, or take another error")
    times, mask = data.units["rows"]["time"], data.units["mask"] > 0
    late = np.zeros(times.shape, bool)
    late[:, 1:] = (np.diff(times, axis=1) <= 0) & mask[:, 1:]
    wrong = data.flat(late)
    if np.any(wrong):
        raise ValueError(
            f"AR1 needs the observations of a subject one after the other, and one is not later than the one before it "
            f"({data.where(int(np.flatnonzero(wrong)[0]))}); average those of one time, sort the rows by time, or take "
            "another error"
        )
