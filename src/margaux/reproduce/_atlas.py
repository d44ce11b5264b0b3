r"""Counts of the size of an atlas of single cells: a sparse table drawn from the model of PLN-PCA, a block of cells at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

#: spread of the genes' log means, standard deviation of a gene's latent part, and shape of the cells' gamma size factors
SPREAD, DEVIATION, SHAPE = 1.5, 0.7, 5.0
#: rates of a block of cells, at most
BLOCK = 1 << 22


class Truth(NamedTuple):
    """What the counts are drawn from: log means of genes, loadings, logs of size factors and latents."""

    intercept: Float[np.ndarray, " p"]
    C: Float[np.ndarray, "p q"]
    offset: Float[np.ndarray, " n"]
    latents: Float[np.ndarray, "n q"]


def atlas(
    n: int = 19_998, p: int = 14_059, rank: int = 15, density: float = 0.12, seed: int = 0, out: Path | str | None = None
) -> tuple[Any, Truth]:
    r"""$y_{ij}\sim\mathrm{Poisson}(e^{o_i + b_j + c_j^\top w_i})$ with gamma size factors of mean one, $b_j\sim N(\mu, 1.5^2)$,
    $c_{jl}\sim N(0, 0.49/q)$, and $\mu$ such that a share `density` of the entries is not zero.

    By default of the size of scMARK. No more is held than the result, a copy of its entries and one block of rates.

    Args:
        out: a file that the counts are also written to, as `scipy.sparse.load_npz` reads them.

    Returns:
        The counts, CSR of int32, and what they are drawn from.

    >>> counts, truth = atlas(n=200, p=300, rank=3)
    >>> counts.shape, truth.C.shape, bool(abs(counts.nnz / 60_000 - 0.12) < 0.02)
    ((200, 300), (300, 3), True)
    """
    rng = np.random.default_rng(seed)
    C = (DEVIATION / np.sqrt(rank) * rng.standard_normal((p, rank))).astype(np.float32)
    deviations = SPREAD * rng.standard_normal(p)
    offset = np.log(rng.gamma(SHAPE, 1 / SHAPE, n))
    latents = rng.standard_normal((n, rank)).astype(np.float32)
    intercept = deviations + _centre(deviations, offset, C, density, rng)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    starts = np.zeros(n + 1, np.int64)
    size = max(BLOCK // p, 1)
    for first in range(0, n, size):
        span = slice(first, first + size)
        counts = rng.poisson(np.exp(offset[span, None] + intercept + latents[span] @ C.T)).astype(np.int32)
        rows, columns = np.nonzero(counts)
        starts[span.start + 1 : span.stop + 1] = np.bincount(rows, minlength=len(counts))
        parts.append((counts[rows, columns], columns.astype(np.int32)))
    starts = np.cumsum(starts)
    data, columns = (np.concatenate(each) for each in zip(*parts, strict=True))
    table = scipy.sparse.csr_array((data, columns, starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)), shape=(n, p))
    if out is not None:
        scipy.sparse.save_npz(out, table, compressed=False)
    return table, Truth(intercept, C, offset, latents)


def _centre(deviations: np.ndarray, offset: np.ndarray, C: np.ndarray, density: float, rng: np.random.Generator) -> float:
    """The mean of the log means at which so many entries are expected to be positive, over a sample of entries."""
    genes = rng.integers(len(deviations), size=200_000)
    latent = np.linalg.norm(C, axis=1)[genes] * rng.standard_normal(len(genes))
    logs = deviations[genes] + latent + rng.choice(offset, len(genes))
    return scipy.optimize.brentq(lambda centre: np.mean(-np.expm1(-np.exp(centre + logs))) - density, -40, 20)
