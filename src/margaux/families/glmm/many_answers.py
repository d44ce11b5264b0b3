"""What the fits of many responses answer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...numerics.wald import wald_table

if TYPE_CHECKING:
    from .formula import Design

#: adjustments for many tests: of Benjamini and Hochberg, and of Benjamini and Yekutieli
ADJUSTMENTS = ("bh", "by")


@dataclasses.dataclass(frozen=True)
class ManyGLMM:
    """Mixed models of R responses with one design, of `margaux.GLMM.fit_many`.

    Attributes:
        params_: estimates, a row a response and a column a parameter by the names of `GLMM.params_`; NaN of responses that were
            not fitted. covariances: of the estimates (R, q, q), NaN where they are not to be trusted.
        verdicts: a row a response: "word" (certified, careful or failed), "message" (why it is not certified), "converged",
            "loglik" (every constant included), "error" of that, "length" (of Newton's step that is left, in standard errors),
            "n_iter". coefficients: names of the fixed effects. design_: of the formula, with the first response.
    """

    params_: pd.DataFrame
    covariances: np.ndarray
    verdicts: pd.DataFrame
    coefficients: tuple[str, ...]
    design_: Design

    def __len__(self) -> int:
        return len(self.params_)

    def __repr__(self) -> str:
        counts = self.verdicts["word"].value_counts()
        told = ", ".join(f"{counts.get(word, 0):,} {word}" for word in ("certified", "careful", "failed"))
        return f"{len(self):,} fits, {told}: .summary(), .test(coefficient), .params_, .stderr_, .verdicts"

    @property
    def stderr_(self) -> pd.DataFrame:
        """Standard errors, as `params_`."""
        with np.errstate(invalid="ignore"):
            se = np.sqrt(np.diagonal(self.covariances, axis1=1, axis2=2))
        return pd.DataFrame(se, self.params_.index, self.params_.columns)

    @property
    def loglik_(self) -> pd.Series:
        """Marginal log-likelihoods, every constant included."""
        return pd.Series(self.verdicts["loglik"])

    @property
    def aic_(self) -> pd.Series:
        """Akaike's criterion of each response."""
        return (2 * self.params_.shape[1] - 2 * self.loglik_).rename("aic")

    @property
    def converged_(self) -> pd.Series:
        """Whether Newton's step that is left is short, and the information positive definite."""
        return pd.Series(self.verdicts["converged"])

    def cov_params(self, response: object) -> pd.DataFrame:
        """Covariance of one response's estimates.

        Raises:
            ValueError: there is no such response.
        """
        names = list(self.params_.columns)
        return pd.DataFrame(self.covariances[self._place(response)], names, names)

    def summary(self, level: float = 0.95, *, form: str = "long") -> pd.DataFrame:
        """Estimate, standard error, z, p and interval of every parameter.

        Args:
            level: of the intervals. form: "long", a row a response and parameter; or "wide", a row a response, with its verdict.

        Raises:
            ValueError: a level that is no probability, or another form.
        """
        if form not in ("long", "wide"):
            raise ValueError(f'form must be "long" or "wide", got {form!r}')
        index = pd.MultiIndex.from_product([self.params_.index, self.params_.columns], names=["response", "parameter"])
        estimates, se = self.params_.to_numpy(), self.stderr_.to_numpy()
        frame = wald_table(estimates.ravel(), se.ravel(), level, index)
        spreads = np.array([name.startswith("sd_") for name in self.params_.columns])
        frame.loc[np.tile(spreads, len(self)), ["z", "p"]] = np.nan
        if form == "long":
            return frame
        columns = pd.MultiIndex.from_product([self.params_.columns, frame.columns])
        wide = pd.DataFrame(frame.to_numpy().reshape(len(self), -1), self.params_.index, columns)
        verdicts = self.verdicts[["word", "message", "loglik"]]
        return pd.concat([pd.concat({"fit": verdicts}, axis=1), wide], axis=1)

    def test(self, coefficient: str, value: float = 0.0, *, adjust: str = "bh") -> pd.DataFrame:
        r"""Wald tests that a coefficient is `value`, a row a response, adjusted for their number.

        "p_adjusted" holds the false discovery rate: of all responses below 0.05, a twentieth at most is expected to be false
        ("bh", Benjamini and Hochberg 1995, for tests that are independent or positively dependent; "by", Benjamini and Yekutieli
        2001, for any). Responses whose fit failed have no p and are not counted.

        Args:
            coefficient: a fixed effect by its name.

        Raises:
            ValueError: there is no such coefficient or adjustment.
        """
        from scipy.stats import false_discovery_control

        if coefficient not in self.coefficients:
            raise ValueError(f'there is no coefficient "{coefficient}"; the fixed effects are {", ".join(self.coefficients)}')
        if adjust not in ADJUSTMENTS:
            raise ValueError(f'adjust must be "bh" or "by", got {adjust!r}')
        sound = (self.verdicts["word"] != "failed").to_numpy()
        estimate = self.params_[coefficient].to_numpy()
        se = np.where(sound, self.stderr_[coefficient].to_numpy(), np.nan)
        frame = wald_table(estimate - value, se, 0.95, self.params_.index)[["estimate", "se", "z", "p"]]
        frame["estimate"] = estimate
        frame["p_adjusted"] = np.nan
        p = np.asarray(frame["p"], float)
        known = ~np.isnan(p)
        if known.any():
            frame.loc[known, "p_adjusted"] = false_discovery_control(p[known], method=adjust)  # type: ignore[arg-type]
        return frame.join(self.verdicts[["word", "message"]])

    def _place(self, response: object) -> int:
        places = self.params_.index.get_indexer(pd.Index([response]))
        if places[0] < 0:
            raise ValueError(
                f"there is no response {response!r}; they are called {', '.join(map(str, self.params_.index[:5]))}, ..."
            )
        return int(places[0])
