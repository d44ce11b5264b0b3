"""Expectations unit by unit: blocks, chosen units, sums, proposals and moments, on a conjugate posterior."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_best_rule import Conjugate, Discrete

import margaux as mx
from helpers import normal
from margaux.answers import moments as of_latents
from margaux.answers import posterior as module
from margaux.answers.moments import latents
from margaux.answers.posterior import UndefinedDensity, _of_one_kind, each_unit, latent_size, reference_estep
from margaux.answers.proposing import proposals
from margaux.numerics.ladder import rung
from margaux.problem import AbstractCostly

N = 11


class Gaussian(mx.AbstractModel):
    """y_i ~ N(z_i, 1), z_i ~ N(mu, 4): the posterior has the variance 0.8."""

    def log_joint(self, params, z, y):
        bad = jnp.where((y > 90) & (params["mu"] > 40), jnp.nan, 0.0)
        return normal(y, z["at"], 1.0) + normal(z["at"], params["mu"], 2.0) + bad

    def init_latents(self, key, params, y):
        return {"at": 0.0 * y}


@pytest.fixture(scope="module")
def fit():
    y = np.random.default_rng(0).normal(1.0, 2.0, N)
    y[6] = 99.0
    return mx.fit(Gaussian(), y, mx.soul(1e-12, mx.LastIterate()), mx.MCMC(mx.MALA(0.5)), params={"mu": 0.5}, n_iter=2,
                  polish=False, progress=False)  # fmt: skip


def mean(fit, mu=0.5):
    return 0.8 * np.asarray(fit.data) + 0.2 * mu


def test_moments_are_those_of_the_conjugate_posterior(fit):
    for estep, rtol in ((mx.Quadrature(9), 1e-9), (None, 0.05)):
        found = latents(fit, 500, estep)
        np.testing.assert_allclose(found["mean"]["at"], mean(fit), rtol=rtol)
        np.testing.assert_allclose(found["sd"]["at"], np.sqrt(0.8), rtol=rtol)
    assert found["sd"]["at"].shape == (N,) and set(found) == {"mean", "sd"}


def test_latents_that_do_not_vary_have_no_standard_deviation(fit, monkeypatch):
    moments = {"at": (np.array([1.0, 3.0]), np.array([1.0 - 1e-12, 13.0]))}
    monkeypatch.setattr(of_latents, "each_unit", lambda *_, **__: (moments, {}))
    np.testing.assert_array_equal(latents(fit)["sd"]["at"], [0.0, 2.0])


def test_blocks_are_as_large_as_their_width_allows(fit, monkeypatch):
    sizes = []
    block = module._block
    monkeypatch.setattr(module, "_block", lambda *args: (sizes.append(len(args[5])), block(*args))[1])
    whole, figures = each_unit(fit, square, mx.Quadrature(9))
    for width, size in ((module.BLOCK_NUMBERS // 4, 4), (module.BLOCK_NUMBERS, 1), (10**9, 1), (0, rung(N))):
        sizes.clear()
        parts, told = each_unit(fit, square, mx.Quadrature(9), width=width)
        assert sizes == [size] * -(-N // size) and size == rung(size)
        np.testing.assert_allclose(parts, whole, rtol=1e-12)
        np.testing.assert_allclose(told["log_marginal"], figures["log_marginal"])
    assert whole.shape == (N,)
    np.testing.assert_allclose(whole, mean(fit) ** 2 + 0.8)


def square(model, params, z, w, batch):
    return jnp.sum(w[:, 0] * z["at"][:, 0] ** 2)


def both(model, params, z, w, batch):
    return {"one": jnp.sum(w[:, 0] * z["at"][:, 0]), "all": jnp.sum(w[:, 0, None] * z["at"] * jnp.ones(2), axis=0)}


def test_chosen_units_are_visited_and_sums_are_over_them(fit):
    units = np.array([2, 7, 8, 3, 10])
    found, figures = each_unit(fit, both, mx.Quadrature(9), params={"mu": -1.0}, units=units, summed=("all",),
                               width=module.BLOCK_NUMBERS // 2)  # fmt: skip
    np.testing.assert_allclose(found["one"], mean(fit, -1.0)[units])
    np.testing.assert_allclose(found["all"], mean(fit, -1.0)[units].sum() * np.ones(2))
    assert figures["log_marginal"].shape == (5,)


class Slow(Gaussian, AbstractCostly):
    """The same, where a unit takes the longer, the smaller its y."""

    costly: bool = True  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    def lengths(self, data):
        return -np.asarray(data)

    def for_searches(self):
        return self


def test_units_that_take_alike_are_visited_together(fit, monkeypatch):
    visited = []
    block = module._block
    monkeypatch.setattr(module, "_block", lambda *args: (visited.append(args[5].tolist()), block(*args))[1])
    slow = dataclasses.replace(fit, problem=dataclasses.replace(fit.problem, model=Slow()))
    for units in (None, np.array([9, 2, 7, 8, 3, 10, 0, 1, 5])):
        visited.clear()
        found, figures = each_unit(slow, both, mx.Quadrature(9), units=units, summed=("all",))
        chosen = np.arange(N) if units is None else units
        ids = [i for ids in visited for i in ids][: len(chosen)]
        assert ids == chosen[np.argsort(-fit.data[chosen])].tolist() and len(visited[0]) == module.ALIKE
        np.testing.assert_allclose(found["one"], mean(fit)[chosen])
        np.testing.assert_allclose(found["all"], mean(fit)[chosen].sum() * np.ones(2))
        expected = each_unit(fit, both, mx.Quadrature(9), units=units)[1]["log_marginal"]
        np.testing.assert_allclose(figures["log_marginal"], expected)
        rows, plain = (proposals(one, mx.Quadrature(9, held=True), units=units)["mean"] for one in (slow, fit))
        np.testing.assert_allclose(rows, plain)


def test_draws_of_a_unit_depend_on_its_number_and_the_key_alone(fit):
    estep = mx.ImportanceSampling(16, control_variate=False)
    whole = each_unit(fit, square, estep, key=3)[0]
    some = each_unit(fit, square, estep, key=3, units=np.array([4, 9]), width=module.BLOCK_NUMBERS)[0]
    np.testing.assert_allclose(some, whole[[4, 9]])
    assert np.all(np.abs(each_unit(fit, square, estep, key=4)[0] / whole - 1) > 1e-9)
    assert len(np.unique((whole - mean(fit) ** 2).round(6))) == N


def test_a_density_that_is_not_a_number_names_its_unit(fit):
    with pytest.raises(UndefinedDensity, match=r"unit 6 at a draw of its latents, with mu = 50:") as caught:
        each_unit(fit, square, mx.Quadrature(5), params={"mu": 50.0})
    assert caught.value.unit == 6
    with pytest.raises(UndefinedDensity, match="unit 6"):
        each_unit(fit, square, mx.Quadrature(5), params={"mu": 50.0}, units=np.array([1, 6]))
    each_unit(fit, square, mx.Quadrature(5), params={"mu": 50.0}, units=np.array([1, 2]))
    many = str(UndefinedDensity(0, {"a": np.arange(9.0)}))
    assert "a[7] = 7" in many and "a[8]" not in many


class Echo(eqx.Module):
    """An E-step whose rows tell what they were made of."""

    def init(self, key, model, params, y):
        return {"y": y, "mu": params["mu"], "key": jax.random.uniform(key)}

    def compared(self, model, params, rows, data):
        return rows | {"spread": jnp.broadcast_to(jnp.std(data), rows["y"].shape)}

    def for_rows(self):
        return self


@pytest.mark.parametrize("most", [3, 4, 5, 4096])
def test_proposals_are_made_for_all_or_for_some_units(most, fit, monkeypatch):
    monkeypatch.setattr(module, "MOST", most)
    y = np.asarray(fit.data)
    rows = proposals(fit, Echo())
    np.testing.assert_array_equal(rows["y"], y)
    np.testing.assert_allclose(rows["mu"], 0.5)
    assert np.all(rows["spread"] > 0.1)  # also where there is one left for the last block: others fill it up
    assert rows["mu"].shape == (N,)
    with jax.enable_x64(True):
        draws = {key: float(jax.random.uniform(jax.random.key(key))) for key in (0, 7)}
    assert np.all(rows["key"] == draws[0])
    units = np.array([1, 3, 4, 8, 9])
    some = proposals(fit, Echo(), {"mu": -3.0}, units, key=7)
    np.testing.assert_array_equal(some["y"][units], y[units])
    assert np.all(np.delete(some["y"], units) == y[9]) and np.all(some["mu"] == -3.0) and np.all(some["key"] == draws[7])


def test_rows_that_are_given_are_those_that_draws_are_from(fit):
    estep = mx.ImportanceSampling(50, n_newton=1)
    near = proposals(fit, estep)
    np.testing.assert_allclose(near["mean"][:, 0], mean(fit), atol=1e-6)
    moved = near | {"mean": near["mean"] + 2.0}
    held = mx.Quadrature(3, held=True)
    given, figures = each_unit(fit, square, held, rows=moved)
    good = each_unit(fit, square, held, rows=near)[1]
    np.testing.assert_allclose(good["log_marginal"], each_unit(fit, square, mx.Quadrature(9))[1]["log_marginal"])
    assert np.all(np.abs(figures["log_marginal"] - good["log_marginal"]) > 1e-3)
    some = each_unit(fit, square, held, rows=moved, units=np.array([2, 5]))[1]
    np.testing.assert_allclose(some["log_marginal"], figures["log_marginal"][[2, 5]])


def test_latents_are_counted_once(fit):
    assert latent_size(fit) == 1 and fit._computed["latent_size"] == 1


# -- which E-step is good enough --------------------------------------------------------------------


@pytest.mark.parametrize(("model", "estep", "size", "kind"), [
    (Discrete(), mx.Exact(), 1, mx.Exact), (Discrete(), mx.MCMC(mx.MALA()), 1, mx.Exact),
    (Gaussian(), mx.Quadrature(3), 1, mx.ImportanceSampling), (Gaussian(), mx.MCMC(mx.MALA()), 20, mx.ImportanceSampling),
    (Gaussian(), mx.MCMC(mx.MALA()), 21, mx.MCMC), (Conjugate(), mx.MCMC(mx.MALA()), 21, mx.Exact),
    (Conjugate(), mx.Exact(), 20, mx.ImportanceSampling), (Gaussian(), mx.ImportanceSampling(9), 21, mx.ImportanceSampling),
])  # fmt: skip
def test_the_estep_of_inference_is_the_best_that_the_model_has(model, estep, size, kind, monkeypatch):
    monkeypatch.setattr(module, "latent_size", lambda fit: size)
    found = reference_estep(SimpleNamespace(_model=lambda: SimpleNamespace(model=model), estep=estep), 77)
    assert type(found) is kind
    if isinstance(found, mx.ImportanceSampling):
        assert found.n_draws == 77 and found.quasi and not found.control_variate
    elif isinstance(found, mx.MCMC):
        assert found.n_steps == 77 and found.kernel is estep.kernel and found.n_chains == estep.n_chains
    elif size == 21:
        assert found.n_draws == 77
    else:
        assert found is estep or not isinstance(estep, mx.Exact)


def test_a_variational_fit_has_no_posterior():
    with pytest.raises(ValueError, match="variational"):
        reference_estep(SimpleNamespace(_model=lambda: SimpleNamespace(model=Gaussian()), estep=mx.Noise(3)), 10)


def test_chains_go_on_by_kernels_of_their_own_kind():
    mala = mx.MCMC(mx.MALA(0.5))
    assert _of_one_kind(mala, mx.MCMC(mx.MALA(0.1))) and not _of_one_kind(mala, mx.MCMC(mx.ULA(0.1)))
    assert not _of_one_kind(mala, mx.Quadrature(3)) and not _of_one_kind(mx.Quadrature(3), mx.Quadrature(3))


def test_chains_of_the_fit_are_the_start_of_chains(fit):
    still = mx.MCMC(mx.MALA(1e-9, target_acceptance=None), n_steps=1)
    where = np.asarray(fit.rows["z"]["at"])[0].reshape(N, -1)[:, 0]
    kept = each_unit(fit, both, still)[0]["one"]
    np.testing.assert_allclose(kept, where, atol=1e-2)
    fresh = each_unit(fit, both, still, keep_chains=False)[0]["one"]
    np.testing.assert_allclose(fresh, 0.0, atol=1e-2)
