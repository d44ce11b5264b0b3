"""The result of a fit: RESULTS codes, and the Fit object that answers a statistician's questions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from . import storage
from .certificate import Certificate
from .esteps import AbstractEStep
from .naming import path_name, precision, scalar_names
from .penalty import AbstractPenalty
from .restoring import described, restored
from .shown import Card, Shown, flat_table
from .updates import Problem

if TYPE_CHECKING:
    import pandas as pd


class RESULTS(enum.Enum):
    """How a fit ended; the value is the sentence."""

    successful = "The fit ended as asked."
    stopped = "The fit stopped early: its stopping rule was met."
    halted = "The fit ended early: a callback asked it to stop, which is no sign of convergence."
    max_iterations = "The fit reached n_iter before its stopping rule was met; run longer or look at the trace."
    interrupted = "The fit was interrupted; what it had computed is kept."
    diverged = (
        "The fit diverged: a parameter is not finite. Lower the step sizes (of theta and of the kernel), "
        "or bound the parameters with a space. The values kept are the last finite ones."
    )
    stuck = (
        "The chains are stuck: almost every proposal is rejected. Lower the kernel's step size, "
        "or start the latents nearer to their posterior."
    )
    ess_collapse = (
        "The importance weights collapsed: a handful of draws carries each unit. Raise n_draws, "
        "widen the proposal, or use margaux.MCMC."
    )
    undefined = "The fit met a log density that is not a number."
    boundary = (
        "boundary (singular) fit: a parameter lies on the edge of its space, where standard errors "
        "from the information do not hold."
    )

    @property
    def failed(self) -> bool:
        """Whether the estimate is not to be used."""
        return self in (RESULTS.diverged, RESULTS.stuck, RESULTS.ess_collapse, RESULTS.undefined)


#: the ends of a fit that nothing cut short
_REGULAR = (RESULTS.successful, RESULTS.stopped, RESULTS.boundary)

#: said of them where that is so
UNSETTLED = "It is too short, or still drifts too much, to tell that it has converged: raise n_iter."
POLISHED = "Its iterations were too few, or still drifted; the maximum was found by the polish alone."


class FitError(RuntimeError):
    """A fit that failed; `fit` holds everything computed so far."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.message)
        self.fit = fit


@dataclasses.dataclass
class Fit(Shown):
    """What `margaux.fit` returns. Arrays are NumPy's; with several runs, `params` averages over them.

    Attributes:
        params: the averaged estimate. last_params: the last iterate.
        run_params: the estimate of each run on a leading axis (one without `runs`).
        trace: by name, (iterations, runs, ...): "params" (flat, ordered as `names`), "acceptance", "ess", "log_marginal".
        result: a `RESULTS` code. timings: seconds ("compile" is the first chunk, compilation included).
        rows: the E-step's rows, (runs, n, ...).
        polished: the record of the polish that moved `params` to the maximum (`margaux.inference.polish.Polish`), or None.
        settled: whether its stopping rule was met or, without one, its trace was long enough and no longer drifted.
    """

    params: PyTree
    last_params: PyTree
    run_params: PyTree
    trace: dict[str, np.ndarray]
    result: RESULTS
    n_iter: int
    timings: dict[str, float]
    description: str
    dtype: np.dtype
    seed: int
    problem: Problem | None = None
    estep: AbstractEStep | None = None
    data: PyTree = None
    rows: PyTree = None
    averaged_from: int = 0
    algorithm: Any = None
    polished: Any = None
    note: str = ""
    batch_size: int | None = None
    settled: bool = True
    # What is computed here belongs to these parameters: `dataclasses.replace` begins anew.
    _cache: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, init=False)

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

    def _model(self) -> Problem:
        if self.problem is None:
            raise ValueError("this fit was loaded without its model; pass model= and data= to margaux.load")
        return self.problem

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """What has been computed once at this estimate, by name."""
        if name not in self._cache:
            self._cache[name] = compute()
        return self._cache[name]

    @property
    def certificate(self) -> Certificate:
        """Whether this is the maximum, this its likelihood and these its errors: checks with figures, and one word.

        "certified", "careful" (read what it says before use) or "failed". Computed when first asked for.
        """
        from .inference.certify import certify

        return self.remembered("certificate", lambda: certify(self))

    def information(self, method: str = "louis", n_draws: int | None = None, estep: AbstractEStep | None = None) -> Any:
        """The information matrix and what follows from it: see `margaux.inference.information`."""
        from .inference import information
        from .inference.certify import examined
        from .inference.fisher import sampled
        from .inference.polish import unpolishable

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
        from .inference import wald_table

        return wald_table(self, level, method)

    def conf_int(self, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
        """Wald confidence intervals."""
        return self.summary(level, method).filter(["ci_low", "ci_high"])

    def wald_test(self, contrast: Any, value: Any = 0.0, method: str = "louis") -> Any:
        """Test R theta = r: `contrast` is a parameter's name, a list of names, or a matrix with a column a parameter."""
        from .inference import wald_test

        return wald_test(self, contrast, value, method)

    def loglik(self, method: str = "auto", n_draws: int | None = None, params: PyTree = None, **settings: Any) -> Any:
        """Marginal log-likelihood with its error `.se`: see `margaux.inference.loglik`."""
        from .inference import loglik
        from .inference.certify import examined
        from .inference.polish import unpolishable

        if params is not None or settings:
            return loglik(self, method=method, n_draws=n_draws, params=params, **settings)
        done = None if unpolishable(self) else examined(self)
        rule = None if done is None else done.rule
        return self.remembered(f"loglik/{method}/{n_draws}", lambda: loglik(self, method=method, n_draws=n_draws, rule=rule))

    def profile(self, name: str, grid: Any, method: str = "auto", n_draws: int | None = None) -> pd.DataFrame:
        """The profile likelihood of one scalar parameter, maximised over the others: see `margaux.inference.profile`."""
        from .inference import profile

        return profile(self, name, grid, method, n_draws)

    def slice(self, name: str, grid: Any, method: str = "auto", n_draws: int | None = None) -> pd.DataFrame:
        """log p(y | theta) along one scalar parameter, the others held at the estimate: see `margaux.inference.slice`."""
        from .inference import slice

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
        """Posterior mean and standard deviation of each unit's latents at the estimate: {"mean", "sd"}, leaves (n, ...)."""
        from .inference import latents

        return latents(self, n_draws, estep)

    def draws(self, n_draws: int = 1000, thin: int = 1, key: int = 0) -> PyTree:
        """Posterior draws of the latents at the estimate, from the fit's chains: leaves (n_draws, chains, n, ...)."""
        from .inference import draws

        return draws(self, n_draws, thin, key)

    def bias_probe(self, n_iter: int | None = None, key: int = 0) -> pd.DataFrame:
        """How far the kernel's discretisation moves the estimate, in standard errors: see `margaux.inference.bias_probe`."""
        from .inference import bias_probe

        return bias_probe(self, n_iter, key)

    def stationarity(self, n_draws: int = 500, estep: AbstractEStep | None = None, **settings: Any) -> Any:
        """How far the estimate is from a stationary point of its constrained problem, with its Monte Carlo error:
        see `margaux.inference.stationarity`."""
        from .inference.stationarity import stationarity

        return stationarity(self, n_draws, estep, **settings)

    def diagnostics(self) -> pd.DataFrame:
        """One row a check, each with a figure and a sentence of verdict."""
        from .inference import diagnostics

        return diagnostics(self)

    @property
    def plot(self) -> Any:
        """Figures, as matplotlib Axes: `fit.plot.trace()`, `.estimates()`, `.latents()`."""
        from .plots import FitPlots

        return FitPlots(self)

    def save(self, path: str | Path) -> None:
        """Save without pickle; `margaux.load` reads it back, penalty and space too."""
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
        if "certificate" in self._cache:
            table = self.summary()
        figures: dict[str, Any] = {"iterations": self.n_iter}
        values = [value for name, value in self._cache.items() if name.startswith("loglik/")]
        figures |= {"log-likelihood": repr(values[-1])} if values else {}
        figures |= {} if self.problem is None else {"units": self.problem.n}
        known = self._cache.get("certificate")
        message, trusted = (self.message, self.converged) if known is None else (str(known), known.word == "certified")
        return Card(f"Fit: {self.description}", message, trusted, table, count, figures)

    def __repr__(self) -> str:
        return f"Fit({self.description}; {self.n_iter} iterations; {self.message})"


def load(
    path: str | Path,
    model: Any = None,
    data: PyTree = None,
    estep: Any = None,
    space: Any = None,
    params: PyTree = None,
    penalty: AbstractPenalty | None = None,
) -> Fit:
    """Read a fit saved by `Fit.save`; with `model` and `data` it answers everything the original did.

    Parameters that were not all in dicts, lists and tuples (in an Equinox module, a named tuple) come back as ordered
    dicts, unless `params` shows their structure: the values that the fit started from, say. Penalty and space are in the file;
    `penalty` and `space` are for classes of one's own, which it cannot hold.

    Raises:
        FileNotFoundError, ValueError: no such file, or not a saved fit; `params` of another shape; a penalty or a space that is
            not the fit's, or none where the file has none.
    """
    from .space import as_space
    from .validate import check_data

    header, arrays = storage.read(path)
    if header.get("kind") != "fit":
        raise ValueError(f"{path} is a {header.get('kind')}, not a saved fit; pass checkpoints to fit(checkpoint=)")
    template = storage.rebuild(header["params"]) if params is None else storage.numbered(params, arrays)
    trees = [storage.fill(template, prefix, arrays) for prefix in ("params", "last", "runs")]
    problem, dtype = None, np.dtype(header["dtype"])
    if model is not None:
        if data is None:
            raise ValueError("pass data= together with model=")
        space = None if space is None else as_space(space, trees[0])
        space = restored("space", header.get("space"), space, dtype, path)
        of_fit = restored("penalty", header.get("penalty"), penalty, dtype, path)
        problem = Problem(model, as_space(space, trees[0]), of_fit, check_data(data))
    return Fit(
        params=trees[0],
        last_params=trees[1],
        run_params=trees[2],
        trace={name[6:]: value for name, value in arrays.items() if name.startswith("trace/")},
        result=RESULTS[header["result"]],
        n_iter=header["n_iter"],
        timings=header["timings"],
        description=header["description"],
        dtype=dtype,
        seed=header["seed"],
        problem=problem,
        estep=estep,
        data=data,
        averaged_from=header["averaged_from"],
        settled=header.get("settled", True),
    )
