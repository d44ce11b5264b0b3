"""A fitted nonlinear mixed-effects model as files: tables as CSV, figures as PNG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

#: figures of `NLME.plot`, in the order that one reads them
FIGURES = ("convergence", "fits", "predictions", "residuals", "npde", "vpc", "effects", "pairs", "covariates")


def write(fitted: Any, folder: Path) -> Iterator[str]:
    """Write everything, and say what was written or why a figure has no meaning here.

    `estimates.csv` (with standard errors and intervals), `individual.csv`, `correlations.csv`, `starts.csv`, `fit.txt`;
    for continuous outcomes `residuals.csv`; and a PNG for each of `FIGURES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "estimates": fitted.summary(),
        "individual": fitted.individual_,
        "correlations": fitted.correlations(),
        "starts": fitted.starts_,
    }
    if fitted.model_.outcome.continuous:
        tables["residuals"] = fitted.residuals()
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        table.to_csv(path)
        yield f"saved {path}"
    (folder / "fit.txt").write_text("\n".join(lines(fitted)) + "\n")
    yield f"saved {folder / 'fit.txt'}"
    for name in FIGURES:
        path = folder / f"{name}.png"
        try:
            figure = getattr(fitted.plot, name)()
        except ValueError as error:
            yield f"no {path.name}: {error}"
            continue
        figure.savefig(path, dpi=120)
        plt.close(figure)
        yield f"saved {path}"


def lines(fitted: Any) -> list[str]:
    """The fit in a few sentences."""
    loglik = fitted.loglik_
    shrinkage = ", ".join(f"{name} {100 * value:.0f}%" for name, value in fitted.shrinkage().items())
    return [
        f"{fitted.n_subjects_} subjects, {fitted.n_observations_} observations, {fitted.n_iter_} iterations",
        f"log-likelihood {float(loglik):.3f} (Monte Carlo error {loglik.se:.3f}), -2LL {-2 * float(loglik):.3f}",
        f"AIC {fitted.aic_:.2f}, AICc {fitted.aicc_:.2f}, BIC {fitted.bic_:.2f}, BICc {fitted.bicc_:.2f}",
        f"shrinkage of the conditional modes: {shrinkage or 'no random effects'}",
        fitted.summary().attrs["message"],
    ]
