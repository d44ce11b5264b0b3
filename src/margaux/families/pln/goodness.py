r"""Whether counts are Poisson given the latents: randomised quantile residuals, and the number of zeros.

If $w_i^*$ is drawn from the law of the latents given the counts, then $(y_i, w_i^*)$ has the law of $(y_i, w_i)$, so that
under the model counts given $w_i^*$ are independent Poisson variables of rates $A_{ij}^*$, and with $u_{ij}$ uniform between
$F(y_{ij} - 1)$ and $F(y_{ij})$, residuals $r_{ij} = \Phi^{-1}(u_{ij})$ are independent
standard normal (Dunn and Smyth 1996). Two figures follow,

- dispersion: the mean of $r_{ij}^2$, one under the model, more where counts vary more (negative-binomial counts, a rank too low);
- zeros: the number of zeros over its mean $\sum_{ij}e^{-A_{ij}^*}$ under the model, more for counts with excess zeros.

Coefficients and latents that were fitted to these counts make residuals a little smaller: the mean of their squares is taken
relative to $1 - m/(np)$ for m parameters.

References:
    Dunn and Smyth (1996), Randomized quantile residuals, Journal of Computational and Graphical Statistics 5:236.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from ...engine.share import Share
from .fitting import Design
from .importance import blocks, drawn
from .proposals import Plan, chosen, nets
from .variational import HIGHEST, Loadings, Posterior

#: draws of the latents, and draws of the proposal from which each is chosen
LATENTS, DRAWS = 4, 256
#: entries of the table that are looked at: of a larger one some units, at random
ENTRIES = 2_000_000


class Goodness(NamedTuple):
    """Figures with what they are under the model, their standard errors there, and per feature (p,) the dispersion and the zeros,
    observed and expected."""

    dispersion: float
    dispersion_error: float
    zeros: float
    zeros_error: float
    by_feature: Float[np.ndarray, "p 3"]

    def p(self, figure: str) -> float:
        """Two-sided p-value."""
        z = (getattr(self, figure) - 1) / getattr(self, f"{figure}_error")
        return float(2 * scipy.special.ndtr(-abs(z)))


def goodness(design: Design, loadings: Loadings, posterior: Posterior, seed: int = 0) -> Goodness:
    """Both figures, means over `LATENTS` draws of the latents."""
    n, p = design.share.n, design.counts.p
    k, q = len(loadings.B), loadings.C.shape[1]
    design, posterior = _some(design, posterior, seed)
    total, variance = np.zeros((3, p)), 0.0
    for y, A, u in _given_latents(design, loadings, posterior, seed):
        none = np.exp(-A)
        total += np.stack([(_residuals(y, A, u) ** 2).sum(axis=0), (y == 0).sum(axis=0), none.sum(axis=0)]) / LATENTS
        variance += float(np.sum(none * (1 - none))) / LATENTS
    total, variance = design.share.summed((total, variance))
    looked = design.share.n
    m, entries = p * (k + q) - q * (q - 1) // 2, looked * p
    free = 1 - m / (n * p)
    squares, seen, expected = total.sum(axis=1)
    by_feature = np.stack([total[0] / looked / free, total[1], total[2]], axis=1)
    return Goodness(
        squares / entries / free,
        np.sqrt(2 / entries),
        seen / expected if expected > 0 else 1.0,
        np.sqrt(variance) / expected if expected > 0 else np.inf,
        by_feature,
    )


def frequencies(
    design: Design, loadings: Loadings, posterior: Posterior, most: int, feature: int | None = None, seed: int = 0
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """How often each count from 0 to `most` is there, and is under the model given the latents, over all features or one."""
    design, posterior = _some(design, posterior, seed)
    counts = np.arange(most + 1.0)
    seen, expected = np.zeros(most + 1), np.zeros(most + 1)
    columns = slice(None) if feature is None else [feature]
    for y, A, _ in _given_latents(design, loadings, posterior, seed):
        y, A = y[:, columns].ravel(), A[:, columns].ravel()
        seen += np.bincount(y[y <= most].astype(int), minlength=most + 1) / LATENTS
        log_A = np.log(A)
        for place, count in enumerate(counts):
            expected[place] += np.exp(count * log_A - A - scipy.special.gammaln(count + 1)).sum() / LATENTS
    return design.share.summed((seen, expected))


def _some(design: Design, posterior: Posterior, seed: int) -> tuple[Design, Posterior]:
    """All units, or as many as are looked at."""
    n, p = design.share.n, design.counts.p
    if n * p <= ENTRIES:
        return design, posterior
    rows, share = chosen_units(design.share, max(ENTRIES // p, 1), [seed, 5])
    return design.rows(rows, share), posterior.rows(rows)


def chosen_units(share: Share, count: int, seed: int | list[int]) -> tuple[np.ndarray, Share]:
    """So many of the units of all processes, at random: those of this one, by its own numbers, and their share of the chosen."""
    every = np.sort(np.random.default_rng(seed).choice(share.n, count, replace=False))
    counts = np.bincount(share.owners(every), minlength=len(share.sizes))
    chosen = Share(tuple(int(size) for size in counts), share.index)
    return every[chosen.first :][: chosen.size] - share.first, chosen


def _given_latents(
    design: Design, loadings: Loadings, posterior: Posterior, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Counts of blocks of units with their rates at draws of the latents, `LATENTS` times, and uniform numbers as many."""
    for span, latents, uniforms in _latents(design, loadings, posterior, seed):
        values = design.counts.values[span]
        y = np.asarray(values.toarray() if scipy.sparse.issparse(values) else values, float)
        fixed = design.offset[span] + design.x[span] @ np.asarray(loadings.B, float)
        for w, u in zip(latents, uniforms, strict=True):
            yield y, np.exp(np.minimum(fixed + w @ np.asarray(loadings.C, float).T, HIGHEST)), u


def _latents(
    design: Design, loadings: Loadings, posterior: Posterior, seed: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Blocks of units with draws of their latents, chosen among those of a proposal by their weights, and uniform numbers for
    each entry of the table (LATENTS, b, p)."""
    proposal, plan = chosen("student"), Plan(DRAWS, 1, True, seed + 11)
    net = nets(plan, proposal, loadings.C.shape[1])[0]
    for block in blocks(design, loadings, posterior, proposal, max((1 << 22) // (DRAWS * design.counts.p), 1)):
        found = drawn(block, proposal, plan, net)
        v, log_ratio = np.asarray(found.v, float), np.asarray(found.log_ratio, float)
        u = _uniforms([seed, 5], block.numbers, LATENTS * (DRAWS + design.counts.p)).reshape(len(v), LATENTS, -1)
        u = np.moveaxis(u, 1, 0)
        best = np.argmax(log_ratio - np.log(-np.log(u[..., :DRAWS])), axis=2)
        yield block.span, v[np.arange(len(v)), best], u[..., DRAWS:]


def _uniforms(seed: list[int], numbers: slice, each: int) -> Float[np.ndarray, "b e"]:
    """Between zero and one, so many a unit; a unit has its own, in whatever block or process it comes."""
    count = numbers.stop - numbers.start
    raw = np.random.PCG64(seed).advance(numbers.start * each).random_raw(count * each)
    return ((raw >> np.uint64(12)).astype(float).reshape(count, each) + 0.5) / 2.0**52


def _residuals(y: np.ndarray, A: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Each in the tail that is near, so that no residual is infinite for rounding."""
    below = np.where(y > 0, scipy.special.pdtr(np.maximum(y - 1, 0), A), 0.0)
    above = scipy.special.pdtrc(y, A)
    low = below + u * np.maximum(1 - above - below, 0.0)
    high = above + (1 - u) * np.maximum(1 - above - below, 0.0)
    tiny = np.finfo(float).tiny
    return np.where(low < 0.5, scipy.special.ndtri(np.maximum(low, tiny)), -scipy.special.ndtri(np.maximum(high, tiny)))
