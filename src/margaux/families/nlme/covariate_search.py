r"""Stepwise search for covariates: what improves the likelihood most goes in, what hardly does goes out again.

References: Jonsson and Karlsson, Pharm. Res. 15 (1998), 1463-1468; Wahlby, Jonsson and Karlsson, AAPS PharmSci 4 (2002), 68-79.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
import scipy

from ...engine.share import alone
from ...numerics.precision import precision
from . import classes, specification
from .fitting import refined
from .informed import refuse
from .maxima import Maxima, maxima
from .model import MixedEffects
from .relations import Relation, Together, relations
from .running import Settings
from .start import plausible

if TYPE_CHECKING:
    from .estimator import NLME


#: by how much the final fit's log-likelihood may differ from the search's
AGREED = 0.1
#: by how much a log-likelihood may be lower with a relation than without it
LOWER = 0.02
COLUMNS = ["step", "direction", "parameter", "term", "df", "drop", "p", "kept", "note"]


@dataclasses.dataclass(frozen=True)
class CovariateSearch:
    """A stepwise search.

    Attributes:
        table: a row a model that was looked at: `step`, `direction` ("forward" or "backward"), `parameter`, `term`, `df`,
            `drop` (by how much -2 log-likelihood is lower with the relation than without it), `p` by chi-squared, `kept`
            (whether the relation is in the model after this step), `note` (why it was not tried, or is not to be trusted).
        final: the fitted model with the relations that were selected. selected: their terms by parameter. drop: by how much
            -2 log-likelihood fell from the model without them. note: what is to be said of the final fit.
    """

    table: pd.DataFrame
    final: NLME
    selected: dict[str, list[str]]
    drop: float
    note: str = ""

    @property
    def message(self) -> str:
        """What was selected, and what is to be said of it."""
        chosen = ", ".join(f"{parameter} ~ {' + '.join(terms)}" for parameter, terms in self.selected.items()) or "no relation"
        told = f"{chosen}; -2 log-likelihood is {self.drop:.2f} lower"
        left = self.table.loc[self.table["note"] != "", ["parameter", "term"]].drop_duplicates()
        doubts = f"; {len(left)} relations have notes (see table)" if len(left) else ""
        return f"{told}{doubts}{f'; {self.note}' if self.note else ''}."

    def __repr__(self) -> str:
        return f"CovariateSearch: {self.message} .table, .final, .selected"


def searched(
    fitted: NLME, candidates: Mapping[str, Sequence[str]], search: str, forward: float, backward: float
) -> CovariateSearch:
    """See `NLME.covariates`."""
    if search != "scm":
        raise ValueError(f'search must be "scm", forward inclusion and backward elimination, got {search!r}')
    for name, level in (("forward", forward), ("backward", backward)):
        if not 0 < level < 1:
            raise ValueError(f"{name} must be a p-value between 0 and 1, got {level!r}")
    refuse(fitted, "a search for covariates")
    classes.refuse(fitted.individual or {}, "a search for covariates")
    alone(fitted.result_.share, "a search for covariates")
    steps = _Steps(fitted, relations(fitted, candidates))
    steps.begin()
    while steps.include(forward):
        pass
    while steps.exclude(backward):
        pass
    terms: dict[str, list[str]] = {}
    for at in sorted(steps.inside):
        one = steps.candidates[at]
        terms.setdefault(one.parameter, []).append(one.term)
    final, note = _final(fitted, steps.together, terms, steps.params, steps.loglik)
    return CovariateSearch(pd.DataFrame(steps.rows, columns=COLUMNS), final, terms, 2 * (steps.loglik - steps.first), note)


class _Steps:
    """Where the search is: what is in the model, its maximum, and the rows of the table so far."""

    def __init__(self, fitted: NLME, candidates: list[Relation]) -> None:
        self.candidates, self.together = candidates, Together(fitted, candidates)
        self.verbose, self.rows = bool(fitted.verbose), []
        self.inside: list[int] = []
        self.params: dict[str, Any] = self.together.fit.params
        self.loglik = self.first = np.nan
        self.size = fitted.result_.n_params + sum(len(places) for places in self.together.places)

    def begin(self) -> None:
        """At the maximum without any relation.

        Raises:
            ValueError: it is not found.
        """
        found = self._maxima([self.inside], [self.params])
        if not found.converged[0]:
            raise ValueError(
                "the search begins at the maximum of the likelihood without candidates, which Newton's method did not find from "
                "the fit; see model.certificate_, and mend the model first"
            )
        self._move([], found, 0)
        self.first = self.loglik

    def include(self, level: float) -> bool:
        """The relation that lowers -2 log-likelihood most significantly goes in; whether there was one."""
        left = [at for at in range(len(self.candidates)) if at not in self.inside]
        dependent = [at for at in left if self.together.dependent(self.inside, at)]
        tried = [at for at in left if at not in dependent]
        if not left:
            return False
        rows = {at: self._row("forward", at, note=self._why(at)) for at in dependent}
        found = self._maxima([[*self.inside, at] for at in tried], [self.params] * len(tried)) if tried else None
        for place, at in enumerate(tried):
            assert found is not None
            rows[at] = self._row("forward", at, 2 * (found.loglik[place] - self.loglik), bool(found.converged[place]))
        able = [at for at in tried if rows[at]["note"] == "" and rows[at]["p"] < level]
        best = min(able, key=lambda at: (rows[at]["p"], -rows[at]["drop"])) if able else None
        step = self._step()
        self.rows += [rows[at] | {"step": step, "kept": at == best} for at in left]
        if best is None or found is None:
            return False
        self._move([*self.inside, best], found, tried.index(best))
        return True

    def exclude(self, level: float) -> bool:
        """The relation that is missed least goes out, if it is missed too little; whether there was one."""
        if not self.inside:
            return False
        step, inside = self._step(), list(self.inside)
        rests = [[other for other in inside if other != at] for at in inside]
        found = self._maxima(rests, [self.together.without(self.params, at) for at in inside])
        rows = [
            self._row("backward", at, 2 * (self.loglik - found.loglik[place]), bool(found.converged[place]))
            for place, at in enumerate(inside)
        ]
        able = [place for place, row in enumerate(rows) if row["note"] == "" and row["p"] > level]
        worst = max(able, key=lambda place: (rows[place]["p"], -rows[place]["drop"])) if able else None
        self.rows += [row | {"step": step, "kept": place != worst} for place, row in enumerate(rows)]
        if worst is None:
            return False
        self._move(rests[worst], found, worst)
        return True

    def _step(self) -> int:
        return self.rows[-1]["step"] + 1 if self.rows else 1

    def _why(self, at: int) -> str:
        constant = not self.candidates[at].columns.any(axis=0).all()
        return "left out: constant over subjects" if constant else "left out: linearly dependent on what the parameter has"

    def _row(self, direction: str, at: int, drop: float = np.nan, converged: bool = True, note: str = "") -> dict[str, Any]:
        one, df = self.candidates[at], self.candidates[at].columns.shape[1]
        p = float(scipy.special.chdtrc(df, max(drop, 0.0))) if np.isfinite(drop) else np.nan
        if not note and not (converged and np.isfinite(drop)):
            note = "its maximum was not found"
        elif not note and drop < -2 * LOWER:
            note = "less likely with it than without: another maximum"
        return {"direction": direction, "parameter": one.parameter, "term": one.term, "df": df, "drop": drop, "p": p,
                "note": note}  # fmt: skip

    def _maxima(self, insides: list[list[int]], starts: list[dict[str, Any]]) -> Maxima:
        counts = np.ones((len(insides), len(self.together.design)), int)
        held = np.stack([self.together.held(inside, self.size) for inside in insides])
        return maxima(self.together.fit, counts, starts, held, self.verbose)

    def _move(self, inside: list[int], found: Maxima, place: int) -> None:
        self.inside, self.loglik = inside, float(found.loglik[place])
        self.params = jax.tree.map(lambda leaf: leaf[place], found.params)


def _final(
    fitted: NLME, together: Together, terms: dict[str, list[str]], params: dict[str, Any], loglik: float
) -> tuple[NLME, str]:
    """The estimator with these terms, fitted from where the search ended; and what is to be said of it."""
    if not terms:
        return fitted, ""
    asked = dict(specification.individual(fitted))
    for name, more in terms.items():
        asked[name] = dataclasses.replace(asked[name], covariates=" + ".join([*filter(None, [asked[name].covariates]), *more]))
    settings = Settings.of(fitted)
    asked_for: dict[str, Any] = fitted.get_params() | {"individual": asked}
    final = type(fitted)(**asked_for)
    final.data_ = fitted.data_
    build = functools.partial(
        specification.built, specification.outcome_of(fitted), specification.blocks(final, asked), final.data_
    )
    used = dict(fitted.model_.individual)
    there = {
        name: dataclasses.replace(one, random=used[name].random, occasion=used[name].occasion) for name, one in asked.items()
    }
    with precision(settings.dtype):
        model, units = build(there)
        start = _carried(together, model, units, params)
    fit = refined(build, there, start, settings)
    origin = {"origin": ["covariate search"], "loglik": [loglik], "continued": [True], "reached": [np.nan]}
    final._ended(fit, pd.DataFrame(origin))
    apart = float(final.loglik_) - loglik
    if abs(apart) <= AGREED + 2 * final.loglik_.se:
        return final, ""
    return final, f"the final fit's log-likelihood is {apart:+.2f} from where the search ended, and so may others be"


def _carried(together: Together, model: MixedEffects, units: dict, params: dict[str, Any]) -> dict[str, Any]:
    """The search's parameters as those of the final model: coefficients that give every subject the same means."""
    values = np.zeros(len(model.owner))
    for name, mean in together.means(params).items():
        own = model.coefficients(model.names.index(name))
        values[own] = np.linalg.lstsq(np.asarray(units["design"], float)[:, own], mean, rcond=None)[0]
    out = dict(params)
    if model.random:
        out["beta"] = values[: model.split]
    if model.split < len(model.owner):
        out["fixed"] = values[model.split :]
    return _off_zero(model, units, out)


def _off_zero(model: MixedEffects, units: dict, params: dict[str, Any]) -> dict[str, Any]:
    """With variances from where EM moves: none is next to nothing."""
    least = plausible(model, units, params)
    out = dict(params)
    for name in ("omega2", "gamma2"):
        if name in out:
            out[name] = np.maximum(out[name], 1e-3 * least[name])
    return model.held.imposed(out)
