"""Penalties g(theta), known by their value and their proximal operator."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable


class AbstractPenalty(eqx.Module):
    r"""g in $-\log p(y\mid\theta) + g(\theta)$."""

    @abc.abstractmethod
    def value(self, params: PyTree) -> Scalar:
        """g(theta)."""

    @abc.abstractmethod
    def prox(self, params: PyTree, step: Array) -> PyTree:
        r"""$\arg\min_x\, g(x) + |x - \theta|^2 / (2\,\text{step})$."""


class NoPenalty(AbstractPenalty):
    """g = 0."""

    def value(self, params):
        return jnp.zeros(())

    def prox(self, params, step):
        return params


class L1(AbstractPenalty):
    r"""$\lambda\sum|\theta_j|$; its prox is soft thresholding.

    Args:
        weight: $\lambda\ge0$. on: name (or names) of the parameters penalised, in a dict; None for all.
    """

    weight: Array | np.ndarray
    on: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, weight: float, on: str | tuple[str, ...] | None = None) -> None:
        self.weight, self.on = _weight("weight", weight), _names(on)

    def value(self, params):
        return self.weight * _sum(jnp.abs, _chosen(params, self.on))

    def prox(self, params, step):
        return _apply(lambda x: _soft(x, step * self.weight), params, self.on)


class L2(AbstractPenalty):
    r"""$\tfrac\lambda2\sum\theta_j^2$."""

    weight: Array | np.ndarray
    on: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, weight: float, on: str | tuple[str, ...] | None = None) -> None:
        self.weight, self.on = _weight("weight", weight), _names(on)

    def value(self, params):
        return self.weight / 2 * _sum(jnp.square, _chosen(params, self.on))

    def prox(self, params, step):
        return _apply(lambda x: x / (1 + jnp.asarray(step * self.weight, x.dtype)), params, self.on)


class ElasticNet(AbstractPenalty):
    r"""$\lambda_1\sum|\theta_j| + \tfrac{\lambda_2}2\sum\theta_j^2$."""

    l1: Array | np.ndarray
    l2: Array | np.ndarray
    on: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, l1: float, l2: float, on: str | tuple[str, ...] | None = None) -> None:
        self.l1, self.l2, self.on = _weight("l1", l1), _weight("l2", l2), _names(on)

    def value(self, params):
        chosen = _chosen(params, self.on)
        return self.l1 * _sum(jnp.abs, chosen) + self.l2 / 2 * _sum(jnp.square, chosen)

    def prox(self, params, step):
        def shrink(x):
            return _soft(x, step * self.l1) / (1 + jnp.asarray(step * self.l2, x.dtype))

        return _apply(shrink, params, self.on)


class Huber(AbstractPenalty):
    r"""$\lambda\sum h_\delta(\theta_j)$, $h_\delta(x) = x^2/(2\delta)$ within $\delta$ of zero, else $|x| - \delta/2$."""

    weight: Array | np.ndarray
    delta: Array | np.ndarray
    on: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, weight: float, delta: float, on: str | tuple[str, ...] | None = None) -> None:
        if not delta > 0:
            raise ValueError(f"delta must be positive, got {delta}")
        self.weight, self.delta, self.on = _weight("weight", weight), np.asarray(float(delta)), _names(on)

    def value(self, params):
        def h(x):
            size, delta = jnp.abs(x), jnp.asarray(self.delta, x.dtype)
            return jnp.where(size <= delta, size**2 / (2 * delta), size - delta / 2)

        return self.weight * _sum(h, _chosen(params, self.on))

    def prox(self, params, step):
        def one(x):
            delta, t = jnp.asarray(self.delta, x.dtype), jnp.asarray(step * self.weight, x.dtype)
            return jnp.where(jnp.abs(x) <= delta + t, x * delta / (delta + t), x - t * jnp.sign(x))

        return _apply(one, params, self.on)


def _weight(name: str, value: float) -> np.ndarray:
    if not value >= 0:
        raise ValueError(f"{name} of a penalty must not be negative, got {value}")
    return np.asarray(float(value))


def _names(on: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (on,) if isinstance(on, str) else None if on is None else tuple(on)


def _chosen(params: PyTree, on: tuple[str, ...] | None) -> PyTree:
    if on is None:
        return params
    known = list(params) if isinstance(params, dict) else []
    for name in on:
        if name not in known:
            raise ValueError(f'the penalty is on "{name}", which is no parameter; they are {known}')
    return {name: params[name] for name in on}


def _apply(function: Callable[[Array], Array], params: PyTree, on: tuple[str, ...] | None) -> PyTree:
    moved = jax.tree.map(function, _chosen(params, on))
    return moved if on is None else {**params, **moved}


def _sum(function: Callable[[Array], Array], tree: PyTree) -> Array:
    return sum((jnp.sum(function(jnp.asarray(leaf))) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def _soft(x: Array, threshold: Array) -> Array:
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - jnp.asarray(threshold, x.dtype), 0)


class StepHuber(AbstractPenalty):
    r"""$g_n(\theta) = \delta_n^{-1}\sum_j h_{\lambda\delta_n}(\beta_j)$ with the step $\delta_n$ itself: SOUL's section 4.3.

    $h_c(x) = x^2/2$ within c of zero, else $c|x| - c^2/2$ (eq. 21, with the sum and the dependence on n of the
    errata). As the step vanishes so does the quadratic zone, and $g_n\to\lambda|\beta|_1$, which is `value`. The
    gradient step is taken implicitly, by the proximal map.
    """

    weight: Array | np.ndarray

    def __init__(self, weight: float) -> None:
        if not weight >= 0:
            raise ValueError(f"weight of a penalty must not be negative, got {weight}")
        self.weight = np.asarray(float(weight))

    def value(self, params):
        return self.weight * jnp.sum(jnp.abs(params["beta"]))

    def prox(self, params, step):
        beta = params["beta"]
        threshold = jnp.asarray(step * self.weight, beta.dtype)
        return {**params, "beta": beta - jnp.clip(beta / 2, -threshold, threshold)}
