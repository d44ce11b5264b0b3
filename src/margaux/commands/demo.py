"""`margaux demo`: real and simulated data whose answers are known, fitted and shown beside them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..showing.answer import Answer, show_estimates, show_facts, show_frame
from ..showing.files import save, written


def demo(out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("demo-output")) -> None:
    """Fit four models to real data, a table with holes and a table of counts, print the results beside what is known, and save
    figures."""
    out.mkdir(parents=True, exist_ok=True)
    breast_cancer(out)
    pharmacokinetics(out / "theophylline")
    decline(out / "decline")
    table_with_holes(out / "measurements")
    counts(out / "abundances")
    network(out / "digits")


def breast_cancer(out: Path) -> None:
    """Wisconsin, with the exact maximum beside."""
    from ..examples import wisconsin

    began = time.perf_counter()
    fit = wisconsin.fit()
    seconds = time.perf_counter() - began
    summary, loglik = fit.summary(), fit.loglik()
    beside = {"exact": wisconsin.EXACT, "exact se": wisconsin.EXACT_SE}
    show_estimates(summary, "Wisconsin breast cancer: empirical-Bayes logistic regression by SOUL", beside)
    checks: Any = fit.diagnostics()
    for line in [
        f"log-likelihood {float(loglik):.3f} (Monte Carlo error {loglik.se:.3f}); at the exact maximum "
        f"{wisconsin.EXACT_LOGLIK:.3f}",
        f"AIC {fit.aic:.2f}, BIC {fit.bic:.2f}; {fit.n_iter} iterations in {seconds:.1f} s, compilation included",
        summary.attrs["message"],
        *(f"  {'ok  ' if row['ok'] else 'look'} {check}: {row['verdict']}" for check, row in checks.iterrows()),
    ]:
        typer.echo(line)
    for kind in ("trace", "estimates"):
        path = out / f"wisconsin_{kind}.png"
        save(getattr(fit.plot, kind)(truth=wisconsin.EXACT), path)
        typer.echo(f"saved {path}")


def pharmacokinetics(out: Path) -> None:
    """Theophylline, with the exact maximum beside."""
    from ..datasets import load_theophylline
    from ..examples.theophylline import EXACT, EXACT_LOGLIK, EXACT_SE
    from ..families.nlme import Individual, LogNormal, oral1cpt
    from ..families.nlme.command import answer
    from ..families.nlme.estimator import NLME

    began = time.perf_counter()
    individual: dict[str, Individual] = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(2.0)}
    fitted = NLME(structural=oral1cpt, individual=individual)
    fitted.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    seconds = time.perf_counter() - began
    told = answer(fitted, "Theophylline: one-compartment pharmacokinetics by SAEM")
    show_estimates(told.estimates, told.title, {"exact": EXACT, "exact se": EXACT_SE})
    typer.echo(f"exact log-likelihood {EXACT_LOGLIK:.3f}; fitted from five starts in {seconds:.1f} s, compilation included")
    _rest(told, out)


def decline(out: Path) -> None:
    """The same subjects after the peak, by a linear mixed model, with the exact maximum beside."""
    from ..examples.decline import EXACT, EXACT_LOGLIK, EXACT_SE, FORMULA, table
    from ..families.glmm.command import answer
    from ..families.glmm.estimator import GLMM

    began = time.perf_counter()
    fitted = GLMM(FORMULA).fit(table())
    seconds = time.perf_counter() - began
    told = answer(fitted, "Theophylline after its peak: a linear mixed model of log concentrations")
    show_estimates(told.estimates[["estimate", "se"]], told.title, {"exact": EXACT, "exact se": EXACT_SE})
    typer.echo(f"exact log-likelihood {EXACT_LOGLIK:.3f}; fitted in {seconds:.1f} s, compilation included")
    _rest(told, out)


def table_with_holes(out: Path) -> None:
    """Simulated measurements, with the exact maximum and what the complete rows say beside."""
    from ..examples.measurements import EXACT, EXACT_LOGLIK, EXACT_SE, table
    from ..families.missing.command import answer
    from ..families.missing.estimator import MissingLogistic

    data = table()
    began = time.perf_counter()
    fitted = MissingLogistic().fit("y ~ age + pressure + pulse", data)
    seconds = time.perf_counter() - began
    complete = MissingLogistic(verbose=False).fit("y ~ age + pressure + pulse", data.dropna()).summary()
    beside = {"exact": EXACT, "exact se": EXACT_SE, "complete rows": complete["estimate"], "their se": complete["se"]}
    told = answer(fitted, "Simulated measurements: logistic regression with missing covariates")
    show_estimates(told.estimates[["estimate", "se"]], told.title, beside)
    typer.echo(f"exact log-likelihood {EXACT_LOGLIK:.3f}; fitted in {seconds:.1f} s, compilation included")
    _rest(told, out)


def counts(out: Path) -> None:
    """Simulated abundances, with the true effects beside."""
    from ..examples.abundances import RANK, table
    from ..families.pln.command import rows
    from ..families.pln.estimator import PLNPCA

    data = table()
    began = time.perf_counter()
    fitted = PLNPCA(rank=RANK).fit(data.counts, covariates=data.covariates, formula="~ moisture", offsets=data.log_effort)
    found = fitted.summary().loc["moisture"]
    seconds = time.perf_counter() - began
    show_facts(rows(fitted), "Simulated abundances: Poisson log-normal PCA of 40 species at 60 sites")
    truth = data.B.loc["moisture"]
    strongest = found.sort_values("z", key=abs, ascending=False).head(5)[["estimate", "se", "ci_low", "ci_high"]]
    show_estimates(strongest, "effect of moisture, strongest five", {"truth": truth})
    inside = int(((found["ci_low"] < truth) & (truth < found["ci_high"])).sum())
    typer.echo(f"{inside} of {len(truth)} intervals hold the truth; fitted in {seconds:.1f} s, compilation included")
    out.mkdir(parents=True, exist_ok=True)
    save(fitted.plot.scores(color="moisture"), out / "scores.png")
    typer.echo(f"saved {out / 'scores.png'}")


def network(out: Path) -> None:
    """Handwritten digits, with what scikit-learn scores beside."""
    import pandas as pd

    from ..examples.digits import LOGISTIC, POINT, fit, split
    from ..families.variational.command import NAMES, figures, lines

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
    frame = pd.DataFrame(scores, index=list(scores["Bayesian network"].index))
    show_frame(frame, "Handwritten digits: 450 predicted from 1347", "score", NAMES)
    for line in [*lines(fitted), f"fitted in {seconds:.1f} s, compilation included"]:
        typer.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in figures(fitted, data.x_new, data.y_new).items():
        save(draw(), out / f"{name}.png")
        typer.echo(f"saved {out / f'{name}.png'}")


def _rest(told: Answer, out: Path) -> None:
    """The sentences of an answer, and its files."""
    for line in told.lines:
        typer.echo(line)
    for name, reason in written(told, out):
        typer.echo(f"saved {out / name}" if reason is None else f"no {name}: {reason}")
