"""What the command line refuses: files, options, folders and missing extras, each in one line that says how to mend it."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from commands_examples import GLMM, NLME, OPTIONS, fit, refused, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("family", OPTIONS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("goods.csv", "did you mean 'good.csv'?"),
        ("", "is a folder; name a file"),
        ("empty.csv", "empty.csv is no table: it is empty"),
        ("header.csv", "and no rows"),
        ("broken.csv", "broken.csv is no table"),
        ("semicolons.csv", "separated by semicolons"),
        ("tabs.csv", "rename it to tabs.tsv"),
        ("latin.csv", "no text in UTF-8 (byte 0xe9)"),
        ("broken.parquet", "broken.parquet is no Parquet file"),
        ("sheet.xlsx", "is a spreadsheet; save the table as CSV, TSV or Parquet"),
    ],
)
def test_wrong_files_are_one_line(folder, tmp_path, family, data, message):
    out = tmp_path / "out"
    refused(fit(family, folder / data, *OPTIONS[family], "--out", out), message)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing-logistic", "good.csv", "--y", "yy"], "--y 'yy' is no column of good.csv"),
        (["missing-logistic", "good.csv", "--y", "Y"], "they are a, b, g, y, soil, id, time, dose"),
        (["missing-linear", "good.csv", "--y", "b", "--columns", "a,c"], "--columns names 'c', which is no column of good.csv"),
        (["missing-linear", "good.csv", "--y", "b", "--columns", "a,b"], "--columns names 'b', which is the outcome"),
        (["missing-linear", "good.csv"], "name the outcome by --y, or write --formula"),
        (["missing-linear", "good.csv", "--formula", "~ a"], "has no outcome"),
        (["missing-linear", "good.csv", "--formula", "b ~ a", "--y", "y"], "name different outcomes"),
        (["missing-linear", "good.csv", "--formula", "b ~ a", "--columns", "a"], "both name inputs"),
        (["missing-linear", "good.csv", "--formula", "b ~ weight"], "weight"),
        (["missing-logistic", "text.csv", "--y", "y", "--columns", "a,b"], "a"),
        (["missing-glm", "good.csv", "--y", "y", "--family", "poison"], "did you mean 'poisson'?"),
        (["missing-glm", "good.csv", "--y", "y", "--method", "em"], "--method must be one of exact, saem, mcem, misso"),
        (["missing-glm", "good.csv", "--y", "y", "--select", "all"], "--select must be one of"),
        (["empirical-bayes-logistic", "text.csv", "--y", "y", "--columns", "a,b"], "holds 'high' among its numbers, in row 5"),
        (["empirical-bayes-logistic", "good.csv", "--y", "y"], "the column 'soil' must be numbers, and holds"),
        (["empirical-bayes-logistic", "holes.csv", "--y", "y"], "the column 'a' has 18 empty cells, the first in row 1"),
        (["empirical-bayes-logistic", "good.csv", "--y", "b", "--columns", "a"], "discrete classes"),
        (["empirical-bayes-logistic", "good.csv", "--y", "y", "--columns", "a", "--prior", "flat"], "--prior must be one of"),
        (["empirical-bayes-logistic", "good.csv", "--y", "y", "--columns", "a", "--sigma", "-1"], "sigma must be positive"),
        (["sparse-mixed-logistic", "good.csv", "--y", "y", "--groups", "clinic"], "--groups 'clinic' is no column"),
        (["sparse-mixed-logistic", "good.csv", "--y", "y", "--groups", "g", "--columns", "a,g"], "which is the groups"),
        (["sparse-mixed-logistic", "good.csv", "--y", "y", "--groups", "g", "--penalty", "l2"], "--penalty must be one of"),
        (["sparse-inverse", "broken.npz"], "broken.npz holds no arrays of NumPy"),
        (["sparse-inverse", "y.npy"], "name the file of the matrix by --matrix"),
        (["sparse-inverse", "problem.npz", "--y", "z"], "--y 'z' is no array of problem.npz; they are A, y"),
        (["sparse-inverse", "good.csv", "--y", "a", "--matrix", "sparse.npz"], "the matrix has 40 rows and y 90 entries"),
        (["sparse-inverse", "problem.npz", "--prior", "lasso"], "--prior must be one of huber, l1, tv, group"),
        (["sparse-inverse", "problem.npz", "--shape", "big"], "--shape must look like 64,64, got 'big'"),
        (["sparse-inverse", "problem.npz", "--noise-sd", "-1"], "noise_sd must be a positive number"),
        (["pln-pca", "broken.h5ad"], "broken.h5ad is no .h5ad file"),
        (["missing-linear", "broken.h5ad", "--y", "b"], "which `margaux fit pln-pca` reads"),
        ([*NLME, "good.csv", "--error", "additive"], "--error must be one of constant, proportional"),
        ([*NLME, "good.csv", "--omega", "dense"], 'omega must be "diagonal"'),
        ([*NLME, "good.csv", "--start", "ka=fast"], "--start ka=fast is no number"),
        ([*NLME, "good.csv", "--start", "kb=1"], "NAME=VALUE with NAME one of ka, V, CL"),
        ([*NLME[:-1], "soil", "good.csv"], "the column 'soil' must be numbers"),
        ([*GLMM, "good.csv", "--family", "poison"], "--family must be one of gaussian, binomial, poisson"),
        ([*GLMM, "good.csv", "--link", "log"], 'the family binomial has no link "log"; its links are logit, probit, cloglog'),
        ([*GLMM, "good.csv", "--method", "pql"], "--method must be one of auto, quadrature, laplace"),
        ([*GLMM, "good.csv", "--weights", "w"], "--weights 'w' is no column of good.csv"),
        ([*GLMM, "good.csv", "--offset", "exposure"], "--offset 'exposure' is no column of good.csv"),
        ([*GLMM[:3], "good.csv", "--zeros", "inflated"], "gaussian has no zeros to inflate"),
        ([*GLMM, "holes.csv"], 'missing values: "a" at rows 0, 5,'),
        ([*GLMM, "text.csv"], "a"),
        (["glmm", "good.csv", "--formula", "y ~ a + (1 | idd)"], 'no column "idd"; did you mean "id"?'),
        (["glmm", "good.csv", "--formula", "y ~ a"], "has no random effects; write them as (1 | group)"),
        (["glmm", "good.csv", "--formula", "y ~ a + (1 | id"], "cannot read the formula"),
        (["glmm", "good.csv", "--formula", "y"], "has no ~"),
        (["glmm", "good.csv", "--formula", "a ~ b + (1 | id)", "--family", "poisson"], 'the response "a" is'),
        (["glmm", "good.csv"], "--formula"),
        (["missing-linear", "good.csv", "--y", "b", "--level", "95"], "--level must lie between 0 and 1, got 95"),
        (["missing-linear", "good.csv", "--y", "b", "--seed", "x"], "--seed"),
        (["missing-linear", "good.csv", "--y", "b", "--outcome", "a"], "--outcome"),
        (["missing-lineal", "good.csv"], "missing-lineal"),
        (["nlme", "good.csv"], "--model"),
    ],
)
def test_wrong_options_are_one_line(folder, tmp_path, arguments, message):
    named = [folder / one if "." in one and (folder / one).exists() else one for one in arguments]
    out = tmp_path / "out"
    refused(fit(*named, "--out", out), message)
    assert not out.exists()


def test_folders_that_cannot_be_written_are_refused_before_the_fit(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("margaux.families.missing.estimator.MissingGLM.fit", lambda *_: pytest.fail("fitted"))
    arguments = ["missing-linear", folder / "good.csv", "--y", "b", "--columns", "a"]
    refused(fit(*arguments, "--out", folder / "good.csv"), "is a file; name a folder")
    refused(fit(*arguments, "--out", folder / "good.csv" / "deeper"), "which is a file; name another folder")
    closed = Path("/proc/closed") if Path("/proc").is_dir() else tmp_path / "closed"
    if not closed.parent.samefile("/proc"):
        closed.mkdir(mode=0o500)
    refused(fit(*arguments, "--out", closed), "cannot be written to")


def test_missing_extras_say_what_to_install(folder, tmp_path, monkeypatch):
    pd.DataFrame({"a": [1, 2]}).to_csv(tmp_path / "table.parquet")
    monkeypatch.setattr(pd, "read_parquet", lambda path: exec("raise ImportError('no pyarrow')"))
    refused(fit("missing-linear", tmp_path / "table.parquet", "--y", "a"), "pip install 'margaux[parquet]'")
    monkeypatch.setitem(sys.modules, "anndata", None)
    refused(fit("pln-pca", folder / "broken.h5ad"), "pip install 'margaux[outofcore]'")
