r"""The last steps to the maximum of the likelihood, and how far from it a fit is.

With the score s by importance sampling, the information I, and $\sigma_j^2 = (I^{-1})_{jj}$, an estimate is off by
$$\max_j\big|(I^{-1}s)_j\big| / \sigma_j$$
standard errors, known up to the error of s. Newton steps from fixed draws (common random numbers) make it small, and draws are
added until that error is small as well: the maximum then is that of the likelihood, not of the draws.

The information is that of Louis (1982), in closed form, where its order d = p(k + q) allows, else the two levels of
`ascent.Information`, which come close where many features tell the latents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from .answers import settled
from .ascent import dense, inverse_diagonal, preconditioned, two_levels
from .closed import complete, observed
from .fitting import Design
from .growth import PROPOSAL, Adapted, adapted, first_draws
from .importance import Marginal, marginal
from .inference import affordable, rotations
from .proposals import Plan
from .scoring import Scoring
from .variational import Loadings, Posterior

if TYPE_CHECKING:
    from jaxtyping import Array


#: standard errors: how far off an estimate may be by its draws, and the error of that over parameters
OFF, NOISE = 0.02, 0.007
#: steps at most, the longest change of a coefficient in one, replicates, and draws at most
STEPS, LONGEST, REPLICATES, MOST = 12, 0.5, 4, 4096
#: nats that a step may fall by the draws of the way: those of the score are others
FALL = 5e-3
#: features times draws of a replicate behind the first score
TELLING = 8000
#: the least share of the approximation of Louis' information that a step believes in
LEAST = 1e-2
#: draws of all units, times features, in one estimate of the score
WORK = 1 << 32


class End(NamedTuple):
    """How far the maximum is.

    Attributes:
        off, error: distance in standard errors, and its Monte Carlo error. smallest: eigenvalue of Louis' information relative
            to that by two levels, NaN where it was not computed. rise, rise_error: of the log-likelihood. steps: made.
    """

    off: float
    error: float
    smallest: float
    rise: float
    rise_error: float
    steps: int


class Polished(NamedTuple):
    """Where steps ended: a row a step in `history`; and the likelihood there."""

    loadings: Loadings
    posterior: Posterior
    history: pd.DataFrame
    end: End
    likelihood: Adapted

    @property
    def verdict(self) -> str:
        """What came of it, as a sentence without its stop."""
        made = f"{self.end.steps} Newton step{'' if self.end.steps == 1 else 's'}"
        rise = f"{round(self.end.rise, 3) + 0.0:.3f} above that of the variational estimate (error {self.end.rise_error:.3f})"
        far = f"{self.end.off:.3f} standard errors (error {self.end.error:.3f}) from its maximum"
        return f"after {made} the log-likelihood is {rise}, and the estimate {far}"


class Information(NamedTuple):
    """What turns a score into a step: `solve`, the standard errors, and the smallest eigenvalue as in `Polished`."""

    solve: Callable[[Loadings, dict], Loadings]
    sd: Loadings
    smallest: float


class Distance(NamedTuple):
    """A Newton step, its length in standard errors and the error of that; and the norm of the score with its error."""

    step: Loadings
    off: float
    error: float
    norm: float
    norm_error: float


def polish(design: Design, loadings: Loadings, posterior: Posterior, seed: int = 0, steps: int = STEPS) -> Polished:
    """Newton steps until an estimate is within `OFF` standard errors of the maximum, with an error of `NOISE`.

    Args:
        steps: at most; none measures the distance alone.
    """
    n, p = design.share.n, design.counts.p
    plan = Plan(first_draws(n, p), 8, True, seed)
    # Posteriors come closer to Gaussians, which scores are told by, as features are more.
    draws = first_draws(n, p, 1 << int(np.ceil(np.log2(np.clip(TELLING / p, 64, 512)))))
    begun = adapted(design, loadings, posterior, PROPOSAL, plan)
    start, about, own = begun
    information = informed(design, loadings, posterior)
    place, value, rows, made, share = loadings, start, [], 0, 1.0
    known = np.inf

    def scoring(place: Loadings, about: Posterior) -> Scoring:
        return Scoring(design, place, about, PROPOSAL, Plan(replicates=REPLICATES, seed=seed + 7))

    here = scoring(place, about)
    found = here.by(draws)
    while True:
        gap = distance(place, information, found)
        rows.append(
            {
                "epoch": float(made),
                "loglik": value.total[0],
                "error": value.total[1],
                "gradient_norm": gap.norm,
                "gradient_error": gap.norm_error,
                "off": gap.off,
                "off_error": gap.error,
            }
        )
        # The largest of many errors is about three of them, and a step that is not seen above them is a step of the draws.
        if gap.off <= max(OFF, 3 * gap.error):
            times = 2 if gap.error < 1.6 * NOISE else 4
            if gap.error <= NOISE or times * draws > MOST or times * draws * REPLICATES * n * p > WORK:
                break
            draws, known = times * draws, np.inf
            found = here.by(draws)
            continue
        if made >= steps:
            break
        # A step that leaves more than a third of the way was made by another information than that of here.
        if gap.off > known / 3:
            information = informed(design, place, about)
            gap = distance(place, information, found)
        there = _moved(place, gap.step, share)
        around = _about(design, there, about, own)
        new = marginal(design, there, around, PROPOSAL, plan)
        rise, noise = _rise(value, new)
        made += 1
        if not rise >= -max(2 * noise, FALL, 1e-9 * abs(value.total[0])):
            share, known = share / 4, np.inf
            if share < 1e-3:
                break
            continue
        place, about, value, share, known = there, around, new, min(2 * share, 1.0), gap.off
        here = scoring(place, about)
        found = here.by(draws)
    rise, noise = _rise(start, value)
    reached = Adapted(value, about, own)
    if made and not rise >= -max(2 * noise, FALL):
        place, made, rise, noise, reached = loadings, 0, 0.0, 0.0, begun
        gap = distance(place, information, scoring(place, begun.about).by(draws))
    moved = settled(design, place) if made else posterior
    end = End(gap.off, gap.error, information.smallest, rise, noise, made)
    return Polished(place, moved, pd.DataFrame(rows), end, reached)


def distance(loadings: Loadings, information: Information, found: list[dict]) -> Distance:
    """How far the maximum is, by replicates of the score."""
    every = [jax.tree.map(np.asarray, information.solve(loadings, s)) for s in found]
    scaled = np.stack([_flat(*map(np.divide, each, information.sd)) for each in every])
    off = float(np.max(np.abs(scaled.mean(axis=0))))
    norm, norm_error = _size(np.stack([_flat(s["B"], s["C"]) for s in found]))
    error = _size(scaled)[1] / np.sqrt(scaled.shape[1])
    return Distance(jax.tree.map(lambda *leaf: np.mean(leaf, axis=0), *every), off, error, norm, norm_error)


def _flat(B: Array | np.ndarray, C: Array | np.ndarray) -> np.ndarray:
    return np.concatenate([np.ravel(B), np.ravel(C)]).astype(float)


def _split(rows: Any, k: int) -> Loadings:
    """B and C, of a row a feature with both."""
    return Loadings(rows[:, :k].T, rows[:, k:])


def _size(replicates: Float[np.ndarray, "R m"]) -> tuple[float, float]:
    """The norm of the mean, and of its error."""
    count = len(replicates)
    return float(np.linalg.norm(replicates.mean(axis=0))), float(np.linalg.norm(replicates.std(axis=0, ddof=1)) / np.sqrt(count))


def informed(design: Design, loadings: Loadings, posterior: Posterior) -> Information:
    """The information at an estimate."""
    (k, p), q, n = loadings.B.shape, loadings.C.shape[1], design.share.n
    C = np.asarray(loadings.C, float)
    few = affordable(n, p * (k + q)) is not None
    known, whole = observed(design, loadings, posterior) if few else (complete(design, loadings, posterior), None)
    levels = two_levels(known, C, *(np.asarray(leaf, float) for leaf in (design.x, posterior.mean)), share=design.share)
    if whole is not None:
        return _of_louis(whole, dense(levels, C, k) / n, rotations(C, k), (p, k + q), k)
    sd = np.sqrt(inverse_diagonal(levels, C, k) / n)

    def solve(loadings: Loadings, s: dict) -> Loadings:
        move = preconditioned(levels, loadings.C, jax.tree.map(lambda leaf: leaf / n, s))
        return Loadings(move["B"], move["C"])

    return Information(solve, _split(sd, k), np.nan)


def _of_louis(
    whole: Float[np.ndarray, "d d"],
    levels: Float[np.ndarray, "d d"],
    free: Float[np.ndarray, "d r"],
    shape: tuple[int, int],
    k: int,
) -> Information:
    """Louis' information in the metric of its approximation by two levels, where it is about one; rotations are held.

    It is lost where the latents can take up nearly all of a change, and there the approximation is good.
    """
    p, u = shape
    root = np.linalg.cholesky(levels + 1e-12 * np.trace(levels) / len(levels) * np.eye(len(levels)))
    held = np.linalg.qr(np.linalg.solve(root, free))[0]
    inner = root.T @ whole @ root
    pulled = inner @ held
    crossed = pulled @ held.T
    values, vectors = np.linalg.eigh(inner - crossed - crossed.T + held @ (held.T @ pulled + np.eye(held.shape[1])) @ held.T)
    own, free, scale = root @ vectors, root @ held, np.maximum(np.abs(values), LEAST)

    def solve(loadings: Loadings, s: dict) -> Loadings:
        both = np.concatenate([np.asarray(s["B"]).T, np.asarray(s["C"])], axis=1)
        step = own @ ((own.T @ both.ravel()) / scale) - free @ (free.T @ both.ravel())
        return _split(step.reshape(p, u), k)

    variance = np.sum(own**2 / scale, axis=1) - np.sum(free**2, axis=1)
    sd = np.sqrt(np.maximum(variance, np.finfo(float).tiny)).reshape(p, u)
    return Information(solve, _split(sd, k), float(values[0]))


def _moved(loadings: Loadings, step: Loadings, share: float) -> Loadings:
    longest = share * min(1.0, LONGEST / max(float(np.max(np.abs(leaf))) for leaf in step))
    moved: Any = (
        np.asarray(old + longest * np.asarray(move), old.dtype) for old, move in zip(map(np.asarray, loadings), step, strict=True)
    )
    return Loadings(*moved)


def _about(design: Design, loadings: Loadings, about: Posterior, own: np.ndarray) -> Posterior:
    """Gaussians of the proposals at new loadings; those that were adapted to uneven weights stay as they are."""
    new = settled(design, loadings)
    kept: Any = (np.where(own[:, None], np.asarray(old), leaf) for old, leaf in zip(about, new, strict=True))
    return Posterior(*kept)


def _rise(before: Marginal, after: Marginal) -> tuple[float, float]:
    """Of the log-likelihood, with its error: replicates share their digits."""
    rise = after.replicates - before.replicates
    return float(rise.mean()), float(rise.std(ddof=1) / np.sqrt(len(rise)))
