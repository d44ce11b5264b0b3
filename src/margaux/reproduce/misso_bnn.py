r"""MISSO, section 4.2 and appendix C: Bayesian LeNet-5 and ResNet-18, figures 2 and 4, tables 4 and 5; the poster's figure 1.

Karimi, Wai, Moulines and Li (2022): $q(w) = N(\mu, \sigma^2I)$ with one $\sigma$, prior N(0, 1), mini-batches of 128 and
$M_k = k$ draws; MC-Adam, MC-Momentum, Bayes by Backprop (BBB), MC-SAG and MISSO. Each method runs at the paper's step 1e-3 and
at its own best after four epochs, of five or more around its default.

What comes out as in the paper: a table costs hardly any time, all methods take about as long. What does not: at the step 1e-3
no method learns the classes in so few epochs. Momentum, BBB and SAG lower the divergence by their one standard deviation while
the means stay; Adam moves each weight by 1e-3 an iteration, and MISSO, whose mean over blocks moves by one step an epoch, does
least.
At steps of their own Adam is ahead on LeNet-5 after four epochs and the others lie close together; on the tanh network MISSO and
momentum end lowest.

Departures (errata):

- The mean objective in place of $\gamma/n$ on one unit's gradient, which would be steps of 1e-8; $\log\sigma$ for $\sigma$.
- Units are fixed blocks of 128 images: a table of gradients an image would be 13 GB for LeNet-5.
- k in $M_k = k$ counts epochs; with iterations it would be 9e8 gradients. Adam's second moment is Adam's.
- LeNet-5's second convolution has width 16 (61,706 weights); ResNet-18 has a stem for 32 x 32 pixels and GroupNorm.
- Flipout within a block. Times are CPU seconds without compilation. The paper's are of 100 and 200 epochs on other hardware:
  their ratios to Adam's are compared.
- Without --full: the first 5504 images, few epochs and two runs; ResNet-18 a few iterations at full size of network.

    margaux reproduce misso_bnn [--full]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from margaux.families.variational.architectures import LeNet5, Perceptron, ResNet18

from ._bnn_runs import METHODS, Course, best_step, cifar, literal, mnist, on_gpu, run

#: the paper's seconds for 100 epochs of LeNet-5 and 200 of ResNet-18
PAPER_LENET = {"adam": 12889, "momentum": 12816, "bbb": 12690, "sag": 13822, "misso": 13367}
PAPER_RESNET = {"adam": 31879, "adagrad": 31675, "misso": 32092}
COLOURS = {
    "adam": "tab:blue",
    "momentum": "tab:orange",
    "bbb": "tab:green",
    "sag": "tab:red",
    "misso": "tab:purple",
    "adagrad": "tab:brown",
}
WHY = {
    "adam": "an iteration moves each weight by 1e-3",
    "momentum": "the coefficient 1e-3 leaves nothing of the momentum: as BBB",
    "bbb": "the one log sigma moves, the means hardly",
    "sag": "as BBB: after a full pass its average is the same gradient",
    "misso": "the mean over blocks moves by one step an epoch",
}


def main(out: Path, full: bool = False) -> None:
    """Figures `misso_bnn_lenet.png` and `misso_bnn_tanh.png`, and three tables."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    n, epochs, runs = (55_000, 100, 5) if full else (5_504, 4, 2)
    x, y, source = mnist(n)
    console.print(f"LeNet-5 on {len(x)} images of {source}, {epochs} epochs, {runs} runs a method", markup=False)
    lenet = compare(lambda seed: LeNet5(key=jax.random.key(seed)), x, y, epochs, runs, console)
    figure(lenet, f"Bayesian LeNet-5, {source}").savefig(out / "misso_bnn_lenet.png", dpi=120)
    console.print(comparison(lenet, PAPER_LENET, epochs))
    x, y, source = mnist(60_000 if full else 6_000)
    tanh = compare(lambda seed: Perceptron(784, (100,), 10, key=jax.random.key(seed)), x, y, 10, 5 if full else 2, console, False)
    figure(tanh, f"Bayesian network 784-100-10, {source}").savefig(out / "misso_bnn_tanh.png", dpi=120)
    console.print(resnet(full))


def compare(
    network: Any, x: np.ndarray, y: np.ndarray, epochs: int, runs: int, console: Console, growing: bool = True
) -> dict[str, dict[str, list[Course]]]:
    """Courses of every method by setting: "paper" and "best"."""
    out: dict[str, dict[str, list[Course]]] = {"paper": {}, "best": {}}
    for method, name in METHODS.items():
        step, tried = best_step(network(0), x, y, method, 128)
        searched = ", ".join(f"{s:.3g}: {loss:.3f}" for s, loss in tried.items())
        console.print(f"{name}: -ELBO / n after four epochs by step: {searched}", markup=False)
        for setting, kind, length in (("paper", literal(method), None), ("best", method, step)):
            out[setting][method] = [run(network(seed), x, y, kind, length, epochs, 128, seed, growing)[0] for seed in range(runs)]
    return out


def figure(courses: dict[str, dict[str, list[Course]]], title: str) -> Figure:
    """Negative ELBO an observation against CPU seconds (figure 2) and epochs (figure 4), mean over the runs."""
    drawn = Figure(figsize=(10.0, 7.0), layout="constrained")
    axes = drawn.subplots(2, 2, sharey="row")
    names = {"paper": "the paper's step 1e-3", "best": "each method's best step"}
    for row, (setting, by_method) in zip(axes, courses.items(), strict=True):
        for method, runs in by_method.items():
            whole = [run for run in runs if not run.failed]
            if not whole:
                continue
            loss, seconds = np.mean([run.loss for run in whole], axis=0), np.mean([run.seconds for run in whole], axis=0)
            style = {"color": COLOURS[method], "label": METHODS[method], "marker": "o", "ms": 3}
            row[0].plot(seconds, loss, **style)
            row[1].plot(np.arange(1, len(loss) + 1), loss, **style)
        row[0].set(ylabel="negative ELBO an image", xlabel="CPU seconds", title=names[setting])
        row[1].set(xlabel="epochs")
        row[0].set_yscale("log")
        row[1].legend(fontsize=8)
    drawn.suptitle(title)
    return drawn


def comparison(courses: dict[str, dict[str, list[Course]]], paper: dict[str, int], epochs: int) -> Table:
    """Table 4: times beside Adam's; and what the two settings reach."""
    table = Table(title="LeNet-5: time of all epochs beside MC-Adam's, and negative ELBO an image at the end")
    for column in ("method", "paper", "ours", "CPU s", "step 1e-3", "best step", "why 1e-3 is too small"):
        table.add_column(column, justify="left" if column in ("method", "why 1e-3 is too small") else "right")

    def mean(runs, read):
        return float(np.mean([read(run) for run in runs]))

    seconds = {method: mean(runs, lambda run: run.seconds[-1]) for method, runs in courses["best"].items()}
    for method, name in METHODS.items():
        ends = [mean(courses[setting][method], lambda run: run.loss[-1]) for setting in ("paper", "best")]
        table.add_row(
            name,
            f"{paper[method] / paper['adam']:.2f}",
            f"{seconds[method] / seconds['adam']:.2f}",
            f"{seconds[method]:.0f}",
            *(f"{end:.3f}" for end in ends),
            WHY[method],
        )
    return table


def resnet(full: bool) -> Table:
    """Table 5: ResNet-18. A few iterations at the full size of the network; all epochs with --full on a GPU."""
    whole = full and on_gpu()
    n, epochs, batch = (50_000, 200, 1000) if whole else (60, 2, 4)
    x, y, source = cifar(n)
    table = Table(title=f"ResNet-18, {len(x)} images of {source}, {-(-len(x) // batch)} blocks, {epochs} epochs")
    for column in ("method", "paper beside Adam", "ours", "s an image and draw", *(["-ELBO / n at the end"] if whole else [])):
        table.add_column(column, justify="left" if column == "method" else "right")
    found = {
        method: run(ResNet18(key=jax.random.key(0)), x, y, literal(method, 1e-4), None, epochs, batch, 0, growing=whole)[0]
        for method in PAPER_RESNET
    }
    draws = len(x) * (epochs * (epochs + 1) // 2 if whole else epochs)
    for method, seconds in PAPER_RESNET.items():
        course, adam = found[method], found["adam"]
        ratios = f"{seconds / PAPER_RESNET['adam']:.2f}", f"{course.seconds[-1] / adam.seconds[-1]:.2f}"
        reached = [f"{course.loss[-1]:.1f}"] if whole else []  # of sixty images it says nothing
        table.add_row(method, *ratios, f"{course.seconds[-1] / draws:.3f}", *reached)
    return table
