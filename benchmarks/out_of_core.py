"""Mini-batch fits of 10,000,000 units of 20 numbers (1.6 GB) from a file beside the same fits from memory.

`python benchmarks/out_of_core.py [--units 10000000] [--iterations 1000] [--batch 10000] [--folder FOLDER]`

Each fit runs in a process of its own. Printed are its peak memory beyond that of the interpreter with margaux imported (pages of
the file that are mapped included), units visited a second once the first chunk is over, and the share of that time in which the
device waited for units or rows. The last column is the throughput beside that of the fit from memory. Iterations with five
transitions a unit are ordinary ones; those with a single one ask most of what feeds them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import margaux as mx
from margaux.engine.rows import release

FEATURES, MIB = 20, 1 << 20

JOBS = {
    "memory": {},
    "memmap": {},
    "memmap, rows in a folder": {},
    "memmap, no thread": {"MARGAUX_THREADS": "1"},
    "Parquet, copied once": {},
    "zarr, copied once": {},
}


class Intercept(mx.AbstractModel):
    """Twenty yes-or-no answers of a unit; a random intercept."""

    def log_joint(self, params, z, y):
        eta = params["mu"] + z
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))

    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)


def written(folder: Path, n: int) -> Path:
    """The units, as answers are drawn block by block."""
    path = folder / f"units_{n}.npy"
    if not path.exists():
        rng, part = np.random.default_rng(0), path.with_suffix(".part")
        units = np.lib.format.open_memmap(part, "w+", np.float64, (n, FEATURES))
        for first in range(0, n, 100_000):
            block = units[first : first + 100_000]
            block[:] = rng.random(block.shape) < 1 / (1 + np.exp(-(0.3 + rng.normal(size=(len(block), 1)))))
            release(units)
        units.flush()
        part.rename(path)
    return path


def stored(path: Path, kind: str) -> Path:
    """The same units as a Parquet file in groups of 1,000,000 rows, or a zarr array in chunks of 10,000."""
    other, units = path.with_suffix(f".{kind}"), np.load(path, mmap_mode="r")
    if other.exists():
        return other
    part = path.with_suffix(f".{kind}.part")
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as parquet

        def table(first: int) -> pa.Table:
            return pa.table({f"x{j}": np.array(units[first : first + 1_000_000, j]) for j in range(FEATURES)})

        with parquet.ParquetWriter(part, table(0).schema) as writer:
            for first in range(0, len(units), 1_000_000):
                writer.write_table(table(first))
    else:
        import zarr

        array = zarr.create_array(part, shape=units.shape, chunks=(10_000, FEATURES), dtype=units.dtype)
        for first in range(0, len(units), 100_000):
            array[first : first + 100_000] = units[first : first + 100_000]
    part.rename(other)
    return other


def opened(job: str, path: Path, folder: str) -> Any:
    """What the fit is given."""
    if job.startswith("Parquet"):
        return mx.on_disk(path.with_suffix(".parquet"), folder)
    if job.startswith("zarr"):
        import zarr

        return mx.on_disk(zarr.open_array(path.with_suffix(".zarr"), mode="r"), folder)
    return np.load(path, mmap_mode=None if job == "memory" else "r")


def memory(name: str) -> float:
    """MiB of this process: VmRSS now, or VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measured(job: str, path: Path, iterations: int, batch: int, steps: int, before: float) -> dict[str, Any]:
    """One fit, in this process."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        data = opened(job, path, folder)
        opening, copied = time.perf_counter() - began, memory("VmHWM") - before
        rows = folder if "folder" in job else "device"
        began = time.process_time()
        fit = mx.fit(Intercept(), data, mx.soul(), mx.MCMC(mx.MALA(), n_steps=steps), params={"mu": 0.0, "spread": 0.0},
                     n_iter=iterations, batch_size=batch, key=1, polish=False, progress=False, rows=rows)  # fmt: skip
    spent = fit.timings["run"] + fit.timings["wait"]
    counted = len(fit.trace["params"]) - 32  # the first chunk compiles
    return {
        "peak": memory("VmHWM") - before,
        "opening": opening,
        "copied": copied,
        "rate": batch * counted / spent,
        "wait": fit.timings["wait"] / spent,
        "cpu": time.process_time() - began,
        "found": [float(fit.params[name]) for name in ("mu", "spread")],
    }


def main() -> None:
    before = memory("VmRSS")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10_000_000)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 1])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    path = written(args.folder, args.units)
    if args.one:
        print("RESULT" + json.dumps(measured(args.one, path, args.iterations, args.batch, args.steps[0], before)))
        return
    for kind in ("parquet", "zarr"):
        if any(job.lower().startswith(kind) for job in args.jobs):
            stored(path, kind)
    for steps in args.steps:
        print(f"{steps} transitions a unit and iteration, {args.units:,} units in batches of {args.batch:,}")
        rate = None
        for job in args.jobs:
            command = [sys.executable, __file__, "--one", job, "--steps", str(steps), "--units", str(args.units)]
            command += ["--iterations", str(args.iterations), "--batch", str(args.batch), "--folder", str(args.folder)]
            env = os.environ | {"JAX_PLATFORMS": "cpu"} | JOBS[job]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                raise SystemExit(f"{job} failed:\n{done.stderr[-3000:]}")
            one = json.loads(done.stdout.split("RESULT")[1])
            rate = one["rate"] if rate is None else rate
            copying = f"; copied in {one['opening']:.1f} s with {one['copied']:.0f} MiB" if "copied" in job else ""
            print(
                f"  {job:26} peak {one['peak']:6.0f} MiB, {one['rate']:10,.0f} units/s, waited {one['wait']:5.1%}, "
                f"{one['cpu']:6.1f} CPU s, {one['rate'] / rate:5.2f} of memory's; estimate {one['found']}{copying}",
                flush=True,
            )


if __name__ == "__main__":
    main()
