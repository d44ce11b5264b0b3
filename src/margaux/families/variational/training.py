"""One variational fit: blocks, the model, its algorithm with a default step, the space that bounds it, and `margaux.fit`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ...algorithms.average import AbstractAverage
from ...answers.fit import Fit
from ...engine.callbacks import AbstractCallback
from ...esteps import Noise
from ...numerics.compiling import is_large, keep_compilations
from ...numerics.precision import precision
from ...problem.space import Box
from ..sharing import equal, fit_by_shares
from .curvature import largest_curvature
from .draws import AbstractDraws, Shared
from .evaluation import slice_size
from .ivon import FIRST as STEP_OF_IVON
from .ivon import Falling, started
from .likelihoods import AbstractLikelihood
from .methods import FIRST, TABLES, algorithm, check_method, default_step, needs_curvature
from .model import Variational, block_size, blocks, padded_size
from .networks import Network
from .posterior import GaussianPosterior, Spread
from .priors import AbstractWeightPrior
from .trajectory import HOT, Averaging, Chain, Cycles, Swag, chain_of, first_step
from .trajectory import algorithm as walking
from .watching import Watch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike

    from ...algorithms.base import AbstractAlgorithm
    from ...problem.schedule import AbstractSchedule


#: bounds of means and of log standard deviations: the compact set of the theory, which no fit should meet
LARGEST_MEAN, LOG_SIGMA = 1e3, (-16.0, 5.0)


#: fits with a default step, divided by four each time, before one that falls apart is accepted
ATTEMPTS = 4


@dataclasses.dataclass
class Settings:
    """What a variational fit is asked for: see `BayesianClassifier`."""

    method: str | AbstractAlgorithm = "adam"
    step: Any = None
    spread: Spread = "weight"
    sigma: float | None = None
    n_draws: int | AbstractSchedule = 1
    antithetic: bool = False
    n_blocks: int = 1
    #: passes over the blocks, whole or not
    epochs: float = 20
    average: AbstractAverage | None = None
    rows: str | Path = "device"
    seed: int = 0
    dtype: DTypeLike = np.float32
    progress: bool = True
    #: whether the step of Adam falls to zero, where it is not given, and from where
    falling: bool = False
    first: float = FIRST
    #: what the divergence from the prior is multiplied by
    temperature: float = 1.0
    #: keep means and scales in a box that no network should meet
    bounded: bool = True
    checkpoint: str | Path | None = None
    #: whether several processes hold the blocks
    shared: bool = False
    #: how weights are kept along the way, with steps over the curvature
    walk: Cycles | Averaging | None = None
    #: means, standard deviations, and the logarithms of other scales, to go on from
    begin: tuple[PyTree, PyTree, dict[str, Any]] | None = None


@dataclasses.dataclass
class Trained:
    """The model of the fit, the fit, the figures of its epochs, the parameters of the best ELBO of observations held out, and
    the step and the curvature where they were found, and what was kept along the way."""

    model: Variational
    fit: Fit
    history: pd.DataFrame
    best: PyTree
    step: Any
    curvature: float | None
    kept: Chain | Swag | None = None


def train(
    network: Network,
    weights: PyTree,
    likelihood: AbstractLikelihood,
    prior: AbstractWeightPrior,
    draws: AbstractDraws,
    x: PyTree,
    y: np.ndarray,
    settings: Settings,
    validation: tuple[PyTree, np.ndarray] | None = None,
    patience: int | None = None,
    callbacks: Sequence[AbstractCallback] = (),
) -> Trained:
    """Fit the posterior of the weights.

    Raises:
        ValueError, TypeError: bad settings, before anything is compiled.
    """
    check_method(settings.method)
    check_draws(network, prior, draws)
    # What many weights share is better begun small: large, it drowns the means while they learn. So is what gives a step from
    # the curvature: noise hides it, and the step is too large for what comes.
    small = settings.spread != "weight" or needs_curvature(settings.method)
    dtype = np.dtype(settings.dtype)
    n = len(y)
    sigma = settings.sigma
    if sigma is None:
        sigma = started(settings.temperature, n) if settings.method == "ivon" else 0.05 if small else 0.1
    with precision(dtype):
        one = jax.tree.map(lambda leaf: np.asarray(leaf[:1]), x)
        slices = math.ceil(n / settings.n_blocks / slice_size(network, weights, one, dtype))
        size = block_size(n, settings.n_blocks, slices)
        alike = _padded(weights, draws, settings)
        data = blocks(x, y, settings.n_blocks, settings.seed, padded_size(size, slices) if alike else size)

        table = isinstance(settings.method, str) and settings.method in TABLES

        def made(information: float | None) -> Variational:
            posterior = GaussianPosterior(settings.spread, information, settings.n_blocks, table)
            own = np.asarray(size) if alike else None
            return Variational(
                network, likelihood, prior, posterior, n, settings.n_blocks, draws, slices, own, settings.temperature
            )

        model, curvature = made(None), None
        step: Any = settings.step
        n_iter = max(round(settings.epochs * settings.n_blocks), 1)
        if needs_curvature(settings.method):
            keep_compilations()
            curvature = largest_curvature(model, start(model, weights, sigma, settings.begin), data, settings.seed, dtype)
        if settings.walk is not None:
            step = first_step(settings.n_blocks) if step is None else step
        elif settings.falling and settings.method == "adam" and step is None:
            step = Falling(settings.first, n_iter)
        elif settings.method == "ivon" and step is None:
            step = Falling(STEP_OF_IVON, n_iter)
        elif isinstance(settings.method, str) and step is None:
            step = default_step(settings.method, settings.n_blocks, n_iter, curvature)
        if curvature is not None and settings.walk is None:
            model = made(n * curvature)
        params = start(model, weights, sigma, settings.begin)

        def moves() -> AbstractAlgorithm:
            if settings.walk is None or curvature is None:
                return algorithm(cast(Any, settings.method), step, settings.average)
            size = sum(np.size(leaf) for leaf in jax.tree.leaves(weights))
            return walking(settings.walk, step / curvature, n_iter, size, params.get("log_noise"))

        moves()  # refused here if it is to be
    keep_compilations()
    # A curvature at the start may be that of a plateau: the step is then too large for what comes.
    guarded = curvature is not None and settings.step is None and settings.checkpoint is None
    for attempt in range(ATTEMPTS):
        watch = Watch(model, params, validation, patience, settings.seed, dtype, guarded and attempt < ATTEMPTS - 1)
        result = fit_by_shares(
            model,
            data,
            equal(settings.n_blocks, settings.shared),
            moves(),
            Noise(settings.n_draws, settings.antithetic),
            key=settings.seed,
            params=params,
            n_iter=n_iter,
            batch_size=None if settings.n_blocks == 1 else 1,
            space=space(model, params) if settings.bounded else None,
            average=settings.average,
            stop=None if patience is None else watch,
            callbacks=[*callbacks] if patience is not None else [watch, *callbacks],
            checkpoint=settings.checkpoint,
            rows=settings.rows,
            dtype=dtype,
            progress=settings.progress,
            throw=False,
        )
        hot = settings.walk is not None and settings.walk.heat(result.trace["kinetic"]) > HOT
        if not guarded or not (watch.fell or result.result.failed or hot):
            break
        step = step / 4
    chosen = settings.step is not None
    known = float(step.first) if isinstance(step, Falling) and not chosen else step
    kept = None if settings.walk is None else settings.walk.result(chain_of(result))
    return Trained(model, result, watch.history(result.trace["log_joint"]), watch.best, known, curvature, kept)


def start(
    model: Variational, weights: PyTree, sigma: float, begin: tuple[PyTree, PyTree, dict[str, Any]] | None
) -> dict[str, PyTree]:
    """Parameters where a fit begins: at weights with one standard deviation, or at a posterior that is there."""
    params = model.start(weights, sigma)
    if begin is None:
        return params
    means, deviations, own = begin
    scaled = {name: np.asarray(value) / np.asarray(model.unit(name, weights)) for name, value in own.items() if name in params}
    return params | model.posterior.around(means, deviations) | scaled


def _padded(weights: PyTree, draws: AbstractDraws, settings: Settings) -> bool:
    """Whether blocks are padded to a size that data of a similar size share, with its programs.

    Not of a large network: it runs for longer than its programs take to compile. Nor where that would change the draws: those of
    several at a time are laid out by draw, and padding moves all but the first.
    """
    draw = settings.n_draws if isinstance(settings.n_draws, int) else 1
    alone = draw == (2 if settings.antithetic and isinstance(settings.n_draws, int) else 1)
    return not is_large(weights) and (alone or isinstance(draws, Shared))


def space(model: Variational, params: dict[str, PyTree]) -> dict[str, PyTree]:
    """Boxes around means and log standard deviations."""
    stretch = model.posterior.stretches(params)
    return {
        name: jax.tree.map(lambda _: Box(-LARGEST_MEAN, LARGEST_MEAN), value)
        if name == "mean"
        else jax.tree.map(lambda _, s: Box(LOG_SIGMA[0] / s, LOG_SIGMA[1] / s), value, stretch)
        if name == "log_sigma"
        else Box(*(bound / model.unit(name, params["mean"]) for bound in LOG_SIGMA))
        for name, value in params.items()
    }


def check_draws(network: Network, prior: AbstractWeightPrior, draws: AbstractDraws) -> None:
    """Raises: TypeError: draws that the network or the prior does not allow."""
    reason = draws.requires(network)
    if reason is None and prior.by_draws and not draws.of_weights:
        reason = (
            f"the divergence from {type(prior).__name__} is taken by draws of the weights, and local reparameterisation makes "
            'none; use draws="flipout", or a Normal or Laplace prior'
        )
    if reason is not None:
        raise TypeError(reason)
