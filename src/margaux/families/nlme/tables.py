"""Tables under the names and headings of NONMEM and Monolix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...numerics.precision import precision
from . import answers, by_occasion
from .conditional import conditional_residuals
from .residuals import check_continuous, residuals

if TYPE_CHECKING:
    from .estimator import NLME


def write(fitted: NLME, folder: Path, n_simulations: int, key: int) -> list[Path]:
    """See `NLME.tables`."""
    check_continuous(fitted, "tables")
    made = {
        "sdtab.csv": (observations(fitted, n_simulations, key), "NA"),
        "patab.csv": (individuals(fitted), "NA"),
        "populationParameters.txt": (population(fitted), "nan"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (frame, missing) in made.items():
        frame.to_csv(folder / name, index=False, na_rep=missing)
    return [folder / name for name in made]


def observations(fitted: NLME, n_simulations: int, key: int) -> pd.DataFrame:
    """A row an observation, in the order of the data."""
    frame, roles = residuals(fitted, n_simulations, key), fitted.data_.roles
    out = {
        "ID": frame[roles["id"]],
        "TIME": frame[roles["time"]] if "time" in roles else np.nan,
        "DV": frame[roles["y"]],
        "PRED": frame["population"],
        "IPRED": frame["individual"],
        "IWRES": frame["iwres"],
        "CWRES": conditional_residuals(fitted),
        "NPDE": frame["npde"],
    }
    if "output" in roles:
        out |= {"DVID": frame[roles["output"]]}
    return pd.DataFrame(out)


def individuals(fitted: NLME) -> pd.DataFrame:
    """A row a subject, or an occasion where parameters change between them."""
    model, own = fitted.model_, fitted.individual_
    out = pd.DataFrame({"ID": own.index})
    out = out.assign(**{name: own[f"mode_{name}"].to_numpy() for name in model.names})
    out = out.assign(**{f"ETA_{name}": eta.to_numpy() for name, eta in answers.effects(fitted).items()})
    if not model.changing:
        return out
    each = fitted.by_occasion_
    subjects, labels = (each.index.get_level_values(level) for level in (0, 1))
    out = out.set_index("ID").loc[subjects].reset_index(names="ID")
    out.insert(1, "OCC", labels)
    out = out.assign(**{name: each[f"mode_{name}"].to_numpy() for name in (model.names[j] for j in model.changing)})
    if not model.varying:
        return out
    kappa = by_occasion.modes(fitted).loc[each.index]
    return out.assign(**{f"ETA_{name}_OCC": kappa[name].to_numpy() for name in kappa.columns})


def population(fitted: NLME) -> pd.DataFrame:
    r"""A row a parameter: standard deviations and correlations in place of variances and covariances, by the delta method."""
    with precision(np.dtype(float)):
        summary, covariance = fitted.summary(), fitted.cov_params().to_numpy(float)
    values, jacobian = _transformed(fitted.params_, fitted.model_.names)
    with np.errstate(all="ignore"):
        # What a parameter does not depend on does not make its error unknown.
        parts = [(row[row != 0], covariance[np.ix_(row != 0, row != 0)]) for row in jacobian]
        se = np.asarray([np.sqrt(row @ own @ row) if len(row) else np.nan for row, own in parts])
        rse = 100 * se / np.abs(list(values.values()))
    effects = [name.startswith("beta_") for name in values]
    frame = pd.DataFrame({"parameter": list(values), "value": list(values.values()), "se_sa": se, "rse_sa": rse})
    frame["pvalues_sa"] = np.where(effects, summary["p"].to_numpy(float), np.nan)
    return frame


def _transformed(params: dict[str, float], typical: list[str]) -> tuple[dict[str, float], np.ndarray]:
    """Parameters under the names of Monolix, and their derivatives in those of the fit (m, m)."""
    at = {name: place for place, name in enumerate(params)}
    jacobian = np.zeros((len(params), len(params)))
    out: dict[str, float] = {}
    for name, value in params.items():
        row: dict[str, float] = {name: 1.0}
        if name.startswith(("omega2_", "gamma2_")):
            kind, _, own = name.partition("2_")
            named, found = f"{kind}_{own}", float(np.sqrt(value))
            row = {name: 1 / (2 * found) if found > 0 else np.nan}
        elif name.startswith("cov_"):
            first, second = _pair(name, params)
            with np.errstate(all="ignore"):
                found = float(value / np.sqrt(params[first] * params[second]))
                row = {name: found / value if value else float(1 / np.sqrt(params[first] * params[second]))}
                row |= {one: -found / (2 * params[one]) for one in (first, second)}
            named = f"corr_{name.removeprefix('cov_')}"
        else:
            named, found = f"{name}_pop" if name in typical else name, float(value)
        for one, slope in row.items():
            jacobian[at[name], at[one]] = slope
        out[named] = found
    return out, jacobian


def _pair(name: str, params: dict[str, float]) -> tuple[str, str]:
    """The variances of a covariance."""
    rest = name.removeprefix("cov_")
    for cut in (place for place, letter in enumerate(rest) if letter == "_"):
        first, second = f"omega2_{rest[:cut]}", f"omega2_{rest[cut + 1 :]}"
        if first in params and second in params:
            return first, second
    raise KeyError(name)
