"""The one way in: `fit`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

from .algorithms.average import AbstractAverage
from .algorithms.base import AbstractAlgorithm
from .algorithms.climbing import AbstractClimb
from .algorithms.recipes import describe
from .answers.fit import Fit
from .answers.polish import polished
from .engine.callbacks import AbstractCallback, Checkpoint, ProgressBar, Short
from .engine.checkpoints import check_path
from .engine.job import Job
from .engine.outcome import FitError
from .engine.settings import FitSettings
from .engine.share import Shard, check_alike, losses, split, together
from .engine.validate import check_untraced
from .esteps import AbstractEStep
from .numerics import programs
from .numerics.compiling import keep_compilations
from .numerics.precision import default_dtype, precision
from .problem.model import AbstractModel
from .problem.penalty import AbstractPenalty, NoPenalty

if TYPE_CHECKING:
    from jaxtyping import Array
    from numpy.typing import DTypeLike

    from .problem.space import AbstractSpace


def fit(
    model: AbstractModel,
    data: PyTree,
    algorithm: AbstractAlgorithm,
    estep: AbstractEStep,
    *,
    key: int | Array = 0,
    params: PyTree,
    n_iter: int,
    batch_size: int | None = None,
    sampling: str | None = None,
    space: AbstractSpace | PyTree | None = None,
    penalty: AbstractPenalty | None = None,
    average: AbstractAverage | None = None,
    runs: int | Sequence[PyTree] | None = None,
    spread: float = 0.1,
    stop: AbstractCallback | None = None,
    callbacks: Sequence[AbstractCallback] = (),
    checkpoint: str | Path | Checkpoint | None = None,
    polish: bool | None = None,
    devices: int = 1,
    rows: str | Path = "device",
    dtype: DTypeLike | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Fit:
    r"""Maximum marginal likelihood: minimise $-\log p(y\mid\theta) + g(\theta)$ over $\theta\in\Theta$.

    Args:
        model: `log_joint` of one unit. data: a pytree of arrays whose leading axis runs over the n units
            (`mx.one_unit(data)` where a latent is shared by all); NumPy memmaps stay on disk.
        algorithm, estep: how the parameters move, and how expectations given the data are taken.
        key: an int or a PRNG key. params: starting values, a pytree of floats.
        n_iter: iterations. batch_size: units an iteration; None for all.
        sampling: "reshuffled" epochs, or "uniform" draws without replacement; by default the algorithm's own.
        space, penalty: $\Theta$ (a space, or a pytree of them) and g.
        average: how iterates are averaged; by default the algorithm's own choice.
        runs: parallel runs: a number (the first from `params`, the others around it, `spread` standard
            deviations away in unconstrained coordinates), or a list of starting values.
        stop, callbacks: called between chunks, such as `mx.EarlyStopping()`. One that returns True ends the fit: `stop` because
            its rule is met, a callback without any claim that the fit has converged.
        checkpoint: a path (or `mx.Checkpoint`) saved as the fit goes on, and continued from if it exists, also to a larger
            n_iter. It is refused where anything differs from the fit that it is of, but for `devices` and `rows`.
        polish: whether Newton's steps by accurate scores and information end the fit at the maximum (see
            `margaux.answers.polish`). By default wherever an accurate rule exists: not for variational or penalised
            objectives, over 100 parameters, latents that only chains can follow, or a fit that failed or was interrupted.
        devices: units are spread over so many devices (full batch only; n a multiple of it).
        rows: where per-unit rows live in mini-batch fits: "device", "host" (memmapped data implies it), or a folder for rows
            larger than memory. A folder holds them as `rows_0.npy` and so on: a fit replaces those of an earlier one, and one
            that goes on from a checkpoint fills them from it. `Fit.rows` of such a fit reads them there.
        dtype: "float32" or "float64"; by default float64 on a CPU, else float32.
        progress: a progress bar for fits of over two seconds. throw: raise `FitError` when the fit fails;
            the partial fit is its `.fit`.

    Raises:
        TypeError, ValueError: bad input, before anything is compiled. FitError: see `throw`.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> y = np.array([1.0, 2.0, 6.0])
    >>> fit = mx.fit(Normal(), y, mx.soul(step=1.0, average=mx.LastIterate()), mx.Quadrature(5), params={"mu": 0.0}, n_iter=60)
    >>> round(float(fit.params["mu"]), 6), fit.certificate.word
    (3.0, 'certified')
    """
    check_untraced((params, data, model, algorithm, estep, key, space, penalty, average, runs))
    keep_compilations()
    dtype = default_dtype(dtype)
    asked = FitSettings(
        params=params,
        n_iter=n_iter,
        dtype=dtype,
        key=key,
        batch_size=batch_size,
        sampling=sampling,
        space=space,
        penalty=penalty,
        average=average,
        runs=runs,
        spread=spread,
        devices=devices,
        rows=rows,
    )
    data, share = split(data)
    with together(share is not None):
        job = Job(model, data if share is None else Shard(data, share), algorithm, estep, asked)
    if share is not None:
        check_alike(
            data, n_iter, batch_size, job.dtype, job.seed, job.runs, jax.tree.map(np.asarray, params), type(model).__name__
        )
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    stop = Short() if stop is None and isinstance(algorithm, AbstractClimb) else stop
    hooks = [*callbacks]
    for hook in [*hooks, *([stop] if stop else [])]:
        if not isinstance(hook, AbstractCallback):
            raise TypeError(f"callbacks and stop must be margaux callbacks, got {hook!r}; inherit from mx.AbstractCallback")
    if checkpoint is not None:
        with together(share is not None):
            check_path(checkpoint.path)
    if progress and jax.process_index() == 0:
        hooks.append(ProgressBar(describe(algorithm, estep, model)))
    with precision(dtype):
        to_polish = polish is not False and isinstance(job.problem.penalty, NoPenalty)

        def begin() -> None:
            from .answers.ahead import ahead

            ahead(job.problem, job.estep, job.params0, data)

        with programs.meanwhile(begin) if to_polish else contextlib.nullcontext():
            job.prepare()
            if checkpoint is not None and job.largest_of_all(checkpoint.path.exists()):
                job.restore(checkpoint.path)
            try:
                with losses() if share is not None else contextlib.nullcontext():
                    result = job.run(hooks, stop, checkpoint)
            finally:
                for hook in hooks:
                    hook.close()
        out = Fit.of(job.finish(result))
    out = polished(out, polish)
    if throw and out.result.failed:
        raise FitError(out)
    return out
