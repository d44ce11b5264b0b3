"""Figures of an inverse problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ...numerics.precision import precision
from ...showing.axes import Panels, several, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from ...showing.axes import AxesLike
    from .estimator import SparseInverse


def theta_trace(fitted: Any, ax: Axes | None = None) -> Axes:
    """Iterates of theta and their running average, in log scale."""
    theta, fit = fitted.trace(), fitted.result_
    n = np.arange(1, len(theta) + 1)
    axis = single(ax, 5.0, 3.2)
    axis.semilogy(n, theta, lw=0.8, label="iterates")
    with precision(fit.dtype):
        weights = np.broadcast_to(np.asarray(fit.algorithm.average.weight(jnp.asarray(n))), n.shape) * (n > fit.averaged_from)
    if fit.averaged_from < len(n):
        kept = n > fit.averaged_from
        running = np.exp(np.cumsum(weights * np.log(theta))[kept] / np.cumsum(weights)[kept])
        axis.semilogy(n[kept], running, lw=1.2, color="tab:orange", label="running average")
    axis.axhline(fitted.theta_, color="black", lw=1.2, label=f"estimate {fitted.theta_:.4g}")
    if fit.averaged_from:
        axis.axvline(fit.averaged_from, color="grey", ls=":", lw=1, label="averaging starts")
    axis.set(xlabel="iteration", ylabel="theta")
    if theta.max() < 10 * theta.min():  # too little for powers of ten
        axis.yaxis.set_major_formatter("{x:.4g}")
        axis.yaxis.set_minor_formatter("{x:.4g}")
    axis.legend(frameon=False, fontsize=8)
    return axis


def reconstruction(fitted: SparseInverse, truth: ArrayLike | None = None, ax: AxesLike | None = None) -> Panels:
    """Images of the data (where they are one), of x and of the true x; or of vectors A x against y, and the entries of x."""
    truth, x, y = None if truth is None else np.asarray(truth), fitted.x_, fitted.y_
    if x.ndim == 2:
        images = [("data", y)] if y.ndim == 2 else []
        images += [("maximum a posteriori", x)] + ([] if truth is None else [("truth", truth)])
        axes, _ = several(ax, len(images), 3.2, 3.4)
        for axis, (title, image) in zip(axes, images, strict=True):
            axis.imshow(image, cmap="gray", vmin=x.min(), vmax=x.max())
            axis.set(title=title, xticks=[], yticks=[])
        return axes
    axes, _ = several(ax, 2, 4.0, 3.2)
    left, right = axes
    left.plot(y.ravel(), fitted.predict().ravel(), ".", ms=3)
    left.axline((0, 0), slope=1, color="grey", lw=0.8)
    left.set(xlabel="y", ylabel="A x")
    if truth is not None:
        right.plot(truth.ravel(), color="tab:red", lw=0.8, label="truth")
    right.plot(x.ravel(), color="tab:blue", lw=0.8, label="maximum a posteriori")
    right.set(xlabel="entry", ylabel="x")
    right.legend(frameon=False, fontsize=8)
    return axes
