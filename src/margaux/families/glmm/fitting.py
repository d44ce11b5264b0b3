"""How mixed models are fitted: Newton's steps on the exact likelihood where effects can be integrated, on Laplace's otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ...algorithms.newton import LARGEST
from ...algorithms.recipes import lbfgs, newton
from ...answers.fit import Fit
from ...esteps import AbstractEStep, Laplace, Quadrature
from ...fitting import fit as run
from .continuous import Gaussian, Student
from .crude_errors import crude_errors
from .integrated import can_integrate, reduced
from .model import Mixed

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .formula import Design
    from .layout import Layout

#: nodes a dimension by the number of effects a unit
NODES = {1: 15, 2: 11, 3: 7}
#: points of a quadrature over all rows, at most
POINTS = 50_000_000
#: standard deviations of effects at first, on the scale of the predictor, by the size of their columns
SPREAD = 0.5
#: iterations at most
MOST = 200
METHODS = ("auto", "quadrature", "laplace")


class Asked(NamedTuple):
    """Settings of a fit: see `margaux.GLMM`."""

    method: str
    n_nodes: int | None
    n_iter: int
    random_state: int
    dtype: Any
    verbose: bool


class Start(NamedTuple):
    """Where a fit begins.

    Attributes:
        params: the first. scale: sizes of fixed effects that matter (p,). sizes: moderate spreads of each factor's effects.
    """

    params: dict[str, Any]
    scale: np.ndarray
    sizes: dict[str, np.ndarray]


def started(design: Design, response: AbstractResponse, layout: Layout) -> Start:
    """A regression without random effects, and moderate ones beside it."""
    beta = response.start(design.y, design.X, design.offset, design.weights, design.trials)
    dispersion = response.start_dispersion(design.y, design.X @ beta + design.offset, design.trials)
    unit = unit_of(response, dispersion)
    effects, sizes = moderate(design, layout, unit)
    own = {name: np.asarray(value, float) for name, value in dispersion.items()}
    fixed = {"beta": beta} if beta.size else {}
    return Start(fixed | {"dispersion": own} | effects, unit * sensible(design), sizes)


def check_size(design: Design, layout: Layout, start: Start) -> None:
    """Raises: ValueError: there are more parameters than Newton's steps can be taken in."""
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(start.params))
    if count <= LARGEST or "cells" in layout.units:
        return
    levels = {name: len(of) for name, of in design.fixed.recipe.levels.items()}
    name = max(levels, key=levels.__getitem__, default="")
    many = levels.get(name, 0) > LARGEST / 2
    mend = f'"{name}" has {levels[name]} levels: group by it, as (1 | {name})' if many else "leave terms out, or join levels"
    raise ValueError(
        f"the formula makes {count} parameters, {len(design.names)} of them fixed effects, and at most {LARGEST} are fitted "
        f"together; {mend}"
    )


def unit_of(response: AbstractResponse, dispersion: dict[str, Any]) -> float:
    """What predictors are measured in."""
    return float(np.asarray(dispersion["sigma"])) if is_measured(response) else 1.0


def sensible(design: Design) -> np.ndarray:
    """Sizes of fixed effects that matter (p,), where predictors are measured in ones."""
    return 1 / np.maximum(np.sqrt(np.mean(design.X**2, axis=0)), 1e-300)


def moderate(design: Design, layout: Layout, unit: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Parameters of random effects that vary moderately, and their spreads, by factor."""
    params, sizes = {}, {}
    for factor, term in zip(layout.factors, design.terms, strict=True):
        sizes[factor.name] = SPREAD * unit / np.maximum(np.sqrt(np.mean(term.Z**2, axis=0)), 1e-8)
        if term.places is not None:  # a column of Z is a place, which few rows are at
            sizes[factor.name] = np.full(factor.k, SPREAD * unit)
        for name, value in factor.start(sizes[factor.name]).items():
            params.setdefault(name, {})[factor.name] = value
    return params, sizes


def chosen(response: AbstractResponse, layout: Layout, asked: Asked) -> AbstractEStep:
    """The E-step that a layout and a method ask for.

    Raises:
        ValueError: quadrature over more effects than can be integrated.
    """
    width, rows = layout.width, layout.rows.size
    nodes = asked.n_nodes or NODES.get(width, 0)
    affordable = width in NODES and rows * nodes**width <= POINTS
    if asked.method == "quadrature" and not affordable:
        raise ValueError(
            f'method="quadrature" integrates up to {max(NODES)} random effects a group, and here {width} hang together '
            f'({rows:,} rows); use method="laplace" or "auto"'
        )
    if asked.method == "quadrature" or (asked.method == "auto" and affordable and not is_exact(response)):
        return Quadrature(nodes)
    return Laplace()


def approximate(response: AbstractResponse, estep: AbstractEStep | None, n: int, asked: Asked) -> bool:
    """Whether a fit of n units is answered by Laplace's approximation, also where its likelihood could be had by draws: weights
    of all effects of one unit together, as of crossed factors, are too uneven to climb by."""
    return isinstance(estep, Laplace) and (asked.method == "laplace" or is_exact(response) or n == 1)


def is_measured(response: AbstractResponse) -> bool:
    """Whether the predictor is in the units of the response."""
    return isinstance(response, Gaussian | Student) and response.link.name == "identity"


def is_exact(response: AbstractResponse) -> bool:
    """Whether posteriors are Gaussian, so that Laplace's approximation is none."""
    return isinstance(response, Gaussian) and response.link.name == "identity"


def estimate(model: Mixed, layout: Layout, start: Start, asked: Asked) -> Fit:
    """The maximum of the likelihood."""
    solved: Any = model
    estep, units = chosen(model.response, layout, asked), layout.units
    if isinstance(estep, Laplace) and asked.method == "auto" and not is_exact(model.response) and can_integrate(model, layout):
        solved, units, nodes = reduced(model, layout)
        estep = Quadrature(nodes)
    # Many factorisations of thousands of effects are what costs.
    sparse = "cells" in units
    return run(
        solved,
        units,
        lbfgs(sizes=crude_errors(model, layout, start)) if sparse else newton(),
        estep,
        params=start.params,
        space=model.space(start.sizes),
        n_iter=asked.n_iter,
        key=asked.random_state,
        dtype=asked.dtype,
        progress=asked.verbose,
        polish=False if approximate(model.response, estep, len(layout.rows), asked) else None,
        throw=False,
    )
