"""Fits on an accelerator beside the CPU of the same machine: `python benchmarks/gpu.py [JOB ...] [--quick]`.

1. SOUL on the Wisconsin data, 1000 runs side by side, 500 iterations.
2. PLN-PCA at 20,000 x 2,000, rank 5: sweeps of variational EM.
3. Regression with missing covariates, 100,000 x 20, a tenth missing: the fit with standard errors.
4. LeNet-5 on images of 28 x 28 by MISSO: an epoch of 55,000 in blocks of 128 (made-up images: the time is the same).
5. ResNet-18 on images of 32 x 32 in three colours by MISSO: an epoch of 50,000 in blocks of 500, whose table of gradients takes
   4.5 GB in single precision. On a CPU the time is that of two blocks of 50 images, times five hundred.

Each job is a process of its own, on the accelerator in single precision and on the CPU in single and double; what is compiled is
left out by a first fit. The share of the peak is that of arithmetic or of memory, whichever is more, where the work can be
counted (see docs/scale.md) and the device's peak is known. Without an accelerator the CPU's column is all there is. `--quick` has
sizes a hundred times smaller, to see that the jobs run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from typing import Any

#: flops a second in single precision and bytes a second, by the manufacturers' data sheets
PEAKS = {"H200": (67e12, 4.8e12), "H100": (67e12, 3.35e12), "A100": (19.5e12, 2.0e12), "V100": (15.7e12, 0.9e12),
         "T4": (8.1e12, 0.32e12), "L4": (30.3e12, 0.3e12)}  # fmt: skip


def soul(quick: bool, dtype: str) -> tuple[float, str]:
    import numpy as np

    import margaux as mx
    from margaux.families.empirical_bayes.model import MeanPrior

    X, y = mx.datasets.load_wisconsin(return_X_y=True)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    runs = 10 if quick else 1000
    model = MeanPrior(5.0**0.5)

    def fitted() -> None:
        mx.fit(model, mx.one_unit({"x": X, "y": y.astype(float)}), mx.soul(), mx.MCMC(mx.ULA(0.01), n_steps=5), runs=runs,
               params={"theta": 0.0}, n_iter=20 if quick else 500, dtype=dtype, polish=False, progress=False)  # fmt: skip

    return _second(fitted), ""


def pln(quick: bool, dtype: str) -> tuple[float, str]:
    import jax
    import numpy as np

    from margaux.families.pln.counts import Counts
    from margaux.families.pln.fitting import Design, Sweeps
    from margaux.families.pln.start import by_log_counts
    from margaux.numerics.precision import precision

    n, p, q, sweeps = (200, 20, 5, 4) if quick else (20_000, 2_000, 5, 10)
    rng = np.random.default_rng(0)
    rates = np.exp(0.5 * rng.normal(size=(n, q)) @ rng.normal(size=(q, p)) / q**0.5)
    design, kind = Design(Counts(rng.poisson(rates).astype(dtype)), np.ones((n, 1)), np.zeros((n, 1))), np.dtype(dtype)
    with precision(kind):
        loadings, posterior = by_log_counts(design, q, dtype=kind)
        # A table that the device holds is one program's.
        sweeping = Sweeps(design, kind, tol=0.0, relative=0.0, block=n * p)

        def swept() -> None:
            jax.block_until_ready(sweeping.on(sweeping.begin(loadings, posterior), sweeps).state)

        return _second(swept) / sweeps, f"pln {n} x {p} rank {q}"


def missing(quick: bool, dtype: str) -> tuple[float, str]:
    import numpy as np

    import margaux as mx

    n, p = (1000, 5) if quick else (100_000, 20)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p)) @ np.linalg.cholesky(0.3 + 0.7 * np.eye(p)).T
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ np.linspace(-1, 1, p)))).astype(float)
    X[rng.random((n, p)) < 0.1] = np.nan
    return _second(lambda: mx.MissingLogistic(verbose=False, dtype=dtype).fit(X, y).stderr_), ""


def lenet(quick: bool, dtype: str) -> tuple[float, str]:
    import jax

    from margaux.families.variational.architectures import LeNet5

    n, size = (640, 128) if quick else (55_000, 128)
    return _misso_epoch(LeNet5(key=jax.random.key(0)), (28, 28, 1), n, n // size, size, dtype, 1e-3), ""


def resnet(quick: bool, dtype: str) -> tuple[float, str]:
    import jax

    from margaux.families.variational.architectures import ResNet18

    n, epoch = 50_000, 20 if quick else 50_000
    large = not quick and jax.default_backend() != "cpu"
    size, count = (500, 100) if large else (4 if quick else 50, 2)
    # With more images at a time their activations would take tens of gigabytes.
    slices = max(size // 125, 1)
    network = ResNet18(key=jax.random.key(0))
    return _misso_epoch(network, (32, 32, 3), n, count, size, dtype, 1e-4, slices) * epoch / (count * size), ""


JOBS = {"soul": soul, "pln": pln, "missing": missing, "lenet": lenet, "resnet": resnet}


def _misso_epoch(
    module: Any, shape: tuple[int, ...], n: int, count: int, size: int, dtype: str, step: float, slices: int = 1
) -> float:
    """Seconds of MISSO's visits of some blocks of n images, all of them or the first, without its pass before."""
    import jax
    import numpy as np

    import margaux as mx
    from margaux.families.variational.draws import as_draws
    from margaux.families.variational.likelihoods import Categorical
    from margaux.families.variational.model import Variational, blocks
    from margaux.families.variational.networks import as_network
    from margaux.families.variational.posterior import GaussianPosterior
    from margaux.families.variational.priors import Normal

    rng = np.random.default_rng(0)
    network, weights = as_network(module)
    draws, posterior = as_draws("shared"), GaussianPosterior("all")
    model = Variational(network, Categorical(), Normal(1.0), posterior, n, n // size, draws, slices)
    data = blocks(rng.integers(0, 256, (count * size, *shape)).astype(np.uint8), rng.integers(0, 10, count * size), count)
    params = model.start(weights, 0.05)

    def fitted(epochs: int) -> None:
        fit = mx.fit(model, data, mx.misso(lipschitz=1 / step, average=mx.LastIterate()), mx.Noise(1), params=params,
                     n_iter=epochs * count, batch_size=1, dtype=dtype, polish=False, progress=False)  # fmt: skip
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(fit.last_params)):
            raise SystemExit("the weights are not finite")

    fitted(1)
    one, three = (_timed(lambda epochs=epochs: fitted(epochs)) for epochs in (1, 3))
    return (three - one) / 2


def _timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _second(call) -> float:
    """Seconds of a call after one that compiles."""
    call()
    return _timed(call)


def run_here(job: str, quick: bool, dtype: str) -> None:
    """One job, in this process."""
    import jax

    from margaux.commands.plan import parsed, work

    warnings.simplefilter("ignore")
    seconds, plan = JOBS[job](quick, dtype)
    kind, share = jax.devices()[0].device_kind, None
    peak = next((peak for name, peak in PEAKS.items() if name in kind), None)
    if plan and peak is not None:
        done = work(parsed(f"{plan} {dtype}"))
        share = max(done.flops / peak[0], done.moved / peak[1]) / seconds
    print("RESULT" + json.dumps({"seconds": seconds, "device": kind, "share": share}), flush=True)


def run(job: str, platform: str, dtype: str, quick: bool) -> dict:
    """What a process of its own says."""
    command = [sys.executable, __file__, job, "--here", dtype, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"JAX_PLATFORMS": platform})
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if lines:
        return json.loads(lines[0][6:])
    raise SystemExit(f"{job} on {platform} failed:\n{done.stderr[-3000:]}")


def accelerator() -> str | None:
    """The name of a CUDA device, if there is one."""
    ask = "import jax; print(*(device.device_kind for device in jax.devices()[:1] if device.platform == 'gpu'))"
    environment = os.environ | {"JAX_PLATFORMS": "cuda,cpu"}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False, env=environment)
    return done.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS), metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--here", choices=["float32", "float64"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        run_here(args.jobs[0], args.quick, args.here)
        return
    device = accelerator()
    print(f"accelerator: {device}" if device else "no CUDA device is found here (JAX_PLATFORMS=cuda,cpu): the CPU alone")
    for job in args.jobs:
        if job not in JOBS:
            raise SystemExit(f"there is no job {job!r}; there are {', '.join(JOBS)}")
        columns = [*([("GPU", "cuda,cpu", "float32")] if device else []), ("CPU", "cpu", "float32"), ("CPU", "cpu", "float64")]
        for name, platform, dtype in columns:
            found = run(job, platform, dtype, args.quick)
            share = "" if found["share"] is None else f", {100 * found['share']:.0f}% of its peak"
            print(f"{job:8s} {name} {dtype}: {found['seconds']:9.3f} s{share}", flush=True)


if __name__ == "__main__":
    main()
