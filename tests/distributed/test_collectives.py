"""What an iteration of several processes says to the others: one sum, whose size has nothing to do with the number of units."""

import re

import jax
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.engine import chunks, minibatch
from margaux.engine.sharding import units_mesh

REDUCTION = re.compile(r"= (.*?) all-reduce(?:-start)?\(")
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "pred": 1}


def reductions(text):
    """Bytes of each all-reduce of a program."""
    found = []
    for shapes in REDUCTION.findall(text):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        found.append(sum(BYTES[kind] * int(np.prod([int(s) for s in size.split(",") if s])) for kind, size in arrays))
    return found


def compiled_over_two(module, name, monkeypatch, algorithm, n, **settings):
    """The text of a fit's chunk, compiled for two devices."""
    original, texts = getattr(module, name), []

    def spy(inputs, carry, **static):
        given = carry
        if name == "batch_chunk":  # each device has a buffer of its own
            given = carry._replace(rows=jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], axis=1), carry.rows))
        over = static | {"mesh": units_mesh(2)} | ({"b": 8} if name == "batch_chunk" else {})
        texts.append(original.lower(inputs, given, **over).compile().compiled.as_text())
        return original(inputs, carry, **static)

    monkeypatch.setattr(module, name, spy)
    problem = random_intercept(n, 3)
    mx.fit(problem.model, problem.data, algorithm, mx.MCMC(mx.ULA(0.1)), params=problem.start, space=problem.space,
           n_iter=3, polish=False, progress=False, **settings)  # fmt: skip
    return texts[0]


@pytest.mark.parametrize(("algorithm", "settings"), [
    (mx.soul, {"batch_size": 8}),
    pytest.param(lambda: mx.saga(0.1), {"batch_size": 8}, marks=pytest.mark.slow),
    pytest.param(mx.saem, {}, marks=pytest.mark.slow),
], ids=["soul in batches", "saga", "saem on all"])  # fmt: skip
def test_one_all_reduce_an_iteration_whatever_the_number_of_units(algorithm, settings, monkeypatch, capsys):
    module, name = (minibatch, "batch_chunk") if settings else (chunks, "full_chunk")
    sizes = []
    for n in (48, 192):
        with monkeypatch.context() as patch:
            text = compiled_over_two(module, name, patch, algorithm(), n, **settings)
        found = reductions(text)
        # The program is a loop over iterations: what stands once in it happens once in each.
        assert len(found) == 1 and "while" in text
        others = re.findall(r" (all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast)", text)
        assert others == [], n
        sizes += found
    assert sizes[0] == sizes[1] and 0 < sizes[0] <= 200
    with capsys.disabled():
        print(f" {sizes[0]} bytes an iteration ", end="")
