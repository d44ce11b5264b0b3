r"""Confidence intervals of a mixed model's parameters: Wald's, by the profile likelihood, by parametric bootstrap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.special

from ...answers.profile import held
from ...answers.rules import best_rule, laplace_rule
from ...answers.scores import evaluate
from ...numerics.wald import check_level
from . import natural
from .prediction import simulated
from .refits import refits
from .reml import objective

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .estimator import GLMM

METHODS = ("wald", "profile", "boot")
#: data sets of a bootstrap; a share of them that may fail without being told
BOOTSTRAP, FAILED = 499, 0.05
#: times that a side of a profile is looked at further out, and by how much further; how exact its end is, in standard errors
FURTHER, STRETCH, EXACT = 14, 1.5, 2e-3
#: the first step where there is no standard error, on the scale of `_Scale`
STEP = 0.5
#: a positive parameter so many times smaller than its estimate, or than one, stands for zero; a correlation as near to one
NOTHING = 1e-4
#: how far a profile may rise above the estimate
RISEN = 0.02


def conf_int(
    model: GLMM, method: str, level: float, parameters: str | list[str] | None, n_boot: int, random_state: int
) -> pd.DataFrame:
    r"""Confidence intervals: a row a parameter, "ci_low" and "ci_high".

    "wald": estimate and standard error. "profile": the values c at which twice the fall of $\max_{\theta_j=c}\log p(y\mid\theta)$
    is below the quantile of $\chi^2_1$ (Venzon and Moolgavkar 1988): where it does not fall so far the end is that of the
    parameter's space, zero of a standard deviation, infinity of the theta of counts that Poisson fits as well; of crossed factors
    that of Laplace's approximation. "boot":
    percentiles over `n_boot` data sets simulated from the estimate, with new random effects, and fitted again by the programs
    of the fit; `attrs["replicates"]` has their estimates.

    Args:
        parameters: names in `params_`; all if None, but for the profiles of correlated effects, and of the fixed effects of fits
            by REML, of which there are none.

    Raises:
        ValueError: an unknown method or parameter, a level that is no probability, or too few data sets.

    References: Venzon and Moolgavkar, Applied Statistics 37 (1988), 87-94; Davison and Hinkley, Bootstrap Methods and their
    Application (1997), section 5.3.
    """
    check_level(level)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    every = [name for name in model.params_ if method != "profile" or _held_alone(model, name)]
    names = every if parameters is None else [parameters] if isinstance(parameters, str) else list(parameters)
    unknown = [name for name in names if name not in model.params_]
    if unknown:
        raise ValueError(f'there is no parameter "{unknown[0]}"; they are {", ".join(model.params_)}')
    if method == "wald":
        return model.summary(level).filter(["ci_low", "ci_high"]).loc[names]
    if method == "boot":
        return _bootstrapped(model, level, names, n_boot, random_state)
    top = _loglik(model, objective(model.climbed_))
    ends = [_Profile(model, name, top).interval(level) for name in names]
    return pd.DataFrame(ends, index=names, columns=["ci_low", "ci_high"])


def _bootstrapped(model: GLMM, level: float, names: list[str], n_boot: int, random_state: int) -> pd.DataFrame:
    least = int(np.ceil(2 / (1 - level)))
    if n_boot < least:
        raise ValueError(f"n_boot must be at least {least} for intervals of level {level:g}, got {n_boot}")
    fits = refits(model, simulated(model, n_boot, "NA", random_state), "Bootstrap")
    flat = [natural.moved(model.model_, fit.params)[0] for fit in fits if fit is not None]
    lost = n_boot - len(flat)
    if len(flat) < least:
        raise ValueError(f'only {len(flat)} of {n_boot} simulated data sets could be fitted; use method="profile"')
    if lost > FAILED * n_boot:
        warnings.warn(
            f"{lost} of {n_boot} simulated data sets could not be fitted, and the intervals are of the others: they may be too "
            'short; method="profile" has no such loss',
            stacklevel=4,
        )
    replicates = pd.DataFrame(np.stack(flat), columns=model._names)[names]
    ends = np.quantile(replicates.to_numpy(), [(1 - level) / 2, (1 + level) / 2], axis=0).T
    frame = pd.DataFrame(ends, index=names, columns=["ci_low", "ci_high"])
    frame.attrs["replicates"] = replicates
    return frame


def _rule_of(model: GLMM) -> Callable:
    return laplace_rule if model._approximated else best_rule


def _loglik(model: GLMM, fit: Fit) -> float:
    rule = _rule_of(model)(fit, fit.params)
    with np.errstate(all="ignore"):
        return evaluate(fit, rule, fit.params, range(rule.replicates), second=False).loglik


class _Scale(NamedTuple):
    """Where a profile is nearly a parabola: the parameter to it, back, its slope; the ends of the parameter's space, and what
    stands for them."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    ends: tuple[float, float]
    near: tuple[float, float]


def _scale(model: GLMM, name: str, estimate: float) -> _Scale:
    if name.startswith("cor_"):
        return _Scale(np.arctanh, np.tanh, (-1.0, 1.0), (-1 + NOTHING, 1 - NOTHING))
    if name.startswith(("sd_", "range_")) or name in set(model.model_.response.dispersion):
        size = max(estimate, NOTHING)
        return _Scale(np.log, np.exp, (0.0, np.inf), (NOTHING * size, size / NOTHING))
    return _Scale(float, float, (-np.inf, np.inf), (-np.inf, np.inf))


def _held_alone(model: GLMM, name: str) -> bool:
    try:
        _engine(model, name)
    except ValueError:
        return False
    return True


def _engine(model: GLMM, name: str) -> tuple[str, float]:
    """The fit's own parameter that is the named one, up to a sign.

    Raises:
        ValueError: there is none, as for correlated effects, whose factor's entries each move several.
    """
    if model.reml and name in model.design_.names:
        raise ValueError(
            f'the restricted likelihood has no profile of the fixed effect "{name}", which is integrated out; use method="wald" '
            'or "boot", or fit with reml=False'
        )
    row = np.abs(model._jacobian[model._names.index(name)])
    at = np.flatnonzero(row > 0)
    others = np.abs(model._jacobian[:, at[:1]]).sum() if at.size else 0.0
    if at.size != 1 or not np.isclose(row[at[0]], 1) or not np.isclose(others, 1):
        raise ValueError(
            f'a profile holds one parameter of the fit, and "{name}" of correlated effects is none; use method="boot", or ask '
            "for other parameters"
        )
    return model.result_.names[at[0]], float(np.sign(model._jacobian[model._names.index(name), at[0]]))


class _Profile:
    """The profile likelihood of one parameter, by the signed root of twice its fall."""

    def __init__(self, model: GLMM, name: str, top: float) -> None:
        self.model, self.name, self.top = model, name, top
        self.engine, self.sign = _engine(model, name)
        of_top = natural.moved(model.model_, model.climbed_.params)[0]
        self.estimate, self.se = float(of_top[model._names.index(name)]), float(model.summary().loc[name, "se"])
        self.scale = _scale(model, name, self.estimate)
        low, high = self.scale.near
        self.at = self.scale.to(float(np.clip(self.estimate, low, high)))
        self.known: dict[float, Fit] = {self.at: objective(model.climbed_)}

    def fall(self, t: float) -> float:
        """The root of twice the fall, from the nearest place that is known; NaN where the maximum was not found."""
        start = self.known[min(self.known, key=lambda other: abs(other - t))]
        with np.errstate(all="ignore"):
            found = held(start, self.engine, self.sign * float(self.scale.back(t)), -np.inf, _rule_of(self.model))
        if found is None:
            return np.nan
        self.known[t] = found.fit
        if found.loglik > self.top + RISEN:
            warnings.warn(
                f"the log-likelihood is {found.loglik - self.top:.2g} higher at {self.name} = {self.scale.back(t):.4g} than at "
                "the estimate, which is no maximum: fit again with more iterations",
                stacklevel=6,
            )
        return float(np.sqrt(2 * max(self.top - found.loglik, 0.0)))

    def interval(self, level: float) -> tuple[float, float]:
        quantile = float(scipy.special.ndtri(0.5 + level / 2))
        low, high = self._end(-1, quantile), self._end(1, quantile)
        return low, high

    def _end(self, sign: int, quantile: float) -> float:
        """Where the root crosses the quantile on one side."""
        near, end = (self.scale.near[0], self.scale.ends[0]) if sign < 0 else (self.scale.near[1], self.scale.ends[1])
        last = self.scale.to(near) if np.isfinite(near) else sign * np.inf
        step, inside = self._step() * quantile, self.at
        for _ in range(FURTHER):
            outside = inside + sign * step
            if sign * (outside - last) >= 0:
                outside = last
            if outside == inside:
                return end
            fall = self.fall(outside)
            if not fall < quantile:
                break
            if outside == last:
                return end
            inside, step = outside, STRETCH * step
        else:
            return np.nan
        if np.isnan(fall):
            return np.nan
        close = EXACT * self._step()
        root: Any = scipy.optimize.brentq(lambda t: self._beyond(t, quantile), inside, outside, xtol=close)
        return float(self.scale.back(root))

    def _beyond(self, t: float, quantile: float) -> float:
        if t == self.at:
            return -quantile
        return self.fall(t) - quantile

    def _step(self) -> float:
        """A standard error on the scale."""
        slope = (self.scale.back(self.at + 1e-6) - self.scale.back(self.at - 1e-6)) / 2e-6
        size = self.se / abs(slope) if np.isfinite(self.se) and self.se > 0 and slope else STEP
        return float(np.clip(size, 1e-12, np.inf) if self.scale.near[1] == np.inf else np.clip(size, 0.01, 2.0))
