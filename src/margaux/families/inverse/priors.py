r"""Regularisers $\phi$ of sparse and piecewise constant signals, as priors $p(x\mid\theta)\propto e^{-\theta\phi(x)}$.

If $\phi$ is homogeneous of degree k on a space of dimension d', the change of variables $x = \theta^{-1/k}u$ gives
$\int e^{-\theta\phi(x)}dx = \theta^{-d'/k}\int e^{-\phi(u)}du$: the log normaliser is $-(d'/k)\log\theta$ + constant.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike


class AbstractPrior(eqx.Module):
    r"""$\log p(x\mid\theta) = -\theta\phi(x) - \log Z(\theta)$."""

    #: whether phi has a gradient everywhere
    smooth: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def value(self, x: Array) -> Scalar:
        r"""$\phi(x)$."""

    @abc.abstractmethod
    def log_normaliser(self, theta: Scalar, x: Array) -> Scalar:
        r"""$\log Z(\theta)$; of x only the shape counts."""

    @abc.abstractmethod
    def dual(self, x: Array) -> PyTree:
        """Where iterations of the proximal map start; () for one in closed form."""

    @abc.abstractmethod
    def prox_from(self, x: Array, step: Scalar, dual: PyTree) -> tuple[Array, PyTree]:
        """The proximal map from a dual point, and the dual point it ends at."""

    @abc.abstractmethod
    def check(self, shape: tuple[int, ...]) -> None:
        """ValueError where the prior is not one for arrays of this shape."""

    def prox(self, x: Array, step: Scalar) -> Array:
        r"""$\arg\min_u\ \phi(u) + |u - x|^2/(2\,\text{step})$."""
        return self.prox_from(x, step, self.dual(x))[0]


class L1(AbstractPrior):
    r"""Laplace: $\phi(x) = \sum_j|x_j|$, of degree 1, with $\log Z = d\log(2/\theta)$.

    >>> import jax.numpy as jnp
    >>> L1().prox(jnp.array([3.0, -0.5]), 1.0).tolist()
    [2.0, -0.0]
    """

    smooth: ClassVar[bool] = False

    def value(self, x):
        return jnp.sum(jnp.abs(x))

    def log_normaliser(self, theta, x):
        return x.size * jnp.log(2 / theta)

    def dual(self, x):
        return ()

    def prox_from(self, x, step, dual):
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - step, 0), dual

    def check(self, shape):
        pass


class HuberPrior(AbstractPrior):
    r"""Smoothed Laplace (SOUL, eqs. 20 and 21): $\phi(x) = \lambda^{-1}\sum_j h_\lambda(x_j)$.

    $h_\lambda(u) = u^2/2$ for $|u|\le\lambda$, else $\lambda(|u|-\lambda/2)$. Exactly, a coordinate's normaliser is
    $\sqrt{2\pi\lambda/\theta}\,\mathrm{erf}\sqrt{\theta\lambda/2} + (2/\theta)e^{-\theta\lambda/2}$.

    Args:
        smoothing: $\lambda > 0$, in the units of x.

    Raises:
        ValueError: smoothing is not positive.
    """

    smoothing: Array | np.ndarray
    smooth: ClassVar[bool] = True

    def __init__(self, smoothing: float = 4e-5) -> None:
        if not smoothing > 0:
            raise ValueError(f"smoothing of HuberPrior must be positive, got {smoothing}")
        self.smoothing = np.asarray(float(smoothing))

    def value(self, x):
        size, width = jnp.abs(x), jnp.asarray(self.smoothing, x.dtype)
        inside = jnp.minimum(size, width)
        return jnp.sum(inside**2 / (2 * width) + size - inside)

    def log_normaliser(self, theta, x):
        width = jnp.asarray(self.smoothing, x.dtype)
        inside = jnp.sqrt(2 * jnp.pi * width / theta) * jax.scipy.special.erf(jnp.sqrt(theta * width / 2))
        return x.size * jnp.log(inside + 2 / theta * jnp.exp(-theta * width / 2))

    def dual(self, x):
        return ()

    def prox_from(self, x, step, dual):
        width = jnp.asarray(self.smoothing, x.dtype)
        return x - step * jnp.clip(x / (width + step), -1, 1), dual

    def check(self, shape):
        pass


class GroupL2(AbstractPrior):
    r"""Group sparsity: $\phi(x) = \sum_g|x_g|_2$, of degree 1.

    In polar coordinates $Z = \prod_g 2\pi^{m_g/2}\,\Gamma(m_g)\,\theta^{-m_g}/\Gamma(m_g/2)$ for groups of $m_g$ entries.

    Args:
        groups: integers shaped as x, equal within a group.

    Raises:
        TypeError: groups are not integers.
    """

    labels: np.ndarray | Array
    sizes: tuple[int, ...] = eqx.field(static=True)
    smooth: ClassVar[bool] = False

    def __init__(self, groups: ArrayLike) -> None:
        groups = np.asarray(groups)
        if groups.dtype.kind not in "iu" or groups.size == 0:
            raise TypeError(f"groups must be integers, one an entry of x; got {groups.size} of dtype {groups.dtype}")
        _, labels, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        self.labels, self.sizes = labels.reshape(groups.shape).astype(np.int32), tuple(sizes.tolist())

    def _norms(self, x: Array) -> Array:
        labels = jnp.ravel(jnp.asarray(self.labels))
        return jnp.sqrt(jax.ops.segment_sum(jnp.ravel(x) ** 2, labels, num_segments=len(self.sizes)))

    def value(self, x):
        return jnp.sum(self._norms(x))

    def log_normaliser(self, theta, x):
        m = jnp.asarray(self.sizes, x.dtype)
        gammaln = jax.scipy.special.gammaln
        return jnp.sum(jnp.log(2.0) + m / 2 * jnp.log(jnp.pi) + gammaln(m) - gammaln(m / 2) - m * jnp.log(theta))

    def dual(self, x):
        return ()

    def prox_from(self, x, step, dual):
        norms = self._norms(x)
        shrink = jnp.maximum(1 - step / jnp.where(norms > 0, norms, 1), 0)
        return x * shrink[jnp.asarray(self.labels)], dual

    def check(self, shape):
        if self.labels.shape != shape:
            raise ValueError(f"groups have shape {self.labels.shape}, x has {shape}; give one label an entry of x")


class TotalVariation1D(AbstractPrior):
    r"""$\phi(x) = \sum_i|x_{i+1}-x_i|$ of a signal.

    Constants are in its kernel, so $e^{-\theta\phi}$ is a density on their orthogonal complement only, of dimension
    d - 1, times a flat one on constants. There the differences Dx are coordinates of Jacobian
    $\sqrt{\det DD^\top} = \sqrt d$, hence $Z = (2/\theta)^{d-1}/\sqrt d$, that is $-(d-1)\log\theta$ + constant.

    Args:
        n_dual: iterations of the proximal map (fast gradient projection on the dual, Beck and Teboulle 2009).
    """

    n_dual: int = eqx.field(static=True)
    smooth: ClassVar[bool] = False

    def __init__(self, n_dual: int = 50) -> None:
        self.n_dual = _iterations(n_dual)

    def value(self, x):
        return jnp.sum(jnp.abs(jnp.diff(x)))

    def log_normaliser(self, theta, x):
        return (x.size - 1) * jnp.log(2 / theta) - jnp.log(x.size * 1.0) / 2

    def dual(self, x):
        return jnp.zeros(x.size - 1, x.dtype)

    def prox_from(self, x, step, dual):
        def transposed(q):
            return -jnp.diff(q, prepend=0.0, append=0.0)

        return _dual_ascent(x, dual, jnp.diff, transposed, lambda q: jnp.clip(q, -step, step), 4.0, self.n_dual)

    def check(self, shape):
        if len(shape) != 1 or shape[0] < 2:
            raise ValueError(f"TotalVariation1D is for a signal of shape (d,), d > 1; got {shape}")


class TotalVariation2D(AbstractPrior):
    r"""Total variation of an image (Rudin, Osher and Fatemi 1992), with forward differences and free edges.

    Isotropic: $\phi(x) = \sum_{ij}\sqrt{(x_{i+1,j}-x_{ij})^2 + (x_{i,j+1}-x_{ij})^2}$; anisotropic: the sum of the
    absolute differences. It is homogeneous of degree 1 and its kernel are the constants: on their orthogonal
    complement, of dimension d - 1, $\log Z = -(d-1)\log\theta$ + a constant that is left out.

    Args:
        isotropic: which of the two. n_dual: as in `TotalVariation1D`.
    """

    isotropic: bool = eqx.field(static=True)
    n_dual: int = eqx.field(static=True)
    smooth: ClassVar[bool] = False

    def __init__(self, isotropic: bool = True, n_dual: int = 25) -> None:
        self.isotropic, self.n_dual = bool(isotropic), _iterations(n_dual)

    def value(self, x):
        down, right = _gradient(x)
        return jnp.sum(jnp.sqrt(down**2 + right**2) if self.isotropic else jnp.abs(down) + jnp.abs(right))

    def log_normaliser(self, theta, x):
        return -(x.size - 1) * jnp.log(theta)

    def dual(self, x):
        return jnp.zeros((2, *x.shape), x.dtype)

    def prox_from(self, x, step, dual):
        def project(q):
            if not self.isotropic:
                return jnp.clip(q, -step, step)
            size = jnp.sqrt(jnp.sum(q**2, axis=0))
            return q * jnp.where(size > step, step / jnp.where(size > 0, size, 1), 1)

        return _dual_ascent(x, dual, _gradient, _gradient_transposed, project, 8.0, self.n_dual)

    def check(self, shape):
        if len(shape) != 2 or min(shape) < 2:
            raise ValueError(f"TotalVariation2D is for an image of shape (height, width), both above 1; got {shape}")


def _iterations(n_dual: Any) -> int:
    if isinstance(n_dual, bool) or not isinstance(n_dual, int) or n_dual < 1:
        raise ValueError(f"n_dual must be a whole number of at least 1, got {n_dual!r}")
    return n_dual


def _gradient(x: Array) -> Array:
    down = jnp.diff(x, axis=0, append=x[-1:])
    right = jnp.diff(x, axis=1, append=x[:, -1:])
    return jnp.stack([down, right])


def _gradient_transposed(q: Array) -> Array:
    down = jnp.diff(q[0, :-1], axis=0, prepend=0.0, append=0.0)
    right = jnp.diff(q[1, :, :-1], axis=1, prepend=0.0, append=0.0)
    return -down - right


def _dual_ascent(
    x: Array,
    dual: Array,
    difference: Callable[[Array], Array],
    transposed: Callable[[Array], Array],
    project: Callable[[Array], Array],
    norm: float,
    n_iter: int,
) -> tuple[Array, Array]:
    """min |u - x|^2 / 2 + step |D u| is u = x - D^T q at the projection of D^-T x on |q| <= step: Nesterov on q."""

    def body(_, state):
        q, ahead, t = state
        new = project(ahead + difference(x - transposed(ahead)) / norm)
        t_new = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return new, new + (t - 1) / t_new * (new - q), t_new

    start = project(dual)
    q, _, _ = jax.lax.fori_loop(0, n_iter, body, (start, start, jnp.ones((), x.dtype)))
    return x - transposed(q), q
