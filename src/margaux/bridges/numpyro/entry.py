"""`from_numpyro` and `fit_numpyro`: maximum marginal likelihood of the `param` sites of a NumPyro model."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ...numerics.precision import default_dtype, precision
from ...problem.space import AbstractSpace
from .arguments import parameters
from .edges import at_edges
from .models import NumPyroModel, NumPyroSharedModel
from .reading import read

if TYPE_CHECKING:
    from jaxtyping import Array

    from ...algorithms.base import AbstractAlgorithm
    from ...answers.fit import Fit
    from ...esteps import AbstractEStep

#: chains of all units together that a fit by default has at least, and chains a unit at most
CHAINS, MOST = 64, 16


class FromNumPyro(NamedTuple):
    """What `margaux.fit` needs of a NumPyro model."""

    model: NumPyroModel | NumPyroSharedModel
    data: dict[str, Any]
    params: PyTree
    space: AbstractSpace


def from_numpyro(
    model: Callable[..., Any], *args: Any, unit_plate: str | None = "units", unit_args: Any = None, **kwargs: Any
) -> FromNumPyro:
    r"""A NumPyro model as model, data, starting parameters and space for `margaux.fit`.

    `param` sites, those of networks registered by `numpyro.module` or its relatives in `numpyro.contrib.module` among them,
    become $\theta$, on their own scale in the space of their constraint. Latent `sample` sites become
    unconstrained, with their Jacobian. Those in the unit plate are latents by unit; those outside are shared by all units.
    With both kinds the data are one unit whose latents are {"shared": ..., "units": ...} (see `margaux.AbstractShared` and
    `margaux.Blocked`); with none in the unit plate all the data are one unit.

    To see one unit, the model is run on its data: arrays are sliced to length one, and the size of the plate must follow them.

    Args:
        model: a function of NumPyro primitives. args, kwargs: its arguments, the observations with them.
        unit_plate: name of the plate over units; None takes all the data as one unit.
        unit_args: names of the arguments that run over units; by default every array whose leading axis is the plate's size.

    Returns:
        model, data, params, space, as a named tuple. The model has `constrained` and `deterministic` (values by site of one
        unit) and `posterior` (draws by site of a fit).

    Raises:
        ValueError: a model that cannot be bridged: the reason, and what to do.
        ImportError: NumPyro is not installed.

    >>> import numpy as np, numpyro, margaux as mx
    >>> import numpyro.distributions as dist
    >>> def model(y):                                       # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     mu = numpyro.param("mu", 0.0)
    ...     with numpyro.plate("units", len(y)):
    ...         z = numpyro.sample("z", dist.Normal(mu, 1.0))
    ...         numpyro.sample("y", dist.Normal(z, 1.0), obs=y)
    >>> model, data, params, space = mx.from_numpyro(model, np.array([1.0, 2.0, 6.0]))
    >>> fit = mx.fit(model, data, mx.soul(step=1.0, average=mx.LastIterate()), mx.Quadrature(5), params=params, space=space,
    ...              n_iter=60)
    >>> round(float(fit.params["mu"]), 6)
    3.0
    """
    _numpyro()
    dtype = default_dtype(None)
    with precision(dtype):
        program, data, params, space, shared = read(model, args, kwargs, unit_plate, unit_args)
    kind = NumPyroSharedModel if shared else NumPyroModel
    return FromNumPyro(kind(program), data, params, space)


def fit_numpyro(
    model: Callable[..., Any],
    *args: Any,
    unit_plate: str | None = "units",
    unit_args: Any = None,
    algorithm: AbstractAlgorithm | None = None,
    estep: AbstractEStep | None = None,
    n_iter: int = 2000,
    batch_size: int | None = None,
    key: int | Array = 0,
    params: dict[str, Any] | None = None,
    fit_args: dict[str, Any] | None = None,
    edges: bool = True,
    progress: bool = True,
    **kwargs: Any,
) -> Fit:
    """Maximum marginal likelihood of a NumPyro model's `param` sites, in one call.

    Args:
        model, args, unit_plate, unit_args: as in `margaux.from_numpyro`.
        algorithm: by default `margaux.soul()`, which finds its own step.
        estep: by default Markov chains by MALA, warmed up; `margaux.Blocked` where there are shared latents beside those of
            units. A batch of one unit gets several chains.
        n_iter, batch_size, key, progress: as in `margaux.fit`.
        params: starting values by site that replace those of the model.
        kwargs: besides the model's own, whatever else `margaux.fit` takes, such as runs, stop, penalty, checkpoint or dtype.
        fit_args: the same in a dictionary, for names that the model has too.
        edges: whether to look if the likelihood is as high on the edge of a parameter's space, as with a variance of zero. The
            parameter is then put there, the others are fitted again, and the result says boundary.

    Returns:
        The `Fit`. `fit.latents()` and `fit.draws()` are unconstrained; `fit.problem.model.posterior(fit)` has draws by site.

    Raises:
        ValueError, ImportError: as in `margaux.from_numpyro`. FitError: the fit failed.
    """
    from ...algorithms.recipes import soul
    from ...fitting import fit

    own = parameters(model)
    further = {name: kwargs.pop(name) for name in [*kwargs] if name not in own and name in inspect.signature(fit).parameters}
    bridged = from_numpyro(model, *args, unit_plate=unit_plate, unit_args=unit_args, **kwargs)
    start = dict(bridged.params)
    for name, value in (params or {}).items():
        if name not in start:
            raise ValueError(f'params gives "{name}", which is no param site; they are {list(start)}')
        start[name] = jax.tree.map(lambda leaf: np.asarray(leaf, float), value)
    n = len(next(iter(bridged.data.values())))
    out = fit(
        bridged.model,
        bridged.data,
        soul() if algorithm is None else algorithm,
        _chains(bridged.model, batch_size or n) if estep is None else estep,
        params=start,
        space=bridged.space,
        n_iter=n_iter,
        batch_size=batch_size,
        key=key,
        progress=progress,
        **further | (fit_args or {}),
    )
    return at_edges(out) if edges else out


def _chains(model: Any, units: int) -> Any:
    from ...esteps import MCMC
    from ...kernels import MALA, Blocked

    kernel = Blocked(MALA(), MALA(preconditioner="dense")) if isinstance(model, NumPyroSharedModel) else MALA()
    return MCMC(kernel, n_steps=5, thin=5, n_chains=min(-(-CHAINS // units), MOST), warm_up=200)


def _numpyro() -> Any:
    try:
        return importlib.import_module("numpyro")
    except ImportError as error:
        raise ImportError("the bridge needs numpyro; install it via: pip install 'margaux[numpyro]'") from error
