"""Objects by what they do: the same token for the same meaning, another for any other."""

import dataclasses
import functools
import os
import subprocess
import sys
import textwrap
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.numerics import digest as module
from margaux.numerics.digest import Digest

SCALE = 2.0


def token(value):
    return Digest().of(value)


def portable(value):
    digest = Digest()
    digest.of(value)
    return digest.portable


def made(text, **names):
    """A function from its source."""
    scope = {"jnp": jnp, **names}
    exec(textwrap.dedent(text), scope)
    return scope["f"]


@pytest.mark.parametrize(("one", "other"), [
    (1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1, 2), [1, 2]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (np.float32(1), np.float64(1)), (np.zeros(2), np.zeros((2, 1))), (np.zeros(2), np.ones(2)), (np.dtype("f4"), np.dtype("f8")),
    (jnp.sin, jnp.cos), (mx.MALA(0.5), mx.MALA(0.6)), (mx.MALA(0.5), mx.ULA(0.5)), (mx.Positive(), mx.Real()),
    (functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=1)), (jax.random.key(0), jax.random.key(1)),
    (jnp.sin, jax.vmap(jnp.sin)), (jax.vmap(jnp.sin, in_axes=1), jax.vmap(jnp.sin)), (jax.grad(jnp.sin), jax.vmap(jnp.sin)),
    (jax.jit(jnp.sin), jax.jit(jnp.cos)), (lambda x: x + 1, lambda x: x + 2), (lambda x: x + 1, lambda x: x - 1),
    (lambda x, a=1: x + a, lambda x, a=2: x + a),
])  # fmt: skip
def test_what_differs_has_another_token(one, other):
    assert token(one) != token(other)
    assert token(one) == token(one) and token(other) == token(other)


def test_a_function_written_anew_is_the_same_one():
    text = "def f(x):\n    def inner(y):\n        return jnp.exp(y) * 3\n    return inner(x) + 1"
    assert token(made(text)) == token(made(text)) and portable(made(text))
    assert token(made(text)) != token(made(text.replace("* 3", "* 4"))) != token(made(text.replace("exp", "log")))


def test_closures_and_globals_count_all_the_way_down():
    def within(rate):
        return lambda x: rate * x

    assert token(within(2.0)) == token(within(2.0)) != token(within(3.0))
    text = "def g(x):\n    return SCALE * x\ndef f(x):\n    return g(x) + 1"
    assert token(made(text, SCALE=2.0)) == token(made(text, SCALE=2.0)) != token(made(text, SCALE=2.5))
    assert token(made(text, SCALE=np.ones(2))) != token(made(text, SCALE=np.zeros(2)))


def test_functions_that_call_themselves_and_each_other_end():
    text = "def f(x):\n    return x if x < 1 else g(x - 1)\ndef g(x):\n    return f(x) * {}"
    assert token(made(text.format(2))) == token(made(text.format(2))) != token(made(text.format(3)))


def test_classes_are_told_by_their_methods_and_bases():
    def model(factor, flat):
        class Model(mx.AbstractModel):
            if flat:
                extra: float = 1.0

            def log_joint(self, params, z, y):
                return -factor * jnp.sum((y - z) ** 2)

            def init_latents(self, key, params, y):
                return jnp.zeros(1)

        return Model()

    assert token(model(1.0, False)) == token(model(1.0, False)) and portable(model(1.0, False))
    assert len({token(model(1.0, False)), token(model(2.0, False)), token(model(1.0, True))}) == 3


def test_partial_functions_in_a_class_are_told_by_their_arguments():
    def made_with(power):
        class Model(mx.AbstractModel):
            raised = functools.partial(jnp.power, power)
            halved = functools.partial(lambda by, x: x / by, power)

            def log_joint(self, params, z, y):
                return -jnp.sum(self.raised(z))

            def init_latents(self, key, params, y):
                return jnp.zeros(1)

            @staticmethod
            def held(x):
                return x

            @property
            def shown(self):
                return power

        return Model

    assert token(made_with(2.0)) == token(made_with(2.0)) != token(made_with(3.0))


def test_derivatives_of_ones_own_count():
    def made_with(slope):
        @jax.custom_jvp
        def f(x):
            return x

        f.defjvp(lambda p, t: (p[0], slope * t[0]))
        return f

    assert token(made_with(2.0)) == token(made_with(2.0)) != token(made_with(3.0))


def test_what_cannot_be_told_stands_for_itself_and_stays_here():
    one, other = object(), object()
    assert token(one) == token(one) != token(other) and not portable(one)
    mine = types.ModuleType("mine")
    vars(mine)["h"] = lambda x: x  # what its functions do may change behind its name
    reads = made("def f(x):\n    return mine.h(x)", mine=mine)
    assert not portable(reads) and token(reads) == token(reads)
    assert not portable(made("def f(x):\n    import elsewhere\n    return elsewhere.g(x)"))
    assert portable(made("def f(x):\n    import math\n    return math.sin(x)"))
    unhashable = eqx.nn.Linear(1, 1, key=jax.random.key(0)).__dict__.keys()
    assert not portable(unhashable)


def test_tokens_are_the_same_in_another_process():
    script = textwrap.dedent("""
        import jax.numpy as jnp, margaux as mx
        from margaux.nlme import LogNormal, oral1cpt
        from margaux.numerics.digest import Digest
        rate = 2.0
        class Mine(mx.AbstractModel):
            def log_joint(self, params, z, y):
                return -rate * jnp.sum((y - params["mu"] - z) ** 2) - jnp.sum(z**2) if {"a", "b"} else 0.0
            def init_latents(self, key, params, y):
                return jnp.zeros(1)
        digest = Digest()
        print(digest.of((Mine(), mx.soul(), mx.saem(), mx.MCMC(), oral1cpt, {"x", "y", "z"}, lambda x: Mine)))
        print(digest.portable)
    """)
    told = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
        told.add(done.stdout)
    assert len(told) == 1 and told.pop().endswith("True\n")


def test_attributes_of_functions_and_objects_count():
    def scaled(by):
        def g(x):
            return x * g.by

        g.by = by
        return g

    assert token(scaled(1.0)) == token(scaled(1.0)) != token(scaled(2.0))

    @dataclasses.dataclass
    class Settings:
        by: float = 1.0

    one, other = Settings(2.0), Settings(2.0)
    assert token(one) == token(other) != token(Settings(3.0)) and portable(one)
    vars(other)["extra"] = 1
    assert not portable(other)

    class Named(dict):
        pass

    named = Named(a=1)
    assert portable(named) and token(named) != token({"a": 1})
    vars(named)["extra"] = 1
    assert not portable(named)


def test_what_is_very_large_is_not_looked_into(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 50)
    assert not portable([[i] for i in range(100)]) and portable([[i] for i in range(10)])
