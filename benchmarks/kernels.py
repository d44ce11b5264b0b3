"""Bias and effective draws a gradient of every kernel against its step size.

Two targets: a Gaussian of 100 dimensions with variances from 1 to 1/100, and the posterior of a logistic regression
(Wisconsin, 10 coefficients), whose moments come from a long NUTS run. Bias is the mean over coordinates of |SD ratio - 1|
and of |mean shift| in SDs; ESS is the smallest over coordinates, by Geyer's initial sequence, divided by gradients spent.

    python benchmarks/kernels.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import margaux as mx
from margaux.examples import wisconsin
from margaux.numerics.gaussian import laplace

#: name: kernel at a step, gradients a transition, steps relative to the stable one
KERNELS = {
    "ULA": (lambda h: mx.ULA(h**2 / 2), 1),
    "Underdamped": (lambda h: mx.Underdamped(h, friction=1.0), 1),
    "UnadjustedHMC": (lambda h: mx.UnadjustedHMC(h, n_leapfrog=5), 6),
    "MALA": (lambda h: mx.MALA(h**2 / 2, target_acceptance=None), 2),
    "Barker": (lambda h: mx.BlackJAX("barker", h, target_acceptance=None), 2),
    "HMC": (lambda h: mx.BlackJAX("hmc", h, target_acceptance=None, num_integration_steps=5), 6),
    "NUTS": (lambda h: mx.BlackJAX("nuts", h, target_acceptance=None, max_num_doublings=6), None),
    "RandomWalk": (lambda h: mx.RandomWalk(h, target_acceptance=None), 1),
}
#: step sizes in units of the smallest posterior SD
STEPS = (0.25, 0.5, 1.0, 1.5)
CHAINS, N = 8, 4000


def gaussian(size: int = 100):
    sd = np.geomspace(1.0, 0.1, size)
    return (lambda z: -0.5 * jnp.sum((z / sd) ** 2)), np.zeros(size), sd, sd.min()


def logistic():
    unit = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), wisconsin.data())
    model = wisconsin.EmpiricalBayesLogistic()
    target = lambda z: model.log_joint({"theta": 0.729}, z, unit)  # noqa: E731
    mode, _ = laplace(target, jnp.zeros(10), 50)
    unit_length = float(np.linalg.eigvalsh(-np.asarray(jax.hessian(target)(mode)))[-1] ** -0.5)
    z = run(mx.BlackJAX("nuts", unit_length, target_acceptance=None), target, mode, 20_000, 0)[:, 1000:].reshape(-1, 10)
    return target, z.mean(axis=0), z.std(axis=0), unit_length


def run(kernel, target, start, n: int, seed: int) -> np.ndarray:
    """Chains (CHAINS, n, d)."""

    def chain(key):
        z = jnp.asarray(start) + 0.0

        def body(carry, t):
            z, state = carry
            z, state, _ = kernel.step(kernel.noise(jax.random.fold_in(key, t), z), z, state, target, kernel.step_size(1))
            return (z, state), z

        return jax.lax.scan(body, (z, kernel.init(z)), jnp.arange(n))[1]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), CHAINS)))


def ess(x: np.ndarray) -> float:
    """Effective draws of (n,) by Geyer's initial positive sequence."""
    n = len(x)
    f = np.fft.rfft(x - x.mean(), 2 * n)
    rho = np.fft.irfft(f * np.conj(f))[:n]
    if rho[0] <= 0:
        return 0.0
    rho = rho / rho[0]
    pairs = rho[0 : n - 1 : 2] + rho[1:n:2]
    stop = np.argmax(pairs < 0) or len(pairs)
    return n / max(2 * pairs[:stop].sum() - 1, 1e-12)


def main() -> None:
    for title, (target, mean, sd, unit) in {"Gaussian, d = 100": gaussian(), "logistic, d = 10": logistic()}.items():
        print(
            f"{title}\n{'kernel':14s} {'step':>6s} {'mean bias':>10s} {'SD bias':>9s} {'MC error':>9s} {'ESS / 1000 grad':>16s}"
        )
        for name, (make, gradients) in KERNELS.items():
            for step in STEPS:
                z = run(make(step * unit), target, mean, N, 1)[:, N // 10 :]
                if not np.all(np.isfinite(z)):
                    print(f"{name:14s} {step:6.2f}   diverges")
                    continue
                flat = z.reshape(-1, z.shape[-1])
                least = min(sum(ess(c) for c in z[:, :, j]) for j in range(z.shape[-1]))
                spent = CHAINS * z.shape[1] * (gradients or 32) / 1000
                shift, spread = np.abs((flat.mean(axis=0) - mean) / sd).mean(), np.abs(flat.std(axis=0) / sd - 1).mean()
                error = max(least, 1) ** -0.5
                print(f"{name:14s} {step:6.2f} {shift:10.4f} {spread:9.4f} {error:9.4f} {least / spent:16.1f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
