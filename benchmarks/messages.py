"""Seconds of a sum over two local processes against the size of the message: `python benchmarks/messages.py`.

What an iteration pays beyond its work: a compiled loop of all-reduces as a chunk of a fit has them, and a gathering between
chunks. The least of twenty, as what else runs on the machine only adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numpy as np

SIZES = (1, 100, 10_000, 100_000, 1_000_000)

SCRIPT = """
import sys, time
import margaux as mx
mx.distributed.initialize()
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from margaux.engine.share import Share, everyones
share = Share((1,) * jax.process_count(), jax.process_index())

def summed(x, turns):
    def body(_, x):
        return jax.lax.psum(x, "units") / share.n
    return jax.lax.fori_loop(0, turns, body, x)

with jax.enable_x64(True):
    program = jax.jit(jax.shard_map(summed, mesh=share.mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False))
    for size in map(int, sys.argv[1:]):
        turns = max(min(100, 1_000_000 // size), 5)
        x = np.ones(size)
        jax.block_until_ready(program(x, 1))
        loops, gathers = [], []
        for _ in range(20):
            began = time.perf_counter()
            jax.block_until_ready(program(x, turns))
            loops.append((time.perf_counter() - began) / turns)
            began = time.perf_counter()
            everyones(x)
            gathers.append(time.perf_counter() - began)
        if jax.process_index() == 0:
            print("RESULT", 8 * size, min(loops), min(gathers), flush=True)
"""


def main() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(SCRIPT)
        script.flush()
        command = [sys.executable, "-m", "margaux", "launch", "-n", "2", script.name, *map(str, SIZES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    rows = np.array([line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")], float)
    latency = rows[0, 1]
    bandwidth = rows[-1, 0] / max(rows[-1, 1] - latency, 1e-9)
    print(f"model: {1e6 * latency:.0f} us and {bandwidth / 1e9:.2f} GB/s")
    print("| bytes | in a compiled loop | between chunks | model | ratio |\n|---|---|---|---|---|")
    for size, loop, gather in rows:
        model = latency + size / bandwidth
        print(f"| {size:.0f} | {1e6 * loop:.0f} us | {1e6 * gather:.0f} us | {1e6 * model:.0f} us | {model / loop:.2f} |")


if __name__ == "__main__":
    main()
