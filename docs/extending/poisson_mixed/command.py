"""`margaux fit poisson-mixed`."""

from typing import Annotated

import typer

from margaux.showing.answer import Answer
from margaux.showing.command import Run
from margaux.showing.inputs import read_table
from margaux.showing.options import Data, Y

from .estimator import PoissonMixed


def poisson_mixed(
    data: Data, run: Run, y: Y, group: Annotated[str, typer.Option(help="Column of the groups.")]
) -> Answer:  # fmt: skip
    """Fit a Poisson regression with random intercepts; every other numeric column is an input."""
    frame = read_table(data)
    inputs = frame.drop(columns=[y, group]).select_dtypes("number")
    with run.fitting():
        fitted = PoissonMixed(**run.settings).fit(inputs, frame[y], frame[group])
    says = [f"log-likelihood {float(fitted.loglik_):.3f} (Monte Carlo error {fitted.loglik_.se:.3f})"]
    return Answer(fitted, f"{y} on {data.name}", fitted.summary(run.level), says, level=run.level)


#: of `margaux fit`
COMMANDS = (poisson_mixed,)
