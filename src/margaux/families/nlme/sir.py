r"""Sampling importance resampling: how uncertain parameters are, from the likelihood itself and not its curvature alone.

Reference: Dosne, Bergstrand, Harling and Karlsson, J. Pharmacokinet. Pharmacodyn. 43 (2016), 583-596.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ...answers.steps import too_far
from ...engine.share import alone
from ...numerics.inverse import guarded
from ...numerics.precision import precision
from ...numerics.sampling import HEAVY, pareto_shapes
from ...numerics.wald import check_level
from . import answers, intervals
from .informed import has_priors
from .maxima import at_the_estimate
from .places import logliks
from .prior_density import VARIANCES

if TYPE_CHECKING:
    from .estimator import NLME


#: times as wide as the proposal in a direction from where on it is too narrow; what it is widened by then, or where the mean of
#: weights has no finite variance, and how often
NARROW, UNEVEN, WIDER, MOST = 1.15, 0.5, 1.4, 3
#: proposals at least, and for each resample; effective draws that tell something; error of log-likelihoods that matters, and
#: what of them above a maximum is no rounding
LEAST, RATIO, FEW, ROUGH, HIGHER = 50, 2, 50, 0.1, 0.05


@dataclasses.dataclass(frozen=True)
class SIR:
    """Resamples of the parameters.

    Attributes:
        resamples: a row each, a column a parameter as `params_` names it. proposals: the same of all proposals, with `drop`
            (twice the fall of the log-likelihood from the estimate, of a fit with priors with the log prior), `weight` (they sum
            to one) and `resampled`. ess: the effective size of the weights. pareto: the shape of their tail; the mean of weights
            has no finite variance from 0.5 on, and is not to be trusted from 0.7 on. inflation: of the proposal's standard
            deviations. error: of a log-likelihood. narrow: by parameter, how many times as wide as the proposal the weighted
            proposals are, where that is too much. level: of intervals. note: what is to be said of the fit.
    """

    resamples: pd.DataFrame
    proposals: pd.DataFrame
    estimate: pd.Series
    ess: float
    pareto: float
    inflation: float
    error: float
    narrow: dict[str, float]
    level: float
    note: str = ""

    def __len__(self) -> int:
        return len(self.resamples)

    @property
    def trusted(self) -> bool:
        """Whether the proposal was wide enough, and enough of it counts."""
        return not self.narrow and self.pareto <= HEAVY and self.ess >= max(FEW, len(self)) and self.error <= ROUGH

    @property
    def message(self) -> str:
        """How many were drawn, how many that is effectively, and whether the proposal was too narrow."""
        told = [
            f"{len(self)} resamples of {len(self.proposals)} proposals, {self.inflation:.2g} times as wide as the asymptotic "
            f"normal distribution; the effective size of the weights is {self.ess:.0f}"
        ]
        if self.narrow:
            which = ", ".join(f"{name} ({ratio:.2f})" for name, ratio in self.narrow.items())
            told.append(
                f"the proposal is too narrow: weighted, it is wider than it was drawn in {which}; intervals are too short: "
                "raise inflate"
            )
        if self.pareto > HEAVY:
            told.append(f"the weights have a heavy tail (Pareto k = {self.pareto:.2f}), so that few decide: raise inflate, or n")
        if self.ess < max(FEW, len(self)):
            told.append("that is too few for so many resamples, which are drawn towards the proposal: raise n")
        if self.error > ROUGH:
            told.append(f"log-likelihoods have an error of {self.error:.2g}, and weights with them")
        return "; ".join(told + ([self.note] if self.note else [])) + "."

    def summary(self, level: float | None = None) -> pd.DataFrame:
        """Estimate; mean, median and standard deviation, and the quantiles `ci_low` and `ci_high`, of the weighted proposals.

        Resamples are without replacement, so that they lie between the weighted proposals and the proposals themselves: what
        is said of the distribution is therefore said by the weights. `attrs["message"]` is `message`.

        Raises:
            ValueError: a level that is no probability.
        """
        level = self.level if level is None else level
        check_level(level)
        weight, values = self.proposals["weight"].to_numpy(), self.proposals[self.resamples.columns].to_numpy()
        out = pd.DataFrame({"estimate": self.estimate.to_numpy(), "mean": weight @ values}, index=self.resamples.columns)
        tails = np.array([0.5, (1 - level) / 2, (1 + level) / 2])
        out["median"], low, high = np.stack([_quantiles(column, weight, tails) for column in values.T], axis=1)
        out["sd"] = np.sqrt(weight @ (values - weight @ values) ** 2)
        out["ci_low"], out["ci_high"] = low, high
        out.attrs["message"] = self.message
        return out

    def __repr__(self) -> str:
        return f"SIR: {self.message} .resamples, .proposals, .summary()"


def _quantiles(values: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"], q: Float[np.ndarray, " m"]) -> np.ndarray:
    """Of weighted values, each in the middle of its own share."""
    order = np.argsort(values)
    return np.interp(q, np.cumsum(weight[order]) - weight[order] / 2, values[order])


def sir(fitted: NLME, n: int, resamples: int | None, inflate: float | None, level: float, key: int) -> SIR:
    """See `NLME.sir`."""
    count = _checked(n, resamples, inflate, level)
    alone(fitted.result_.share, "sampling importance resampling")
    u, root = _normal(fitted)
    rng = np.random.default_rng(key)
    z, race = rng.standard_normal((n, len(u))), rng.gumbel(size=n)
    found: list[SIR] = []
    for inflation in [WIDER**power for power in range(MOST)] if inflate is None else [float(inflate)]:
        found.append(_weighted(fitted, u, z, inflation * root, race, count, inflation, level))
        if not found[-1].narrow and found[-1].pareto <= UNEVEN:
            return found[-1]
    return next((one for one in found[::-1] if one.ess >= FEW), found[0])


def _weighted(
    fitted: NLME,
    u: Float[np.ndarray, " k"],
    z: Float[np.ndarray, "n k"],
    root: Float[np.ndarray, "k k"],
    race: Float[np.ndarray, " n"],
    count: int,
    inflation: float,
    level: float,
) -> SIR:
    """With proposals u + root z."""
    places = np.vstack([u, u + z @ root.T])
    values, error = logliks(fitted.result_, places)
    drop = 2 * (values[0] - values[1:])
    log_w = (np.sum(z**2, axis=1) - drop) / 2 + _log_volumes(fitted, places[1:])
    weight = np.exp(log_w - log_w.max())
    weight = weight / weight.sum()
    taken = without_replacement(log_w, race, count)
    frame = _natural(fitted, places[1:])
    table = frame.assign(drop=drop, weight=weight, resampled=taken)
    notes = [f"{', '.join(fitted._dropped)}: estimated as zero, and held there"] if fitted._dropped else []
    what = "a log-likelihood"
    if has_priors(fitted):
        what = "a posterior density whose logarithm is"
        notes.append(
            "weights are of the posterior density, likelihood times priors; a parameter without a prior has a flat one on the "
            "scale of the proposals"
        )
    if drop.min() < -2 * max(error, HIGHER):
        notes.append(
            f"a proposal has {what} {-drop.min() / 2:.2f} above the estimate's, which is then not the maximum: see certificate_"
        )
    return SIR(
        frame.loc[taken].reset_index(drop=True),
        table,
        pd.Series(fitted.params_),
        float(1 / np.sum(weight**2)),
        float(pareto_shapes(log_w[None])[0]),
        inflation,
        error,
        _narrow(fitted, frame, weight),
        level,
        "; ".join(notes),
    )


def _log_volumes(fitted: NLME, places: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"] | float:
    r"""$\log|\partial\Omega/\partial u|$ of variances and blocks with a prior, whose density is not one of coordinates u."""
    fit, prior = fitted.result_, fitted.model_.prior
    if not (prior.of("omega") or any(prior.of(name) for name in VARIANCES)):
        return 0.0
    space = fit._model().space
    with precision(np.dtype(float)):
        template = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params)
        back = ravel_pytree(space.to_unconstrained(template))[1]

        def variables(place: Array) -> Array:
            return prior.variables(space.from_unconstrained(back(place)))

        slopes = np.asarray(jax.vmap(jax.jacfwd(variables))(jnp.asarray(places, float)), float)
    # Each depends on as many coordinates as there are variables, and on no others.
    return np.linalg.slogdet(slopes @ slopes.swapaxes(1, 2))[1] / 2


def without_replacement(log_w: Float[np.ndarray, " n"], race: Float[np.ndarray, " n"], count: int) -> Bool[np.ndarray, " n"]:
    """Which are drawn, one after the other in proportion to the weights of those that are left: the largest sums of log weights
    and Gumbel variables (Efraimidis and Spirakis, Inform. Process. Lett. 97 (2006), 181-185)."""
    out = np.zeros(len(log_w), bool)
    out[np.argsort(-(log_w + race), kind="stable")[:count]] = True
    return out & np.isfinite(log_w)


def _narrow(fitted: NLME, frame: pd.DataFrame, weight: Float[np.ndarray, " n"]) -> dict[str, float]:
    """By parameter, on the scale that it is normal on, the standard deviation of weighted proposals over that of all, where it is
    too large."""
    out = {}
    for name, one in intervals.scales(fitted).items():
        values = np.asarray(one.gaussian(frame[name].to_numpy()), float)
        if name in (*fitted._dropped, *fitted.held_) or not np.all(np.isfinite(values)):
            continue
        ratio = float(np.sqrt(weight @ (values - weight @ values) ** 2) / values.std())
        if ratio > NARROW:
            out[name] = ratio
    return out


def _natural(fitted: NLME, places: Float[np.ndarray, "n k"]) -> pd.DataFrame:
    """Parameters as `params_` has them, at unconstrained coordinates."""
    fit, model = fitted.result_, fitted.model_
    space = fit._model().space
    with precision(np.dtype(float)):
        template = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params)
        back = ravel_pytree(space.to_unconstrained(template))[1]
        each = jax.vmap(lambda place: answers.natural_values(model, space.from_unconstrained(back(place)), fitted._dropped))
        values = np.asarray(each(np.asarray(places, float)), float)
    return pd.DataFrame(values, columns=list(fitted.params_))


def _normal(fitted: NLME) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """Centre and root of the covariance of the asymptotic normal distribution, on the engine's unconstrained scale.

    Raises:
        ValueError: there is none, as where a correlation is one.
    """
    at = at_the_estimate(fitted.result_)
    inverse, trouble = guarded(at.matrix)
    unknown = [
        name for name, se in fitted.stderr_.items() if not np.isfinite(se) and name not in (*fitted._dropped, *fitted.held_)
    ]
    if trouble or not np.all(np.isfinite(at.u)) or too_far(np.sqrt(np.diagonal(inverse)), np.diagonal(at.matrix)).any():
        raise ValueError(
            f"there is no asymptotic normal distribution to propose from: {', '.join(unknown) or 'some parameters'} have no "
            "standard error here; fit the model without what the data do not tell (see summary()), or use bootstrap()"
        )
    return at.u, np.linalg.cholesky(inverse)


def _checked(n: int, resamples: int | None, inflate: float | None, level: float) -> int:
    """How many are resampled.

    Raises:
        ValueError: a number out of its range.
    """
    check_level(level)
    for name, value in (("n", n), ("resamples", resamples)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 2):
            raise ValueError(f"{name} must be a whole number, at least 2, got {value!r}")
    if n < LEAST:
        raise ValueError(f"n must be at least {LEAST} proposals, got {n}")
    count = int(n) // 5 if resamples is None else int(resamples)
    if count * RATIO > n:
        raise ValueError(
            f"{count} resamples of {n} proposals would be drawn towards the proposal; take {RATIO * count} proposals or more"
        )
    if inflate is not None and not (np.isfinite(inflate) and inflate > 0):
        raise ValueError(f"inflate must be positive, got {inflate!r}")
    return count
