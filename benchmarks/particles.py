"""SOUL, particle gradient descent, IPLA and slow-fast Langevin at equal numbers of gradients.

Wisconsin, theta* = 0.729: root mean squared error over 40 runs, at 2e4 and 2e5 gradients of the log joint in the
latents, for 1, 10 and 100 chains (particles), with the same Langevin step for all.

    python benchmarks/particles.py
"""

from __future__ import annotations

import time

import numpy as np

import margaux as mx
from margaux.examples import wisconsin

EXACT, GAMMA, RUNS = 0.729, 0.005, 40
METHODS = {
    "SOUL": mx.soul,
    "PGD": lambda: mx.pgd(GAMMA),
    "IPLA": lambda: mx.ipla(GAMMA),
    "slow-fast": lambda: mx.slow_fast(GAMMA / 10, inverse_temperature=1e3),
}


def main() -> None:
    data = wisconsin.data()
    print(f"{'method':10s} {'chains':>6s} {'gradients':>10s} {'RMSE':>8s} {'bias':>8s} {'CPU s a run':>12s}")
    for gradients in (20_000, 200_000):
        for chains in (1, 10, 100):
            for name, make in METHODS.items():
                began = time.process_time()
                fit = mx.fit(wisconsin.EmpiricalBayesLogistic(), data, make(), mx.MCMC(mx.ULA(GAMMA), n_chains=chains),
                             params={"theta": 0.0}, n_iter=gradients // chains, runs=RUNS, spread=0.0,
                             polish=False, progress=False)  # fmt: skip
                error = fit.run_params["theta"] - EXACT
                spent = (time.process_time() - began) / RUNS
                print(
                    f"{name:10s} {chains:6d} {gradients:10,d} {np.sqrt(np.mean(error**2)):8.4f} {error.mean():8.4f} {spent:12.3f}"
                )


if __name__ == "__main__":
    main()
