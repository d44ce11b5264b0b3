"""What is observed given individual parameters: continuous responses, counts, categories, event times."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, PRNGKeyArray

from ...numerics.density import bernoulli_logit
from .by_output import ErrorByOutput
from .error import ResidualError
from .kinds import outputs_of

#: where the doses of a subject lie among the columns of its rows, and the place of a row's occasion among the subject's
DOSES, OCCASION = "doses", "place of the occasion"
#: where the data of a subject say which occasions it has
PRESENT = "occasions"
#: (parameters, row) -> number: individual parameters by name, and one row of the data by column
RowFunction = Callable[[dict[str, Array], dict[str, Array]], Array]


@dataclasses.dataclass(frozen=True)
class AbstractOutcome(abc.ABC):
    """p(y | psi) of the rows of one subject. Hashable, so that equal outcomes share a compilation."""

    @abc.abstractmethod
    def log_density(self, error: Array, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        """log p(y_j | psi) of each row, (T,)."""

    @abc.abstractmethod
    def prediction(self, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        """E[y_j | psi] of each row (T,), or what stands for it."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, error: Array, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        """A draw of each y_j given psi, (T,)."""

    @property
    def error_names(self) -> tuple[str, ...]:
        """Names of the residual error's parameters."""
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Labels of the outputs, where there are several."""
        return ()

    #: whether y is continuous, so that residuals have a meaning; whether it is a time to an event
    continuous = False
    survival = False


def whole(function: Any) -> Callable[..., Array] | None:
    """Of a structural model whose rows are predicted together, as those of a trajectory, how."""
    return getattr(getattr(function, "function", None), "over_rows", None)


@functools.cache
def _by_row(function: RowFunction) -> Callable[..., Array]:
    """The function mapped over rows, which share their subject's doses, traced once for all the programs that use it. Of a
    parameter with a value an occasion, a row has that of its own."""

    together = whole(function)
    if together is not None:
        return jax.jit(together, inline=True)

    def each(psi: dict[str, Array], rows: dict[str, Any]) -> Array:
        shared = {name: value for name, value in rows.items() if name == DOSES}
        own = {name: value for name, value in rows.items() if name not in shared}

        def of_row(row: dict[str, Any]) -> Array:
            place = row.pop(OCCASION, jnp.zeros(())).astype(int)
            return function({name: value[place] if jnp.ndim(value) else value for name, value in psi.items()}, row | shared)

        return jax.vmap(of_row)(own)

    return jax.jit(each, inline=True)


def _each(function: RowFunction, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
    return _by_row(function)(psi, rows)


@dataclasses.dataclass(frozen=True)
class Continuous(AbstractOutcome):
    """y = f(psi, row) + residual error."""

    structural: RowFunction
    error: ResidualError | ErrorByOutput
    continuous = True
    #: whether some y are limits
    censored = False

    def log_density(self, error, psi, rows):
        f, solved = self._solved(psi, rows)
        return jnp.where(solved, self.density_at(f, self.of_subject(error, psi), rows), -jnp.inf)

    def of_subject(self, error: Array, psi: dict[str, Array]) -> Array:
        """The parameters of a subject's residual error, which are multiplied by a factor of its own where errors are `random`."""
        for name, places in self.error.multipliers.items():
            error = error * jnp.where(np.isin(np.arange(len(self.error.names)), places), psi[name], 1.0)
        return error

    def density_at(self, f: Array, error: Array, rows: dict[str, Array]) -> Array:
        """log p(y_j | psi) of each row with these predictions, (T,)."""
        return self.error.at(rows).log_density(error, f, rows["y"])

    def prediction(self, psi, rows):
        return _each(self.structural, psi, rows)

    def _solved(self, psi: dict[str, Array], rows: dict[str, Array]) -> tuple[Array, Array | bool]:
        """Predictions, and whether there are any: parameters whose differential equations have no solution are impossible, and
        those of a regimen that reaches no steady state."""
        f = self.prediction(psi, rows)
        if not getattr(getattr(self.structural, "function", None), "may_diverge", False):
            return f, True
        solved = jnp.isfinite(f)
        return jnp.where(solved, f, rows["y"]), solved

    def simulate(self, key, error, psi, rows):
        f = self.prediction(psi, rows)
        return self.error.at(rows).noisy(self.of_subject(error, psi), f, jax.random.normal(key, f.shape, f.dtype))

    @property
    def error_names(self):
        return self.error.names

    @property
    def outputs(self):
        return outputs_of(self.structural)

    def squares(self, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        """Squared residuals in units of the error's scale, (T,)."""
        f, error = self._solved(psi, rows)[0], self.error.at(rows)
        sd = error.unscaled(f)
        if self.error.multipliers:
            sd = error.sd(self.of_subject(jnp.ones(len(self.error.names), f.dtype), psi), f)
        return ((error.transformed(rows["y"]) - error.transformed(f)) / sd) ** 2


@dataclasses.dataclass(frozen=True)
class Custom(AbstractOutcome):
    """The user's own log-likelihood of a row, `function(parameters, row)` with the outcome in `row["y"]`.

    Args:
        simulator: (key, parameters, row) -> y, for predictive checks (an event's time, where survival is set).
        mean: (parameters, row) -> E[y].
        survival: whether it is a time to an event, with rows like those of `WeibullSurvival`.
    """

    function: RowFunction
    simulator: Callable[..., Array] | None = None
    mean: RowFunction | None = None
    survival: bool = False

    def log_density(self, error, psi, rows):
        return _each(self.function, psi, rows)

    def prediction(self, psi, rows):
        if self.mean is None:
            raise ValueError("this log-likelihood says nothing of E[y]; give it as margaux.families.nlme.Custom(f, mean=g)")
        return _each(self.mean, psi, rows)

    def simulate(self, key, error, psi, rows):
        if self.simulator is None:
            raise ValueError(
                "this log-likelihood cannot be simulated from; give it as margaux.families.nlme.Custom(f, simulator=g)"
            )
        simulator = self.simulator
        keys = jax.random.split(key, rows["y"].shape[0])
        return jax.vmap(lambda key, row: simulator(key, psi, row))(keys, rows)


@dataclasses.dataclass(frozen=True)
class Linked(AbstractOutcome):
    """An outcome whose predictor is a function of (parameters, row), or the name of a parameter."""

    predictor: RowFunction | str

    def _eta(self, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        if isinstance(self.predictor, str):
            return psi[self.predictor] * jnp.ones_like(rows["y"])
        return _each(self.predictor, psi, rows)


class Bernoulli(Linked):
    """y in {0, 1}; the predictor is the logit of P(y = 1)."""

    def log_density(self, error, psi, rows):
        return bernoulli_logit(rows["y"], self._eta(psi, rows))

    def prediction(self, psi, rows):
        return jax.nn.sigmoid(self._eta(psi, rows))

    def simulate(self, key, error, psi, rows):
        p = self.prediction(psi, rows)
        return (jax.random.uniform(key, p.shape, p.dtype) < p).astype(p.dtype)


@dataclasses.dataclass(frozen=True)
class Binomial(Linked):
    """y successes of `rows[size]`; the predictor is the logit."""

    size: str = "size"

    def log_density(self, error, psi, rows):
        n, y, eta = rows[self.size], rows["y"], self._eta(psi, rows)
        ways = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
        return ways + y * jax.nn.log_sigmoid(eta) + (n - y) * jax.nn.log_sigmoid(-eta)

    def prediction(self, psi, rows):
        return rows[self.size] * jax.nn.sigmoid(self._eta(psi, rows))

    def simulate(self, key, error, psi, rows):
        return jax.random.binomial(key, rows[self.size], jax.nn.sigmoid(self._eta(psi, rows)))


def _poisson(y: Array, log_rate: Array) -> Array:
    return y * log_rate - jnp.exp(log_rate) - gammaln(y + 1)


class Poisson(Linked):
    """Counts; the predictor is the logarithm of the mean."""

    def log_density(self, error, psi, rows):
        return _poisson(rows["y"], self._eta(psi, rows))

    def prediction(self, psi, rows):
        return jnp.exp(self._eta(psi, rows))

    def simulate(self, key, error, psi, rows):
        rate = self.prediction(psi, rows)
        return jax.random.poisson(key, rate).astype(rate.dtype)


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(Linked):
    """Counts of variance m + m^2 / r; the predictor is log m, `dispersion` names the parameter r."""

    dispersion: str = "r"

    def log_density(self, error, psi, rows):
        y, eta, r = rows["y"], self._eta(psi, rows), psi[self.dispersion]
        share = jnp.logaddexp(jnp.log(r), eta)
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1) + r * (jnp.log(r) - share) + y * (eta - share)

    def prediction(self, psi, rows):
        return jnp.exp(self._eta(psi, rows))

    def simulate(self, key, error, psi, rows):
        gamma_key, count_key = jax.random.split(key)
        mean, r = self.prediction(psi, rows), psi[self.dispersion]
        rate = mean / r * jax.random.gamma(gamma_key, r, mean.shape, mean.dtype)
        return jax.random.poisson(count_key, rate).astype(mean.dtype)


@dataclasses.dataclass(frozen=True)
class ZeroInflatedPoisson(Linked):
    """Zero with the probability named by `zero`, else Poisson; the predictor is the logarithm of its mean."""

    zero: str = "p0"

    def log_density(self, error, psi, rows):
        y, eta, p0 = rows["y"], self._eta(psi, rows), psi[self.zero]
        counted = jnp.log1p(-p0) + _poisson(y, eta)
        return jnp.where(y == 0, jnp.logaddexp(jnp.log(p0), counted), counted)

    def prediction(self, psi, rows):
        return (1 - psi[self.zero]) * jnp.exp(self._eta(psi, rows))

    def simulate(self, key, error, psi, rows):
        zero_key, count_key = jax.random.split(key)
        rate = jnp.exp(self._eta(psi, rows))
        counts = jax.random.poisson(count_key, rate).astype(rate.dtype)
        return jnp.where(jax.random.uniform(zero_key, rate.shape, rate.dtype) < psi[self.zero], 0.0, counts)


@dataclasses.dataclass(frozen=True)
class Ordinal(Linked):
    r"""Categories 1..K by cumulative logits: logit P(y <= k) = a_1 + a_2 + ... + a_k + predictor.

    Args:
        thresholds: names of a_1 (any number) and of the increments a_2, ..., a_{K-1} (positive).
    """

    thresholds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.thresholds:
            raise ValueError("Ordinal needs the names of its thresholds, one fewer than the categories")
        object.__setattr__(self, "thresholds", tuple(self.thresholds))

    def _logits(self, psi: dict[str, Array], rows: dict[str, Array]) -> Array:
        """(T, K - 1)."""
        cuts = jnp.cumsum(jnp.stack([psi[name] for name in self.thresholds]))
        return cuts + self._eta(psi, rows)[:, None]

    def log_density(self, error, psi, rows):
        logits, top = self._logits(psi, rows), len(self.thresholds)
        k = rows["y"].astype(jnp.int32)

        def pick(j):
            return jnp.take_along_axis(logits, jnp.clip(j, 0, top - 1)[:, None], axis=1)[:, 0]

        upper, lower = pick(k - 1), pick(k - 2)
        # log(F(u) - F(l)) = log F(u) + log(1 - F(l)) + log(1 - exp(l - u)), without cancellation.
        gap = jnp.where((k > 1) & (k <= top), upper - lower, 1.0)
        inside = jax.nn.log_sigmoid(upper) + jax.nn.log_sigmoid(-lower) + jnp.log(-jnp.expm1(-gap))
        first, last = jax.nn.log_sigmoid(upper), jax.nn.log_sigmoid(-lower)
        return jnp.where(k == 1, first, jnp.where(k > top, last, inside))

    def prediction(self, psi, rows):
        return 1 + jnp.sum(1 - jax.nn.sigmoid(self._logits(psi, rows)), axis=1)

    def simulate(self, key, error, psi, rows):
        below = jax.nn.sigmoid(self._logits(psi, rows))
        u = jax.random.uniform(key, (below.shape[0], 1), below.dtype)
        return 1.0 + jnp.sum(u > below, axis=1)


@dataclasses.dataclass(frozen=True)
class WeibullSurvival(AbstractOutcome):
    r"""Time to an event, $S(t) = \exp(-(t/\lambda)^\kappa)$; rows hold the `time` and y = 1 for an event, 0 for censoring.

    A row at time zero adds nothing. Args: the names of the scale $\lambda$ and the shape $\kappa$ (None: exponential).
    """

    scale: str = "lambda"
    shape: str | None = "beta"
    survival = True

    def _shape(self, psi: dict[str, Array]) -> Array | float:
        return 1.0 if self.shape is None else psi[self.shape]

    def log_density(self, error, psi, rows):
        time, event = rows["time"], rows["y"]
        late = time > 0
        log_time = jnp.log(jnp.where(late, time, 1.0)) - jnp.log(psi[self.scale])
        k = self._shape(psi)
        log_hazard = jnp.log(k) - jnp.log(psi[self.scale]) + (k - 1) * log_time
        return jnp.where(late, event * log_hazard - jnp.exp(k * log_time), 0.0)

    def prediction(self, psi, rows):
        k = self._shape(psi)
        return psi[self.scale] * jnp.exp(gammaln(1 + 1 / k)) * jnp.ones_like(rows["y"])

    def simulate(self, key, error, psi, rows):
        time = jax.random.weibull_min(key, psi[self.scale], self._shape(psi), rows["y"].shape, rows["y"].dtype)
        return time


def ExponentialSurvival(scale: str = "lambda") -> WeibullSurvival:
    r"""Time to an event of constant hazard $1/\lambda$: `WeibullSurvival` of shape one."""
    return WeibullSurvival(scale, None)
