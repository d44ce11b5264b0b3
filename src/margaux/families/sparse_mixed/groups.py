"""Checks of grouped two-class data, each with a sentence that says where to look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from ...tables.kinds import Column


def group_labels(groups: Column, frame: object) -> np.ndarray:
    """Group labels: a column of the frame by name, or an array."""
    if isinstance(groups, str):
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f'groups is the name "{groups}": names need a formula and its frame; pass an array of labels')
        if groups not in frame.columns:
            raise ValueError(f'groups: no column is called "{groups}"; they are {", ".join(map(str, frame.columns))}')
        groups = frame[groups]
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise ValueError(f"groups must hold one label a row, got shape {labels.shape}")
    missing = np.flatnonzero(pd.isna(labels))
    if missing.size:
        raise ValueError(f"groups is missing at row {missing[0]} ({missing.size} in all); drop those rows or give them a group")
    return labels


def check_length(values: np.ndarray, rows: int, name: str = "groups") -> None:
    """One entry a row of X."""
    if len(values) != rows:
        raise ValueError(f"{name} has {len(values)} entries and X {rows} rows; they must agree")


def two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes in order and their codes 0 and 1."""
    missing = np.flatnonzero(pd.isna(y))
    if missing.size:
        raise ValueError(f"y is missing at row {missing[0]} ({missing.size} in all); drop those rows")
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        shown = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
        raise ValueError(f"y must hold two classes; it holds {len(classes)}: {shown}")
    return classes, codes


def check_design(X: np.ndarray, names: list[str]) -> None:
    """Finite columns, none of them constant."""
    bad = np.argwhere(~np.isfinite(X))
    if len(bad):
        i, j = bad[0]
        raise ValueError(f'X holds {X[i, j]} at row {i}, column "{names[j]}" ({len(bad)} such in all); drop or impute it')
    constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
    if constant.size:
        first = ", ".join(f'"{names[j]}"' for j in constant[:3]) + (", ..." if constant.size > 3 else "")
        raise ValueError(f"X has columns of one value only: {first}; drop them, and use fit_intercept=True for an intercept")
