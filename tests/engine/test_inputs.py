"""Bad input: each row is answered before compilation by a message that names what, where and the mend."""

# What is refused has types that are refused.
# pyright: reportArgumentType=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import Mixture, RandomIntercept, simulate_intercepts

_, UNITS = simulate_intercepts(12, seed=0)
START = {"mu": 0.0, "tau2": 1.0}
normal = jax.scipy.stats.norm.logpdf


class Plain(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return jnp.sum(normal(y["y"], z)) + normal(z, params["mu"])

    def init_latents(self, key, params, y):
        return jnp.zeros(())


class Vector(Plain):
    def log_joint(self, params, z, y):
        return normal(y["y"], z)


class Broken(Plain):
    def log_joint(self, params, z, y):
        return jnp.sum(y["nope"])


class BadShapes(Plain):
    def log_joint(self, params, z, y):
        return jnp.sum(jnp.ones((3, 2)) @ y["y"])


class Infinite(Plain):
    def log_joint(self, params, z, y):
        return jnp.log(z) + params["mu"]


class BadGradient(Plain):
    def log_joint(self, params, z, y):
        return jnp.sqrt(jnp.abs(params["mu"])) + 0 * z


class IntegerLatents(Plain):
    def init_latents(self, key, params, y):
        return jnp.zeros((), int)


class NoLatents(Plain):
    def init_latents(self, key, params, y):
        return ()


class NaNLatents(Plain):
    def init_latents(self, key, params, y):
        return jnp.full((), jnp.nan)


class Wide(Plain):
    def log_joint(self, params, z, y):
        return jnp.sum(z) + params["mu"]

    def init_latents(self, key, params, y):
        return jnp.zeros(500)


#: for calls that no type checker would let pass
untyped: Any = mx


def fit(model=None, data=UNITS, algorithm=None, estep=None, **kw):
    settings = {"params": START, "n_iter": 5, "progress": False} | kw
    model = RandomIntercept() if model is None else model
    return mx.fit(model, data, algorithm or mx.soul(), estep or mx.Quadrature(5), **settings)


def with_nan():
    y = UNITS["y"].copy()
    y[3, 1] = np.nan
    return UNITS | {"y": y}


MANY = [
    # (what it does, error, pieces of the message)
    (lambda: fit(data=with_nan()), ValueError, ["data y", "nan", "(3, 1)", "unit 3", "mask"]),
    (lambda: fit(data=UNITS | {"y": np.full((12, 2), np.inf)}), ValueError, ["data y", "inf", "drop or impute"]),
    (lambda: fit(data=UNITS | {"mask": UNITS["mask"][:5]}), ValueError, ["leading axes", "mask: 5", "y: 12"]),
    (lambda: fit(data={}), ValueError, ["empty"]),
    (lambda: fit(data={"y": np.zeros((0, 3))}), ValueError, ["no units"]),
    (lambda: fit(data={"y": np.array(["a", "b"])}), TypeError, ["data y", "encode"]),
    (lambda: fit(data={"y": np.array([1 + 1j])}), TypeError, ["complex"]),
    (lambda: fit(data={"y": [1.0, 2.0]}), TypeError, ["asarray"]),
    (lambda: fit(data={"y": np.array(1.0)}), ValueError, ["single number", "one_unit"]),
    (lambda: fit(model=Vector()), ValueError, ["Vector.log_joint", "scalar", "sum"]),
    (lambda: fit(model=Broken()), KeyError, ["Broken.log_joint", "nope", "One unit has"]),
    (lambda: fit(model=BadShapes()), TypeError, ["BadShapes.log_joint", "One unit has"]),
    (lambda: fit(model=Infinite()), ValueError, ["Infinite.log_joint", "-inf", "support"]),
    (lambda: fit(model=BadGradient()), ValueError, ["gradient", "mu", "not finite"]),
    (lambda: fit(model=IntegerLatents()), TypeError, ["integer latents", "AbstractDiscrete"]),
    (lambda: fit(model=NoLatents()), ValueError, ["init_latents", "no array"]),
    (lambda: fit(model=NaNLatents()), ValueError, ["non-finite"]),
    (lambda: fit(model=RandomIntercept), TypeError, ["class", "instance"]),
    (lambda: fit(model=lambda z: z), TypeError, ["model", "AbstractModel"]),
    (lambda: fit(algorithm=mx.soul), TypeError, ["algorithm", "call it"]),
    (lambda: fit(estep=mx.ULA(0.1)), TypeError, ["estep", "MCMC"]),
    (lambda: fit(model=Plain(), algorithm=mx.saem()), TypeError, ["suffstats", "AbstractExponentialFamily"]),
    (lambda: fit(model=Plain(), estep=mx.Exact()), TypeError, ["sample_posterior", "MCMC"]),
    (lambda: fit(model=Wide(), estep=mx.Quadrature(5)), TypeError, ["quadrature", "500"]),
    (lambda: fit(model=Wide(), estep=mx.ImportanceSampling()), TypeError, ["500", "MCMC"]),
    (lambda: fit(params={"mu": 0, "tau2": 1.0}), TypeError, ["mu", "integer", "0.0"]),
    (lambda: fit(params={"mu": np.nan, "tau2": 1.0}), ValueError, ["mu", "finite"]),
    (lambda: fit(params={}), ValueError, ["params is empty"]),
    (lambda: fit(params={"mu": "a", "tau2": 1.0}), TypeError, ["mu"]),
    (lambda: fit(params={"mu": np.zeros(0), "tau2": 1.0}), ValueError, ["mu", "no entries"]),
    (lambda: fit(params={"mu": 0.0, "tau2": -1.0}, space={"tau2": mx.Positive()}), ValueError, ["tau2", "outside", "nearest"]),
    (lambda: fit(space={"tau": mx.Positive()}), ValueError, ['"tau"', "no parameter", "tau2"]),
    (lambda: fit(space="positive"), TypeError, ["space", "mx.Positive()"]),
    (lambda: fit(space={"mu": mx.Simplex()}), ValueError, ["mu", "Simplex"]),
    (lambda: fit(space={"mu": mx.PositiveDefinite()}), ValueError, ["mu", "square"]),
    (lambda: fit(batch_size=13), ValueError, ["batch_size 13", "12"]),
    (lambda: fit(batch_size=0), ValueError, ["batch_size", "at least 1"]),
    (lambda: fit(batch_size=2.5), TypeError, ["batch_size", "whole number"]),
    (lambda: fit(n_iter=0), ValueError, ["n_iter", "at least 1"]),
    (lambda: fit(n_iter=1e4), TypeError, ["n_iter", "whole number"]),
    (lambda: fit(key=-1), ValueError, ["key"]),
    (lambda: fit(key="a"), TypeError, ["key", "PRNG"]),
    (lambda: fit(dtype="int32"), ValueError, ["dtype", "float32 or float64"]),
    (lambda: fit(sampling="random"), ValueError, ["sampling", "reshuffled"]),
    (lambda: fit(rows="disk"), ValueError, ["rows", "host"]),
    (lambda: fit(devices=5), ValueError, ["12 units", "5 devices"]),
    (lambda: fit(devices=12), ValueError, ["devices = 12", "XLA_FLAGS"]),
    (lambda: fit(devices=2, batch_size=2), ValueError, ["full batches"]),
    (lambda: fit(runs=[START, START]), ValueError, ["same values", "distinct"]),
    (lambda: fit(runs=[START, {"mu": 1.0}]), ValueError, ["runs", "structure"]),
    (lambda: fit(runs=0), ValueError, ["runs", "at least 1"]),
    (lambda: fit(penalty=0.1), TypeError, ["penalty", "mx.L1"]),
    (lambda: fit(penalty=mx.L1(0.1, on="beta")), ValueError, ['"beta"', "mu"]),
    (lambda: fit(average="polyak"), TypeError, ["average", "PolyakRuppert"]),
    (lambda: fit(callbacks=[print]), TypeError, ["callbacks", "AbstractCallback"]),
    (lambda: mx.ULA(-0.1), ValueError, ["step_size", "positive"]),
    (lambda: mx.ULA("big"), TypeError, ["step_size", "schedule"]),
    (lambda: mx.ULA(0.1, preconditioner=np.ones((2, 3))), ValueError, ["preconditioner", "(2, 3)"]),
    (lambda: mx.ULA(0.1, preconditioner=-np.eye(2)), ValueError, ["positive definite"]),
    (lambda: mx.soul(step=-1.0), ValueError, ["step", "positive"]),
    (lambda: mx.misso(lipschitz=0.0), ValueError, ["lipschitz", "positive"]),
    (lambda: mx.saga(of="gradient"), ValueError, ["score", "suffstats"]),
    (lambda: mx.Polynomial(0.0, 0.8), ValueError, ["scale", "above 0"]),
    (lambda: mx.Polynomial(1.0, -0.8), ValueError, ["power", "at least 0"]),
    (lambda: mx.MCMC(mx.ULA(0.1), n_steps=0), ValueError, ["n_steps", "at least 1"]),
    (lambda: mx.MCMC(mx.ULA(0.1), n_steps=2, thin=3), ValueError, ["thin", "keeps no state"]),
    (lambda: untyped.MCMC(mx.ULA), TypeError, ["kernel", "mx.MALA()"]),
    (lambda: mx.ImportanceSampling(1), ValueError, ["n_draws", "at least 2"]),
    (lambda: mx.ImportanceSampling(proposal="prior"), ValueError, ["proposal", "laplace"]),
    (lambda: mx.ImportanceSampling(defensive=1.0), ValueError, ["defensive", "[0, 1)"]),
    (lambda: mx.Noise(3, antithetic=True), ValueError, ["even", "antithetic"]),
    (lambda: mx.BlackJAX("gibbs"), ValueError, ["gibbs", "nuts"]),
    (lambda: mx.L1(-1.0), ValueError, ["weight", "negative"]),
    (lambda: mx.Box(1.0, 0.0), ValueError, ["low", "high"]),
    (lambda: mx.PolyakRuppert(-1), ValueError, ["burn_in"]),
    (lambda: mx.pad_ragged({"y": [1.0, 2.0]}, ["a"]), ValueError, ['"y"', "2 rows", "1"]),
    (lambda: mx.pad_ragged({"y": []}, []), ValueError, ["no rows"]),
    (lambda: mx.pad_ragged({"y": [1.0, 2.0]}, ["a", None]), ValueError, ["row 1", "no group label"]),
]


@pytest.mark.parametrize("row", range(len(MANY)))
def test_bad_input(row, monkeypatch):
    action, error, pieces = MANY[row]
    for program in ("chunks.full_chunk", "minibatch.batch_chunk", "passes.init_rows", "passes.visit_all"):
        monkeypatch.setattr(f"margaux.engine.{program}", lambda *a, **k: pytest.fail("compiled before the input was refused"))
    with pytest.raises(error) as caught:
        action()
    for piece in pieces:
        assert piece in str(caught.value), f"{piece!r} is not in: {caught.value}"


def test_discrete_latents_are_accepted():
    x = np.random.default_rng(0).normal(size=20)
    from helpers import MIXTURE_SPACE, MIXTURE_START

    mx.fit(Mixture(), x, mx.saem(), mx.Exact(), params=MIXTURE_START, space=MIXTURE_SPACE, n_iter=2, progress=False)
