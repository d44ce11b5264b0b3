r"""PLN-PCA by importance sampling, section 6.2: single cells of scMARK, figures 4 and 5.

Batardiere, Chiquet, Kwon and Stoehr (2024): 300 cells of the two most frequent types, the 100 genes of largest variance, an
indicator of each type and no offset. Figure 4 follows the log-likelihood and the norm of its gradient from the variational
estimate on; figure 5 has intervals of the coefficients before and after.

What comes out as in the paper: AISGD-Hessian climbs, the more so the higher the rank. What does not: their variational EM was
stopped after 400 iterations; from the end of its climb a few nats are left, tens at rank 15. A variational EM with a full
covariance matrix a unit (dashed) gains them without a draw. So coefficients hardly move, and figure 5 hardly changes.

Departures:

- Cells and genes are read from the folder MARGAUX_DATA: `scmark.h5ad` (the column of .obs with "celltype" in its name), or
  `scmark_counts.csv` (a column a gene) and `scmark_labels.csv` (a column). Without them a table of 2000 cells and 3000 genes is
  simulated with the same share of zeros, where the sign of a latent is the type.
- "VEM" has a diagonal covariance matrix a unit, as theirs, but is run until the bound stops rising.
- Beside the paper's steps (single units, $\gamma_0/\sqrt T$ with the best of nine $\gamma_0$) there are those that `PLNPCA`
  takes (all units, scaled by the information), which end by themselves. Numbers of draws are powers of two.
- The gradient is that of the mean over units.
- "Due to memory limitations" the paper leaves out 13,959 genes. `--full` fits all genes of all cells too, simulated, and takes
  an epoch of AISGD-Hessian there.

    margaux reproduce plnpca_scmark [--full]
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import margaux as mx
from margaux.algorithms.average import LastIterate
from margaux.algorithms.base import Algorithm
from margaux.algorithms.memory import NoMemory
from margaux.algorithms.updates import AbstractUpdate, Ascent
from margaux.engine.outcome import RESULTS
from margaux.families.pln.answers import settled
from margaux.families.pln.ascent import ConditionalScore, InformationAscent, two_levels
from margaux.families.pln.closed import complete
from margaux.families.pln.conditional import VARIANTS, ConditionalSampling
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.importance import marginal
from margaux.families.pln.inference import standard_errors
from margaux.families.pln.model import PLN, units
from margaux.families.pln.proposals import Plan
from margaux.families.pln.refinement import Refinement, paper, refine
from margaux.families.pln.restarts import Search, best_of
from margaux.families.pln.scoring import score
from margaux.families.pln.table import read
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.precision import precision
from margaux.reproduce._atlas import atlas

VARIANT = "aisgd-hessian"
CELLS, GENES = 300, 100
#: coefficients that figure 5 shows lie between these, at most so many
RANGE, MOST = (-1.0, 2.0), 40
#: initial steps that are tried
GRID = tuple(float(gain) for gain in 10.0 ** np.arange(-4.0, 0.1, 0.5))
COLOURS = {"paper's steps": "black", "steps by the information": "tab:blue"}


class Place(NamedTuple):
    """Parameters, and Gaussians about the latents of the units."""

    loadings: Loadings
    posterior: Posterior


def scmark() -> tuple[pd.DataFrame, pd.Series, str]:
    """Counts of all cells, their types, and where they are from."""
    folder = Path(os.environ.get("MARGAUX_DATA", ""))
    held, counts, labels = (folder / f"scmark{end}" for end in (".h5ad", "_counts.csv", "_labels.csv"))
    if held.exists():
        import anndata  # pyright: ignore[reportMissingImports]

        table: Any = anndata.read_h5ad(held)
        column = next((name for name in table.obs.columns if "celltype" in name.lower().replace("_", "")), None)
        if column is None:
            raise ValueError(f"{held} has no column of cell types in .obs; give one a name with 'celltype' in it")
        return table.to_df(), table.obs[column].astype(str), held.name
    if counts.exists() and labels.exists():
        return pd.read_csv(counts), pd.read_csv(labels).iloc[:, -1].astype(str), counts.name
    print(f"neither {held.name} nor {counts.name} is in the folder MARGAUX_DATA ({os.environ.get('MARGAUX_DATA') or 'not set'})")
    simulated, truth = atlas(2000, 3000, 15, density=0.2)
    genes = pd.Index([f"gene {j + 1}" for j in range(3000)])
    types = pd.Series(np.where(truth.latents[:, 0] > 0, "type A", "type B"))
    return pd.DataFrame(simulated.toarray(), columns=genes), types, "simulated here"


def reduced(counts: pd.DataFrame, types: Any, cells: int = CELLS, genes: int = GENES) -> tuple[Design, list[str], pd.Index]:
    """Random cells of the two most frequent types, the genes of largest variance among them, and an indicator of each type."""
    kinds = list(types.value_counts().index[:2])
    places = np.flatnonzero(types.isin(kinds))
    chosen = np.sort(np.random.default_rng(0).choice(places, cells, replace=False))
    part = counts.iloc[chosen]
    part = part[part.var().nlargest(genes).index]
    x = np.stack([types.iloc[chosen] == kind for kind in kinds], axis=1).astype(float)
    return Design(Counts(part.to_numpy().astype(float)), x, np.zeros((cells, 1))), kinds, part.columns


def diagonal(design: Design, q: int) -> Place:
    """The variational estimate with diagonal covariance matrices, and full posteriors at it, so that draws are good."""
    return settled_at(design, Place(*best_of(design, q, Search(covariance="diagonal"))[0][:2]))


def stepped(
    design: Design, here: Place, update: AbstractUpdate, batch: int | None, n_iter: int, n_draws: int, seed: int
) -> Place | None:  # fmt: skip
    """Iterations of algorithm 2 by the engine, with independent draws of raw weights for single units; None if it diverged."""
    dtype, q = here.loadings.C.dtype, here.loadings.C.shape[1]
    single = batch == 1
    algorithm = Algorithm(
        statistic=ConditionalScore(moments=isinstance(update, InformationAscent)), memory=NoMemory(), update=update,
        average=LastIterate(), refresh_epochs=None,
    )  # fmt: skip
    estep = ConditionalSampling(q, n_draws, *VARIANTS[VARIANT], sobol=not single, control=not single, seed=seed)
    params = {"B": np.asarray(here.loadings.B), "C": np.asarray(here.loadings.C)}
    found = mx.fit(
        PLN(), units(design, here.posterior, dtype), algorithm, estep, key=seed, params=params, n_iter=n_iter, batch_size=batch,
        rows="device" if batch is None else "host", dtype=dtype, polish=False, progress=False, throw=False,
    )  # fmt: skip
    if found.result is RESULTS.diverged:
        return None
    return here._replace(loadings=Loadings(*(jnp.asarray(found.params[name], dtype) for name in ("B", "C"))))


def loglik(design: Design, here: Place, plan: Plan = Plan()) -> float:  # noqa: B008
    """The log-likelihood, by draws that every place has in common."""
    return marginal(design, *here, "student", plan).total[0]


def searched(design: Design, start: Place, n_draws: int, epochs: int) -> float:
    r"""The $\gamma_0$ of which the first two epochs leave the likelihood highest."""
    n = design.counts.n
    gains: dict[float, float] = {}
    for gain in GRID:
        found = stepped(design, start, Ascent(mx.Constant(gain / np.sqrt(epochs * n))), 1, 2 * n, n_draws, 0)
        if found is None:
            break
        gains[gain] = loglik(design, settled_at(design, found))
    return max(gains, key=lambda gain: gains[gain] if np.isfinite(gains[gain]) else -np.inf)


def settled_at(design: Design, here: Place) -> Place:
    """With the variational posteriors of its parameters."""
    return here._replace(posterior=jax.tree.map(jnp.asarray, settled(design, here.loadings)))


def course(design: Design, start: Place, gain: float, n_draws: int, epochs: int, every: int, seed: int) -> pd.DataFrame:
    """The paper's steps, seen every few epochs: epoch, loglik and gradient."""
    n = design.counts.n
    update = Ascent(mx.Constant(gain / np.sqrt(epochs * n)))
    here, rows = start, []
    for epoch in range(0, epochs + 1, every):
        if epoch:
            moved = stepped(design, here, update, 1, every * n, n_draws, 1000 * seed + epoch)
            if moved is None:
                break
            here = settled_at(design, moved)
        slope = score(design, *here, "student", Plan(128, 4))
        norm = float(jnp.sqrt(jnp.sum(slope.B**2) + jnp.sum(slope.C**2))) / n
        rows.append({"epoch": epoch, "loglik": loglik(design, here), "gradient": norm})
    return pd.DataFrame(rows)


def courses(
    design: Design, ranks: tuple[int, ...], runs: int, n_draws: int, epochs: int, every: int
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Figure 4: a row a rank, kind of steps, run and epoch; and of each rank the step and the full VEM's log-likelihood."""
    parts, others = [], []
    ours = Refinement(VARIANT, n_draws, epochs=20)
    for q in ranks:
        start = diagonal(design, q)
        gain = searched(design, start, n_draws, epochs)
        for run in range(runs):
            found: dict[str, Any] = {"paper's steps": course(design, start, gain, n_draws, epochs, every, run)}
            history = refine(design, *start, ours, seed=run, forced=True).history
            history = history.assign(gradient=history["gradient_norm"] / design.counts.n)
            # Where steps end by themselves, the last place stays.
            last = history.iloc[[-1]].assign(epoch=float(epochs))
            whole = pd.concat([history, last]) if history["epoch"].iloc[-1] < epochs else history
            found["steps by the information"] = whole[["epoch", "loglik", "gradient"]]
            parts += [frame.assign(q=q, steps=steps, run=run) for steps, frame in found.items()]
        full = Place(*best_of(design, q)[0][:2])
        others.append({"q": q, "gain": gain, "full VEM": loglik(design, full)})
    return pd.concat(parts, ignore_index=True), pd.DataFrame(others).set_index("q")


def draw_courses(frame: Any, others: pd.DataFrame) -> Figure:
    """Figure 4: a column a rank, means over runs with intervals of 95%."""
    figure = Figure(figsize=(4.2 * len(others), 6.4), layout="constrained")
    axes = figure.subplots(2, len(others), squeeze=False, sharex=True)
    for (top, bottom), (q, other) in zip(axes.T, others.iterrows(), strict=True):
        for steps, colour in COLOURS.items():
            part = frame[(frame["q"] == q) & (frame["steps"] == steps)]
            for axis, name, sign in ((top, "loglik", -1), (bottom, "gradient", 1)):
                group = part.groupby("epoch")[name]
                centre, half = sign * group.mean(), 1.96 * (group.std() / np.sqrt(group.size())).fillna(0.0)
                low = centre - half if name == "loglik" else np.maximum(centre - half, centre / 10)
                axis.fill_between(centre.index, low, centre + half, color="0.8", lw=0)
                axis.plot(centre.index, centre, ".-", color=colour, lw=1, ms=4, label=steps)
        top.axhline(-other["full VEM"], color="tab:red", ls="--", lw=1, label="full VEM")
        top.ticklabel_format(axis="y", useOffset=False)
        top.set(title=f"q = {q}")
        bottom.set(xlabel="epoch", yscale="log")
    axes[0][0].set_ylabel("negative log-likelihood")
    axes[1][0].set_ylabel("norm of the mean gradient")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def intervals(
    design: Design, kinds: list[str], genes: pd.Index, settings: Refinement, q: int = 5
) -> tuple[pd.DataFrame, str]:  # fmt: skip
    """Figure 5: coefficients at the variational estimate and at the end, with standard errors from outer products of scores
    (eq. 21) and "adjusted" ones; and what the refinement says."""
    start = diagonal(design, q)
    refined = refine(design, *start, settings, forced=True)
    plan = Plan(1024, 1, False)
    index = pd.MultiIndex.from_product([kinds, genes], names=["type", "gene"])
    columns: dict[str, np.ndarray] = {}
    for name, here in {"first": start, "last": Place(refined.loadings, refined.posterior)}.items():
        columns[name] = np.asarray(here.loadings.B).ravel()
        columns[f"{name} se"] = standard_errors(design, *here, kind="outer product", plan=plan).ravel()
        columns[f"{name} adjusted se"] = standard_errors(design, *here).ravel()
    return pd.DataFrame(columns, index=index), refined.verdict


def draw_intervals(frame: Any) -> Figure:
    """Figure 5: intervals of 95% at the first and the last iteration."""
    part = frame[frame["first"].between(*RANGE)]
    part = part.loc[part["first"].abs().sort_values().index[:MOST]].sort_values("first")
    figure = Figure(figsize=(7.0, 1.2 + 0.17 * max(len(part), 5)), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(part))
    for name, colour, shift in (("first", "tab:purple", 0.15), ("last", "tab:orange", -0.15)):
        axis.errorbar(part[name], places + shift, xerr=1.96 * part[f"{name} se"], fmt=".", color=colour, ms=4, lw=1,
                      label={"first": "VEM", "last": "AISGD-Hessian"}[name])  # fmt: skip
    axis.axvline(0, color="0.5", lw=0.8)
    axis.set_yticks(places, [f"{kind}; {gene}" for kind, gene in part.index], fontsize=6)
    axis.set(xlabel="coefficient, interval of 95%", ylim=(-1, len(part)))
    axis.legend(frameon=False, fontsize=8)
    return figure


def whole(cells: int = 19_998, genes: int = 14_059, rank: int = 15, n_draws: int = 128, seen: int = 500) -> dict[str, float]:
    """All cells and genes, simulated: variational EM and one epoch of AISGD-Hessian, with what they cost and, on some cells,
    what the epoch gains."""
    counts, _ = atlas(cells, genes, rank)
    ends = [time.process_time()]

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    def watch(sweep: int, bound: float) -> None:
        ends.append(time.process_time())
        print(f"  sweep {sweep}: bound {bound:,.1f}, {ends[-1] - ends[0]:.1f} CPU s, peak {peak():.2f} GiB", flush=True)

    table = read(counts, offsets="TSS")
    design = Design(table.counts, table.x, table.offset)
    with precision(np.dtype(np.float32)):
        solution, _ = best_of(design, rank, Search(1, dtype=np.float32, relative=1e-6), watch)
        start, began = Place(solution.loadings, solution.posterior), time.process_time()
        C, means = (np.asarray(leaf, float) for leaf in (start.loadings.C, start.posterior.mean))
        information = two_levels(complete(design, *start), C, np.asarray(design.x, float), means)
        batch = max(min(cells // 4, (1 << 20) // genes), 1)
        update = InformationAscent(mx.Polynomial(0.5 * (cells / batch) ** -0.4, 0.6, cells / batch), information)
        end = stepped(design, start, update, batch, cells // batch, n_draws, 0)
    spent = time.process_time() - began
    if end is None:
        raise FloatingPointError("the epoch diverged")
    some = np.sort(np.random.default_rng(0).choice(cells, min(seen, cells), replace=False))
    part = Design(Counts(design.counts.values[some]), design.x[some], design.offset[some])
    with precision(np.dtype(float)):
        totals = []
        for here in (start, end):
            loadings = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), float), here.loadings)
            totals.append(loglik(part, settled_at(part, here._replace(loadings=loadings)), Plan(128, 2)))
    found = {
        "sweeps": float(len(solution.bounds)), "CPU s a sweep": float(np.mean(np.diff(ends))), "CPU s of the epoch": spent,
        "gain, nats a cell": (totals[1] - totals[0]) / len(some), "peak memory, GiB": peak(),
    }  # fmt: skip
    print(f"{cells} x {genes}, rank {rank}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found


def main(
    out: Path, full: bool = False, ranks: tuple[int, ...] = (3, 5, 15), runs: int = 3, n_draws: int = 512, epochs: int = 20,
    every: int = 4, settings: Refinement = Refinement(VARIANT, 512),  # noqa: B008
) -> None:  # fmt: skip
    """Figures 4 and 5 as PNG, their numbers as CSV, and the paper's claims beside what is seen.

    Args:
        out: a folder. full: the paper's sizes, and all cells and genes. ranks, runs, n_draws, epochs, every: of figure 4.
            settings: of figure 5.
    """
    out.mkdir(parents=True, exist_ok=True)
    if full:
        pd.Series(whole()).to_csv(out / "plnpca_scmark_whole.csv")
        runs, n_draws, epochs, every, settings = 10, 4096, 100, 10, paper(VARIANT, 1024, 2000)
    counts, types, source = scmark()
    design, kinds, genes = reduced(counts, types)
    with precision(np.dtype(float)):
        frame, others = courses(design, ranks, runs, n_draws, epochs, every)
        found, verdict = intervals(design, kinds, genes, settings)
    for name, table in {"4": frame, "4_others": others, "5": found}.items():
        table.to_csv(out / f"plnpca_scmark_{name}.csv")
    draw_courses(frame, others).savefig(out / "plnpca_scmark_4.png", dpi=120)
    draw_intervals(found).savefig(out / "plnpca_scmark_5.png", dpi=120)
    report(frame, others, found, verdict, source)


def report(frame: Any, others: pd.DataFrame, found: pd.DataFrame, verdict: str, source: str) -> None:
    """What the paper says, what is seen, and why they differ."""
    ends = frame.sort_values("epoch").groupby(["q", "steps", "run"])[["loglik", "gradient"]].agg(["first", "last"])
    rise = (ends["loglik"]["last"] - ends["loglik"]["first"]).groupby(["q", "steps"]).mean()
    slope = ends["gradient"].groupby(["q", "steps"]).mean()
    start = ends["loglik"]["first"].groupby("q").mean()

    def listed(values):
        return ", ".join(f"q = {q}: {value}" for q, value in values.items())

    def changed(kind):
        return int((_away(found, "first", kind) != _away(found, "last", kind)).sum())

    move = found["first"] - found["last"]
    table = Table(title=f"PLN-PCA on single cells ({source})", show_lines=True)
    for column in ("figure", "the paper", "here", "why they differ"):
        table.add_column(column)
    rows = [
        ("4, top", "a significant gain of log-likelihood over VEM, larger for larger q",
         listed({q: f"{rise[q, next(iter(COLOURS))]:.1f} nats" for q in others.index}),
         "theirs stops after 400 iterations, this one at the end of its climb"),
        ("4, top", "not tried: steps by the information",
         listed({q: f"{rise[q, 'steps by the information']:.1f} nats" for q in others.index}), "as PLNPCA takes them"),
        ("4, top", "not tried: full VEM", listed({q: f"{row['full VEM'] - start[q]:.1f} nats" for q, row in others.iterrows()}),
         "gain over the diagonal VEM, without a draw"),
        ("4, bottom", "the norm of the gradient falls",
         "; ".join(f"{steps}: " + listed({q: f"{slope.loc[(q, steps), 'first']:.3g} to {slope.loc[(q, steps), 'last']:.3g}"
                                           for q in others.index}) for steps in COLOURS), ""),
        ("5", "VEM overestimates the coefficients consistently",
         f"VEM less AISGD: mean {move.mean():.4f}, sd {move.std():.4f}; mean se {found['last se'].mean():.4f}", verdict),
        ("5", "at least five of 200 coefficients change significance",
         f"{changed('se')} of {len(found)} change (outer product); {changed('adjusted se')} (adjusted)", ""),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=140).print(table)


def _away(found: Any, name: str, kind: str) -> Any:
    return found[name].abs() > 1.96 * found[f"{name} {kind}"]
