"""Posterior expectations unit by unit at fixed parameters, from which all inference is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..esteps import MCMC, AbstractEStep, Exact, ImportanceSampling, Noise, Quadrature
from ..esteps.held import PIECES, HeldQuadrature, held
from ..esteps.mcmc import lacks_prior
from ..kernels.base import flat_size
from ..numerics.arrays import taken
from ..numerics.compiling import compiled, shapes_of
from ..numerics.keys import key_of
from ..numerics.ladder import rung
from ..numerics.naming import named_values
from ..numerics.precision import default_dtype, precision, settle
from ..numerics.threads import side_by_side
from ..problem.model import AbstractConjugate, AbstractDiscrete, AbstractLikelihood, AbstractModel, costly
from .spans import by_level, in_order, merged, shared_out

if TYPE_CHECKING:
    from ..engine.share import Share
    from .fit import Fit


#: f(model, params, z, w, batch) of one unit (b = 1), linear in w
UnitIntegrand = Callable[[AbstractModel, PyTree, PyTree, Array, PyTree], PyTree]
#: numbers a block of units may hold at a time, about what stays in a core's cache, and its units at most
BLOCK_NUMBERS, MOST = 500_000, 4096
#: pieces of points by which blocks of units are sized
AT_ONCE = 4
#: units at once whose densities take long, each as long as that of the slowest; and of few that are looked at once more
ALIKE = 8
#: latents a unit up to which blocks are visited side by side: the linear algebra of larger ones has threads of its own
FEW = 20


def reference_estep(fit: Fit, n_draws: int) -> AbstractEStep:
    """A good E-step for inference: enumeration of a discrete latent, importance sampling up to 20 latents a unit, otherwise the
    fit's own chains run for `n_draws` steps.

    Raises:
        ValueError: variational fits, whose draws are not from a posterior.
    """
    problem, estep = fit._model(), fit.estep
    if isinstance(estep, Noise):
        raise ValueError("a variational fit has no posterior draws to take information or likelihoods from")
    if isinstance(problem.model, AbstractDiscrete):
        return estep if isinstance(estep, Exact) else Exact()
    size = latent_size(fit)
    if size <= 20 and not isinstance(problem.model, AbstractLikelihood):
        return ImportanceSampling(n_draws, quasi=True, control_variate=False)
    if isinstance(problem.model, AbstractConjugate):
        return Exact(n_draws)
    if isinstance(estep, MCMC):
        return MCMC(estep.kernel, n_steps=n_draws, n_chains=estep.n_chains)
    return ImportanceSampling(n_draws, quasi=True, control_variate=False)


def latent_size(fit: Fit) -> int:
    """Latents a unit, flattened."""

    def computed() -> int:
        with precision(fit.dtype):
            unit = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), fit.data)
            shapes = shapes_of(fit._model().model.init_latents, key_of(0), fit.params, unit)
            return flat_size(shapes)[0]

    return fit.remembered("latent_size", computed)


class UndefinedDensity(ValueError):
    """A log joint density that is not a number somewhere in the latents' space; minus infinity is one."""

    def __init__(self, unit: int, params: PyTree) -> None:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in named_values(params)[:8])
        super().__init__(
            f"log_joint is NaN (not minus infinity) for unit {unit} at a draw of its latents, with {values}: guard logs of "
            "negative numbers, infinity less infinity and zero over zero there"
        )
        self.unit = unit


def each_unit(
    fit: Fit,
    f: UnitIntegrand,
    estep: AbstractEStep,
    params: PyTree = None,
    key: int = 0,
    width: int = 1,
    keep_chains: bool = True,
    rows: PyTree = None,
    units: np.ndarray | None = None,
    summed: tuple[str, ...] = (),
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Values of f and traced figures for every unit, on a leading axis n; units go through in blocks.

    Args:
        width: numbers a unit holds at a time, which sets the size of blocks.
        keep_chains: start MCMC from the fit's own chains.
        rows: the E-step's rows (n, ...), where they are there already (see `proposals`); of quadratures with a `level`, if grids
            of some units are finer.
        units: ids of those that are visited; all by default. summed: names in the dict that f returns of what is
            summed over units instead.

    Raises:
        UndefinedDensity: a log density is NaN. TypeError: an E-step that lacks the prior of a likelihood.
    """
    problem, data, share = fit._model(), fit.data, fit.share
    if (trouble := lacks_prior(problem.model, estep)) is not None:
        raise TypeError(trouble)
    # Sums over units and determinants are taken in float64 where the backend has it.
    dtype = default_dtype(None)
    asked = np.arange(problem.n) if units is None else np.asarray(units)
    if isinstance(rows, dict) and "level" in rows:
        return _each_by_level(fit, f, estep, params, width, rows, asked, summed)
    chosen, before = ours(share, asked)
    given = fit.params if params is None else params
    with precision(dtype):
        params = as_numpy(given, dtype)
        if rows is not None:
            estep, width = _in_pieces(estep, latent_size(fit), width)
        model, estep = settle((problem.model, estep), dtype)
        order = alike(problem.model, data, chosen, before)
        chosen = chosen if order is None else chosen[order]
        size = min(_units_at_once(problem.n, width), most_at_once(problem.model))
        lanes = shared_out(estep, rows, chosen, size) if costly(problem.model) and isinstance(estep, HeldQuadrature) else None
        count, parts = (len(chosen), 1) if lanes is None else (len(lanes.units), lanes.parts)
        chains = keep_chains and fit.rows is not None and _of_one_kind(estep, fit.estep)

        def visit(first: int) -> tuple[PyTree, dict[str, np.ndarray], dict[str, np.ndarray]]:
            turn = np.minimum(np.arange(first, first + size), count - 1)
            ids = chosen[turn if lanes is None else lanes.units[turn]]
            block = as_numpy(data, dtype, ids - before)
            own: Any = as_numpy(jax.tree.map(lambda leaf: leaf[0], fit.rows), dtype, ids - before) if chains else None
            if rows is not None:
                own = as_numpy(rows, dtype, ids)
            if lanes is not None:
                own |= {"span": lanes.span[turn]}
            value, info = _block(model, estep, params, own, block, ids, key_of(key), f)
            keep = min(size, count - first)
            value = jax.tree.map(lambda leaf: np.asarray(leaf)[:keep], value)
            totals = {name: value.pop(name).sum(axis=0) for name in summed if parts == 1}
            return value, {name: np.asarray(figure)[:keep] for name, figure in info.items()}, totals

        found = side_by_side(visit, range(0, count, size), dtype, None if latent_size(fit) <= FEW else 1)
    values, infos, sums = zip(*found, strict=True)
    joined = jax.tree.map(lambda *leaf: np.concatenate(leaf), *values)
    figures = {name: np.concatenate([info[name] for info in infos]) for name in infos[0]}
    totals = {name: sum(part[name] for part in sums) for name in summed if parts == 1}
    if parts > 1:
        joined, figures["log_marginal"] = merged(joined, figures["log_marginal"], parts)
        totals = {name: joined.pop(name).sum(axis=0) for name in summed}
    if order is not None:
        joined, figures = jax.tree.map(lambda leaf: leaf[np.argsort(order)], (joined, figures))
    if share is not None:
        joined, figures, totals = of_all(share, asked, joined, figures, totals)
    undefined = np.isnan(figures.get("log_marginal", np.zeros(1)))
    if undefined.any():
        raise UndefinedDensity(int(asked[undefined.argmax()]), given)
    return joined | totals if summed else joined, figures


def _each_by_level(
    fit: Fit, f: UnitIntegrand, estep: Any, params: PyTree, width: int, rows: dict, asked: np.ndarray, summed: tuple[str, ...]
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """`each_unit` where units have grids of their own."""
    own = {name: leaf for name, leaf in rows.items() if name != "level"}
    groups = by_level(estep, rows, asked)
    found = [each_unit(fit, f, grid, params, width=width, rows=own, units=asked[at], summed=summed) for at, grid in groups]
    totals = {name: sum(value.pop(name) for value, _ in found) for name in summed}
    joined, figures = in_order(found, [at for at, _ in groups])
    return joined | totals if summed else joined, figures


def _in_pieces(estep: AbstractEStep, d: int, width: int) -> tuple[AbstractEStep, int]:
    """A held quadrature piece by piece, and numbers a unit holds at a time: so many times those of a few pieces as a grid of any
    size has of its points, so that all find one program. Others as they are."""
    if not (isinstance(estep, Quadrature) and estep.held and d in PIECES):
        return estep, width
    numbers, points = PIECES[d][0] * (d + 2), estep.n_nodes**d
    return held(estep, d), AT_ONCE * numbers * max(round(width / (points * (d + 2))), 1)


def ours(share: Share | None, asked: np.ndarray) -> tuple[np.ndarray, int]:
    """Of the units that are asked for, those of this process, or its first if there is none; and how many come before its own."""
    if share is None:
        return asked, 0
    own = asked[share.owners(asked) == share.index]
    return own if len(own) else np.array([share.first]), share.before


def most_at_once(model: AbstractModel) -> int:
    """Units at once."""
    return ALIKE if costly(model) else MOST


def alike(model: AbstractModel, data: PyTree, chosen: np.ndarray, before: int) -> np.ndarray | None:
    """The order of units by how long their densities take; None where all take alike."""
    if not costly(model):
        return None
    slow: Any = model
    return np.argsort(np.asarray(slow.lengths(jax.tree.map(np.asarray, data)))[chosen - before], kind="stable")


def of_all(share: Share, asked: np.ndarray, joined: PyTree, figures: dict, totals: dict) -> tuple[PyTree, dict, dict]:
    """What was asked for, from what the processes have of it."""
    count = int(np.sum(share.owners(asked) == share.index))
    joined, figures = share.gathered(jax.tree.map(lambda leaf: leaf[:count], (joined, figures)), asked)
    return joined, figures, share.summed(jax.tree.map(lambda total: total * (count > 0), totals))


def _units_at_once(n: int, width: int) -> int:
    """Of even blocks, which are those of data of similar size too."""
    total = rung(n)
    most = int(np.clip(BLOCK_NUMBERS // max(width, 1), 1, min(total, MOST)))
    return rung(-(-total // -(-total // most)))


def as_numpy(tree: PyTree, dtype: np.dtype, ids: np.ndarray | None = None) -> PyTree:
    """Leaves, or their rows, as arrays of NumPy, floating ones of the given dtype: programs take them as they are, and what is
    small is made in a fiftieth of the time of arrays of jax."""

    def one(leaf: Array) -> np.ndarray:
        part = np.asarray(leaf) if ids is None else np.asarray(taken(leaf, ids))
        return np.asarray(part, dtype if jnp.issubdtype(part.dtype, jnp.floating) else None)

    return jax.tree.map(one, tree)


def _of_one_kind(estep: AbstractEStep, other: object) -> bool:
    """Whether chains of one E-step can go on by another: what a kernel has adapted is its own."""
    if not (isinstance(estep, MCMC) and isinstance(other, MCMC)):
        return False
    return type(estep.kernel) is type(other.kernel) and estep.n_chains == other.n_chains


def block_ahead(
    model: AbstractModel, estep: AbstractEStep, params: PyTree, data: PyTree, row: PyTree, f: UnitIntegrand, width: int
) -> None:
    """Have the program of `each_unit` at such arguments compiled while a fit goes on; `row` is one of the E-step's."""
    dtype, n = default_dtype(None), jax.tree.leaves(data)[0].shape[0]
    estep, width = _in_pieces(estep, row["mean"].shape[-1], width)
    with precision(dtype):
        ids = np.zeros(min(_units_at_once(n, width), most_at_once(model)), int)
        block, rows = as_numpy(data, dtype, ids), as_numpy(jax.tree.map(lambda leaf: leaf[None], row), dtype, ids)
        if costly(model) and isinstance(estep, HeldQuadrature):
            rows |= {"span": np.zeros((len(ids), 2), np.int32)}
        model, estep = settle((model, estep), dtype)
        _block.ahead(model, estep, as_numpy(params, dtype), rows, block, ids, key_of(0), f)


@compiled
def _block(model, estep, params, rows, data, ids, key, f):
    def unit(i, row, y):
        at = jax.random.fold_in(key, i)
        row = estep.init(jax.random.fold_in(at, 0), model, params, y) if row is None else row
        shapes = jax.eval_shape(model.init_latents, key, params, y)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def one(tree):
            return jax.tree.map(lambda leaf: leaf[None], tree)

        noise, batch = one(estep.noise(jax.random.fold_in(at, 1), zeros)), one(y)
        value, _, info = estep.expect(lambda z, w: f(model, params, z, w, batch), noise, model, params, one(row), batch, 1)
        return value, {name: jnp.sum(figure) for name, figure in info.items()}

    if rows is None:
        return jax.vmap(lambda i, y: unit(i, None, y))(ids, data)
    return jax.vmap(unit)(ids, rows, data)


def nothing(model: AbstractModel, params: PyTree, z: PyTree, w: Array, batch: PyTree) -> Array:
    """No integrand: for the traced figures alone."""
    return jnp.sum(w) * 0


def where_undefined(fit: Any) -> str:
    """The unit and the parameters at which a log density was not a number; "" where it is not met again."""
    at = int(np.isnan(fit.trace["log_marginal"]).any(axis=1).argmax()) - 1
    candidates = [fit.params]
    if "params" in fit.trace and at >= 0:
        leaves, structure = jax.tree.flatten(fit.params)
        parts = np.split(fit.trace["params"][at, 0], np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        candidates.insert(0, structure.unflatten(shaped))
    for params in candidates:
        try:
            each_unit(fit, nothing, fit.estep, params)
        except UndefinedDensity as error:
            return str(error)
    return ""
