r"""Designs of generalised linear mixed models from formulas of lme4 and glmmTMB.

$$\eta = X\beta + \sum_t Z_t\,b_t[\mathrm{codes}_t] + \text{offset}$$
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from formulae.expr import Variable
from formulae.token import Token

from .columns import Columns, check_finite, check_missing, check_names, columns_of, numbers, tidy
from .covariances import Effects, Places, dependent
from .groups import Grouping
from .outcome import Outcome, as_ordered, outcome
from .syntax import PLACED, Bar, Syntax, column_name, named, parsed
from .terms import Term, random_terms

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .base import AbstractResponse


@dataclasses.dataclass(frozen=True)
class NewRows:
    """The design of new rows: X (M, p), the terms with codes of -1 for unseen groups, offset (M,).

    Places of ar1, mat and exp terms that the fit did not have come after those it had, as further columns of Z and rows of
    `positions`.
    """

    X: np.ndarray
    terms: tuple[Term, ...]
    offset: np.ndarray


@dataclasses.dataclass(frozen=True)
class FixedPart:
    """Fixed effects alone: X (N, p) and the names of its columns."""

    X: np.ndarray
    names: list[str]
    recipe: Columns
    kept: np.ndarray
    nodes: tuple[Any, ...]

    def new(self, data: pd.DataFrame) -> np.ndarray:
        """X (M, p) of new rows.

        Raises:
            TypeError, ValueError: columns are missing, or hold other categories than in the fit.
        """
        return self.recipe.of_new(_tidied(data, self.nodes, "the new data"))[:, self.kept]


@dataclasses.dataclass(frozen=True)
class Design:
    """What a formula and a table make: the response, fixed effects, random terms.

    Attributes:
        response: the left side of the formula.
        y: (N,) numbers; numbers of successes where there are trials; codes of categories.
        trials: (N,), or None where the response counts no successes.
        levels: what the codes 0, 1, ... of a binary or ordered response stand for; the second of two is the success.
        X: (N, p); names: of its columns.
        terms: random terms, in the order of the formula.
        offset, weights: (N,).
        table: the columns of the data that the formula and the arguments name, as they came.
    """

    response: str
    y: np.ndarray
    trials: np.ndarray | None
    levels: tuple[Any, ...]
    fixed: FixedPart
    terms: tuple[Term, ...]
    offset: np.ndarray
    weights: np.ndarray
    table: pd.DataFrame
    recipe: Recipe

    @property
    def X(self) -> np.ndarray:
        return self.fixed.X

    @property
    def names(self) -> list[str]:
        return self.fixed.names

    def new(self, data: pd.DataFrame, *, offset: str | ArrayLike | None = None, random: bool = True) -> NewRows:
        """The design of new rows. They need no response.

        Args:
            data: with the columns that the formula names.
            offset: (M,), where the fit had one by an array; a column's name serves again by itself.
            random: without it, columns of groups and random slopes may be missing, and there are no terms.

        Raises:
            TypeError, ValueError: columns or the offset are missing, or hold what the fit did not have.
        """
        recipe = self.recipe
        nodes = [*self.fixed.nodes, *recipe.offsets, *([node for bar in recipe.bars for node in _nodes(bar)] if random else [])]
        if offset is None and isinstance(recipe.offset, str):
            offset = recipe.offset
        if offset is None and recipe.offset is not None:
            raise ValueError("the fit had an offset given as an array; pass offset= with one number a row of the new data")
        frame = _tidied(data, [*nodes, *_by_name(offset)], "the new data", "offset" if isinstance(offset, str) else "")
        terms = []
        for term, group, columns in zip(self.terms, recipe.groups, recipe.columns, strict=True) if random else ():
            Z, names, positions, at = columns.of_new(frame)
            new = dict(codes=group.of_new(frame), Z=Z, columns=names, positions=positions, places=at)
            terms.append(dataclasses.replace(term, **new))
        return NewRows(self.fixed.recipe.of_new(frame)[:, self.fixed.kept], tuple(terms), _offset(recipe.offsets, offset, frame))

    def ordered(self) -> Design:
        """The design of an ordinal family: the response as codes 0, ..., K - 1, and no intercept, whose place thresholds take.

        Raises:
            ValueError: the response has no ordered categories, or the formula takes the intercept away.
        """
        found = as_ordered(Outcome(self.response, self.y, self.trials, self.levels))
        if "Intercept" not in self.names:
            raise ValueError(
                "the formula takes the intercept away, and thresholds take its place in an ordinal family; leave out the 0 or - 1"
            )
        keep = np.array([name != "Intercept" for name in self.names])
        names = [name for name in self.names if name != "Intercept"]
        fixed = dataclasses.replace(self.fixed, X=self.X[:, keep], names=names, kept=self.fixed.kept[keep])
        return dataclasses.replace(self, y=found.y, levels=found.levels, fixed=fixed)

    def check(self, response: AbstractResponse) -> None:
        """Whether a family can have this response and these terms.

        Raises:
            ValueError: y is out of the family's range, with the row; or a term has an effect for every row, which cannot be
                told from what the family itself leaves to chance.
        """
        if self.levels and not response.coded:
            shown = ", ".join(map(str, self.levels[:5])) + (", ..." if len(self.levels) > 5 else "")
            raise ValueError(
                f'the response "{self.response}" holds categories ({shown}), and the family {response.name} needs numbers; '
                "choose binomial for two categories or ordinal for ordered ones"
            )
        if self.trials is not None and not response.counts_trials:
            raise ValueError(
                f'the response "{self.response}" counts successes of trials, and the family {response.name} has none; write '
                "I(a / b) for the ratio itself"
            )
        try:
            response.check(self.y, self.trials)
        except ValueError as error:
            raise ValueError(f'the response "{self.response}" {error}') from None
        if response.row_effects(self.trials):
            return
        for term in self.terms:
            count = len(term.labels) * len(term.columns)
            if term.structure not in PLACED and count >= len(self.y):
                raise ValueError(
                    f"{term.text} has {count} random effects for {len(self.y)} rows, and an effect for every row cannot be told "
                    f"from the chance of the family {response.name}; leave the term out, or group by a factor with fewer levels"
                )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a design is made of new rows. `offset`: a column's name, True for an array of the user's, None."""

    formula: str
    bars: tuple[Bar, ...]
    groups: tuple[Grouping, ...]
    columns: tuple[Effects | Places, ...]
    offsets: tuple[Any, ...]
    offset: str | bool | None


def design(
    formula: str,
    data: pd.DataFrame,
    *,
    offset: str | ArrayLike | None = None,
    weights: str | ArrayLike | None = None,
    given: Outcome | None = None,
) -> Design:
    r"""The design that a formula makes of a table.

    Fixed effects are those of the `formulae` library: `+ - * : / ** ^ ( )`, `C(x)` or `factor(x)` with `Treatment` or `Sum`
    contrasts, `I(x / 2)`, `log(x)`, `poly(x, 2)`, `bs(x, df=4)`, `scale(x)`. Categories keep the order they have; the first
    is the reference. Random terms are those of lme4 and glmmTMB: `(1 + x | g)`, `(x || g)`, `(0 + x | g)`, `g/h` and `g:h` behind
    the bar, and one of the words us, diag, cs, ar1, mat, exp around a term: `ar1(0 + time | g)`, `mat(0 + east + north | g)`.
    With s the distance of two places in time or in the plane, in units of the range, the correlation is $e^{-s}$ by exp or
    `mat12`, $(1 + s)e^{-s}$ by mat or `mat32`, and $(1 + s + s^2/3)e^{-s}$ by `mat52`: Matern's of smoothness 1/2, 3/2 and 5/2,
    in glmmTMB's parametrisation (others have $\sqrt{2\nu}$ times the range).
    A double bar makes all effects independent, those of a categorical x too, as glmmTMB has it (and lme4 from 2.0 if asked to).

    The response is a column of numbers, truth values or two categories (the second is the success), `y["yes"]` to choose the
    success, an ordered category, a function of columns, or successes of trials: `incidence/size`, `cbind(successes, failures)`,
    `p(successes, trials)`.

    Args:
        formula: as "incidence/size ~ period + (1 | herd)".
        data: a row an observation.
        offset: added to the linear predictor, a column's name or (N,); as is every `offset(log(t))` in the formula.
        weights: prior weights, a column's name or (N,). With `incidence/size`, weights of `size` say the trials once more, as
            lme4 asks for, and weigh nothing.
        given: the response, where it is no part of the table: the left side of the formula may then be empty, and says nothing.

    Warns:
        UserWarning: fixed effects that others make up are left out, as lme4 does; they are named.

    Raises:
        TypeError, ValueError: with the place in the formula, or the column and row, and how to mend it.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"ill": [2, 3, 0, 1], "size": [14, 12, 9, 5], "x": [0.5, 1, 2, 4], "herd": ["a", "a", "b", "b"]})
    >>> found = design("ill/size ~ log(x) + (1 | herd)", frame)
    >>> found.names, found.terms[0].name, found.terms[0].codes.tolist()
    (['Intercept', 'log(x)'], 'herd', [0, 0, 1, 1])
    """
    if not isinstance(data, pd.DataFrame):
        raise TypeError(f"data must be a pandas data frame, got {type(data).__name__}")
    syntax = parsed(formula, given is None)
    nodes = [syntax.fixed, *syntax.offsets, *(node for bar in syntax.bars for node in _nodes(bar))]
    nodes = [syntax.response, *nodes] if given is None else nodes
    frame = _tidied(data, [*nodes, *_by_name(offset), *_by_name(weights)], "the data")
    found = outcome(syntax.response, frame, data) if given is None else given
    if given is None:
        _check_response(syntax, frame)
    fixed = _fixed(syntax.fixed, frame)
    terms, groups, columns = random_terms(syntax, frame, data)
    chosen = _weights(weights, frame)
    if weights is not None and found.trials is not None and np.array_equal(found.trials, chosen):
        chosen = np.ones(len(frame))
    by = offset if isinstance(offset, str) or offset is None else True
    recipe = Recipe(formula, syntax.bars, groups, columns, syntax.offsets, by)
    added = _offset(syntax.offsets, offset, frame)
    table: Any = data[list(frame.columns)].reset_index(drop=True)
    return Design(found.name, found.y, found.trials, found.levels, fixed, terms, added, chosen, table, recipe)


def _check_response(syntax: Syntax, frame: pd.DataFrame) -> None:
    """Raises: ValueError: a column of the response is a predictor of itself."""
    both = set(named(syntax.response)[0]) & set(named(syntax.fixed)[0]) & set(map(str, frame.columns))
    if both and column_name(syntax.response) in both:
        raise ValueError(f'"{min(both)}" stands on both sides of "{syntax.formula}"; leave it out on the right')


def fixed_part(formula: str, data: pd.DataFrame) -> FixedPart:
    """Fixed effects of a formula without response, as "~ x" for the probability of a zero.

    Raises:
        TypeError, ValueError: as `design`; or it has random terms or an offset.

    >>> import pandas as pd
    >>> fixed_part("~ x", pd.DataFrame({"x": [1.0, 2.0, 4.0]})).names
    ['Intercept', 'x']
    """
    syntax = parsed(formula, response=False)
    if syntax.bars or syntax.offsets:
        what = syntax.bars[0].text if syntax.bars else "an offset"
        raise ValueError(f'the formula "{formula}" has {what}; it can have fixed effects only')
    if "~" in formula and formula.partition("~")[0].strip():
        raise ValueError(f'the formula "{formula}" has a response; write it as "~ x"')
    return _fixed(syntax.fixed, _tidied(data, [syntax.fixed], "the data"))


def _nodes(bar: Bar) -> list[Any]:
    return [bar.left, *bar.group]


def _by_name(values: Any) -> list[Any]:
    """The node of a column that an argument names."""
    return [Variable(Token("IDENTIFIER", values))] if isinstance(values, str) else []


def _tidied(data: pd.DataFrame, nodes: Iterable[Any], table: str, argument: str = "") -> pd.DataFrame:
    """The columns that nodes name, tidy, all there and without holes."""
    if not isinstance(data, pd.DataFrame):
        raise TypeError(f"{table} must be a pandas data frame, got {type(data).__name__}")
    if not len(data):
        raise ValueError(f"{table} has no rows")
    nodes = list(nodes)
    if argument and column_name(nodes[-1]) not in data.columns:
        raise ValueError(f'{table} has no column "{column_name(nodes[-1])}", which is the {argument} of the fit; add it')
    names = check_names(nodes, data, table)
    check_missing(data, names, table)
    return tidy(data, names)


def _fixed(node: Any, frame: pd.DataFrame) -> FixedPart:
    """Fixed effects, without the columns that ones before them make up."""
    X, recipe = columns_of(node, frame)
    aliased = dependent(X)
    for j, others in aliased:
        why = "is zero in every row" if not others else f"is made up of {', '.join(recipe.names[k] for k in others)}"
        warnings.warn(
            f'the fixed effect "{recipe.names[j]}" {why}, so it is left out, as lme4 does; leave it out of the formula to be rid '
            "of this warning",
            stacklevel=4,
        )
    kept = np.setdiff1d(np.arange(X.shape[1]), [j for j, _ in aliased])
    if len(kept) and len(kept) >= len(X):
        raise ValueError(f"the formula makes {len(kept)} fixed effects of {len(X)} rows; leave some out, or give more rows")
    return FixedPart(X[:, kept], [recipe.names[j] for j in kept], recipe, kept, (node,))


def _given(values: Any, frame: pd.DataFrame, what: str) -> np.ndarray:
    """An argument that is a column's name or an array, as numbers (N,)."""
    if isinstance(values, str):
        return numbers(_by_name(values)[0], frame, f"the {what}")
    try:
        found = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be numbers, one a row: {error}") from error
    if found.ndim == 0 or found.shape != (len(frame),):
        raise ValueError(f"{what} has shape {found.shape} for {len(frame)} rows; give one number a row, or a column's name")
    check_finite(found[:, None], [what], pd.DataFrame(index=frame.index), "the argument")
    return found


def _offset(nodes: tuple[Any, ...], values: Any, frame: pd.DataFrame) -> np.ndarray:
    found = np.zeros(len(frame)) if values is None else _given(values, frame, "offset")
    for node in nodes:
        found = found + numbers(node, frame, "the offset")
    return found


def _weights(values: Any, frame: pd.DataFrame) -> np.ndarray:
    if values is None:
        return np.ones(len(frame))
    found = _given(values, frame, "weights")
    if (found <= 0).any():
        row = int(np.flatnonzero(found <= 0)[0])
        raise ValueError(
            f"weights hold {found[row]:g} at row {row} ({int((found <= 0).sum())} such in all); they must be positive: drop rows "
            "that should not count"
        )
    return found
