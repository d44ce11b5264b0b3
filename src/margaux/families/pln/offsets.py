r"""Offsets of the units, logs of size factors: given as an array, or computed from the counts by name.

With counts $y_{ij}$ of n units and p features, totals $N_i = \sum_jy_{ij}$ and size factors $s_i$, offsets $o_i = \log s_i$ are

- "none": 0.
- "total": $\log N_i$.
- "TSS", total sum scaling: $\log N_i$ less its mean, so that coefficients are on the scale of a unit of typical depth.
- "RLE", relative log expression (Anders and Huber 2010, eq. 5; on logs, as DESeq2 does):
  $\mathrm{median}_j(\log y_{ij} - \bar\ell_j)$, $\bar\ell_j = \frac1n\sum_i\log y_{ij}$ over features seen in every unit.
- "poscounts" (DESeq2): the same over the features seen in unit i, with
  $\bar\ell_j = \frac1n\sum_{i:\,y_{ij}>0}\log y_{ij}$, less its mean.
- "GMPR", geometric mean of pairwise ratios (Chen et al. 2018): the mean over units l of $\log r_{il}$,
  $r_{il} = \mathrm{median}_{j:\,y_{ij}y_{lj}>0}\,y_{ij}/y_{lj}$, those that share no feature left out. Time grows as $n^2$.
- "Wrench" (Kumar et al. 2018, for one group, with weights of inverse variances): $\log(\zeta_iN_i)$ less its mean, with
  $\zeta_i = \sum_jw_j\rho_{ij}/\sum_jw_j$, $\rho_{ij} = (y_{ij}/N_i)/\bar q_j$, $\bar q_j = \frac1n\sum_iy_{ij}/N_i$, and
  $1/w_j$ the sample variance of $\log(y_{ij}/N_i)$ over the units that have feature j; features without one have weight zero.

Means, $\bar\ell$, $\bar q$ and w are those of the fit, so that new units are on its scale.

References:
    Anders and Huber (2010), Differential expression analysis for sequence count data, Genome Biology 11:R106.
    Love, Huber and Anders (2014), Moderated estimation of fold change and dispersion for RNA-seq data with DESeq2, Genome
    Biology 15:550.
    Chen, Reeve, Zhang, Huang, Wang and Chen (2018), GMPR: a robust normalization method for zero-inflated count data, PeerJ
    6:e4600.
    Kumar, Slud, Okrah, Hicks, Hannenhalli and Corrada Bravo (2018), Analysis and correction of compositional bias in sparse
    sequencing count data, BMC Genomics 19:799.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float

from ...engine.share import together
from .counts import Counts

if TYPE_CHECKING:
    from .kinds import Offsets


#: entries sorted together
BLOCK = 1 << 22
#: offsets beyond which they are taken for size factors themselves
LARGEST = 50.0


class Scheme(NamedTuple):
    """Offsets by name: what a fit keeps, logs of size factors relative to it, whether they have mean zero in the fit, and how
    to mend a unit that has none."""

    reference: Callable[[Counts], Any]
    log_factors: Callable[[Counts, Any], np.ndarray]
    centred: bool
    mend: str = "drop it"


class ByName:
    """Offsets computed from counts.

    Args:
        name: one of "none", "total", "TSS", "RLE", "poscounts", "GMPR", "Wrench" (see the module), in any case.
        counts: (n, p) of the fit, without features that have no counts, nor units unless the name is "none".
        units: their names.

    Raises:
        ValueError: another name, or a unit to which the definition gives no size factor.

    Examples:
        >>> counts = Counts([[1, 3], [2, 6], [4, 12]])
        >>> rule = ByName("TSS", counts, pd.RangeIndex(3))
        >>> np.exp(rule.fitted).ravel().round(12).tolist()
        [0.5, 1.0, 2.0]
        >>> np.exp(rule.of(Counts([[8, 24]]), pd.RangeIndex(1))).round(12).tolist()
        [[4.0]]
    """

    def __init__(self, name: str, counts: Counts, units: pd.Index) -> None:
        known = {one.lower(): one for one in SCHEMES}
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1, 0.4)
            hint = f'; did you mean "{known[near[0]]}"?' if near else ""
            raise ValueError(f'offsets="{name}" is none of {", ".join(SCHEMES)}, nor an array{hint}')
        self.name = known[name.lower()]
        scheme, share = SCHEMES[self.name], counts.share
        self._reference, self._centre = scheme.reference(counts), 0.0
        with together(not share.alone):
            raw = self.of(counts, units)
        self._centre = float(share.summed(raw.sum())) / share.n if scheme.centred else 0.0
        self.fitted = raw - self._centre

    def of(self, counts: Counts, units: pd.Index) -> Float[np.ndarray, "m 1"]:
        """Offsets of units, on the scale of the fit."""
        scheme = SCHEMES[self.name]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = scheme.log_factors(counts, self._reference)
        bad = np.flatnonzero(~np.isfinite(logs))
        if bad.size:
            raise ValueError(
                f'offsets="{self.name}" gives unit "{units[bad[0]]}" no size factor ({bad.size} such in all); {scheme.mend}'
            )
        return logs[:, None] - self._centre


def from_counts(offsets: Offsets | None) -> bool:
    """Whether offsets are named, and computed from the counts, so that a unit without counts has none.

    >>> [from_counts(offsets) for offsets in (None, "none", [0.0, 0.5], "TSS")]
    [False, False, False, True]
    """
    return isinstance(offsets, str) and offsets.lower() != "none"


def given(offsets: Offsets, n: int, p: int, units: pd.Index, features: pd.Index) -> Float[np.ndarray, "n o"]:
    """Offsets (n,), (n, 1) or (n, p) as they are given, checked, as (n, 1) or (n, p).

    Raises:
        TypeError, ValueError: not numbers, of another shape, not finite, or beyond `LARGEST`, so not logs.

    Examples:
        >>> given([0.0, 0.5], 2, 3, pd.RangeIndex(2), pd.Index(["a", "b", "c"])).tolist()
        [[0.0], [0.5]]
    """
    try:
        values = np.asarray(offsets, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"offsets must be numbers, one a unit or one an entry of the table, or a name ({', '.join(SCHEMES)})"
        ) from None
    shape = values.shape
    values = values[:, None] if values.ndim == 1 else values
    if values.shape not in ((n, 1), (n, p)):
        turned = "; transpose them" if values.shape == (p, n) else ""
        raise ValueError(f"offsets must have shape ({n},), ({n}, 1) or ({n}, {p}), got {shape}{turned}")
    bad = ~(np.abs(values) <= LARGEST)
    if bad.any():
        i, j = np.argwhere(bad)[0]
        where = f'unit "{units[i]}"' + (f', feature "{features[j]}"' if values.shape[1] > 1 else "")
        mend = (
            "offsets are logs of size factors, so take their log"
            if np.isfinite(values[i, j])
            else "offsets must be finite; -inf is the log of a zero"
        )
        raise ValueError(f"offsets hold {values[i, j]:g} at {where} ({int(bad.sum())} such in all); {mend}")
    return values


def _table(counts: Counts) -> Any:
    """Counts as CSR without stored zeros."""
    return counts.values if scipy.sparse.issparse(counts.values) else scipy.sparse.csr_array(counts.values)


def _with(table: Any, data: np.ndarray) -> Any:
    """A table with the same places and other entries."""
    return type(table)((data, table.indices, table.indptr), shape=table.shape)


def _column_sums(counts: Counts, table: Any, *data: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of entries of a table with the places of the counts, over the units of all processes."""
    return counts.share.summed(tuple(np.bincount(table.indices, each, table.shape[1]) for each in data))


def _row_medians(table: Any) -> np.ndarray:
    """Medians of what is stored in each row, NaN where nothing is, by sorting blocks of rows."""
    sizes = np.diff(table.indptr)
    out = np.full(len(sizes), np.nan)
    size = max(BLOCK // max(int(sizes.max(initial=0)), 1), 1)
    for first in range(0, len(sizes), size):
        here = sizes[first : first + size]
        inside = np.arange(here.max()) < here[:, None]
        padded = np.full(inside.shape, np.inf)
        padded[inside] = table.data[table.indptr[first] : table.indptr[first + len(here)]]
        padded.sort(axis=1)
        rows = np.flatnonzero(here)
        some = here[rows]
        out[first + rows] = (padded[rows, (some - 1) // 2] + padded[rows, some // 2]) / 2
    return out


def _log_totals(counts: Counts, _: Any) -> np.ndarray:
    return np.log(counts.row_sums())


def _zeros(counts: Counts, _: Any) -> np.ndarray:
    return np.zeros(counts.n)


def _nothing(counts: Counts) -> None:
    return None


def _log_means(counts: Counts) -> np.ndarray:
    """Means over all units of the logs of positive counts, (p,)."""
    table = _table(counts)
    return _column_sums(counts, table, np.log(table.data, dtype=float))[0] / counts.share.n


def _log_means_of_complete(counts: Counts) -> np.ndarray:
    """Means of logs (p,), NaN for features with a zero."""
    table = _table(counts)
    complete = _column_sums(counts, table, np.ones(len(table.data)))[0] == counts.share.n
    if not complete.any():
        raise ValueError(
            'offsets="RLE" needs a feature with counts in every unit, and there is none; use "poscounts", "GMPR" or "TSS"'
        )
    return np.where(complete, _log_means(counts), np.nan)


def _median_ratios(counts: Counts, log_means: np.ndarray) -> np.ndarray:
    table, usable = _table(counts), np.flatnonzero(np.isfinite(log_means))
    table = table if len(usable) == counts.p else table[:, usable]
    return _row_medians(_with(table, np.log(table.data, dtype=float) - log_means[usable][table.indices]))


def _by_columns(counts: Counts) -> Any:
    if not counts.share.alone:
        raise ValueError(
            'offsets="GMPR" compare every unit with every other, and each process has its own alone; compute them in one process '
            'and pass them as an array, or use "poscounts"'
        )
    return _table(counts).tocsc()


def _pairwise_ratios(counts: Counts, others: Any) -> np.ndarray:
    """Means of the logs of median ratios to the units of the fit (CSC) that share a feature; NaN where only one does, which in
    the fit is the unit itself."""
    table, out = _table(counts), np.full(counts.n, np.nan)
    for i in range(counts.n):
        own = slice(table.indptr[i], table.indptr[i + 1])
        shared = others[:, table.indices[own]]
        ratios = np.repeat(table.data[own].astype(float), np.diff(shared.indptr)) / shared.data
        logs = np.log(_row_medians(_with(shared, ratios).tocsr()))
        seen = np.isfinite(logs)
        if seen.sum() > 1:
            out[i] = logs[seen].mean()
    return out


def _proportions(table: Any, totals: np.ndarray) -> np.ndarray:
    """Of what is stored, counts by the total of their unit."""
    return table.data / np.repeat(totals, np.diff(table.indptr))


def _weights(counts: Counts) -> np.ndarray:
    """Weights of the proportions in Wrench's means, w / q (p,), with weights that add up to one."""
    table = _table(counts)
    shares = _proportions(table, counts.row_sums())
    logs = np.log(shares)
    seen, of_logs, of_shares = _column_sums(counts, table, np.ones(len(logs)), logs, shares)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = of_logs / seen
        variance = _column_sums(counts, table, (logs - mean[table.indices]) ** 2)[0] / (seen - 1)
        weights = np.where((seen > 1) & (variance > EXACT), 1 / variance, 0.0)
        if not weights.any():
            raise ValueError('offsets="Wrench" needs features whose proportions vary over units that have them; use "TSS"')
        return weights / weights.sum() / (of_shares / counts.share.n)


def _wrench(counts: Counts, weights: np.ndarray) -> np.ndarray:
    return np.log(counts.times(weights[:, None])[:, 0])


#: variances of logs below which proportions are the same
EXACT = 1e-12
SCHEMES = {
    "none": Scheme(_nothing, _zeros, False),
    "total": Scheme(_nothing, _log_totals, False),
    "TSS": Scheme(_nothing, _log_totals, True),
    "RLE": Scheme(_log_means_of_complete, _median_ratios, False, 'it has no feature that every unit has; use "poscounts"'),
    "poscounts": Scheme(_log_means, _median_ratios, True),
    "GMPR": Scheme(
        _by_columns,
        _pairwise_ratios,
        False,
        'it shares features with no other unit, or if new with at most one; drop it, or use "TSS"',
    ),
    "Wrench": Scheme(_weights, _wrench, True, 'it has none of the features with weights; drop it, or use "TSS"'),
}
