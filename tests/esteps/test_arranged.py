"""`mx.Laplace` of models that declare nothing: the structure that it finds, against declared ones and dense."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import margaux as mx
from margaux.esteps import arranged as module
from margaux.esteps import laplace
from margaux.numerics.sparsity import Reordered
from margaux.numerics.structures import Eliminated


class States(mx.AbstractModel):
    """Counts of states that depend on those `lag` and, far away in theta, on ones `late` before."""

    lag: int = 1
    late: int = 0

    def log_joint(self, params, z, y):
        rho = jnp.tanh(params["rho"])
        steps = norm.logpdf(z[self.lag :] - rho * z[: -self.lag], 0.0, jnp.exp(params["spread"]))
        hidden = jnp.sum(z[: -self.late] * jnp.where(params["rho"] > 0.8, 0.2 * z[self.late :], 0.0)) if self.late else 0.0
        return jnp.sum(steps) + jnp.sum(norm.logpdf(z[: self.lag])) + jnp.sum(y * z - jnp.exp(z)) - hidden

    def init_latents(self, key, params, y):
        return 0.0 * y


class Crossed(mx.AbstractModel):
    """Counts of two crossed factors."""

    def log_joint(self, params, z, u):
        eta = params["mu"] + jnp.exp(params["b"]) * z["b"][u["b"]] + jnp.exp(params["c"]) * z["c"][u["c"]]
        return jnp.sum(u["y"] * eta - jnp.exp(eta)) + jnp.sum(norm.logpdf(z["b"])) + jnp.sum(norm.logpdf(z["c"]))

    def init_latents(self, key, params, u):
        return {"b": jnp.zeros(90, u["y"].dtype), "c": jnp.zeros(20, u["y"].dtype)}


class Together(mx.AbstractModel):
    """All latents depend on each other."""

    def log_joint(self, params, z, y):
        return jnp.sum(y * z - jnp.exp(z)) - (jnp.sum(z) - params["mu"]) ** 4 - jnp.sum(z**2)

    def init_latents(self, key, params, y):
        return 0.0 * y


def states(n=2, d=120):
    rng, z = np.random.default_rng(0), np.zeros((n, d))
    for t in range(1, d):
        z[:, t] = 0.8 * z[:, t - 1] + 0.4 * rng.normal(size=n)
    return rng.poisson(np.exp(z)).astype(float)


def crossed():
    rng = np.random.default_rng(1)
    b, c = rng.integers(0, 90, 700), rng.integers(0, 20, 700)
    y = rng.poisson(np.exp(0.3 + 0.5 * rng.normal(size=90)[b] + 0.4 * rng.normal(size=20)[c])).astype(float)
    return mx.one_unit({"y": y, "b": b, "c": c})


def climb(model, data, structure, params, **more):
    return mx.fit(
        model, data, mx.newton(), mx.Laplace(structure), params=params, n_iter=30, **{"polish": False, "progress": False} | more
    )


def same(fit, other):
    for name, value in fit.params.items():
        assert float(value) == pytest.approx(float(other.params[name]), abs=1e-8)
    assert fit.trace["log_marginal"][-1, 0] == pytest.approx(other.trace["log_marginal"][-1, 0], abs=1e-8)


AT_ZERO = {"rho": 0.0, "spread": -0.5}  # where no two states depend on each other


def test_states_are_found_to_be_a_band(monkeypatch):
    found = climb(States(), states(), None, AT_ZERO)
    assert isinstance(found.estep.structure, mx.Band) and found.estep.structure.width == 1
    same(found, climb(States(), states(), mx.Band(1), AT_ZERO))
    monkeypatch.setattr(module, "FEWEST", 1000)
    dense = climb(States(), states(), None, AT_ZERO)
    assert dense.estep.structure is None
    same(found, dense)


@pytest.mark.slow
def test_chains_that_are_interleaved_are_put_one_after_the_other():
    found = climb(States(2), states(), None, AT_ZERO)
    assert isinstance(found.estep.structure, Reordered) and found.estep.structure.inner.width == 1
    same(found, climb(States(2), states(), mx.Band(2), AT_ZERO))


@pytest.mark.slow
def test_the_larger_of_crossed_factors_is_eliminated():
    start = {"mu": 0.0, "b": -1.0, "c": -1.0}
    found = climb(Crossed(), crossed(), None, start)
    structure = found.estep.structure
    inner = structure.inner if isinstance(structure, Reordered) else structure
    assert isinstance(inner, Eliminated) and (inner.groups, inner.k) == (90, 1)
    same(found, climb(Crossed(), crossed(), mx.Blocks("b"), start))


def problem(model, n):
    return SimpleNamespace(model=model, n=n, space=mx.Real())


@pytest.mark.usefixtures("double")
def test_units_that_differ_are_all_held_to_it(monkeypatch):
    class Linked(States):
        """The last unit's first and last states depend on each other."""

        def log_joint(self, params, z, y):
            return super().log_joint(params, z, y) - 0.1 * z[0] * jnp.where(y[0] > 50, z[-1], 0.0)

    y = jnp.asarray(np.repeat(states(1), 5, axis=0)).at[4, 0].set(51.0)
    params = jax.tree.map(jnp.asarray, AT_ZERO)
    monkeypatch.setattr(module, "PROBED", 120)  # latents of one unit, the first
    assert isinstance(module.arranged(problem(Linked(), 4), params, lambda ids: y[ids]), mx.Band)
    assert not isinstance(module.arranged(problem(Linked(), 5), params, lambda ids: y[ids]), mx.Band)


@pytest.mark.usefixtures("double")
def test_what_holds_at_the_start_alone_is_not_trusted():
    class Hidden(States):
        """A dependence that begins beyond zero."""

        def log_joint(self, params, z, y):
            return super().log_joint(params, z, y) - 0.1 * z[0] * jnp.where(params["spread"] != -0.5, z[-1], 0.0)

    y, params = jnp.asarray(states(1)), jax.tree.map(jnp.asarray, AT_ZERO)
    assert isinstance(module.arranged(problem(States(), 1), params, lambda ids: y[ids]), mx.Band)
    assert not isinstance(module.arranged(problem(Hidden(), 1), params, lambda ids: y[ids]), mx.Band)


@pytest.mark.slow
@pytest.mark.parametrize("structure", [None, mx.Band(1)])
def test_a_structure_that_does_not_hold_where_the_fit_ends_is_told(structure):
    """One that was found, of a dependence that begins far from the start; and one that was declared."""
    fit = climb(States(1, 3), states(2, 240), structure, AT_ZERO)
    assert isinstance(fit.estep.structure, mx.Band) and fit.estep.structure.width == 1
    assert fit.certificate.word == "failed" and "depend on each other where the structure" in str(fit.certificate)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(laplace, "memory", lambda: 2.0**20)
    with pytest.raises(ValueError, match="second derivatives, and this machine has"):
        climb(Together(), states(1, 400), None, {"mu": 0.0})
    assert climb(States(), states(1, 400), None, AT_ZERO).estep.structure.width == 1
