"""Plug-and-play Langevin restoration beside total variation: deblurring and inpainting of three images.

Problems like those of Laumont, De Bortoli, Almansa, Delon, Durmus and Pereyra (2022, section 4), at 128 x 128: a 5 x 5 uniform
blur with noise at a blurred signal-to-noise ratio of 30 dB, and inpainting of 80% of the pixels, the others with noise of 5/255,
with which chains mix in minutes (less noise, shorter steps). Their denoiser had been trained on a database of photographs; this
one is trained here, on the two that ship with scikit-learn, and never sees the three images.

Total variation, its weight by SOUL, is the better with so small a denoiser: its mode is ahead of the posterior mean by 1.5 to 1.8
dB in deblurring and by half a dB in inpainting. What the denoiser adds is a posterior with standard deviations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from margaux.families.inverse.convolutional import ConvolutionalDenoiser, train
from margaux.families.inverse.estimator import SparseInverse
from margaux.families.inverse.priors import TotalVariation2D
from margaux.families.inverse.restoring import Restored, restore
from margaux.kernels import PlugAndPlayULA
from margaux.reproduce.soul_tv import IMAGES, blur, blurred, image

#: standard deviation of the noise that the denoiser removes, and the power of its prior, the best of 1, 3 and 10 for a
#: photograph of the training set
LEVEL, WEIGHT = 15 / 255, 3.0
#: share of the pixels that inpainting is told, and the noise of these
SEEN, NOISE_SD = 0.2, 5 / 255


class Degraded(NamedTuple):
    """Data y = A x + noise of a known standard deviation, and what of them is shown as an image."""

    A: tuple[Callable, Callable]
    y: np.ndarray
    sd: float
    shown: np.ndarray


def photographs() -> list[np.ndarray]:
    """Those of scikit-learn in grey, in [0, 1], and at half their size."""
    from sklearn.datasets import load_sample_image

    whole = [load_sample_image(name).mean(axis=2) / 255 for name in ("china.jpg", "flower.jpg")]
    even = [x[: x.shape[0] // 2 * 2, : x.shape[1] // 2 * 2] for x in whole]
    return whole + [x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2).mean(axis=(1, 3)) for x in even]


def denoiser(n_iter: int = 1200) -> ConvolutionalDenoiser:
    """Five layers of 16 channels, the residual's Lipschitz constant one."""
    return train(photographs(), LEVEL**2, width=16, patch=32, batch_size=8, n_iter=n_iter)


def deblurring(x: np.ndarray) -> Degraded:
    """As `soul_tv`."""
    y, sd = blurred(x)
    return Degraded(blur(), y, sd, y)


def inpainting(x: np.ndarray, seed: int = 0) -> Degraded:
    """A fifth of the pixels, chosen at random."""
    rng = np.random.default_rng(seed)
    seen = np.sort(rng.choice(x.size, round(SEEN * x.size), replace=False))
    y = x.ravel()[seen] + NOISE_SD * rng.normal(size=len(seen))
    shown = np.full(x.size, np.nan)
    shown[seen] = y

    def told(image):
        return jnp.ravel(image)[seen]

    def adjoint(values):
        return jnp.zeros(x.size, values.dtype).at[seen].set(values).reshape(x.shape)

    return Degraded((told, adjoint), y, NOISE_SD, shown.reshape(x.shape))


def plug_and_play(data: Degraded, D: ConvolutionalDenoiser, n_draws: int, weight: float = WEIGHT) -> Restored:
    """The chain starts where inpainting's pixels are those of their nearest neighbours."""
    kernel = PlugAndPlayULA(D, LEVEL**2, weight=weight, lipschitz=D.lipschitz)
    shape, start = data.shown.shape, _filled(data.shown)
    return restore(data.A, data.y, kernel, shape=shape, noise_sd=data.sd, start=start, n_draws=n_draws, warm_up=n_draws // 4)


def total_variation(data: Degraded, n_iter: int) -> SparseInverse:
    """Its weight by SOUL."""
    model = SparseInverse(prior=TotalVariation2D(n_dual=10), noise_sd=data.sd, n_iter=n_iter, n_steps=1, verbose=False)
    return model.fit(data.A, data.y, shape=data.shown.shape)


def psnr(estimate: Any, truth: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, of images in [0, 1]."""
    return float(-10 * np.log10(np.mean((np.asarray(estimate) - truth) ** 2)))


def _filled(shown: np.ndarray) -> np.ndarray:
    from scipy.ndimage import distance_transform_edt

    missing = np.isnan(shown)
    if not missing.any():
        return shown
    nearest: Any = distance_transform_edt(missing, return_distances=False, return_indices=True)
    return shown[tuple(nearest)]


def main(out: Path, full: bool = False) -> None:
    """A table of signal-to-noise ratios and seconds, and figures.

    Args:
        out: a folder for the figures. full: chains eight times as long.
    """
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    D = denoiser()
    print(f"denoiser: {time.perf_counter() - began:.0f} s, Lipschitz constant of its residual at most {D.lipschitz:.3f}")
    n_draws = 40_000 if full else 5000
    head = f"{'problem':12}{'image':12}{'start':>8}{'TV mode':>9}{'PnP mean':>10}{'TV s':>8}{'PnP s':>8}{'drift':>7}"
    print(f"PSNR in dB, seconds\n{head}")
    for problem, make in (("deblurring", deblurring), ("inpainting", inpainting)):
        figure = Figure(figsize=(15, 3 * len(IMAGES)), layout="constrained")
        axes = figure.subplots(len(IMAGES), 5, squeeze=False)
        for row, name in zip(axes, IMAGES, strict=True):
            truth = image(name)
            data = make(truth)
            began = time.perf_counter()
            model = total_variation(data, 3000 if full else 1000)
            tv_seconds, began = time.perf_counter() - began, time.perf_counter()
            found = plug_and_play(data, D, n_draws)
            seconds = time.perf_counter() - began
            figures = [psnr(e, truth) for e in (_filled(data.shown), model.x_, found.mean)]
            told = f"{figures[0]:8.2f}{figures[1]:9.2f}{figures[2]:10.2f}"
            print(f"{problem:12}{name:12}{told}{tv_seconds:8.0f}{seconds:8.0f}{found.drift:7.2f}", flush=True)
            shown = [
                (data.shown, "data"),
                (model.x_, "TV mode"),
                (found.mean, "PnP mean"),
                (found.sd, "PnP sd"),
                (truth, "truth"),
            ]
            for axis, (picture, title) in zip(row, shown, strict=True):
                limits = {} if title == "PnP sd" else {"vmin": 0, "vmax": 1}
                axis.imshow(picture, cmap="gray", **limits)
                axis.set(title=title, xticks=[], yticks=[])
        figure.savefig(out / f"pnp_ula_{problem}.png", dpi=120)
