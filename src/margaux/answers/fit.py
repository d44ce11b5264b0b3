"""The Fit: what a fit answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..algorithms.updates import Problem
from ..engine import storage
from ..engine.outcome import RESULTS, Outcome
from ..engine.share import Shard
from ..esteps import AbstractEStep
from ..numerics.naming import path_name, scalar_names
from ..numerics.precision import precision
from ..showing.cards import Card, Shown, flat_table
from .certificate import Certificate
from .restoring import described

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from .polish import Polish


#: the ends of a fit that nothing cut short
_REGULAR = (RESULTS.successful, RESULTS.stopped, RESULTS.boundary)

#: said of them where that is so
UNSETTLED = "It is too short, or still drifts too much, to tell that it has converged: raise n_iter."
POLISHED = "Its iterations were too few, or still drifted; the maximum was found by the polish alone."


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Shown, Outcome):
    """What `margaux.fit` returns: what the engine left behind (see `margaux.engine.outcome.Outcome`), and what follows from it.

    It is frozen: `at` is the same fit at other parameters.

    Attributes:
        polished: the record of the polish that moved `params` to the maximum (`margaux.answers.polish.Polish`), or None.
        note: what is to be said besides the sentence of the result.
    """

    polished: Polish | None = None
    note: str = ""
    # What is computed here belongs to these parameters: `dataclasses.replace` begins anew.
    _computed: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, init=False)

    @classmethod
    def of(cls, outcome: Outcome) -> Fit:
        """With nothing polished yet."""
        return cls(**{field.name: getattr(outcome, field.name) for field in dataclasses.fields(Outcome)})

    def at(self, params: PyTree) -> Fit:
        """The same fit at other parameters: nothing that was found at the former ones is kept, but the traces."""
        return dataclasses.replace(self, params=params, polished=None)

    @property
    def message(self) -> str:
        """The sentence of the result, whether the fit was still on its way, and where it happened if that is known."""
        told = self.result.value
        if self.result in _REGULAR and not self.settled:
            told += f" {POLISHED if self.polished is not None and self.polished.converged else UNSETTLED}"
        return f"{told} {self.note}".rstrip()

    @property
    def names(self) -> list[str]:
        """A name for each scalar parameter."""
        return scalar_names(self.params)

    @property
    def converged(self) -> bool:
        """Whether the fit ended without a failure and met its stopping rule; without one, whether its trace had settled.

        That the trace has settled is little: it says that the algorithm no longer travels, not where it is, nor what a polish
        has found. See `certificate`.
        """
        return self.result in _REGULAR and self.settled

    @property
    def units(self) -> PyTree:
        """The data as `margaux.fit` takes them: of a fit over several processes a `Shard`."""
        if self.share is None:
            return self.data
        return Shard(self.share.cut(self.data) if self.share.whole else self.data, self.share)

    def made_whole(self, data: PyTree) -> Fit:
        """Of a fit over several processes that all hold the data of all units: with those, and with the rows of all."""
        assert self.share is not None
        share = dataclasses.replace(self.share, whole=True)
        rows = jax.tree.map(lambda leaf: np.swapaxes(share.joined(np.swapaxes(np.asarray(leaf), 0, 1)), 0, 1), self.rows)
        return dataclasses.replace(self, data=data, rows=rows, share=share)

    def _model(self) -> Problem:
        if self.problem is None:
            raise ValueError("this fit was loaded without its model; pass model= and data= to margaux.load")
        return self.problem

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """What has been computed once at this estimate, by name."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def known(self, name: str) -> Any:
        """What has been computed already and is `remembered` under a name that begins so, the latest of it; else None."""
        found = [value for key, value in self._computed.items() if key.startswith(name)]
        return found[-1] if found else None

    @property
    def certificate(self) -> Certificate:
        """Whether this is the maximum, this its likelihood and these its errors: checks with figures, and one word.

        "certified", "careful" (read what it says before use) or "failed". Computed when first asked for.
        """
        from .certify import certify

        return self.remembered("certificate", lambda: certify(self))

    def information(self, method: str = "louis", n_draws: int | None = None, estep: AbstractEStep | None = None) -> Any:
        """The information matrix and what follows from it: see `margaux.answers.information.information`."""
        from .certify import examined
        from .information import information, sampled
        from .polish import unpolishable

        if estep is not None or n_draws is not None or unpolishable(self) is not None:
            return information(self, method=method, n_draws=n_draws, estep=estep)

        def compute() -> Any:
            done = examined(self)
            return sampled(self, method) if done is None else information(self, method=method, evaluation=done.evaluation)

        return self.remembered(f"information/{method}", compute)

    def cov_params(self, method: str = "louis") -> pd.DataFrame:
        """Covariance of the estimates, named both ways. Entries that are not to be trusted are NaN."""
        import pandas as pd

        return pd.DataFrame(self.information(method).covariance, index=self.names, columns=self.names)

    def summary(self, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
        """Estimate, standard error with its Monte Carlo error, z, p and interval of each scalar parameter.

        Wald inference from the information by `method`: "louis", "opg" (outer product of scores) or "sandwich" ("robust").
        `frame.attrs["message"]` begins with the word of the certificate and says what is not to be trusted.
        """
        from .information import summary_table

        return summary_table(self, level, method)

    def conf_int(self, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
        """Wald confidence intervals."""
        return self.summary(level, method).filter(["ci_low", "ci_high"])

    def wald_test(self, contrast: str | list[str] | np.ndarray, value: ArrayLike = 0.0, method: str = "louis") -> Any:
        """Test R theta = r: `contrast` is a parameter's name, a list of names, or a matrix with a column a parameter."""
        from .information import wald_test

        return wald_test(self, contrast, value, method)

    def loglik(self, method: str = "auto", n_draws: int | None = None, params: PyTree = None, **settings: Any) -> Any:
        """Marginal log-likelihood with its error `.se`: see `margaux.answers.likelihood.loglik`."""
        from ..engine.share import alone
        from .certify import examined
        from .likelihood import EVIDENCE, loglik
        from .polish import unpolishable

        if not isinstance(method, str):
            raise TypeError(f"method is a name such as 'importance'; pass an E-step as estep=, got {type(method).__name__}")
        if method in EVIDENCE:
            alone(self.share, "this likelihood")
        if params is not None or settings:
            return loglik(self, method=method, n_draws=n_draws, params=params, **settings)

        def computed() -> Any:
            done = None if unpolishable(self) else examined(self)
            rule = None if done is None else done.rule
            if done is not None and done.likelihood is not None and method == "auto" and n_draws is None:
                return done.likelihood
            return loglik(self, method=method, n_draws=n_draws, rule=rule)

        return self.remembered(f"loglik/{method}/{n_draws}", computed)

    def profile(self, name: str, grid: ArrayLike, method: str = "auto", n_draws: int | None = None) -> pd.DataFrame:
        """The profile likelihood of one scalar parameter, maximised over the others: see `margaux.answers.profile`."""
        from .profile import profile

        return profile(self, name, grid, method, n_draws)

    def slice(self, name: str, grid: ArrayLike, method: str = "auto", n_draws: int | None = None) -> pd.DataFrame:
        """log p(y | theta) along one scalar parameter, the others held at the estimate: see `margaux.answers.profile.slice`."""
        from .profile import slice

        return slice(self, name, grid, method, n_draws)

    @property
    def n_params(self) -> int:
        """Number of free scalar parameters."""
        with precision(self.dtype):
            flat = self._model().space.to_unconstrained(self.params)
            return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(flat))

    @property
    def aic(self) -> float:
        """-2 log-likelihood + 2 (number of free parameters)."""
        return -2 * float(self.loglik()) + 2 * self.n_params

    @property
    def bic(self) -> float:
        """-2 log-likelihood + log(number of units) (number of free parameters)."""
        return -2 * float(self.loglik()) + float(np.log(self._model().n)) * self.n_params

    def latents(self, n_draws: int = 2000, estep: AbstractEStep | None = None) -> dict[str, PyTree]:
        """Posterior mean and standard deviation of each unit's latents at the estimate: {"mean", "sd"}, leaves (n, ...).

        Of up to twenty latents a unit by quadrature, or by `n_draws` weighted draws from all modes that are found; of more by
        chains, or by what the model draws itself. Warns where posteriors may have modes that were not found.
        """
        from .moments import latents

        return latents(self, n_draws, estep)

    def draws(self, n_draws: int = 1000, thin: int = 1, key: int = 0) -> PyTree:
        """Posterior draws of the latents at the estimate, from the fit's chains: leaves (n_draws, chains, n, ...)."""
        from .draws import draws

        return draws(self, n_draws, thin, key)

    def bias_probe(self, n_iter: int | None = None, key: int = 0) -> pd.DataFrame:
        """How far the kernel's discretisation moves the estimate, in standard errors: see `margaux.answers.bias.bias_probe`."""
        from .bias import bias_probe

        return bias_probe(self, n_iter, key)

    def stationarity(self, n_draws: int = 500, estep: AbstractEStep | None = None, **settings: Any) -> Any:
        """How far the estimate is from a stationary point of its constrained problem, with its Monte Carlo error:
        see `margaux.answers.stationarity`."""
        from .stationarity import stationarity

        return stationarity(self, n_draws, estep, **settings)

    def diagnostics(self) -> pd.DataFrame:
        """One row a check, each with a figure and a sentence of verdict."""
        from .diagnostics import diagnostics

        return diagnostics(self)

    @property
    def plot(self) -> Any:
        """Figures, as matplotlib Axes: `fit.plot.trace()`, `.estimates()`, `.latents()`."""
        from .plots import FitPlots

        return FitPlots(self)

    def save(self, path: str | Path) -> None:
        """Save without pickle; `margaux.load` reads it back, penalty and space too. Of several processes the first one does."""
        if self.share is not None and self.share.index > 0:
            return
        header = {
            "kind": "fit",
            "result": self.result.name,
            "n_iter": self.n_iter,
            "timings": self.timings,
            "description": self.description,
            "dtype": str(self.dtype),
            "seed": self.seed,
            "averaged_from": self.averaged_from,
            "params": storage.describe(self.params),
            "settled": self.settled,
        }
        if self.problem is not None:
            header |= {"penalty": described(self.problem.penalty), "space": described(self.problem.space)}
        arrays = storage.flatten("params", self.params) | storage.flatten("last", self.last_params)
        arrays |= storage.flatten("runs", self.run_params)
        storage.write(path, header, arrays | {f"trace/{name}": value for name, value in self.trace.items()})

    def _card(self) -> Card:
        leaves = jax.tree_util.tree_flatten_with_path(self.params)[0]
        table, count = flat_table({path_name(path) or "theta": leaf for path, leaf in leaves})
        known = self.known("certificate")
        if known is not None:
            table = self.summary()
        figures: dict[str, Any] = {"iterations": self.n_iter}
        value = self.known("loglik/")
        figures |= {} if value is None else {"log-likelihood": repr(value)}
        figures |= {} if self.problem is None else {"units": self.problem.n}
        message, trusted = (self.message, self.converged) if known is None else (str(known), known.word == "certified")
        return Card(f"Fit: {self.description}", message, trusted, table, count, figures)

    def __repr__(self) -> str:
        return f"Fit({self.description}; {self.n_iter} iterations; {self.message})"
