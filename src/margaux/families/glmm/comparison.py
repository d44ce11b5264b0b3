r"""Likelihood-ratio tests of nested mixed models, with variances on the edge of their space, and models side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.special

from .nesting import Nesting, check_same_data, nesting
from .prediction import simulated
from .refits import likelihood, refits

if TYPE_CHECKING:
    from .estimator import GLMM

#: data sets of a bootstrap that nobody asked for; a share of them that may fail without being told
BOOTSTRAP, FAILED = 199, 0.05
#: data sets of a bootstrap at least, and a difference of likelihoods that is none
FEWEST, ROUNDING = 10, 1e-6
#: error of a statistic that is told
NOISY = 0.1


class Test(NamedTuple):
    """Twice the difference of log-likelihoods, its parameters, p, and by what."""

    chisq: float
    df: int
    p: float
    told: str


def anova(models: list[GLMM], n_boot: int | None, random_state: int) -> pd.DataFrame:
    r"""Models side by side, each tested against the one before it with fewer parameters.

    Twice the difference of log-likelihoods is compared with $\chi^2_{df}$ where all parameters tested lie inside their space.
    Where one of them is a variance that is zero under the smaller model, it is at the edge, and the distribution is
    $\tfrac12\chi^2_{df-1} + \tfrac12\chi^2_{df}$, its covariances with other effects counted in df (Self and Liang 1987, cases 5
    and 6; Stram and Lee 1994); so it is of a negative binomial against Poisson, and of zero inflation against none. Of more
    than one edge, or where the smaller model is itself singular, the weights are not known, and p is of a parametric bootstrap:
    both models are fitted to data simulated from the smaller one, and p = (1 + statistics as large) / (1 + data sets).

    Args:
        models: two or more, to the same data. n_boot: data sets of a bootstrap of every test; None for the distribution where
            it is known and else `BOOTSTRAP` of them; 0 for none: p is then that of $\chi^2_{df}$, which is too large.

    Returns:
        A frame with a row a model, from few parameters to many: "npar", "AIC", "BIC", "logLik", "deviance" (-2 logLik), "chisq",
        "df", "p" and "test", which says by what.

    Raises:
        ValueError: fewer than two models, other data, another response, models that are not nested, or REML fits of different
            fixed effects.

    References: Self and Liang, J. Am. Stat. Assoc. 82 (1987), 605-610; Stram and Lee, Biometrics 50 (1994), 1171-1177.
    """
    if len(models) < 2:
        raise ValueError("anova compares two models or more; give another one")
    if n_boot is not None and n_boot != 0 and n_boot < 19:
        raise ValueError(f"n_boot must be at least 19, or 0 for no bootstrap, got {n_boot}")
    for other in models[1:]:
        check_same_data(models[0], other)
    _check_likelihoods(models)
    models = sorted(models, key=lambda model: model.n_params_)
    rows = []
    for j, model in enumerate(models):
        logs = float(model.loglik_)
        row = {"npar": model.n_params_, "AIC": model.aic_, "BIC": model.bic_, "logLik": logs, "deviance": -2 * logs}
        found = Test(np.nan, 0, np.nan, "") if j == 0 else lr_test(models[j - 1], model, n_boot, random_state)
        rows.append(row | {"chisq": found.chisq, "df": found.df, "p": found.p, "test": found.told})
    return pd.DataFrame(rows, index=pd.Index(_labels(models), name="model"))


def _labels(models: list[GLMM]) -> list[str]:
    """Formulas, with what else tells apart those that share one."""
    labels = [model.formula for model in models]
    if len(set(labels)) < len(labels):
        labels = [f"{model.formula} [{model.model_.response.name}]" for model in models]
    return labels


def _check_likelihoods(models: list[GLMM]) -> None:
    """Raises: ValueError: some likelihoods are approximations or restricted, and others are not; restricted ones of other fixed
    effects."""
    if len({model.reml for model in models}) > 1:
        raise ValueError(
            "some models were fitted with reml=True and others without, and their likelihoods do not compare; fit all by the same"
        )
    if any(model.prior for model in models):
        raise ValueError(
            "penalised estimates do not maximise the likelihood, and have no likelihood-ratio test; fit the models without prior="
        )
    first = _columns(models[0])
    for model in models[1:] if models[0].reml else ():
        other = _columns(model)
        if first.shape != other.shape or not np.allclose(first, other):
            raise ValueError(
                f'the restricted likelihoods of "{models[0].formula}" and "{model.formula}" do not compare: the models have '
                "different fixed effects, and each integrates its own; fit them with reml=False"
            )
    if len({model.method == "laplace" for model in models}) > 1:
        raise ValueError(
            'some models were fitted with method="laplace" and others by their exact likelihood, and the difference would be of '
            "methods as well; fit all by the same"
        )


def _columns(model: GLMM) -> np.ndarray:
    """Columns of the fixed effects in an order of their own, and the offset."""
    design = model.design_
    order = sorted(range(len(design.names)), key=lambda j: design.names[j])
    return np.column_stack([design.X[:, order], design.offset])


def lr_test(reduced: GLMM, full: GLMM, n_boot: int | None, random_state: int) -> Test:
    """Of two nested models: see `anova`."""
    nested = nesting(reduced, full)
    chisq = 2 * (float(full.loglik_) - float(reduced.loglik_))
    noise = 2 * float(np.hypot(full.loglik_.se, reduced.loglik_.se))
    told = f"; chisq has an error of {noise:.2g}" if noise > NOISY else ""
    known = nested.edges == 0 or (nested.tied and not reduced.is_singular_)
    if n_boot or (n_boot is None and not known):
        p, by = _bootstrapped(reduced, full, n_boot or BOOTSTRAP, random_state)
    elif not known:
        p = _upper(chisq, nested.df)
        by = f"chi-squared({nested.df}), too large: {_edges(nested)}"
    else:
        p, by = _mixture(chisq, nested)
    return Test(max(chisq, 0.0), nested.df, p, by + told)


def _edges(nested: Nesting) -> str:
    return f"{nested.edges} parameters at edges" if nested.edges > 1 else "a parameter at its edge"


def _mixture(chisq: float, nested: Nesting) -> tuple[float, str]:
    df = nested.df
    if not nested.edges:
        return _upper(chisq, df), f"chi-squared({df})"
    p = (_upper(chisq, df - 1) + _upper(chisq, df)) / 2
    return p, f"half chi-squared({df - 1}), half chi-squared({df}): a parameter at its edge"


def _upper(chisq: float, df: int) -> float:
    """P of chi-squared with so many degrees of freedom to be as large; with none it is zero."""
    return float(scipy.special.chdtrc(df, max(chisq, 0.0))) if df else float(chisq <= 0)


def _bootstrapped(reduced: GLMM, full: GLMM, n_boot: int, random_state: int) -> tuple[float, str]:
    responses = simulated(reduced, n_boot, "NA", random_state)
    less, more = (
        [None if fit is None else likelihood(fit) for fit in refits(model, responses, title)]
        for model, title in ((reduced, "Smaller model"), (full, "Larger model"))
    )
    found = np.array([2 * (b - a) for a, b in zip(less, more, strict=True) if a is not None and b is not None])
    if len(found) < FEWEST:
        raise ValueError(
            f"only {len(found)} of {n_boot} simulated data sets could be fitted by both models; use n_boot=0, or raise it"
        )
    # By the same likelihoods as those of the simulated data.
    chisq = 2 * (likelihood(full.climbed_) - likelihood(reduced.climbed_))
    p = (1 + int(np.sum(found >= chisq - ROUNDING))) / (1 + len(found))
    lost = n_boot - len(found)
    return p, f"bootstrap of {len(found)}" + (f" ({lost} more could not be fitted)" if lost > FAILED * n_boot else "")
