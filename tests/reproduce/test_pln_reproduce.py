"""The experiments of the PLN-PCA paper, at small sizes."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from margaux.families.pln.inference import Kind, standard_errors
from margaux.families.pln.refinement import Refinement
from margaux.families.pln.restarts import Search, best_of
from margaux.numerics.precision import precision
from margaux.reproduce import plnpca_scmark as scmark
from margaux.reproduce import plnpca_synthetic as synthetic


def test_the_design_is_the_references(reference):
    told = reference("pln")["paper_synthetic_seed0"]
    assert "u=r.uniform(.6,.8)" in told["recipe"]
    truth = synthetic.Truth.of_rank(5)
    # The reference draws the latents by the same generator, after u and B.
    rng = np.random.default_rng(0)
    rng.uniform(0.6, 0.8)
    rng.normal(2, 1, (1, 150))
    w = rng.standard_normal((300, 5))
    assert rng.poisson(np.exp(w @ truth.C.T + truth.B)).sum() == told["sum_Y"]


@pytest.mark.slow
def test_the_curvature_is_a_better_proposal_than_a_diagonal_posterior():
    with precision(np.dtype(float)):
        frame: Any = synthetic.proposals((5,), (512,), 1)
    assert len(frame) == 300 * (len(synthetic.NAMES) + 1)
    median = frame.groupby("proposal")[["kl_from_conditional", "ess"]].median()
    assert median.loc["Hessian", "ess"] > median.loc["VEM", "ess"]
    assert median.loc["Hessian", "kl_from_conditional"] < 0.5 * median.loc["VEM", "kl_from_conditional"]
    assert median.loc["VEMmix", "ess"] == pytest.approx(median.loc["VEM", "ess"], abs=0.02)
    assert median.loc[synthetic.FULL, "ess"] > median.loc["Hessian", "ess"]
    assert frame["ess"].between(0, 1 + 1e-12).all()


def test_summaries_of_errors_that_are_known():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((400, 150))
    parts = []
    for stage, scale in (("right", 1.0), ("too short", 0.5)):
        for m in range(len(z)):
            part = {"replicate": m, "stage": stage, "feature": 1 + np.arange(150), "error": z[m], "se": scale}
            parts.append(pd.DataFrame(part))
    frame = pd.concat(parts, ignore_index=True)
    summary = synthetic.summarised(frame.assign(z=frame["error"] / frame["se"]))
    assert summary.loc["right", "coverage"] == pytest.approx(0.95, abs=0.004)
    assert summary.loc["right", "rejected"] == pytest.approx(0.05, abs=0.06)
    # P(|z| < 1.96 / 2) of a standard normal.
    assert summary.loc["too short", "coverage"] == pytest.approx(0.6729, abs=0.01)
    assert summary.loc["too short", "rejected"] == 1.0 and summary.loc["too short", "sd of z"] == pytest.approx(2.0, abs=0.03)


@pytest.mark.slow
def test_coverage_is_the_references(reference):
    told = reference("pln")["coverage_81_replicates_of_synthetic(seeds 1000+m, B and C fixed)"]
    truth, parts = synthetic.Truth.of_rank(5), []
    kinds: dict[str, Kind] = {"variational information": "variational", "pxp outer product of B scores": "outer product"}
    with precision(np.dtype(float)):
        for m in range(81):
            design = truth.drawn(1000 + m)
            fitted = best_of(design, 5, Search(1))[0]
            error = np.asarray(fitted.loadings.B)[0] - truth.B[0]
            for name, kind in kinds.items():
                se = standard_errors(design, fitted.loadings, fitted.posterior, kind)[0]
                part = {"replicate": m, "stage": name, "feature": 1 + np.arange(150), "error": error, "z": error / se}
                parts.append(pd.DataFrame(part))
    summary: Any = synthetic.summarised(pd.concat(parts, ignore_index=True))
    for name in kinds:
        assert summary.loc[name, "coverage"] == pytest.approx(told[name], abs=0.005)
    # The variational estimate is not biased.
    assert abs(summary["mean error"].iloc[0]) < 3 * summary["error of mean"].iloc[0]


@pytest.mark.slow
def test_synthetic_counts_end_to_end(tmp_path, capsys):
    settings = Refinement("aisgd-hessian", 64, epochs=4, tol=0.05)
    synthetic.main(tmp_path, ranks=(3,), sizes=(64, 128), datasets=1, replicates=3, settings=settings)
    shown = capsys.readouterr().out
    assert "KL[nu || p]" in " ".join(shown.split()) and "adjusted" in shown
    assert {path.name for path in tmp_path.glob("*.png")} == {f"plnpca_synthetic_{k}.png" for k in (1, 2, 3)}
    gains: Any = pd.read_csv(tmp_path / "plnpca_synthetic_2_likelihood.csv")
    assert (gains["AISGD"] > gains["VEM"]).all() and np.allclose(gains["AISGD"], gains[synthetic.FULL], atol=0.5)
    summary = pd.read_csv(tmp_path / "plnpca_synthetic_2.csv", index_col=0)
    assert summary.loc["VEM, variational", "sd of z"] > 1.5 * summary.loc["AISGD-Hessian, adjusted", "sd of z"]


def cells(n=200, p=60):
    """Cells of three types, of which one is rare, and genes of very different size."""
    rng = np.random.default_rng(0)
    types = pd.Series(rng.permutation(np.repeat(["CD4", "CD8", "rare"], [n // 2, n // 2 - 20, 20])))
    level = rng.normal(1.0, 1.0, p) + np.where(types.to_numpy()[:, None] == "CD8", rng.normal(0, 0.3, p), 0.0)
    counts = rng.poisson(np.exp(level + rng.normal(size=(n, 2)) @ rng.normal(0, 0.6, (2, p))))
    return pd.DataFrame(counts, columns=[f"g{j}" for j in range(p)]), types


def test_cells_are_reduced_to_two_types_and_the_genes_that_vary_most(tmp_path, monkeypatch):
    counts, types = cells()
    counts.to_csv(tmp_path / "scmark_counts.csv", index=False)
    types.to_frame("type").to_csv(tmp_path / "scmark_labels.csv", index=False)
    monkeypatch.setenv("MARGAUX_DATA", str(tmp_path))
    held, labels, source = scmark.scmark()
    assert source == "scmark_counts.csv" and held.equals(counts) and list(labels) == list(types)
    design, kinds, genes = scmark.reduced(held, labels, 50, 10)
    assert sorted(kinds) == ["CD4", "CD8"] and design.counts.values.shape == (50, 10)
    assert np.array_equal(design.x.sum(axis=1), np.ones(50)) and set(np.unique(design.x)) == {0.0, 1.0}
    labels, own = types.to_numpy(), counts[types.isin(kinds)]
    # Each row is one of the cells, with the type that its indicator says.
    for row, x in zip(design.counts.values[:5], design.x[:5], strict=True):
        same = np.flatnonzero((counts[genes].to_numpy() == row).all(axis=1))
        assert kinds[int(np.argmax(x))] in labels[same]
    assert len(genes) == 10 and design.counts.values.var(axis=0).min() > np.median(own.to_numpy().var(axis=0))


@pytest.mark.slow
def test_single_cells_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MARGAUX_DATA", raising=False)
    scmark.main(
        tmp_path, ranks=(2,), runs=1, n_draws=64, epochs=4, every=2, settings=Refinement("aisgd-hessian", 64, epochs=8)
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert "neither scmark.h5ad nor scmark_counts.csv" in shown and "simulated here" in shown
    assert {path.name for path in tmp_path.glob("*.png")} == {"plnpca_scmark_4.png", "plnpca_scmark_5.png"}
    frame: Any = pd.read_csv(tmp_path / "plnpca_scmark_4.csv")
    ours = frame[frame["steps"] == "steps by the information"]
    assert ours["loglik"].iloc[-1] > ours["loglik"].iloc[0] and ours["gradient"].iloc[-1] < 0.5 * ours["gradient"].iloc[0]
    others: Any = pd.read_csv(tmp_path / "plnpca_scmark_4_others.csv")
    assert ours["loglik"].iloc[-1] == pytest.approx(others["full VEM"].iloc[0], abs=1.0)
    found: Any = pd.read_csv(tmp_path / "plnpca_scmark_5.csv")
    assert len(found) == 200 and (found["last se"] > 0).all()


@pytest.mark.slow
def test_a_whole_table_takes_an_epoch(capsys):
    found = scmark.whole(3000, 200, 3, n_draws=64, seen=200)
    assert found["sweeps"] > 3 and found["CPU s of the epoch"] > 0
    # An epoch of mini-batches stays near the maximum that the variational estimate is close to.
    assert abs(found["gain, nats a cell"]) < 0.05
    assert "sweep 0" in capsys.readouterr().out
