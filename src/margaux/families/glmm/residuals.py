r"""Residuals of a fitted mixed model: of the response, Pearson's, of the deviance, and randomised quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special

from ...numerics.precision import precision
from . import prediction
from .continuous import Gamma, Gaussian
from .counts import Binomial, NegativeBinomial2, Poisson
from .ordinal import Ordinal

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .estimator import GLMM

KINDS = ("quantile", "pearson", "response", "deviance")
#: simulations that observations are ranked among
SIMULATIONS = 250
#: the least probability of a residual
LEAST = 1e-16


def residuals(model: GLMM, kind: str, re_form: str | None, n_simulations: int, random_state: int) -> np.ndarray:
    r"""Residuals (rows,) in the order of the data.

    "response": $y - \hat\mu$; of successes of trials their share. "pearson": that by the standard deviation of the response
    given its predictor, times the root of the prior weight. "deviance": $\mathrm{sign}(y-\hat\mu)\sqrt{w d(y, \hat\mu)}$ with the
    unit deviance d of a generalised linear model, not divided by its dispersion, as R's.
    "quantile": $\Phi^{-1}(u)$ with u uniform between P(Y < y) and P(Y <= y) (Dunn and Smyth 1996), a draw from N(0, 1) where the
    model is true. Given random effects at their conditional means it is somewhat too short, as they follow the data. Without
    them (`re_form="NA"`) $P(Y\le y)$ has no closed form, and u is the randomised rank of y among `n_simulations` draws with new
    random effects (Hartig's DHARMa does the same): then each has the right distribution, and those of a group go together.

    Args:
        re_form: None at the random effects given the data; "NA" without: the mean is then that of a group whose effects are
            zero, and quantiles are those of a new group. random_state: of the randomisation.

    Raises:
        ValueError: an unknown kind, or one that the family has not.

    References: Dunn and Smyth, J. Comput. Graph. Stat. 5 (1996), 236-244.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    conditional = prediction._conditional(re_form)
    if kind == "quantile":
        if not conditional:
            return scipy.special.ndtri(simulated_ranks(model, n_simulations, random_state)[1][:, 0])
        return _quantile(model, random_state)
    design, response = model.design_, model.model_.response
    if isinstance(response, Ordinal):
        raise ValueError('categories have no distance from a mean; an ordinal response has residuals of kind="quantile" only')
    eta: Any = prediction.predictor(model, None, conditional)
    mean = prediction.mean_of(model, eta, design.trials)
    trials = 1.0 if design.trials is None else design.trials
    away = design.y - mean
    if kind == "response":
        return away / trials
    if kind == "pearson":
        with precision(np.dtype(np.float64)):
            of: Any = design.trials
            variance = np.asarray(response.variance(eta, model.result_.params["dispersion"], of), float)
        if not np.all(np.isfinite(variance)):
            raise ValueError(f'the variance of the family {response.name} is infinite at the estimate; use kind="quantile"')
        return away * np.sqrt(design.weights / variance)
    deviance = unit_deviance(response, design.y, mean, design.trials, model.result_.params["dispersion"])
    return np.sign(away) * np.sqrt(np.maximum(design.weights * deviance, 0.0))


def unit_deviance(
    response: AbstractResponse, y: np.ndarray, mean: np.ndarray, trials: np.ndarray | None, dispersion: dict
) -> np.ndarray:
    r"""$d(y, \mu)$ (rows,): twice what log p(y) falls short of at $\mu$ against at its own y, with the dispersion taken out.

    Raises:
        ValueError: the family is not one of generalised linear models.
    """
    xlogy = scipy.special.xlogy
    if isinstance(response, Gaussian):
        return (y - mean) ** 2
    if isinstance(response, Poisson):
        return 2 * (xlogy(y, y / mean) - (y - mean))
    if isinstance(response, Binomial):
        n = np.ones_like(y) if trials is None else trials
        return 2 * (xlogy(y, y / mean) + xlogy(n - y, (n - y) / (n - mean)))
    if isinstance(response, Gamma):
        return 2 * ((y - mean) / mean - np.log(y / mean))
    if isinstance(response, NegativeBinomial2):
        theta = float(np.asarray(dispersion["theta"]))
        return 2 * (xlogy(y, y / mean) - (y + theta) * np.log((y + theta) / (mean + theta)))
    raise ValueError(
        f'the family {response.name} has no unit deviance, as it is no generalised linear model; use kind="quantile"'
    )


def _quantile(model: GLMM, random_state: int) -> np.ndarray:
    design, response = model.design_, model.model_.response
    eta = prediction.predictor(model, None, True)
    upto, below = response.cdf(design.y, eta, model.result_.params["dispersion"], design.trials)
    u = below + np.random.default_rng(random_state).random(len(eta)) * (np.asarray(upto) - below)
    return scipy.special.ndtri(np.clip(u, LEAST, 1 - LEAST / 2))


def simulated_ranks(model: GLMM, n_simulations: int, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """The response beside simulations of it with new random effects (rows, 1 + K), and their randomised ranks.

    Raises:
        ValueError: fewer than 50 simulations.
    """
    if n_simulations < 50:
        raise ValueError(f"n_simulations must be at least 50, got {n_simulations}")

    def compute() -> tuple[np.ndarray, np.ndarray]:
        simulations = prediction.simulated(model, n_simulations, "NA", random_state).to_numpy(float)
        values = np.column_stack([model.design_.y, simulations])
        return values, randomised_ranks(values, np.random.default_rng([random_state, 1]))

    return model.result_.remembered(f"ranks/{n_simulations}/{random_state}", compute)


def randomised_ranks(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Ranks of values (rows, M) along each row as uniform numbers in (0, 1), ties in random order.

    Where the columns are exchangeable each is exactly uniform.
    """
    order = np.lexsort((rng.random(values.shape), values), axis=-1)
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(values.shape[1], dtype=float), values.shape), axis=-1)
    return np.clip((ranks + rng.random(values.shape)) / values.shape[1], LEAST, 1 - LEAST)
