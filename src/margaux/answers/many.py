"""Maximum likelihood for many data sets of one model at once: Newton's method for all of them, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ..algorithms.recipes import soul
from ..algorithms.updates import Problem
from ..engine.progress import Line
from ..engine.validate import check_model, check_params, check_same, check_types
from ..esteps import Exact, Quadrature
from ..kernels.base import flat_size
from ..numerics.compiling import keep_compilations, shapes_of
from ..numerics.inverse import guarded
from ..numerics.keys import key_of
from ..numerics.naming import scalar_names
from ..numerics.precision import default_dtype, precision, settle
from ..problem.model import AbstractDiscrete
from ..problem.penalty import NoPenalty
from ..problem.space import as_space, moved_to, point
from ..problem.space import validate as validate_space
from .ascents import Heights, climb, newton
from .flock import Flock
from .likelihood import TOLERANCE
from .polish import MOST
from .rules import NODES
from .search import CLOSE
from .steps import too_far

if TYPE_CHECKING:
    from ..problem.model import AbstractModel


#: nodes a dimension that lead the way, by the number of latents, and the length of Newton's step that they lead to
FEW, NEAR = {1: 11, 2: 7, 3: 5}, CLOSE
#: those of maxima, as `margaux.answers.rules.NODES` has them: centred at modes it takes more than at means
AROUND_MODES = NODES | {3: ((11, 15, None), (17, 21, None))}
#: scale of Gauss and Hermite's nodes to the curvature's, which is too small for most posteriors (a sixth more costs a Gaussian
#: nothing, and a skewed one 3 to 10 times less error); and that of a check to these
BROAD, WIDER = 1.15, 1.2
#: share of the tolerance that units with coarser quadratures may differ by together
NEGLIGIBLE = 1 / 8
#: units, chosen at random, whose posteriors are searched for more modes
LOOKED_AT = 256


@dataclasses.dataclass(frozen=True)
class ManyFits:
    """Maximum likelihood estimates of R data sets.

    Attributes:
        params: a row a data set, a column a scalar parameter. stderr: their standard errors by Louis' information, NaN where it
            is not positive definite. loglik: maxima (R,). error: how far a finer quadrature, and a finer and wider one, are
            from the one that was maximised (R,). length: Newton's step that is left, in standard errors (R,). converged:
            whether that is short, the information positive definite and the error below 0.01, and posteriors have one mode
            (R,).
        edge: whether the likelihood is flat along a coordinate, as where a variance vanishes: what moves with it has no
            standard error (R,). each: the parameters as they were given, with a leading axis R.
    """

    params: pd.DataFrame
    stderr: pd.DataFrame
    loglik: np.ndarray
    error: np.ndarray
    length: np.ndarray
    converged: np.ndarray
    edge: np.ndarray
    each: PyTree

    def __len__(self) -> int:
        return len(self.loglik)

    def __repr__(self) -> str:
        told = f", {int(self.edge.sum())} on an edge" if self.edge.any() else ""
        return f"{len(self)} fits, {int(self.converged.sum())} converged{told}: .params, .stderr, .loglik, .error, .converged"


def fit_many(
    model: AbstractModel,
    data: Sequence[PyTree] | PyTree,
    *,
    params: PyTree,
    space: Any = None,
    weights: Any = None,
    held: Any = None,
    progress: bool = True,
) -> ManyFits:
    r"""Maxima of $\sum_i w_{ri}\log p(y_{ri}\mid\theta_r)$ for the data sets r = 1, ..., R of one model.

    For simulation studies, bootstraps, and one model for each of many outcomes. A discrete latent is enumerated; up to three
    continuous latents a unit are integrated by adaptive Gauss-Hermite quadrature around each unit's mode, which follows the
    parameters. Newton's steps by scores and Louis' information are held to a trust region in each data set, first by few nodes;
    the units of all data sets go through one program, whatever their numbers. Every data set ends at a maximum that its start
    leads to: where there may be several, compare with `margaux.fit` and its `runs`. A unit's posterior is integrated around one
    mode; some units are searched for others, and where there are any no data set counts as converged.

    Args:
        data: a list of data sets, pytrees of arrays with a unit on the leading axis, as many as each has; or one data set with
            `weights`. params: where all begin, as in `margaux.fit`, or a list of R starts. space: see `margaux.fit`.
        weights: (R, n), how often each unit counts in each replicate: a bootstrap's are multinomial. held: (R, k), which of the
            unconstrained coordinates stay where they begin, in each data set; their standard errors are zero. progress: a line
            of it.

    Raises:
        TypeError, ValueError: what is wrong with model, data or starts, before anything is compiled.

    >>> import jax.numpy as jnp, numpy as np, margaux as mx
    >>> from jax.scipy.stats import norm
    >>> class Mean(mx.AbstractModel):
    ...     def log_joint(self, params, z, y):
    ...         return jnp.sum(norm.logpdf(y, z)) + norm.logpdf(z, params["mu"], jnp.exp(params["log_tau"]))
    ...     def init_latents(self, key, params, y):
    ...         return jnp.mean(y)
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(rng.normal(1.0, 1.0, (40, 1)), 1.0, (40, 3)) for _ in range(5)]
    >>> fits = mx.fit_many(Mean(), sets, params={"mu": 0.0, "log_tau": 0.0}, progress=False)
    >>> bool(fits.converged.all()), np.allclose(fits.params["mu"], [y.mean() for y in sets], atol=2e-3)
    (True, True)
    """
    check_types(model, soul(), Exact(), None)
    dtype = default_dtype(None)
    flock = Flock(data, weights, dtype)
    starts = list(params) if isinstance(params, list) else [params]
    if len(starts) not in (1, flock.count):
        raise ValueError(f"there are {len(starts)} starts for {flock.count} data sets; give one for each, or one for all")
    check_params(starts[0])
    starts = [jax.tree.map(lambda leaf: np.asarray(leaf, dtype), start) for start in starts]
    for r, start in enumerate(starts):
        check_same(starts[0], start, r)
    keep_compilations()
    line = Line("Newton's steps", None) if progress else None
    try:
        with precision(dtype), np.errstate(all="ignore"):
            return _Searches(model, flock, starts, space, held).ended(line)
    finally:
        if line is not None:
            line.close()


class _Searches:
    """Where the searches of all data sets are."""

    def __init__(self, model: Any, flock: Flock, starts: list[PyTree], space: Any, held: Any = None) -> None:
        self.flock, self.template, self.names = flock, starts[0], scalar_names(starts[0])
        self.space = as_space(space, starts[0])
        for start in starts:
            validate_space(self.space, start)
        u = [np.asarray(point(self.space, start).coordinates, float) for start in starts]
        self.u = np.stack(u * (flock.count // len(u)))
        if not np.all(np.isfinite(self.u)):
            raise ValueError("a start lies on the edge of its space, from where no step leads away; give one inside")
        count, k = self.u.shape
        self.held = _checked(held, count, k)
        self.here = Heights(np.full(count, -np.inf), np.zeros((count, k)), np.zeros((count, k, k)))
        size = flat_size(shapes_of(model.init_latents, key_of(0), starts[0], flock.first()))[0]
        self.rules = _rules(model, size)
        problem = Problem(model, self.space, NoPenalty(), 1)
        check_model(problem, self.rules[0][0], soul(), starts[0], flock.first())
        flock.begin(settle(model, flock.dtype), self.space, self.template, self.rules[0][0], size, self.u)

    def climb(self, close: float, which: np.ndarray, line: Line | None) -> None:
        """Some data sets to where Newton's step is short."""
        count, rules = self.flock.count, [rule for rule, _ in self.rules]

        def told(left: int) -> None:
            if line is not None:
                line.update(None, f"{count - left:,} of {count:,} data sets")

        def heights(u: np.ndarray, some: np.ndarray) -> Heights:
            return _over_free(self.flock.at(rules, u, some), self.held[some])

        climb(heights, self.u, self.here, which, close, MOST, told, self.flock.keep)

    def ended(self, line: Line | None) -> ManyFits:
        """The maxima, by finer rules for the units of data sets that need them."""
        flock, which, members = self.flock, np.arange(self.flock.count), np.arange(len(self.flock.own))
        # Of each member, how far its finer quadrature is from its own, and from a wider one.
        off = np.zeros((2, len(members)))
        for level, (rule, finer) in enumerate(self.rules):
            flock.level[members] = level
            self.climb(CLOSE / 3 if finer else NEAR, which, line)
            if finer > 1:
                off[:, members] = self._off(rule, finer, members)
                which = np.flatnonzero(~(self._error(off) < TOLERANCE / 2))
                if not which.size:
                    break
                members = self._worst(off, which)
        return self._found(self.here.value + flock.summed(off[0], np.arange(off.shape[1])), self._error(off))

    def _off(self, rule: Quadrature, finer: int, members: np.ndarray) -> np.ndarray:
        """A finer quadrature of some members less the rule, and less one that is wider (2, members)."""
        others = [dataclasses.replace(rule, n_nodes=finer, widening=wider * float(rule.widening)) for wider in (1.0, WIDER)]
        everyone = np.arange(self.flock.count)
        own, fine, wide = (self.flock.each(one, members, self.u, everyone) for one in (rule, *others))
        return np.stack([fine - own, fine - wide])

    def _error(self, off: np.ndarray) -> np.ndarray:
        return np.max(np.abs(self.flock.summed(off, np.arange(off.shape[1]))), axis=0)

    def _worst(self, off: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The members of some data sets but for those whose errors are together next to nothing."""
        each = np.max(np.abs(off), axis=0) * self.flock.weights
        order = np.lexsort([each, self.flock.sets])
        order = order[np.isin(self.flock.sets[order], which)]
        sets = self.flock.sets[order]
        before = np.concatenate([np.cumsum(each[order[sets == r]]) for r in which])
        return order[~(before < NEGLIGIBLE * TOLERANCE)]

    def _found(self, values: np.ndarray, error: np.ndarray) -> ManyFits:
        lengths = newton(self.here, self.u, np.ones(len(self.u))).length
        each, errors, edge = [], [], []
        for u, matrix, held in zip(self.u, self.here.matrix, self.held, strict=True):
            params, jacobian = moved_to(self.space, self.template, u.astype(self.flock.dtype))
            inverse = guarded(matrix, ~held)[0]
            flat = ~held & too_far(np.sqrt(np.diagonal(inverse)), np.diagonal(matrix))
            unknown = np.abs(jacobian[:, flat]).sum(axis=1) > 0
            each.append(params)
            edge.append(flat.any())
            errors.append(np.where(unknown, np.nan, np.sqrt(np.diagonal(jacobian @ inverse @ jacobian.T))))
        definite = np.array([not guarded(matrix)[1] for matrix in self.here.matrix])
        single = not isinstance(self.rules[-1][0], Quadrature) or self.flock.modes(self.u, LOOKED_AT) == 1
        se = np.asarray(errors, float)
        flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]) for params in each]
        return ManyFits(
            pd.DataFrame(np.asarray(flat, float), columns=self.names),
            pd.DataFrame(se, columns=self.names),
            values,
            error,
            lengths,
            (lengths < CLOSE) & definite & (error < TOLERANCE / 2) & single,
            np.array(edge),
            jax.tree.map(lambda *leaf: np.stack(leaf), *each),
        )


def _checked(held: Any, count: int, k: int) -> np.ndarray:
    """Which coordinates are held (R, k), none of them by default."""
    if held is None:
        return np.zeros((count, k), bool)
    table = np.asarray(held)
    if table.shape != (count, k) or table.dtype != bool:
        raise ValueError(
            f"held must be true or false for each of {count} data sets and {k} unconstrained coordinates, got an array of "
            f"{table.dtype} of shape {table.shape}"
        )
    return table


def _over_free(heights: Heights, held: np.ndarray) -> Heights:
    """Of the other coordinates alone: no step moves those that are held."""
    matrix = np.where(held[:, :, None] | held[:, None, :], np.eye(held.shape[1]), heights.matrix)
    return heights._replace(gradient=np.where(held, 0.0, heights.gradient), matrix=matrix)


def _rules(model: Any, size: int) -> list[tuple[Any, int]]:
    """One that leads the way (0), and those of maxima, each with the nodes of one that it is to agree with (1 if exact)."""
    if isinstance(model, AbstractDiscrete):
        return [(Exact(), 1)]
    if size not in NODES:
        raise TypeError(
            f"fit_many integrates at most three latents a unit by quadrature, and this model has {size}; call margaux.fit for "
            "each data set: those of similar size share their programs"
        )
    return [(Quadrature(FEW[size]), 0), *((_broad(nodes, reach), finer) for nodes, finer, reach in AROUND_MODES[size])]


def _broad(nodes: int, reach: float | None) -> Quadrature:
    return Quadrature(nodes, widening=BROAD if reach is None else 1.0, reach=reach)
