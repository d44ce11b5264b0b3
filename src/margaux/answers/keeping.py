"""Fitted estimators in files, with everything that they need to answer."""

from __future__ import annotations

import os
import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle

#: how such a file begins; then a line with the versions that wrote it, then the estimator
MAGIC = b"margaux estimator\n"


def write(estimator: Any, path: str | Path) -> None:
    """Save an estimator by pickle, functions of the user's included; a file that was there stays until the new one is whole.

    Raises:
        ValueError: something in it cannot be saved. OSError: the file cannot be written.
    """
    path = Path(path)
    try:
        body = cloudpickle.dumps(estimator)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"this {type(estimator).__name__} holds what cannot be saved: {error}") from error
    beside = path.with_name(f"{path.name}.tmp")
    try:
        beside.write_bytes(MAGIC + f"margaux {version('margaux')}, jax {version('jax')}\n".encode() + body)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def is_estimator(path: str | Path) -> bool:
    """Whether a file holds an estimator."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: str | Path) -> Any:
    """The estimator of a file.

    Raises:
        ValueError: it was written by versions that these cannot read.
    """
    with open(path, "rb") as file:
        file.readline()
        wrote = file.readline().decode().strip()
        try:
            return cloudpickle.load(file)
        except Exception as error:  # whatever another version's classes make of it
            own = f"margaux {version('margaux')}, jax {version('jax')}"
            raise ValueError(f"{path} was written by {wrote}, and {own} cannot read it: {error!r}") from error
