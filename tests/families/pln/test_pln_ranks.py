"""The choice of the number of components."""

import jax
import numpy as np
import pytest
from test_pln import case, fitted

from margaux.families.pln import widening
from margaux.families.pln.fitting import maximise
from margaux.families.pln.ranks import pln_ranks
from margaux.families.pln.widening import padded, widened


def simulated(seed=3):
    rng = np.random.default_rng(seed)
    n, p, q = 150, 40, 3
    B, C = rng.normal(1.0, 0.5, p), rng.normal(0, 0.6, (p, q))
    return rng.poisson(np.exp(B + rng.normal(size=(n, q)) @ C.T))


def check(choice):
    table = choice.table
    assert list(table.columns) == ["elbo", "loglik", "error", "n_params", "aic", "bic", "icl", "seconds", "converged"]
    assert table.index.name == "rank" and list(table.index) == list(choice.models)
    assert table["elbo"].is_monotonic_increasing and table["converged"].all()
    assert (table["elbo"] <= table["loglik"] + 3 * table["error"]).all()
    for rank, model in choice.models.items():
        assert model.rank == rank == model.loadings_.shape[1]
        assert table.loc[rank, ["elbo", "bic", "icl"]].tolist() == [model.elbo_, model.bic_, model.icl_]
    for criterion in ("bic", "aic", "icl"):
        best = type(choice)(choice.table, choice.models, criterion).best
        assert table.loc[best.rank, criterion] == table[criterion].min()


def test_the_rank_of_simulated_counts_is_found():
    choice = pln_ranks(simulated(), [4, 3, 2], method="variational", n_starts=1, verbose=False)
    check(choice)
    assert choice.best.rank == 3 and list(choice.table.index) == [2, 3, 4]
    assert choice.models[3].starts_["start"].tolist() == ["log counts", "rank below"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_rank_of_other_counts_is_found(seed):
    choice = pln_ranks(simulated(seed), range(1, 8), verbose=False)
    check(choice)
    assert choice.best.rank == 3


def test_wider_starts():
    with jax.enable_x64(True):
        design, *_ = case(5, 80, 20, 3, 0.7, 1.0, 1, False)
        one = fitted(design, 1)
        same = maximise(design, *padded(one.loadings, one.posterior, 3))
        # Components of no weight leave the bound as it is, and nothing moves them.
        assert same.bounds[0] == pytest.approx(one.bounds[-1], abs=2e-3) and same.bounds[-1] >= one.bounds[-1] - 1e-7
        np.testing.assert_array_equal(same.loadings.C[:, 1:], 0.0)
        three = maximise(design, *widened(design, one.loadings, one.posterior, 3))
        best = fitted(design, 3)
        assert three.bounds[-1] == pytest.approx(best.bounds[-1], abs=0.01)
        # It begins nearer to the end than the rank below is.
        assert one.bounds[-1] < three.bounds[0]


def test_the_leading_residual_is_found_whatever_the_blocks(monkeypatch):
    with jax.enable_x64(True):
        design, *_ = case(6, 60, 15, 2, 0.7, 1.0, 1, False)
        one = fitted(design, 1)
        B, C = (np.asarray(leaf) for leaf in one.loadings)
        m, s = (np.asarray(leaf) for leaf in one.posterior)
        A = np.exp(B + m @ C.T + s * C[:, 0] ** 2 / 2)
        u, d, vt = np.linalg.svd(np.log1p(design.counts.values) - np.log1p(A), full_matrices=False)
        for block in (1 << 22, 15 * 7):
            monkeypatch.setattr(widening, "BLOCK", block)
            loadings, found = widened(design, *one[:2], 2)
            product = np.asarray(found.mean[:, 1:] @ loadings.C[:, 1:].T)
            np.testing.assert_allclose(product, np.outer(u[:, 0], vt[0] * d[0]), atol=1e-6)
            np.testing.assert_array_equal(found.mean[:, :1], one.posterior.mean)


@pytest.mark.parametrize(
    "ranks, settings, error, message",
    [
        ([], {}, ValueError, "ranks is empty"),
        ([1, 9], {}, ValueError, r"rank must be between 1 and min\(n, p\) = 6"),
        ([1.5], {}, TypeError, "whole number"),
        ([1], {"criterion": "elbo"}, ValueError, "criterion must be one of 'bic', 'aic', 'icl'"),
        ([1], {"n_starts": 0}, ValueError, "n_starts must be at least 1"),
    ],
)
def test_what_is_refused(ranks, settings, error, message):
    with pytest.raises(error, match=message):
        pln_ranks(np.ones((10, 6)), ranks, **settings)
