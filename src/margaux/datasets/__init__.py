"""Data that ship with margaux, and loaders of images that do not; sources and licences are in SOURCES.md."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pandas as pd

from .images import load_cifar10, load_digits, load_mnist

__all__ = ["list_datasets", "load_cifar10", "load_digits", "load_mnist", "load_theophylline", "load_wisconsin"]


def _read(name: str) -> pd.DataFrame:
    with resources.as_file(resources.files("margaux.datasets") / f"{name}.csv") as path:
        return pd.read_csv(path)


def load_wisconsin(return_X_y: bool = False) -> Any:
    """The original Wisconsin breast cancer data: 683 rows, nine integer scores from 1 to 10, y = 1 malignant.

    V1 clump thickness, V2 uniformity of cell size, V3 of cell shape, V4 marginal adhesion, V5 single
    epithelial cell size, V6 bare nuclei, V7 bland chromatin, V8 normal nucleoli, V9 mitoses.

    Args:
        return_X_y: give (X, y), a float array (683, 9) and an integer one, in place of the frame.

    >>> load_wisconsin().shape
    (683, 10)
    """
    frame = _read("wisconsin")
    if not return_X_y:
        return frame
    return frame.drop(columns="y").to_numpy(float), frame["y"].to_numpy(int)


def load_theophylline(drop_time0: bool = True) -> pd.DataFrame:
    """Theophylline pharmacokinetics: 12 subjects after one oral dose.

    Columns: Id, Dose (mg), Time (h), Concentration (mg/L), Weight (kg).

    Args:
        drop_time0: leave out the measurements at time zero (120 rows remain of 132), where the model is exactly zero.

    >>> load_theophylline().shape
    (120, 5)
    """
    frame = _read("theophylline")
    frame["Dose"] = frame["DosePerKg"] * frame["Weight"]
    if drop_time0:
        frame = frame.query("Time > 0")
    return frame.filter(["Id", "Dose", "Time", "Concentration", "Weight"]).reset_index(drop=True)


def list_datasets() -> pd.DataFrame:
    """What ships: name, rows, what it is, licence."""
    rows = [
        ("wisconsin", len(_read("wisconsin")), "breast cancer cytology: nine scores, malignant or not", "CC BY 4.0"),
        ("theophylline", len(_read("theophylline")), "concentrations of 12 subjects after an oral dose", "GPL-2 | GPL-3"),
    ]
    return pd.DataFrame(rows, columns=pd.Index(["name", "rows", "description", "licence"])).set_index("name")
