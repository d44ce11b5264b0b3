"""`margaux fit pln-pca` and the demonstration of counts."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import margaux as mx
from margaux.cli import app
from margaux.commands.demo import counts as demonstrated
from margaux.examples import abundances
from margaux.families.pln.command import aligned, read_counts, read_frame, several


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Counts of 50 units and 12 features, and covariates in another order, in files."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    units = pd.Index([f"u{i}" for i in range(50)], name="unit")
    site, effort = rng.integers(0, 2, 50), rng.normal(0.0, 0.3, 50)
    eta = 1.5 + effort[:, None] + 0.6 * site[:, None] + rng.normal(size=(50, 2)) @ rng.normal(0, 0.7, (2, 12))
    counts = pd.DataFrame(rng.poisson(np.exp(eta)), units, [f"f{j}" for j in range(12)])
    covariates = pd.DataFrame({"site": np.where(site, "south", "north"), "effort": effort}, units)
    counts.to_csv(folder / "counts.csv")
    counts.to_csv(folder / "counts.tsv", sep="\t")
    covariates.sample(frac=1.0, random_state=1).to_csv(folder / "meta.csv")
    counts.assign(f3=-1).to_csv(folder / "negative.csv")
    covariates.iloc[:40].to_csv(folder / "short.csv")
    counts.set_axis(["u0"] * 50).rename_axis("unit").to_csv(folder / "twice.csv")
    counts.to_csv(folder / "semicolons.csv", sep=";")
    (folder / "empty.csv").touch()
    return folder, counts, covariates


def invoke(*arguments):
    return CliRunner().invoke(app, ["fit", "pln-pca", *map(str, arguments)])


def test_a_file_is_fitted_as_by_the_estimator(tables, tmp_path):
    folder, counts, covariates = tables
    options = ["--formula", "~ site", "--offsets", "effort", "--rank", "2", "--method", "variational"]
    done = invoke(folder / "counts.csv", "--covariates", folder / "meta.csv", *options, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    model = mx.PLNPCA(2, method="variational", verbose=False).fit(
        counts, covariates=covariates, formula="~ site", offsets=covariates["effort"]
    )
    found = pd.read_csv(tmp_path / "estimates.csv", index_col=[0, 1])
    np.testing.assert_allclose(found["estimate"], model.summary()["estimate"], rtol=1e-6)
    np.testing.assert_allclose(found["se"], model.stderr_["coef"].ravel(), rtol=1e-6)
    scores = pd.read_csv(tmp_path / "scores.csv", index_col=0)
    assert list(scores.index) == list(counts.index)
    np.testing.assert_allclose(scores, model.scores_, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "loadings.csv", index_col=0), model.loadings_, rtol=1e-5, atol=1e-8)
    assert len(pd.read_csv(tmp_path / "importance.csv")) == 50 and len(pd.read_csv(tmp_path / "starts.csv")) == 16
    for told in (f"{model.elbo_:.2f}", f"{float(model.loglik_):.2f}", f"{model.bic_:.2f}", "2: Intercept, site[T.south]"):
        assert told in done.output
    figures = {path.stem for path in tmp_path.glob("*.png")}
    assert figures == {
        "coefficients", "importance", "convergence", "starts", "scores", "correlation_circle", "biplot", "covariance",
        "rootogram",
    }  # fmt: skip


@pytest.mark.slow
def test_ranks_are_chosen_by_bic_and_one_component_has_no_plane(tables, tmp_path):
    folder, *_ = tables
    done = invoke(folder / "counts.tsv", "--ranks", "1-3", "--offsets", "TSS", "--method", "variational", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    ranks = pd.read_csv(tmp_path / "ranks.csv", index_col="rank")
    assert list(ranks.index) == [1, 2, 3] and (tmp_path / "ranks.png").exists()
    assert pd.read_csv(tmp_path / "loadings.csv", index_col=0).shape == (12, ranks["bic"].idxmin())


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ("none.csv", [], "there is no file"),
        ("none.h5ad", [], "there is no file"),
        ("negative.csv", [], 'counts hold -1 at unit "u0", feature "f3"'),
        ("twice.csv", ["--index", "unit"], "names 'u0' twice"),
        ("counts.csv", ["--index", "name"], "'name' is no column of counts.csv"),
        ("counts.csv", ["--formula", "~ site"], "give their file by --covariates"),
        ("counts.csv", ["--covariates", "short.csv"], "short.csv has no row for 10 of the 50 units, such as 'u40'"),
        ("counts.csv", ["--covariates", "meta.csv", "--formula", "~ depth"], "depth"),
        ("counts.csv", ["--offsets", "tss2"], 'did you mean "TSS"?'),
        ("counts.csv", ["--rank", "20"], "rank"),
        ("counts.csv", ["--ranks", "1-x"], "--ranks must look like 1-10 or 2,4,8, not '1-x'"),
        ("counts.csv", ["--method", "sgd"], "method"),
        ("semicolons.csv", [], "semicolons.csv is separated by semicolons"),
        ("empty.csv", [], "empty.csv is no table"),
    ],
)
def test_errors_are_one_line(tables, tmp_path, counts, options, message):
    folder = tables[0]
    options = [folder / option if option.endswith(".csv") else option for option in options]
    done = invoke(folder / counts, *options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "out").exists()


def test_units_are_matched_by_name(tables):
    folder, counts, covariates = tables
    table, meta = read_counts(folder / "counts.csv"), read_frame(folder / "meta.csv")
    pd.testing.assert_frame_equal(table, counts)
    assert list(meta.index) != list(table.index)
    pd.testing.assert_frame_equal(aligned(meta, table, "meta.csv"), covariates)


def test_names_of_units_are_the_first_column_unless_it_is_a_number_or_repeats(tmp_path):
    frame = pd.DataFrame({"a": [3, 1, 2], "b": [0, 2, 5]})
    frame.to_csv(tmp_path / "plain.csv", index=False)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "plain.csv"), frame)
    frame.assign(tree=["oak", "oak", "ash"])[["tree", "a"]].to_csv(tmp_path / "factor.csv", index=False)
    assert list(read_frame(tmp_path / "factor.csv").columns) == ["tree", "a"]
    frame.to_csv(tmp_path / "saved.csv")
    assert list(read_frame(tmp_path / "saved.csv").columns) == ["a", "b"]
    assert list(read_frame(tmp_path / "plain.csv", "a").index) == [3, 1, 2]
    assert several("2,4-6") == [2, 4, 5, 6]
    with pytest.raises(ValueError, match="2 rows and the counts 3"):
        aligned(frame.iloc[:2].reset_index(drop=True), frame, "meta.csv")


def test_an_h5ad_file_brings_its_covariates(tmp_path):
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    # anndata cannot write the strings of Arrow that pandas makes where pyarrow is installed.
    with pd.option_context("mode.string_storage", "python"), anndata.settings.override(allow_write_nullable_strings=True):
        obs = pd.DataFrame({"type": np.repeat(["a", "b"], 20)}, index=[f"c{i}" for i in range(40)])
        anndata.AnnData(X=rng.poisson(3.0, (40, 6)).astype(float), obs=obs).write_h5ad(tmp_path / "cells.h5ad")
    done = invoke(tmp_path / "cells.h5ad", "--formula", "~ type", "--rank", "1", "--method", "variational", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "type[T.b]" in done.output and len(pd.read_csv(tmp_path / "scores.csv")) == 40


@pytest.mark.slow
def test_the_demonstration_recovers_the_truth(tmp_path, capsys):
    demonstrated(tmp_path)
    shown = capsys.readouterr().out
    data = abundances.table()
    inside = int(next(line for line in shown.splitlines() if "intervals hold the truth" in line).split()[0])
    # 40 intervals of level 0.95; features share the latents, so that misses come together.
    assert 32 <= inside <= 40
    assert (tmp_path / "scores.png").exists() and "standard errors (error" in " ".join(shown.split())
    assert data.counts.shape == (60, 40) and list(data.counts.index) == list(data.covariates.index)


def test_row_numbers_are_names(tmp_path):
    pd.DataFrame({"sample": [1, 2, 3, 4], "a": [3, 1, 2, 4]}).to_csv(tmp_path / "numbered.csv", index=False)
    found = read_frame(tmp_path / "numbered.csv")
    assert list(found.columns) == ["a"] and list(found.index) == [1, 2, 3, 4]
