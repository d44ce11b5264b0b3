"""The certificate of a mixed model: the fit's own checks by the names of its parameters, and what else goes wrong with these."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import numpy as np

from ...answers.certificate import Certificate, Check, Level
from ...answers.certify import AT_MAXIMUM
from . import priors
from .corrected import Correction
from .counts import Binomial
from .elimination import EVEN, SMALL
from .integrated import Integrated
from .likelihood import qualified
from .model import fixed_effects
from .ordinal import Ordinal
from .prediction import predictor
from .probes import probed

if TYPE_CHECKING:
    from .estimator import GLMM

#: predictors of this size make an answer certain; share of such rows that tells of separation
CERTAIN, SHARE = 12.0, 0.05


def certified(model: GLMM) -> Certificate:
    """The checks of a fitted mixed model."""
    fit = model.climbed_
    inner = inner_names(model)
    pattern = re.compile("|".join(re.escape(name) for name in sorted(inner, key=len, reverse=True)))

    def named(sentence: str) -> str:
        return pattern.sub(lambda found: inner[found.group()], sentence)

    checks = tuple(check._replace(sentence=named(check.sentence)) for check in fit.certificate.checks)
    if model.prior:
        checks = tuple(check._replace(sentence=qualified(check.sentence, "penalised")) for check in checks)
    own = () if fit.result.failed else (penalised(model), separation(model), singular(model), sums(model), probed(fit))
    more = [check for check in own if check is not None]
    return dataclasses.replace(fit.certificate, checks=(*checks, *more))


def inner_names(model: GLMM) -> dict[str, str]:
    """What parameters of the fit are called by its users; of a Cholesky factor an entry is a part of its row's effect."""
    jacobian, out = np.abs(model._jacobian), {}
    for j, name in enumerate(model.result_.names):
        effects = np.where([own.startswith("sd_") for own in model._names], np.nan_to_num(jacobian[:, j]), 0.0)
        rows = effects if name.startswith("root") else np.nan_to_num(jacobian[:, j])
        out[name] = model._names[int(np.argmax(rows))]
    return out


def of_correction(made: Correction) -> Check:
    """Whether the estimate is at the maximum of the exact likelihood."""
    told = f"The estimate is at the maximum of the exact likelihood, {made.moved:.2g} standard errors from that of Laplace's"
    level: Level = "pass" if made.even >= EVEN and made.left + 2 * made.error < AT_MAXIMUM else "careful"
    if made.even < EVEN:
        sentence = f"{told}, by draws of which {100 * made.even:.0f}% are effective: this cannot be told."
    else:
        sentence = f"{told}; what is left is {made.left:.2g} +- {made.error:.2g} standard errors."
    return Check("approximation", made.left, made.error, AT_MAXIMUM, level, sentence)


def singular(model: GLMM) -> Check:
    """Whether a covariance of random effects is at the edge, as lme4 says it."""
    bad = [factor.name for factor in model.model_.factors if model.singular_(factor.name)]
    if not bad:
        return Check("singular", 0.0, np.nan, 0.0, "pass", "No covariance of random effects is singular.")
    sentence = (
        f"boundary (singular) fit: the random effects of {', '.join(bad)} vary in fewer directions than they have; test whether "
        "they are needed by anova, or ask for fewer. Their standard errors do not hold."
    )
    return Check("singular", float(len(bad)), np.nan, 0.0, "careful", sentence)


def sums(model: GLMM) -> Check | None:
    """Whether the effects that are summed over group by group are summed over by nodes enough."""
    if not isinstance(model.result_._model().model, Integrated):
        return None
    error, name = model.loglik_.se, model.model_.largest.name
    if error <= SMALL:
        sentence = f"The sums over the effects of {name} are accurate."
        return Check("sums", error, np.nan, SMALL, "pass", sentence)
    sentence = f"The sums over the effects of {name}, and with them the log-likelihood, are off by about {error:.2g}."
    return Check("sums", error, np.nan, SMALL, "careful", sentence)


def penalised(model: GLMM) -> Check | None:
    """What the estimate is penalised by."""
    if not model.prior:
        return None
    told = priors.described(model.prior, model.design_.names, model.model_.factors)
    sentence = (
        f"The estimate is penalised, and no maximum of the likelihood: {told}. Its errors are by the curvature of the penalised "
        "likelihood."
    )
    return Check("prior", np.nan, np.nan, np.nan, "pass", sentence)


def separation(model: GLMM) -> Check | None:
    """Whether fixed effects foretell answers with certainty, and the likelihood rises without end (Albert and Anderson 1984)."""
    response = model.model_.response
    if not isinstance(response, Binomial | Ordinal):
        return None
    eta = predictor(model, None, False)
    certain = float(np.mean(np.abs(eta) > CERTAIN))
    if certain < SHARE:
        return Check("separation", certain, np.nan, SHARE, "pass", "No fixed effects foretell answers with certainty.")
    sizes = np.abs(model.design_.X * np.asarray(fixed_effects(model.result_.params), float)).max(axis=0)
    worst = model.design_.names[int(np.argmax(sizes))]
    if model.prior and worst in model.prior:
        sentence = (
            f"The predictor makes {100 * certain:.0f}% of the answers certain, mostly by {worst}: fixed effects separate them, "
            "and the estimate is bounded by its prior."
        )
        return Check("separation", certain, np.nan, SHARE, "pass", sentence)
    sentence = (
        f"The predictor makes {100 * certain:.0f}% of the answers certain, mostly by {worst}: fixed effects separate them, and "
        "the likelihood has no maximum; leave that column out, join levels, collect rows of the other answer, or give it a prior."
    )
    return Check("separation", certain, np.nan, SHARE, "failed", sentence)
