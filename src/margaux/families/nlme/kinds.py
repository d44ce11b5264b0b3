"""The outputs of a model, such as a concentration and an effect: their labels, and the one that a row is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

#: of a row, the place of its output among the model's
OUTPUT = "place of the output"


def label(value: object) -> str:
    """What an output is called, by a name or a number.

    >>> label(1), label(2.0), label(" cp ")
    ('1', '2', 'cp')
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return f"{value:.15g}" if number else str(value).strip()


def labelled(models: Mapping[Any, Any], what: str) -> tuple[str, ...]:
    """Labels of outputs.

    Raises:
        ValueError: fewer than two, or two that are called the same, or nothing.
    """
    labels = tuple(label(key) for key in models)
    if len(labels) < 2:
        raise ValueError(f"{what} names {len(labels)} outputs, and several are two or more; give the model of one by itself")
    if twice := [name for name in labels if labels.count(name) > 1]:
        raise ValueError(f"{what} names the output {twice[0]} twice; each has a name or a number of its own")
    if "" in labels:
        raise ValueError(f"{what} has an output without a name")
    return labels


def selected(values: Sequence[Any], place: Any) -> Any:
    """The value of the output at a place, elementwise."""
    out = values[0]
    for number, value in enumerate(values[1:], 1):
        out = jnp.where(place == number, value, out)
    return out


def outputs_of(structural: Any) -> tuple[str, ...]:
    """Labels of a structural model's outputs; none of one that has a single output without a name."""
    return getattr(getattr(structural, "function", None), "outputs", ())
