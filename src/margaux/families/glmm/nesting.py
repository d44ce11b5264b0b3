"""Whether one mixed model is nested in another, and which of the parameters that it lacks are on the edge of their space."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import numpy as np

from .counts import NegativeBinomial1, NegativeBinomial2, Poisson
from .zeros import ZeroInflated

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .estimator import GLMM
    from .terms import Term

#: structures between whose effects every covariance is free
FREE = ("us",)
#: what a column of one design may lie beside the span of another's, as a share of its size
BESIDE = 1e-8


class Nesting(NamedTuple):
    """What a reduced model lacks.

    Attributes:
        df: parameters. edges: how many of them are zero, or at the other edge of their space, under the reduced model.
        tied: whether the remaining ones all belong to that one edge or lie inside: then a mixture of two distributions is known.
    """

    df: int
    edges: int
    tied: bool


class _Covariances(NamedTuple):
    """Of random effects (group, column): those with a variance, pairs with a free covariance, and terms of other structures."""

    variances: set
    pairs: set
    others: dict


def nesting(reduced: GLMM, full: GLMM) -> Nesting:
    """How the first model is nested in the second: in its fixed effects by the span of their columns, in its random effects and
    its family by their parameters.

    Raises:
        ValueError: it is not, or the models are of other data or another response.
    """
    check_same_data(reduced, full)
    edges = _in_family(reduced.model_.response, full.model_.response)
    _check_span(reduced, full)
    small, large = _covariances(reduced.design_.terms), _covariances(full.design_.terms)
    _check_covariances(small, large, reduced.formula, full.formula)
    new = large.variances - small.variances
    others = [key for key in large.others if key not in small.others]
    # A covariance between effects that both models have is inside its space; one of a new effect has no meaning without it.
    tied = len(new) <= 1 and not others
    edges += len(new) + len(others)
    df = full.n_params_ - reduced.n_params_
    if df < 1:
        raise ValueError(
            f'"{full.formula}" has {full.n_params_} parameters and "{reduced.formula}" {reduced.n_params_}: there is nothing to '
            "test between them; compare their AIC"
        )
    return Nesting(df, edges, tied and edges <= 1)


def check_same_data(one: GLMM, other: GLMM) -> None:
    """Raises: ValueError: the models are of other rows, responses, weights or offsets."""
    a, b = one.design_, other.design_
    if a.response != b.response:
        raise ValueError(
            f'the models are of different responses, "{a.response}" and "{b.response}"; their likelihoods do not compare'
        )
    pairs = {"responses": (a.y, b.y), "weights": (a.weights, b.weights), "trials": (a.trials, b.trials)}
    if len(a.y) != len(b.y):
        raise ValueError(f"the models were fitted to {len(a.y)} and {len(b.y)} rows; fit both to the same data")
    for what, (x, y) in pairs.items():
        if (x is None) != (y is None) or (x is not None and not np.array_equal(x, y)):
            raise ValueError(f"the models were fitted to different data (their {what} differ); fit both to the same")
    if a.levels != b.levels:
        raise ValueError("the models were fitted to different categories of the response; fit both to the same data")


def _in_family(small: AbstractResponse, large: AbstractResponse) -> int:
    """How many edges of its space one family is at in another: 0 where they are the same.

    Raises:
        ValueError: it is no special case of the other.
    """
    if type(small) is type(large) and eqx.tree_equal(small, large):
        return 0
    if isinstance(large, ZeroInflated) and not isinstance(small, ZeroInflated):
        return 1 + _in_family(small, large.response)
    if isinstance(small, ZeroInflated) and isinstance(large, ZeroInflated):
        return _in_family(small.response, large.response)
    counted = isinstance(small, Poisson) and isinstance(large, (NegativeBinomial1, NegativeBinomial2))
    if counted and small.link.name == large.link.name:  # type: ignore[attr-defined]
        return 1
    a, b = (f"{one.name} ({link.name})" if (link := getattr(one, "link", None)) else one.name for one in (small, large))
    raise ValueError(f"the family {a} is no special case of {b}; compare the models by their AIC")


def _check_span(reduced: GLMM, full: GLMM) -> None:
    """Raises: ValueError: fixed effects of the reduced model, or its offset, are none of the full one's."""
    a, b = reduced.design_, full.design_
    columns, basis, names = np.column_stack([a.X, a.offset - b.offset]), b.X, [*a.names, "offset"]
    if "thresholds" in full.model_.response.dispersion:  # which are the intercept
        columns, basis = columns - columns.mean(axis=0), basis - basis.mean(axis=0)
    left = columns - basis @ np.linalg.lstsq(basis, columns, rcond=None)[0] if basis.shape[1] else columns
    size = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    beside = np.linalg.norm(left, axis=0) > BESIDE * size
    beside[-1] &= bool(np.abs(columns[:, -1]).max() > 0)
    if beside.any():
        raise ValueError(
            f'"{reduced.formula}" is not nested in "{full.formula}": "{names[int(np.flatnonzero(beside)[0])]}" is none of the '
            "latter's fixed effects, nor made up of them; compare the models by their AIC"
        )


def _covariances(terms: tuple[Term, ...]) -> _Covariances:
    variances, pairs, others = set(), set(), {}
    for term in terms:
        if term.structure in ("us", "diag") or len(term.columns) == 1:
            own = [(term.name, column) for column in term.columns]
            variances |= set(own)
            pairs |= {frozenset((x, y)) for x in own for y in own if x != y and term.structure in FREE}
        else:
            others[term.structure, term.name, tuple(term.columns)] = term.text
    return _Covariances(variances, pairs, others)


def _check_covariances(small: _Covariances, large: _Covariances, reduced: str, full: str) -> None:
    """Raises: ValueError: an effect, a covariance or a structure of the reduced model is none of the full one's."""
    missing = [f'the effect "{column}" of "{group}"' for group, column in sorted(small.variances - large.variances)]
    missing += [f"the covariance of {' and '.join(sorted(c for _, c in pair))}" for pair in small.pairs - large.pairs]
    missing += [text for key, text in small.others.items() if key not in large.others]
    if missing:
        raise ValueError(
            f'"{reduced}" is not nested in "{full}": {missing[0]} is none of the latter\'s random effects; compare the models by '
            "their AIC"
        )
