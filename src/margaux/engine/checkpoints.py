"""A fit under way in a file: what tells that it is the same fit, and how another process goes on."""

from __future__ import annotations

import functools
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..algorithms.base import Visit
from . import fingerprint, generations, storage
from .batches import drawn_by
from .loop import Carry, draw_noise, latent_struct, one_iteration, settings_of
from .share import together
from .traces import joined

if TYPE_CHECKING:
    from jaxtyping import Array

    from .job import Job


#: the code of one iteration: it differs with anything that it is made of, and so is named where nothing else is
ITERATION = "code of an iteration"

#: differences named in a refusal, at most
NAMED = 6


def save(job: Job, path: Path) -> None:
    """Write the state of a fit between two chunks."""
    trace = {f"trace/{name}": figures for name, figures in joined(job.traces).items()}
    header = {
        "kind": "checkpoint",
        "k": job.k,
        "n_iter": job.n_iter,
        "burn_in": job.burn_in,
        "share": float(job.average.burn_in),
        "timings": job.timings,
        "signature": job.signature,
        "versions": _versions(),
    }
    state, rows = _state(job)
    common = storage.flatten("state", state) | trace
    generations.write(path, header, common, storage.flatten("rows", rows), job.share)


def restore(job: Job, path: Path) -> None:
    """Take up a fit where a checkpoint of it left off. More iterations than it was begun with may be asked for.

    Raises:
        ValueError: no checkpoint, one of another fit (what differs is named), or of more iterations than are asked for.
    """
    _ = job.signature  # which the processes work out with each other
    with together(job.share is not None):
        header, arrays = generations.read(path)
        _check_same_fit(job, path, header)
    generations.check_agreed(path, header, job.share)
    with together(job.share is not None):
        _take(job, path, header, arrays)
    if header["k"] == header["n_iter"]:
        job.refresh()  # which the last iteration of a fit leaves out


def _check_same_fit(job: Job, path: Path, header: dict[str, Any]) -> None:
    """Have the job take up the burn-in of a checkpoint that it can go on from.

    Raises:
        ValueError: as `restore`.
    """
    if header.get("kind") != "checkpoint":
        raise ValueError(f"{path} is a {header.get('kind')}, not a checkpoint; pass another path")
    if "versions" not in header:
        raise ValueError(f"the checkpoint {path} is of an earlier margaux, and does not say which fit it is of; delete it")
    differ = _differences(header["signature"], job.signature)
    if header["share"] != float(job.average.burn_in) and not _same_burn_in(job, header):
        differ.insert(0, f"the burn-in is {header['burn_in']} iterations there and {job.burn_in} here")
    if differ:
        told = "; ".join(differ[:NAMED]) + (f"; and {len(differ) - NAMED} more" if len(differ) > NAMED else "")
        if any("code" in one for one in differ) and header["versions"] != _versions():
            there, here = (", ".join(f"{k} {v}" for k, v in names.items()) for names in (header["versions"], _versions()))
            told += f" (it was written by {there}, and this is {here}, which alone may change code)"
        raise ValueError(f"the checkpoint {path} belongs to another fit: {told}. Delete it or pass another path")
    if header["k"] > job.n_iter:
        raise ValueError(
            f"the checkpoint {path} is {header['k']} iterations on, beyond n_iter = {job.n_iter}; pass n_iter={header['k']} or "
            "more, or another path"
        )
    if not _same_burn_in(job, header):
        warnings.warn(
            f"the fit goes on from iteration {header['k']} of a checkpoint, and averages its iterates from iteration "
            f"{header['burn_in']} on as it began: a burn-in of {header['share']:g} of n_iter = {job.n_iter} would be "
            f"{job.burn_in}. The result is that of a burn-in of {header['burn_in']} iterations",
            stacklevel=5,
        )
        job.burn_in = header["burn_in"]
        job.settings = settings_of(job.parts, job.burn_in)


def check_path(path: Path) -> None:
    """Raises: ValueError: a checkpoint cannot be written there."""
    if path.is_dir():
        raise ValueError(f"checkpoint {path} is a folder; pass the path of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"no checkpoint can be written in {path.parent}: {error.strerror or error}; pass another path"
        ) from error


def signature(job: Job) -> dict[str, str]:
    """Everything that decides what the iterates are, by name: data, starts, settings with their values, and code."""
    problem, algorithm, estep, average = job.parts
    out = {
        "key": str(np.asarray(jax.random.key_data(job.key)).tolist()),
        "units": str(job.n),
        "dtype": str(job.dtype),
        "batch_size": str(job.batch_size),
        "sampling": drawn_by(job.n, job.reshuffled),
        "runs": str(job.runs),
    }
    if job.starts is None:
        out |= fingerprint.of_data(job.params0, "params")
        out |= {"spread": str(job.spread)} if job.runs else {}
    else:
        out |= fingerprint.of_data(job.starts, "runs")
    out |= fingerprint.of_units(job.raw_data, job.share)
    for name, part in (
        ("model", problem.model),
        ("algorithm", algorithm),
        ("estep", estep),
        ("average", average),
        ("space", problem.space),
        ("penalty", problem.penalty),
    ):
        out |= fingerprint.of_settings(part, name)
    # The algorithm's own average counts where none is given, and a burn-in in iterations: see `restore`.
    out = {name: value for name, value in out.items() if not name.startswith(("algorithm.average", "average.burn_in"))}
    return out | _code(job)


def _code(job: Job) -> dict[str, str]:
    """Jaxprs of what the model says of one unit, and of one whole iteration of one run."""
    problem = job.settings.problem
    model: Any = problem.model

    def lone(leaf):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    params, state, average = jax.tree.map(lone, (job.chunks.carry.params, job.chunks.carry.state, job.chunks.carry.average))
    b = job.batch_size or job.n
    batch = jax.tree.map(functools.partial(_batch, b, job.dtype), job.raw_data)
    unit, latents = jax.tree.map(lone, batch), latent_struct(problem, params, batch)
    key, zero = jax.eval_shape(lambda key: key, job.key), jax.ShapeDtypeStruct((), jnp.int32)

    out = {}
    statistics = [("suffstats", (latents, unit)), ("surrogate", (params, latents, unit))]
    for name, args in [
        ("log_joint", (params, latents, unit)),
        ("init_latents", (key, params, unit)),
        ("sample_posterior", (key, params, unit)),
        ("support", (unit,)),
        *statistics,
    ]:
        if hasattr(model, name):
            out[f"code of the model ({name})"] = _of_method(name, model, *args)
    for name, args in statistics:
        if hasattr(model, name) and hasattr(model, "m_step"):
            mean = jax.eval_shape(getattr(model, name), *args)
            out["code of the model (m_step)"] = _of_method("m_step", model, mean)

    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((b, *leaf.shape[1:]), leaf.dtype), job.chunks.store.tree)

    def iteration(settings, key, carry, rows, batch, k, ids):
        noise = draw_noise(settings, key, latents, k, ids)
        return one_iteration(settings, carry, Visit(rows, batch, noise, key, k))

    ids = jax.ShapeDtypeStruct((b,), jnp.int32)
    carry = Carry(params, state, average, ())
    out[ITERATION] = fingerprint.of_function(iteration, job.settings, key, carry, rows, batch, zero, ids)
    return out


def _of_method(name: str, model: Any, *args: Any) -> str:
    return fingerprint.of_function(lambda model, *args: getattr(model, name)(*args), model, *args)


def _batch(b: int, dtype: np.dtype, leaf: Array | np.ndarray) -> Any:
    """What a leaf of the data is to an iteration."""
    kind = dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct((b, *leaf.shape[1:]), kind)


def _differences(there: dict[str, str], here: dict[str, str]) -> list[str]:
    """A sentence for each name whose values differ; of what lies within another that differs there is none."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    if names != [ITERATION]:
        names = [name for name in names if name != ITERATION]
    return [_sentence(name, there.get(name), here.get(name)) for name in names]


def _sentence(name: str, there: str | None, here: str | None) -> str:
    if name == ITERATION:
        return f"the {name} is another (of the algorithm, the E-step, an optimiser or a schedule)"
    if name.startswith("code"):
        return f"the {name} is another, or a constant in it"
    head, _, rest = name.partition(".")
    what = {"data": "the data", "params": "the starting values"}.get(head)
    what = name if what is None else f"{what} {rest}".strip()
    was, now = ("nothing" if text is None else text.partition(" #")[0] for text in (there, here))
    return f"{what} holds other numbers" if was == now else f"{what} is {was} there and {now} here"


def _same_burn_in(job: Job, header: dict[str, Any]) -> bool:
    """Whether both burn-ins give what has been computed: they are equal, or neither is over."""
    return header["burn_in"] == job.burn_in or header["k"] <= min(header["burn_in"], job.burn_in)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("margaux", "jax")}


def _state(job: Job) -> tuple[PyTree, PyTree]:
    """Everything a later process needs to go on; the rows apart, flat over runs and units."""
    carry = job.chunks.carry
    return (carry.params, carry.state, carry.average), job.chunks.store.tree


def _take(job: Job, path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """The state of a file in place of the job's own."""
    own, rows = _state(job)
    loaded = storage.unflatten("state", own, arrays)
    own, job.chunks.carry = None, Carry(None, None, None, job.chunks.carry.rows)  # what was begun with makes room
    moved = jax.tree.map(jax.device_put, loaded)
    job.traces = [{name[6:]: value for name, value in arrays.items() if name.startswith("trace/")}]
    del loaded, arrays
    kind = type(job.chunks.store)
    leaves, structure = jax.tree.flatten(rows)
    # Written part by part over the rows that are there: there is no second table in memory.
    for i, leaf in enumerate(leaves):
        one = kind(leaf)
        for ids, part in generations.read_rows(path, header, f"rows/{i}", leaf, len(job.keys), job.n, job.share):
            one = one.put(ids, part)
        leaves[i] = one.tree
    if job.share is not None:
        moved = job.share.here(moved)
    job.chunks.keep(kind(jax.tree.unflatten(structure, leaves)))
    job.chunks.carry = Carry(*moved, rows=job.chunks.carry.rows)
    job.k, job.timings = header["k"], header["timings"]
