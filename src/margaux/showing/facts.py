"""What was fitted: the model, the sizes of the data, the algorithm, the E-step, iterations and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..numerics.naming import path_name
from .page import Facts, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import PyTree

    from ..answers.fit import Fit


#: arrays of the data that are named
ARRAYS = 12


def sentence(thing: object) -> str:
    """The first sentence of the docstring of the class of a thing; "" where it has none of its own."""
    doc = type(thing).__dict__.get("__doc__") or ""
    first = " ".join(doc.strip().split("\n\n")[0].split())
    own = first.startswith(f"{type(thing).__name__}(")  # what dataclasses write where there is nothing
    return "" if own or not first else first.split(". ")[0].rstrip(".").replace("`", "") + "."


def sizes(data: PyTree) -> str:
    """Names and shapes of the arrays of a pytree.

    >>> sizes({"y": np.zeros((3, 2)), "n": np.zeros(3)})
    'n (3), y (3 x 2)'
    """
    leaves = jax.tree_util.tree_flatten_with_path(data)[0]
    shapes = [f"{path_name(path) or 'array'} ({' x '.join(map(str, np.shape(leaf))) or 'scalar'})" for path, leaf in leaves]
    return listed(shapes, ARRAYS)


def duration(seconds: float) -> str:
    """A time for a reader.

    >>> duration(0.123), duration(75.2), duration(7300)
    ('0.12 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {seconds % 60:.0f} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def facts(*pairs: tuple[str, Any]) -> Facts:
    """Pairs whose value is there."""
    return Facts(tuple((name, str(value)) for name, value in pairs if value not in (None, "")))


def model_of(fit: Fit) -> str:
    """The name of the model of a fit, by its class or by what the fit says of itself."""
    return type(fit.problem.model).__name__ if fit.problem is not None else fit.description.split(":")[0]


def counted(names: Sequence[str]) -> str:
    """How many names, and the first of them.

    >>> counted(["mu", "tau"])
    '2: mu, tau'
    """
    return f"{len(names):,}: {listed(list(names), 10)}"


def running(fit: Fit, burned: str = "") -> list[tuple[str, Any]]:
    """Pairs about how a fit ran: algorithm, E-step, iterations, runs, precision, time."""
    how = fit.description.split(": ", 1)[-1].rsplit(", ", 1)
    runs = len(jax.tree.leaves(fit.run_params)[0]) if jax.tree.leaves(fit.run_params) else 1
    iterations = f"{fit.n_iter:,}"
    if 0 < fit.averaged_from < fit.n_iter and fit.trace:
        iterations += f", of which those from {fit.averaged_from + 1:,} on are averaged"
    seconds = fit.timings
    total = sum(value for value in seconds.values() if np.isfinite(value))
    time = duration(total) if total else ""
    if time and "compile" in seconds:
        time += f", of which {duration(seconds['compile'])} for the first iterations with their compilation"
    return [
        ("Algorithm", how[0]),
        ("E-step", estep(fit) or (how[1] if len(how) > 1 else "")),
        ("Iterations", iterations + burned),
        ("Parallel runs", runs if runs > 1 else None),
        ("Precision", str(fit.dtype)),
        ("Time", time),
    ]


def estep(fit: Fit) -> str:
    """The E-step in words: its class with its whole numbers, and the kernel of chains."""
    one = fit.estep
    if one is None:
        return ""
    told = [type(one).__name__]
    kernel = getattr(one, "kernel", None)
    if kernel is not None:
        told.append(f"kernel {type(kernel).__name__}")
    for name, noun, each in (
        ("n_chains", "chain", "a unit"),
        ("n_steps", "transition", "an iteration"),
        ("n_draws", "draw", "a unit"),
        ("n_nodes", "node", "a dimension"),
    ):
        value = getattr(one, name, None)
        if isinstance(value, int | np.integer):
            told.append(f"{value:,} {noun}{'s' if value != 1 else ''} {each}")
    return ", ".join(told)
