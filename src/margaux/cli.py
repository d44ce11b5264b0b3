"""The command line: `margaux demo`, `margaux fit`, `margaux datasets`, `margaux reproduce`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .missing.cli import fit_missing_logistic
from .nlme.cli import fit_nlme
from .pln.cli import fit_pln_pca
from .variational.cli import fit_bayesian_classifier, fit_bayesian_regressor

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Maximum marginal likelihood for latent-variable models.")

fits = typer.Typer(no_args_is_help=True, help="Fit a model to a file.")
app.add_typer(fits, name="fit")
fits.command("nlme")(fit_nlme)
fits.command("missing-logistic")(fit_missing_logistic)
fits.command("pln-pca")(fit_pln_pca)
fits.command("bayesian-classifier")(fit_bayesian_classifier)
fits.command("bayesian-regressor")(fit_bayesian_regressor)


@app.command()
def datasets() -> None:
    """List the data sets that ship with margaux."""
    from .datasets import list_datasets

    typer.echo(list_datasets().to_string())


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("demo-output")) -> None:
    """Fit three real data sets, a table with holes and a table of counts, print the results beside what is known, and save
    figures."""
    from .examples import wisconsin

    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    fit = wisconsin.fit()
    fitted = time.perf_counter() - began
    _report("Wisconsin breast cancer: empirical-Bayes logistic regression by SOUL", fit, wisconsin, fitted)
    for kind in ("trace", "estimates"):
        path = out / f"wisconsin_{kind}.png"
        getattr(fit.plot, kind)(truth=wisconsin.EXACT).savefig(path, dpi=120)
        typer.echo(f"saved {path}")
    _pharmacokinetics(out / "theophylline")
    _table_with_holes(out / "measurements")
    _counts(out / "abundances")
    _network(out / "digits")


def _pharmacokinetics(out: Path) -> None:
    from .datasets import load_theophylline
    from .estimators.nlme import NLME
    from .examples.theophylline import EXACT, EXACT_LOGLIK, EXACT_SE
    from .nlme import Individual, LogNormal, oral1cpt
    from .nlme.cli import show
    from .nlme.output import lines, write

    began = time.perf_counter()
    individual: dict[str, Individual] = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(2.0)}
    fitted = NLME(structural=oral1cpt, individual=individual)
    fitted.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    seconds = time.perf_counter() - began
    exact = {name: (EXACT[name], EXACT_SE[name]) for name in EXACT}
    show(fitted, "Theophylline: one-compartment pharmacokinetics by SAEM", exact)
    typer.echo(f"exact log-likelihood {EXACT_LOGLIK:.3f}; fitted from five starts in {seconds:.1f} s, compilation included")
    for line in [*lines(fitted), *write(fitted, out)]:
        typer.echo(line)


def _table_with_holes(out: Path) -> None:
    from .estimators.missing import MissingLogistic
    from .examples.measurements import EXACT, EXACT_LOGLIK, EXACT_SE, table
    from .missing.cli import lines, show, write

    data = table()
    began = time.perf_counter()
    fitted = MissingLogistic().fit("y ~ age + pressure + pulse", data)
    seconds = time.perf_counter() - began
    complete = MissingLogistic(verbose=False).fit("y ~ age + pressure + pulse", data.dropna()).summary()
    beside = {
        "exact": EXACT,
        "exact se": EXACT_SE,
        "complete rows": complete["estimate"],
        "their se": complete["se"],
    }
    show(fitted, "Simulated measurements: logistic regression with missing covariates", beside)
    typer.echo(f"exact log-likelihood {EXACT_LOGLIK:.3f}; fitted in {seconds:.1f} s, compilation included")
    for line in [*lines(fitted), *write(fitted, out)]:
        typer.echo(line)


def _counts(out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from .estimators.pln import PLNPCA
    from .examples.abundances import RANK, table
    from .pln.cli import show

    data = table()
    began = time.perf_counter()
    fitted = PLNPCA(rank=RANK).fit(data.counts, covariates=data.covariates, formula="~ moisture", offsets=data.log_effort)
    found = fitted.summary().loc["moisture"]
    seconds = time.perf_counter() - began
    show(fitted, "Simulated abundances: Poisson log-normal PCA of 40 species at 60 sites")
    truth = data.B.loc["moisture"]
    shown = Table(title="effect of moisture, strongest five")
    for column in ("species", "estimate", "se", "95% interval", "truth"):
        shown.add_column(column, justify="left" if column == "species" else "right")
    for name, row in found.sort_values("z", key=abs, ascending=False).head(5).iterrows():
        shown.add_row(str(name), f"{row['estimate']:.3f}", f"{row['se']:.3f}",
                      f"{row['ci_low']:.3f} to {row['ci_high']:.3f}", f"{truth[str(name)]:.3f}")  # fmt: skip
    Console().print(shown)
    inside = int(((found["ci_low"] < truth) & (truth < found["ci_high"])).sum())
    typer.echo(f"{inside} of {len(truth)} intervals hold the truth; fitted in {seconds:.1f} s, compilation included")
    out.mkdir(parents=True, exist_ok=True)
    fitted.plot.scores(color="moisture").savefig(out / "scores.png", dpi=120)
    typer.echo(f"saved {out / 'scores.png'}")


def _network(out: Path) -> None:
    import pandas as pd

    from .examples.digits import LOGISTIC, POINT, fit, split
    from .variational.cli import draw, lines, show

    data = split()
    began = time.perf_counter()
    fitted = fit(data)
    seconds = time.perf_counter() - began
    scores = {
        "Bayesian network": fitted.evaluate(data.x_new, data.y_new),
        "75% pruned": fitted.pruned(0.75).evaluate(data.x_new, data.y_new),
        "point estimate": pd.Series(POINT),
        "logistic regression": pd.Series(LOGISTIC),
    }
    show(pd.DataFrame(scores, index=list(scores["Bayesian network"].index)), "Handwritten digits: 450 predicted from 1347")
    for line in [*lines(fitted, seconds), *draw(fitted, data.x_new, data.y_new, out)]:
        typer.echo(line)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="soul_wisconsin, soul_audio, soul_sparse, soul_tv, saem_biased, misso_missing, "
            "misso_bnn, "
            "plnpca_synthetic or plnpca_scmark."
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="The paper's own sizes, instead of a few minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("reproduce-output"),
) -> None:
    """Repeat a published experiment: its figures as PNG, and a table paper / ours / why they differ."""
    from importlib import import_module
    from pkgutil import iter_modules

    from . import reproduce as scripts

    known = sorted(module.name for module in iter_modules(scripts.__path__) if not module.name.startswith("_"))
    if name not in known:
        raise typer.BadParameter(f"there is no experiment {name!r}; choose from {', '.join(known)}")
    import_module(f"margaux.reproduce.{name}").main(out, full)
    typer.echo(f"figures are in {out}")


def _report(title: str, fit: Any, example: Any, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    summary, loglik = fit.summary(), fit.loglik()
    table = Table(title=title)
    for column in ("parameter", "estimate", "exact", "se", "exact se", "95% interval"):
        table.add_column(column, justify="left" if column == "parameter" else "right")
    for name, row in summary.iterrows():
        table.add_row(str(name), f"{row['estimate']:.4f}", f"{example.EXACT[name]:.4f}", f"{row['se']:.4f}",
                      f"{example.EXACT_SE[name]:.4f}", f"{row['ci_low']:.4f} to {row['ci_high']:.4f}")  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        f"log-likelihood {float(loglik):.3f} (Monte Carlo error {loglik.se:.3f}); at the exact maximum "
        f"{example.EXACT_LOGLIK:.3f}\nAIC {fit.aic:.2f}, BIC {fit.bic:.2f}; {fit.n_iter} iterations in {seconds:.1f} s, "
        f"compilation included\n{summary.attrs['message']}"
    )
    for check, row in fit.diagnostics().iterrows():
        console.print(f"  {'ok  ' if row['ok'] else 'look'} {check}: {row['verdict']}")


def main() -> None:
    """Entry point."""
    app()
