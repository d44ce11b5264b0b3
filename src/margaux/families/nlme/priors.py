"""What is known of parameters beforehand, as distributions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from .individual import Bounded, Individual, LogNormal

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class NormalPrior:
    r"""A normal prior of a typical value, a covariate's coefficient or a parameter of the residual error.

    Typical values are normal on the Gaussian scale of their distribution, $h^{-1}(\psi_{pop})\sim N(h^{-1}(m), s^2)$: on that of
    logarithms under `LogNormal`. So are parameters of the error; coefficients are normal themselves. Densities are those of the
    variables that are normal, so that m is mode and median.

    Args:
        center: m, on the natural scale. sd: s. cv: instead of it the coefficient of variation c on the natural scale:
            $s^2=\log(1+c^2)$ where the variable is a logarithm, $s = c\,|m|$ where it is the parameter itself.

    Raises:
        ValueError: neither or both of sd and cv, or a number out of its range.

    Reference: Gisleskog, Karlsson and Beal, J. Pharmacokinet. Pharmacodyn. 29 (2002), 473-505.

    >>> NormalPrior(1.5, cv=0.3)
    NormalPrior(center=1.5, sd=None, cv=0.3)
    """

    center: float
    sd: float | None = None
    _: dataclasses.KW_ONLY
    cv: float | None = None

    def __post_init__(self) -> None:
        if not _number(self.center):
            raise ValueError(f"the center of a prior must be a finite number, got {self.center!r}")
        if (self.sd is None) == (self.cv is None):
            raise ValueError("give a NormalPrior either sd= (on the scale that it is normal on) or cv=")
        name, value = ("sd", self.sd) if self.cv is None else ("cv", self.cv)
        if not (_number(value) and value is not None and value > 0):
            raise ValueError(
                f"{name} of a prior must be a positive number, got {value!r}; a value that is certain is held, fixed=True"
            )

    def on_scale_of(self, one: Individual, name: str) -> tuple[float, float]:
        """Mean and standard deviation on the Gaussian scale of a distribution.

        Raises:
            ValueError: a center outside of its range, or a cv that says nothing there.
        """
        mean = float(one.gaussian(self.center))
        if not np.isfinite(mean):
            raise ValueError(
                f"the prior of {name} has its center at {self.center:g}, outside the range of {type(one).__name__}{one._range}"
            )
        if self.sd is not None:
            return mean, float(self.sd)
        assert self.cv is not None  # see __post_init__
        if isinstance(one, LogNormal):
            return mean, float(np.sqrt(np.log1p(self.cv**2)))
        if isinstance(one, Bounded):
            raise ValueError(f"the prior of {name}, which is {type(one).__name__}, takes sd= on its Gaussian scale, not cv=")
        if self.center == 0:
            raise ValueError(f"the prior of {name} has its center at 0, where a cv says nothing; give sd=")
        return mean, float(self.cv * abs(self.center))

    def __str__(self) -> str:
        return f"normal({self.center:g}, {f'sd {self.sd:g}' if self.cv is None else f'cv {self.cv:g}'})"


@dataclasses.dataclass(frozen=True, eq=False)
class InverseWishart:
    r"""An inverse Wishart prior of the covariance matrix $\Omega$ (d, d) of a block of effects, or of one variance.

    By its mode M and its degrees of freedom $\nu$,
    $p(\Omega)\propto|\Omega|^{-k/2}\exp(-\tfrac k2\mathrm{tr}(M\Omega^{-1}))$ with $k=\nu+d+1$: as if k more subjects had been
    observed, whose effects have the covariance M.

    Args:
        mode: M, on the Gaussian scale, with rows in the order of the block's names. df: $\nu$, above d - 1.

    Raises:
        ValueError: a mode that is no positive definite matrix, or too few degrees of freedom.

    >>> InverseWishart(0.09, df=20)
    InverseWishart(0.09, df=20)
    >>> InverseWishart([[0.09, 0.02], [0.02, 0.04]], df=20).size
    2
    """

    mode: ArrayLike
    df: float

    def __post_init__(self) -> None:
        try:
            matrix = np.asarray(self.mode, float)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the mode of an InverseWishart is a variance or a square matrix of numbers, got {self.mode!r}"
            ) from error
        if matrix.ndim not in (0, 2) or matrix.ndim == 2 and matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"the mode of an InverseWishart is a variance or a square matrix, got the shape {matrix.shape}")
        if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T):
            raise ValueError(f"the mode of an InverseWishart must be symmetric and finite, got {self.mode!r}")
        if np.linalg.eigvalsh(np.atleast_2d(matrix))[0] <= 0:
            raise ValueError(f"the mode of an InverseWishart must be positive definite, got {self.mode!r}")
        if not (_number(self.df) and self.df > self.size - 1):
            raise ValueError(f"df of an InverseWishart of {self.size} effects must be above {self.size - 1}, got {self.df!r}")

    @property
    def matrix(self) -> np.ndarray:
        """M (d, d)."""
        return np.atleast_2d(np.asarray(self.mode, float))

    @property
    def size(self) -> int:
        """d."""
        return len(self.matrix)

    @property
    def weight(self) -> float:
        """k, the subjects that it counts as."""
        return float(self.df + self.size + 1)

    @property
    def constant(self) -> float:
        r"""The log of what normalises $|\Omega|^{-k/2}\exp(-\tfrac k2\mathrm{tr}(M\Omega^{-1}))$."""
        d, half = self.size, self.df / 2
        scale = d * np.log(self.weight) + np.linalg.slogdet(self.matrix)[1]
        return float(half * scale - half * d * np.log(2) - scipy.special.multigammaln(half, d))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InverseWishart) and self.df == other.df and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash((self.matrix.tobytes(), self.df))

    def __repr__(self) -> str:
        return f"InverseWishart({np.asarray(self.mode, float).tolist()}, df={self.df:g})"

    def __str__(self) -> str:
        mode = (
            f"{float(self.matrix[0, 0]):g}" if self.size == 1 else np.array2string(self.matrix, separator=", ").replace("\n", "")
        )
        return f"inverse Wishart(mode {mode}, df {self.df:g})"


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and bool(np.isfinite(value))
