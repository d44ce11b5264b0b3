r"""From the variational estimate of PLN-PCA to the maximum of its likelihood, by importance sampling through the engine.

The paper's algorithms 1 and 2 (ISGD and AISGD) are stochastic ascent on single units from four proposals; `paper` gives their
settings. The default is another member of the family: all units an iteration, draws of a Sobol net from a Student t at the
curvature, a control variate, and steps scaled by the information, so that a few iterations do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy

from ...algorithms.average import PolyakRuppert
from ...algorithms.base import Algorithm
from ...algorithms.memory import NoMemory
from ...algorithms.updates import AbstractUpdate, Ascent, Optax
from ...engine.outcome import RESULTS
from ...engine.share import Shard
from ...fitting import fit
from ...problem.schedule import Constant, Polynomial
from ...problem.space import Box
from .answers import settled
from .ascent import ConditionalScore, Information, InformationAscent, decrement, two_levels
from .closed import complete
from .conditional import VARIANTS, ConditionalSampling
from .fitting import Design
from .growth import first_draws
from .importance import marginal
from .model import PLN, units
from .proposals import Plan
from .scoring import scores
from .variational import Loadings, Posterior

if TYPE_CHECKING:
    from jaxtyping import PyTree


#: entries of a table up to which all units are visited an iteration, and beyond which no ascent is made unless a method is named
WHOLE = 20_000_000
#: entries of a mini-batch of a larger one
BATCH = 1 << 20
#: initial steps that a search compares
GRID = tuple(10.0 ** np.arange(-3.0, 0.6, 0.5))


class Refinement(NamedTuple):
    r"""How the likelihood is ascended.

    Attributes:
        variant: a proposal and how it follows the parameters, one of `margaux.families.pln.conditional.VARIANTS`.
        n_draws: N, a power of two with `sobol`. batch_size: units an iteration; by default all, or of a large table some.
        epochs: passes over the units, at most, in four rounds. warm_epochs: passes by Rprop before them, all units an
            iteration.
        preconditioned: steps scaled by the information (`InformationAscent`); else $\gamma_0/\sqrt T$ with `gain` $\gamma_0$.
        gain: multiplies the steps; None searches $\gamma_0$ in `GRID`. sobol, control: see `ConditionalSampling`.
        radius: $\Theta$ is the box of coefficients within so much of the start. tol: nats that are worth a further round.
    """

    variant: str = "student"
    n_draws: int = 128
    batch_size: int | None = None
    epochs: int = 40
    warm_epochs: int = 0
    preconditioned: bool = True
    gain: float | None = 0.5
    sobol: bool = True
    control: bool = True
    radius: float = 10.0
    tol: float = 0.01


def paper(variant: str, n_draws: int = 1000, warm_epochs: int = 1000, epochs: int = 10) -> Refinement:
    """The paper's own settings (section 6.1): Rprop on all units, then single units with a step that is searched."""
    return Refinement(variant, n_draws, 1, epochs, warm_epochs, preconditioned=False, gain=None, sobol=False, control=False)


class Refined(NamedTuple):
    """Where it ended: a row a round in `history`, one sentence, and whether the likelihood rose beyond its error."""

    loadings: Loadings
    posterior: Posterior
    history: pd.DataFrame
    verdict: str
    improved: bool


class _Here(NamedTuple):
    loadings: Loadings
    posterior: Posterior
    row: dict[str, float]
    information: Information
    loglik: float = np.nan
    error: float = np.nan
    replicates: np.ndarray = np.zeros(0)


def check(settings: Refinement) -> None:
    """Raises ValueError for settings that make no sense, before anything is compiled."""
    if settings.variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(map(repr, VARIANTS))}, not {settings.variant!r}")
    numbers = {"n_draws": (settings.n_draws, 2), "epochs": (settings.epochs, 1), "warm_epochs": (settings.warm_epochs, 0)}
    if settings.batch_size is not None:
        numbers["batch_size"] = (settings.batch_size, 1)
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if settings.sobol and settings.n_draws & (settings.n_draws - 1):
        raise ValueError(f"n_draws must be a power of two with sobol=True, got {settings.n_draws}")
    if not (settings.radius > 0 and settings.tol > 0):
        raise ValueError("radius and tol must be positive")
    if settings.gain is not None and not settings.gain > 0:
        raise ValueError(f"gain must be positive, or None for a search; got {settings.gain}")
    if settings.gain is None and settings.preconditioned:
        raise ValueError("gain is searched for preconditioned=False only; give a number, such as 0.5")


def check_table(settings: Refinement | None, forced: bool, design: Design) -> None:
    """Raises ValueError for settings that a table does not allow, before anything is compiled."""
    n, p = design.share.n, design.counts.p
    if settings is None or (n * p > WHOLE and not forced):
        return
    if settings.batch_size is not None and settings.batch_size > n:
        raise ValueError(f"batch_size is {settings.batch_size} and there are {n} units; give {n} at most")
    if n * p > WHOLE and (settings.warm_epochs or settings.batch_size == n) and scipy.sparse.issparse(design.counts.values):
        raise ValueError(f"a sparse table of {n} x {p} is not made dense: set warm_epochs=0 and a batch_size below {n}")


def refine(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    settings: Refinement = Refinement(),  # noqa: B008
    seed: int = 0,
    forced: bool = False,
    progress: bool = False,
    watch: Callable[[dict[str, float]], None] | None = None,
) -> Refined:
    r"""Rounds of ascent until a step promises less than its own noise or `tol`, or a round no longer raises the likelihood.

    Before the first round and after each, the score at the mean of the iterates is estimated from fresh draws, four times.
    What a step promises is $\frac12s^\top Ps$, less its value for the error of s; inside the box the gradient mapping
    of theorem 4.5 is s itself. A round is kept if the likelihood rose.

    Args:
        forced: a round is made whatever the first estimate promises, and kept even if the likelihood has not risen.

    Raises:
        ValueError: from `check` and `check_table`.
    """
    check(settings)
    check_table(settings, forced, design)
    n, p = design.share.n, design.counts.p
    batch = settings.batch_size or (n if n * p <= WHOLE else max(min(n, BATCH // p), 1))
    start = _seen(design, loadings, posterior, seed)
    ended = _nothing_promised(start, settings)
    if ended and not forced:
        sentence = "the variational estimate is the maximum likelihood estimate as far as draws can tell"
        return Refined(loadings, posterior, pd.DataFrame([{"epoch": 0.0} | start.row]), f"{sentence}: {ended}", False)
    rows: list[dict[str, float]] = []
    draws = first_draws(n, p)

    def weighed(epoch: int, place: _Here) -> _Here:
        rows.append({"epoch": float(epoch), "loglik": place.loglik, "error": place.error} | place.row)
        if watch is not None:
            watch(rows[-1])
        return place

    start = best = weighed(0, _likelihood(design, start, draws, seed))
    per_round = max(settings.epochs // 4, 1) if settings.preconditioned else settings.epochs
    epoch, ended, gain = 0, "", settings.gain
    while epoch < settings.epochs and not ended:
        place, warmed = best, RESULTS.successful
        if settings.warm_epochs and epoch == 0:
            place, warmed = _ascended(design, place, settings, n, settings.warm_epochs, seed, progress, warm=True)
        length = min(per_round, settings.epochs - epoch)
        place, result = _ascended(design, place, settings._replace(gain=gain), batch, length, seed + 1 + epoch, progress)
        epoch += length
        place = _likelihood(design, place, draws, seed)
        rise, error = _gain(best, place)
        # Rates have a ceiling, so that parameters may run away and stay finite.
        if RESULTS.diverged in (result, warmed) or not rise > -abs(start.loglik):
            rows.append({"epoch": float(epoch + settings.warm_epochs)} | dict.fromkeys(list(rows[0])[1:], np.nan))
            gain, ended = (gain / 4, "") if gain is not None and epoch < settings.epochs else (None, "the ascent diverged")
            continue
        seen = _seen(design, place.loadings, place.posterior, seed)
        place = weighed(epoch + settings.warm_epochs, place._replace(row=seen.row, information=seen.information))
        if rise > 0 or (forced and not settings.preconditioned):
            best = place
        if rise < -error and gain is not None:
            gain /= 4
        elif result is RESULTS.boundary:
            ended = f"coefficients have moved by as much as radius={settings.radius:g} allows"
        else:
            ended = _nothing_promised(best, settings)
            if rise < max(error, settings.tol):
                ended = ended or "a further round no longer raises the likelihood"
    rise, error = _gain(start, best)
    improved = rise > 2 * error
    if not (improved or forced):
        best = start
    rose = f"after {epoch + settings.warm_epochs} epochs the log-likelihood is {rise:.3f} above that of the variational estimate"
    rose = f"{rose} (error {error:.3f})"
    verdict = f"{rose}{'' if improved else ': no improvement beyond its error'}; {ended or 'it was still rising'}"
    return Refined(best.loadings, best.posterior, pd.DataFrame(rows), verdict, improved)


def _nothing_promised(place: _Here, settings: Refinement) -> str:
    promised, noise = place.row["decrement"], place.row["decrement_error"]
    sentence = f"a further step promises {max(promised, 0):.3f} nats (noise {noise:.3f})"
    return sentence if promised <= max(settings.tol, noise) else ""


def _gain(before: _Here, after: _Here) -> tuple[float, float]:
    """The rise of the log-likelihood and its standard error, from replicates that share their digits."""
    rise = after.replicates - before.replicates
    return float(rise.mean()), float(rise.std(ddof=1) / np.sqrt(len(rise)))


def _likelihood(design: Design, place: _Here, draws: int, seed: int) -> _Here:
    likelihood = marginal(design, place.loadings, place.posterior, "student", Plan(draws, 8, True, seed))
    return place._replace(loglik=likelihood.total[0], error=likelihood.total[1], replicates=likelihood.replicates)


def _seen(design: Design, loadings: Loadings, posterior: Posterior, seed: int) -> _Here:
    """The norm of the score and what a step promises, with their errors."""
    n, C = design.share.n, loadings.C
    known = complete(design, loadings, posterior)
    information = two_levels(known, *(np.asarray(leaf, float) for leaf in (C, design.x, posterior.mean)), share=design.share)
    draws = first_draws(n, design.counts.p, 128)
    replicates = scores(design, loadings, posterior, "student", Plan(draws, 4, True, seed + 7))
    replicates = jax.tree.map(np.asarray, replicates)
    mean = jax.tree.map(lambda *leaf: np.mean(leaf, axis=0), *replicates)
    off = [jax.tree.map(np.subtract, one, mean) for one in replicates]
    pairs = len(off) * (len(off) - 1)
    noise = sum(decrement(information, C, gap, n) for gap in off) / pairs

    def norm(s):
        return float(np.hypot(np.linalg.norm(s["B"]), np.linalg.norm(s["C"])))

    spread = float(np.sqrt(sum(norm(gap) ** 2 for gap in off) / pairs))
    row = {
        "gradient_norm": norm(mean),
        "gradient_error": spread,
        "decrement": decrement(information, C, mean, n) - noise,
        "decrement_error": noise,
    }
    return _Here(loadings, posterior, row, information)


def _ascended(
    design: Design,
    place: _Here,
    settings: Refinement,
    batch: int,
    epochs: int,
    seed: int,
    progress: bool,
    warm: bool = False,
) -> tuple[_Here, RESULTS]:
    """Some epochs through `margaux.fit`."""
    n = design.share.n
    whole = batch == n
    length = epochs * max(n // batch, 1)
    if warm:
        import optax

        update: AbstractUpdate = Optax(optax.rprop(1e-3), Constant(1.0))
    elif settings.preconditioned:
        size, gain = n / batch, settings.gain
        assert gain is not None
        # One epoch of a mini-batch fit moves as far as one iteration on all units; from the second on, steps fall.
        update = InformationAscent(Constant(gain) if whole else Polynomial(gain * size**-0.4, 0.6, size), place.information)
    else:
        gain = _searched(design, place, settings, batch, seed) if settings.gain is None else settings.gain
        update = Ascent(Constant(gain / np.sqrt(length)))
    run = _run(design, place, settings, update, batch, length, seed, progress)
    if run.result is RESULTS.diverged:
        return place, run.result
    moved = _loadings(run.params, place.loadings.C.dtype)
    return place._replace(loadings=moved, posterior=_posterior(design, moved)), run.result


def _searched(design: Design, place: _Here, settings: Refinement, batch: int, seed: int) -> float:
    """The step of the grid after which two epochs leave the likelihood highest."""
    n = design.share.n
    length = 2 * max(n // batch, 1)
    best, chosen = -np.inf, GRID[0]
    for gain in GRID:
        run = _run(design, place, settings, Ascent(Constant(gain / np.sqrt(length))), batch, length, seed, False)
        if run.result is RESULTS.diverged:
            break
        moved = _loadings(run.params, place.loadings.C.dtype)
        there = marginal(design, moved, _posterior(design, moved), "student", Plan(128, 2, True, seed)).total[0]
        if there > best:
            best, chosen = there, gain
    return float(chosen)


def _run(
    design: Design, place: _Here, settings: Refinement, update: AbstractUpdate, batch: int, length: int, seed: int, progress: bool
) -> Any:
    C = place.loadings.C
    dtype, q = np.asarray(C).dtype, C.shape[1]
    proposal, follow = VARIANTS[settings.variant]
    data, whole, share = units(design, place.posterior, dtype), batch == design.share.n, design.share
    if whole and scipy.sparse.issparse(design.counts.values):
        data["counts"] = data["counts"][np.arange(design.counts.n)]
    algorithm = Algorithm(
        statistic=ConditionalScore(moments=isinstance(update, InformationAscent)),
        memory=NoMemory(),
        update=update,
        average=PolyakRuppert(),
        refresh_epochs=None,
    )
    estep = ConditionalSampling(q, settings.n_draws, proposal, follow, settings.sobol, settings.control, seed)
    params = {"B": np.asarray(place.loadings.B), "C": np.asarray(C)}
    space = {name: Box(leaf - settings.radius, leaf + settings.radius) for name, leaf in params.items()}
    return fit(
        PLN(),
        data if share.alone else Shard(data, share),
        algorithm,
        estep,
        key=seed,
        params=params,
        n_iter=length,
        space=space,
        dtype=dtype,
        progress=progress,
        batch_size=None if whole else batch,
        rows="device" if whole else "host",
        throw=False,
        polish=False,
    )


def _loadings(params: PyTree, dtype: np.dtype) -> Loadings:
    return Loadings(jnp.asarray(params["B"], dtype), jnp.asarray(params["C"], dtype))


def _posterior(design: Design, loadings: Loadings) -> Posterior:
    return jax.tree.map(jnp.asarray, settled(design, loadings))


def of_method(method: str, refinement: Refinement | None) -> tuple[Refinement | None, bool]:
    """What `PLNPCA(method=, refinement=)` asks for: settings, or None for no refinement; and whether it is forced.

    Raises:
        ValueError: an unknown method, or settings that make no sense. TypeError: settings of another kind.
    """
    known = ("auto", "variational", *VARIANTS)
    if method not in known:
        raise ValueError(f"method must be one of {', '.join(map(repr, known))}, not {method!r}")
    if refinement is not None and not isinstance(refinement, Refinement):
        raise TypeError(f"refinement must be a margaux.families.pln.refinement.Refinement, not {type(refinement).__name__}")
    settings = refinement or Refinement()
    if method in VARIANTS:
        settings = settings._replace(variant=method)
    check(settings)
    return (None if method == "variational" else settings), method in VARIANTS
