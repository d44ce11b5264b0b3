"""Scores and information of a model at a point, by any rule: what Newton's steps and standard errors are made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..esteps import Laplace
from ..numerics.precision import default_dtype, precision
from ..numerics.sampling import pooled
from ..problem.held import with_values_of, without_values
from ..problem.model import log_joints, two_derivatives
from ..problem.space import Point, moved_to, point
from .marginals import derivatives
from .posterior import each_unit
from .rules import Rule, sample

if TYPE_CHECKING:
    from ..problem.space import AbstractSpace
    from .fit import Fit


class Coordinates:
    """Unconstrained coordinates of a fit's parameters: the way there and back, in double precision on the host."""

    def __init__(self, fit: Fit) -> None:
        self.space, self.dtype = fit._model().space, default_dtype(None)
        self.template = jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), fit.params)

    def to(self, params: PyTree) -> np.ndarray:
        """u of parameters, infinite on an edge."""
        return self._at(params).coordinates.astype(float)

    def back(self, u: np.ndarray) -> PyTree:
        """Parameters of u."""
        return self._moved(u)[0]

    def projected(self, flat: np.ndarray) -> np.ndarray:
        """The nearest flat parameters (p,) inside their space."""
        leaves, structure = jax.tree.flatten(self.template)
        parts = np.split(np.asarray(flat, self.dtype), np.cumsum([leaf.size for leaf in leaves])[:-1])
        params = structure.unflatten([part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self._at(params).projected)]).astype(float)

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        """Of the flat parameters in u, (p, k)."""
        return self._moved(u)[1].astype(float)

    def edges(self, params: PyTree) -> np.ndarray:
        """Which flat parameters lie on the edge of their space, (p,)."""
        return self._at(params).edges

    def _at(self, params: PyTree) -> Point:
        with precision(self.dtype):
            return point(self.space, jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), params))

    def _moved(self, u: np.ndarray) -> tuple[PyTree, np.ndarray]:
        with precision(self.dtype):
            params, jacobian = moved_to(self.space, self.template, np.asarray(u, self.dtype))
        return jax.tree.map(np.asarray, params), np.asarray(jacobian)


class Place(NamedTuple):
    """A data set's log-likelihood at a point: coordinates, value, gradient (k,), Louis' information (k, k)."""

    u: np.ndarray
    loglik: float
    gradient: np.ndarray
    matrix: np.ndarray


class Evaluation(NamedTuple):
    """A model at a point of its unconstrained coordinates, by R independent sets of draws.

    Attributes:
        u: the point (k,). scores: (R, n, k). complete: the sum over units of E[-Hessian] - E[gradient gradient^T] (R, k, k).
        logs: log marginal likelihoods of the units (R, n), NaN where the rule gives none. ess, pareto: the worst
            over replicates of each unit (n,).
    """

    u: np.ndarray
    scores: np.ndarray
    complete: np.ndarray
    logs: np.ndarray
    ess: np.ndarray
    pareto: np.ndarray

    @property
    def gradient(self) -> np.ndarray:
        """Of the log-likelihood, (k,)."""
        return self.scores.mean(axis=0).sum(axis=0)

    @property
    def matrices(self) -> np.ndarray:
        """Louis' information by each set (R, k, k), which is too large by the noise of its own scores."""
        return symmetrised(self.complete + np.einsum("rni,rnj->rij", self.scores, self.scores))

    @property
    def matrix(self) -> np.ndarray:
        r"""Louis' information (k, k), with $s_is_i^\top$ from pairs of different sets, whose noise has no mean."""
        count = len(self.scores)
        if count == 1:
            return self.matrices[0]
        total = self.scores.sum(axis=0)
        own = np.einsum("rni,rnj->ij", self.scores, self.scores)
        return symmetrised(self.complete.mean(axis=0) + (total.T @ total - own) / (count * (count - 1)))

    @property
    def loglik(self) -> float:
        return float(pooled(self.logs)[0].sum()) if len(self.logs) > 1 else float(self.logs[0].sum())


def symmetrised(matrix: np.ndarray) -> np.ndarray:
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2


@functools.lru_cache(maxsize=32)
def louis(space_structure: tuple[tuple, Any], second: bool) -> Any:
    """f of `each_unit`: a unit's score, and E[-Hessian] - E[gradient gradient^T], in unconstrained coordinates.

    Cached, so that fits over the same kind of space share a compilation.
    """
    leaves, treedef = space_structure
    space = jax.tree.unflatten(treedef, [np.asarray(value).reshape(shape) for value, shape in leaves])

    def f(model, params, z, w, batch):
        own = with_values_of(space, params)
        u, back = ravel_pytree(own.to_unconstrained(params))

        def value(u):
            return log_joints(model, own.from_unconstrained(back(u)), z, batch)[:, 0]

        if not second:
            return {"score": jax.grad(lambda u: w[:, 0] @ value(u))(u)}
        each, hessian = two_derivatives(model, lambda u: own.from_unconstrained(back(u)), u, z, w, batch)
        gradients = each[:, 0]
        return {"score": w[:, 0] @ gradients, "complete": -hessian - (gradients * w).T @ gradients}

    return f


def frozen(space: AbstractSpace) -> Any:
    leaves, treedef = jax.tree.flatten(without_values(space))
    return tuple((tuple(np.ravel(np.asarray(leaf)).tolist()), np.shape(leaf)) for leaf in leaves), treedef


def subsample(fit: Fit, size: int, key: int = 0) -> Any:
    """The fit with some of its units alone, chosen at random."""
    problem = fit._model()
    if problem.n <= size:
        return fit
    ids = np.sort(np.random.default_rng(key).choice(problem.n, size, replace=False))
    share = fit.share
    if share is not None:
        owners = share.owners(ids)
        sizes = tuple(np.bincount(owners, minlength=len(share.sizes)).tolist())
        ids = ids if share.whole else ids[owners == share.index] - share.first
        share = dataclasses.replace(share, sizes=sizes)
    data = jax.tree.map(lambda leaf: np.asarray(leaf[ids]), fit.data)
    rows = None if fit.rows is None else jax.tree.map(lambda leaf: np.asarray(leaf[:, ids]), fit.rows)
    problem = dataclasses.replace(problem, n=size)
    return dataclasses.replace(fit, problem=problem, data=data, rows=rows, polished=None, share=share)


def evaluated_width(width: int, k: int, second: bool = True) -> int:
    """Numbers that a unit holds in an evaluation at k coordinates, by those that its rule holds."""
    return width // 2 * (k + 2) if second else width


def evaluate(fit: Fit, rule: Rule, params: PyTree, keys: Sequence[int], second: bool = True) -> Evaluation:
    """Scores, information and log-likelihoods at some parameters, by the draws of the given keys.

    Where there are very many units, the part of the information that takes second derivatives is scaled up from a sample.

    Raises:
        UndefinedDensity: a log density is NaN.
    """
    if isinstance(rule.estep, Laplace) and not rule.estep.correct:
        return _approximated(fit, rule, params)
    problem = fit._model()
    u = Coordinates(fit).to(params)
    some, k = sample(problem.n) if second else None, u.size

    def visit(r: int, second: bool, units: np.ndarray | None) -> tuple[Any, dict[str, np.ndarray]]:
        width = evaluated_width(rule.width, k, second)
        return each_unit(
            fit,
            louis(frozen(problem.space), second),
            rule.estep,
            params,
            key=r,
            width=width,
            rows=rule.rows,
            units=units,
            summed=("complete",) if second else (),
        )

    parts = [visit(r, second and some is None, None) for r in keys]
    complete = [np.asarray(out.get("complete", np.full((k, k), np.nan)), float) for out, _ in parts]
    if some is not None:
        complete = [visit(r, True, some)[0]["complete"] * (problem.n / len(some)) for r in keys]
    nothing_known = np.full(problem.n, np.nan)

    def figure(name):
        return np.stack([np.asarray(info.get(name, nothing_known), float) for _, info in parts])

    return Evaluation(
        u,
        np.stack([np.asarray(out["score"], float) for out, _ in parts]),
        np.stack(complete),
        figure("log_marginal"),
        figure("ess").min(axis=0),
        figure("pareto").max(axis=0),
    )


def _approximated(fit: Fit, rule: Rule, params: PyTree) -> Evaluation:
    """Scores, information and log-likelihoods of the approximation itself."""
    scores, information, logs = derivatives(fit, rule.estep, params, rule.rows)  # type: ignore[arg-type]
    nothing_known = np.full(fit._model().n, np.nan)
    return Evaluation(
        Coordinates(fit).to(params),
        scores[None],
        symmetrised(information - scores.T @ scores)[None],
        logs[None],
        nothing_known,
        nothing_known,
    )
