"""Total-variation deblurring with the weight estimated by SOUL: mean squared error against theta on three images.

The set-up of Vidal, De Bortoli, Pereyra and Durmus (2020, section 4.2): a 5 x 5 uniform blur, noise at a blurred
signal-to-noise ratio of 30 dB. The images are those that ship with scikit-image, cut and averaged to 128 x 128.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from margaux.families.inverse.estimator import SparseInverse
from margaux.families.inverse.priors import TotalVariation2D

IMAGES, SIDE, WIDTH, BSNR = ("camera", "coins", "astronaut"), 128, 5, 30.0


def image(name: str) -> np.ndarray:
    """A grey image of scikit-image in [0, 1], its central square averaged to 128 x 128."""
    try:
        data = importlib.import_module("skimage.data")
    except ImportError as error:
        raise ImportError("the test images need scikit-image; install it via: pip install 'margaux[images]'") from error

    x = getattr(data, name)().astype(float) / 255
    x = x.mean(axis=2) if x.ndim == 3 else x
    factor = min(x.shape) // SIDE
    first = [(size - factor * SIDE) // 2 for size in x.shape]
    square = x[first[0] : first[0] + factor * SIDE, first[1] : first[1] + factor * SIDE]
    return square.reshape(SIDE, factor, SIDE, factor).mean(axis=(1, 3))


def blur(side: int = SIDE, width: int = WIDTH) -> tuple[Any, Any]:
    """Circular convolution with a width x width box, and its adjoint, by FFT."""
    kernel = np.zeros((side, side))
    kernel[:width, :width] = 1 / width**2
    transfer = np.fft.rfft2(np.roll(kernel, (-(width // 2), -(width // 2)), axis=(0, 1)))

    def convolve(x, spectrum):
        return jnp.fft.irfft2(jnp.fft.rfft2(x) * spectrum, x.shape).astype(x.dtype)

    return lambda x: convolve(x, transfer), lambda x: convolve(x, transfer.conj())


def blurred(x: np.ndarray, seed: int = 0) -> tuple[np.ndarray, float]:
    """Blurred and noisy data, and the noise level."""
    sharp = np.asarray(blur()[0](jnp.asarray(x)), float)
    sd = float(sharp.std() * 10 ** (-BSNR / 20))
    return sharp + sd * np.random.default_rng(seed).normal(size=x.shape), sd


def restore(y: np.ndarray, sd: float | None, n_iter: int = 1000, **settings: Any) -> SparseInverse:
    """Total variation, its weight estimated. Ten dual iterations do for the small steps of the chain."""
    model = SparseInverse(prior=TotalVariation2D(n_dual=10), noise_sd=sd, n_iter=n_iter, n_steps=1, verbose=False, **settings)
    return model.fit(blur(), y, shape=y.shape)


def error_db(estimate: np.ndarray, truth: np.ndarray) -> float:
    """Mean squared error in dB."""
    return float(10 * np.log10(np.mean((estimate - truth) ** 2)))


def main(out: Path, full: bool = False) -> None:
    """Figures of the error against theta and of the images, and a table.

    Args:
        out: a folder for the figures. full: a finer grid of theta and longer runs.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    out.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(4 * len(IMAGES), 3.2), layout="constrained")
    print(f"{'image':12}{'theta':>9}{'best theta':>12}{'MSE dB':>9}{'best dB':>9}{'gap':>7}{'data dB':>9}")
    for axis, name in zip(figure.subplots(1, len(IMAGES)), IMAGES, strict=True):
        truth = image(name)
        y, sd = blurred(truth)
        model = restore(y, sd, 3000 if full else 1000)
        grid = model.theta_ * np.geomspace(0.15, 6, 25 if full else 9)
        errors = [error_db(model.map(theta), truth) for theta in grid]
        found = error_db(model.x_, truth)
        best = min([*errors, found])
        best_theta = model.theta_ if best == found else grid[int(np.argmin(errors))]
        axis.semilogx(grid, errors, color="black", lw=1)
        axis.plot(model.theta_, found, "o", color="tab:blue", label=f"estimated {model.theta_:.3g}")
        axis.plot(best_theta, best, "x", color="tab:red", label=f"best {best_theta:.3g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set(title=name, xlabel="theta", ylabel="MSE (dB)")
        axis.legend(frameon=False, fontsize=8)
        model.plot_reconstruction(truth).figure.savefig(out / f"soul_tv_{name}.png", dpi=150)
        worse = error_db(y, truth)
        print(f"{name:12}{model.theta_:9.2f}{best_theta:12.2f}{found:9.2f}{best:9.2f}{found - best:7.2f}{worse:9.2f}")
    figure.savefig(out / "soul_tv_mse.png", dpi=150)
