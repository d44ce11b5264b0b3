"""PLN-PCA of large tables: blocks of rows, nothing of the size of the table, float32, and standard errors without its square."""

import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from test_pln import bound

from margaux.families.pln import counts as tables
from margaux.families.pln import inference, leading
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, maximise
from margaux.families.pln.start import by_log_counts
from margaux.families.pln.table import read
from margaux.families.pln.variational import Loadings, Posterior, Units, visit
from margaux.reproduce import _atlas
from margaux.reproduce._atlas import atlas


def simulated(n, p, k=1, rank=3, seed=0):
    """A small atlas with covariates, and log totals as offsets."""
    y, _ = atlas(n, p, rank, density=0.3, seed=seed)
    y = y[:, np.asarray(y.sum(axis=0)) > 0]
    x = np.column_stack([np.ones(n), np.random.default_rng(seed).standard_normal((n, k - 1))])
    return Design(Counts(y), x, np.log(y.sum(axis=1))[:, None])


def test_the_atlas_is_drawn_from_its_model(monkeypatch, tmp_path):
    y, truth = atlas(400, 300, 4, out=tmp_path / "atlas.npz")
    assert y.nnz / 120_000 == pytest.approx(0.12, abs=0.02) and y.dtype == y.indices.dtype == np.int32
    rates = np.exp(truth.offset[:, None] + truth.intercept + truth.latents @ truth.C.T)
    z = (y.sum(axis=0) - rates.sum(axis=0)) / np.sqrt(rates.sum(axis=0))
    # A squared z has mean 1 and variance 2 + 1 / mean.
    assert abs(np.sum(z**2) - 300) < 4 * np.sqrt(np.sum(2 + 1 / rates.sum(axis=0)))
    monkeypatch.setattr(_atlas, "BLOCK", 7 * 300)
    for other in (atlas(400, 300, 4)[0], scipy.sparse.load_npz(tmp_path / "atlas.npz")):
        assert abs(other - y).sum() == 0


@pytest.mark.parametrize("kind", ["csr", "dense", "memmap"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
def test_products_with_blocks_of_rows(kind, dtype, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.poisson(0.6, (40, 9)).astype(dtype)
    y[5:9] = 0
    values = scipy.sparse.csr_array(y) if kind == "csr" else y
    if kind == "memmap":
        values = np.memmap(tmp_path / "y", dtype, "w+", shape=y.shape)
        values[:] = y
    right, left, wide = rng.normal(size=(9, 3)), rng.normal(size=(40, 3)), rng.normal(size=(40, 9))
    for block in (1, 25, 1 << 22):
        monkeypatch.setattr(tables, "BLOCK", block)
        table = Counts(values)
        spans = [span for span, _ in table.blocks()]
        assert np.array_equal(np.concatenate([np.arange(s.start, s.stop) for s in spans]), np.arange(40))
        np.testing.assert_allclose(table.times(right), y @ right)
        np.testing.assert_allclose(table.transposed_times(left, np.log1p), np.log1p(y.astype(float)).T @ left)
        np.testing.assert_array_equal(table.column_sums(), y.sum(axis=0))
        np.testing.assert_allclose(table.row_products(wide), (y * wide).sum(axis=1))
        np.testing.assert_allclose(table.row_products(wide[:, :1]), y.sum(axis=1) * wide[:, 0])
        np.testing.assert_allclose(table.row_log_factorials(), scipy.special.gammaln(y + 1.0).sum(axis=1))
        assert table.times(right.astype(np.float32)).dtype == np.float32


def test_reading_and_starting_take_no_memory_of_the_size_of_the_table(monkeypatch):
    n, p = 2000, 3000
    y, _ = atlas(n, p, 5)
    monkeypatch.setattr(tables, "BLOCK", 1 << 16)

    def everything():
        table = read(y, offsets="total")
        design = Design(table.counts, table.x, table.offset)
        by_log_counts(design, 5, dtype=np.float32)
        return design.constant()

    with pytest.warns(UserWarning, match="left out: 1 feature without counts"):
        everything()
        tracemalloc.start()
        everything()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # A byte an entry is 6 MB. The table itself takes 5.8 MB and is not copied, but for the columns of its entries.
    assert peak < n * p + y.indices.nbytes
    assert peak < y.data.nbytes + y.indices.nbytes + 3e6


def test_a_visit_holds_a_few_blocks_of_rates():
    p, q, b = 1000, 5, 100
    zeros = lambda *shapes: (jnp.zeros(shape, np.float32) for shape in shapes)  # noqa: E731
    loadings, posterior = Loadings(*zeros((1, p), (p, q))), Posterior(*zeros((b, q), (b, 15)))
    units = Units(*zeros((b, 1), (b, 1), (b, q)))
    memory: Any = jax.jit(visit.__wrapped__).lower(loadings, posterior, units, 1).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 10 * b * p * 4


def in_blocks(design):
    """A fit in float32, 30 units at a time."""
    return maximise(design, *by_log_counts(design, 3, dtype=np.float32), relative=1e-6, block=30 * design.counts.p)


def test_float32_in_blocks_has_the_bound_that_it_says():
    design = simulated(300, 200)
    found = in_blocks(design)
    # A fall of four roundings, 4.8e-7, of the bound less its constant passes.
    assert found.converged and min(np.diff(found.bounds)) > -5e-7 * abs(found.bounds[-1] - design.constant())
    with jax.enable_x64(True):
        parts = jax.tree.map(lambda leaf: np.asarray(leaf, float), found[:2])
        assert found.bounds[-1] == pytest.approx(bound(design, *parts), rel=1e-7)


@pytest.mark.slow
def test_float32_in_blocks_reaches_the_bound_of_float64():
    design = simulated(300, 200)
    with jax.enable_x64(True):
        best = maximise(design, *by_log_counts(design, 3))
    assert best.converged and abs(in_blocks(design).bounds[-1] / best.bounds[-1] - 1) < 3e-6


@pytest.fixture(scope="module")
def solved():
    with jax.enable_x64(True):
        design = simulated(200, 120, 2)
        solution = maximise(design, *by_log_counts(design, 3))
        return design, solution.loadings, solution.posterior


def test_variances_by_leading_eigenvectors_are_those_of_the_whole_matrix(solved, monkeypatch):
    design, loadings, posterior = solved
    with jax.enable_x64(True):
        for kind in ("adjusted", "expected", "variational"):
            exact = np.sqrt(np.diag(inference.covariance(design, loadings, posterior, kind))).reshape(2, -1)
            with monkeypatch.context() as patched:
                patched.setattr(inference, "LARGEST", 100)
                patched.setattr(leading, "COLUMNS", 5)
                found = inference.standard_errors(design, loadings, posterior, kind)
            np.testing.assert_allclose(found, exact, rtol=1e-3)


def test_kinds_that_need_a_whole_matrix_are_refused_before_anything_is_computed(solved, monkeypatch):
    design, loadings, posterior = solved
    monkeypatch.setattr(inference, "LARGEST", 100)
    monkeypatch.setattr(inference, "blocks", None)
    for kind in ("louis", "outer product", "sandwich"):
        with pytest.raises(ValueError, match=f"'{kind}' covariance matrix .* order .*, more than 100; .* \"adjusted\""):
            inference.standard_errors(design, loadings, posterior, kind)
    with pytest.raises(ValueError, match="more than 100"):
        inference.covariance(design, loadings, posterior)


def test_eigenvectors_that_do_not_settle_are_refused(solved, monkeypatch):
    design, loadings, posterior = solved
    monkeypatch.setattr(inference, "LARGEST", 100)
    monkeypatch.setattr(leading, "PASSES", 1)
    with jax.enable_x64(True), pytest.raises(ValueError, match="too many: .* use fewer features"):
        inference.standard_errors(design, loadings, posterior)
