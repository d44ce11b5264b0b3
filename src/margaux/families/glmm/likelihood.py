"""The log-likelihood of a mixed model to more digits than a comparison of models needs."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...answers.certificate import Check
from ...answers.certify import AT_MAXIMUM
from ...answers.likelihood import LogLikelihood
from ...answers.posterior import each_unit, latent_size, nothing
from ...answers.rules import laplace_rule
from ...esteps import Laplace
from ...numerics.gaussian import FOUND
from ...numerics.precision import default_dtype, precision, settle
from .elimination import likelihood
from .integrated import Integrated

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: error that is small enough; nodes a dimension of finer and finer quadratures, by the number of effects
ENOUGH = 2e-4
FINER = {1: (31, 51, 99), 2: (25, 41, 61), 3: (15, 21, 27)}


def settled(fit: Fit, exact: bool) -> LogLikelihood:
    """As `margaux.Fit.loglik`, by finer quadratures where its error could be seen in a difference of models; `exact`: of crossed
    factors, by integrating the largest."""
    if exact:
        return likelihood(fit, fit.params, laplace_rule(fit).rows["mean"][0])
    model: Any = fit._model().model
    if isinstance(model, Integrated):
        return _of_inner(fit, model)
    best = fit.loglik()
    if isinstance(fit.estep, Laplace) or best.method != "quadrature":
        return best
    for nodes in FINER.get(latent_size(fit), ()):
        if best.se <= ENOUGH:
            break
        found = fit.loglik(method="quadrature", n_nodes=nodes)
        best = found if found.se < best.se else best
    return best


def remember_exact(fit: Fit) -> None:
    """Where posteriors are Gaussian Laplace's likelihood is the likelihood, of which no draws need to tell how far it is off."""
    done = fit.known("examined")
    figures = each_unit(fit, nothing, done.rule.estep, rows=done.rule.rows, width=done.rule.width)[1]
    if not figures["away"].max() < FOUND:
        return
    error = float(np.sqrt(np.sum(figures.get("log_marginal_se", np.zeros(1)) ** 2)))
    found = LogLikelihood(figures["log_marginal"].astype(float), error, "Gaussian integrals")
    sentence = f"The log-likelihood is {float(found):.3f}; its integrals are Gaussian, and exact"
    sentence += f" but for determinants, which are estimated with an error of {error:.2g}." if error else "."
    fit.remembered("loglik/auto/None", lambda: found)
    fit.remembered("approximation", lambda: Check("approximation", 0.0, 0.0, AT_MAXIMUM, "pass", sentence))


def _of_inner(fit: Fit, model: Integrated) -> LogLikelihood:
    """By twice as many inner nodes; its error is what they change."""
    problem = dataclasses.replace(fit._model(), model=dataclasses.replace(model, n_nodes=2 * model.n_nodes - 1))
    coarse, fine = fit.loglik(), dataclasses.replace(fit, problem=problem).loglik()
    return LogLikelihood(fine.per_unit, abs(float(fine) - float(coarse)) + fine.se, fine.method, fine.message)


def without_prior(found: LogLikelihood, fit: Fit) -> LogLikelihood:
    """The log-likelihood itself of a penalised one."""
    model: Any = fit._model().model
    if model.prior is None:
        return found
    dtype = default_dtype(None)
    with precision(dtype):
        at = settle(jax.tree.map(np.asarray, fit.params), dtype)
        share = float(settle(model, dtype).log_prior(at))
    return LogLikelihood(np.asarray(found.per_unit) - share, found.se, found.method, found.message)


def qualified(sentence: str, kind: str) -> str:
    """A sentence about likelihoods that are of some kind, as "restricted"."""
    return re.sub("(restricted )?(log-)?likelihood", rf"{kind} \g<0>", sentence)
