"""A posterior of weights without some of the observations that it was fitted to."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ...engine.validate import whole
from .influence import observations_of
from .model import SCALES

if TYPE_CHECKING:
    from .training import Settings


class Forgetful:
    """Deletion of observations."""

    def forget(self, rows: ArrayLike, epochs: int | None = None) -> Any:
        """A copy fitted without some observations, from where the fit to all of them ended.

        Nothing of them is left in its data, scaling or history. Temperature, prior and length stay what they were chosen to be
        with them (`temperatures_`); only a new fit chooses them anew. A network of one layer ends at the maximum that a fit to
        the other observations has, and its `certificate_` shows it; of the many maxima of a deeper one it is one nearby.

        Args:
            rows: numbers of the observations, or a mask (n,). epochs: for which the fit goes on; by default as many as it had. Of
                a deep network far fewer leave it closer to what it knew than to a fit that never did.

        Raises:
            ValueError: the data are not there (they are not saved), no such rows, all of them, or the last of a class.
            TypeError: `rows` are neither whole numbers nor a mask.

        >>> import numpy as np, margaux as mx
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 2))
        >>> y = (X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
        >>> model = mx.BayesianClassifier(temperature=1.0, epochs=40, verbose=False).fit(X, y)
        >>> model.forget([3, 5]).n_observations_
        58
        """
        me: Any = self
        x, y = observations_of(me)
        kept = remaining(rows, len(y))
        if epochs is None:
            epochs = max(me.n_iter_ // int(me._model.n_blocks), 1)
        out, x, y = copy.copy(me), x[kept], me._as_given(y)[kept]
        gone = np.setdiff1d(getattr(me, "classes_", y[:0]), y)
        if gone.size:
            raise ValueError(f"no observation of class {gone.tolist()[0]!r} would be left; keep one, or fit the others anew")
        outcome = out._outcome(y, len(y))
        settings: Settings = dataclasses.replace(me._settings(len(y), me._choice_made), epochs=whole("epochs", epochs, 1))
        natural = me._model.natural(me._params)
        settings.begin = me._means, me._deviations, {name: natural[name] for name in SCALES if name in natural}
        out._scaling = type(me._scaling).of(x, me.standardize)
        return out._fitted(x, outcome, me._choice_made, settings)


def remaining(rows: ArrayLike, n: int) -> np.ndarray:
    """Mask (n,) of the observations that are left.

    Raises:
        TypeError, ValueError: see `Forgetful.forget`.

    >>> remaining([0, -1], 4).tolist()
    [False, True, True, False]
    """
    chosen = np.atleast_1d(np.asarray(rows))
    if chosen.size and chosen.dtype.kind not in "iub":
        raise TypeError(f"rows must be numbers of observations or a mask, got entries of type {chosen.dtype}")
    if chosen.dtype.kind == "b":
        if chosen.shape != (n,):
            raise ValueError(f"a mask of rows must have one entry for each of the {n} observations, got shape {chosen.shape}")
        chosen = np.flatnonzero(chosen)
    outside = chosen[(chosen < -n) | (chosen >= n)] if chosen.size else chosen
    if outside.size:
        raise ValueError(f"there is no observation {int(outside[0])}: the fit has {n}, numbered from 0")
    kept = np.ones(n, bool)
    kept[chosen.astype(int)] = False
    if kept.all():
        raise ValueError("rows names no observation to forget")
    if kept.sum() < 2:
        raise ValueError(f"{int(kept.sum())} of {n} observations would be left; keep two at least")
    return kept
