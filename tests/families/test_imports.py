"""What a first fit does not import: what it can do without, and takes longer to import than the fit to run."""

import subprocess
import sys

import pytest

#: of every job; `sklearn` alone takes half a second, and brings `scipy.stats`
HEAVY = ["sklearn", "matplotlib", "rich", "jinja2", "IPython", "arviz_base", "xarray", "numpyro", "blackjax", "typer"]

HEAD = """
import sys
import numpy as np
import margaux as mx
rng = np.random.default_rng(0)
x, z = rng.normal(size=(40, 2)), rng.normal(size=40)
y = (z + x[:, 0] > 0).astype(int)
"""

#: a fit, and what it must not import besides
JOBS = {
    "a model": ("""
class Normal(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -((y - z) ** 2 + (z - params["mu"]) ** 2) / 2
    def init_latents(self, key, params, y):
        return 0.0 * y
mx.fit(Normal(), z, mx.soul(step=1.0), mx.Quadrature(5), params={"mu": 0.0}, n_iter=3, polish=False, progress=False)
""", ["pandas", "scipy.stats", "scipy.optimize", "formulaic", "optax"]),
    "NLME": ("""
from margaux.datasets import load_theophylline
from margaux.nlme import LogNormal, oral1cpt
individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
mx.NLME(structural=oral1cpt, individual=individual, n_iter=5, n_burn=2, n_starts=1, verbose=False).fit(
    load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
""", ["scipy.stats", "formulaic", "optax"]),
    "PLNPCA": ("mx.PLNPCA(rank=1, verbose=False)", ["scipy.stats", "scipy.optimize", "formulaic", "optax"]),
    "missing": ("""
x[::5, 1] = np.nan
mx.MissingLogistic(verbose=False).fit(x, y).summary()
""", ["scipy.stats", "formulaic", "optax"]),
    "digits": ("""
from margaux.datasets import load_digits
images, labels = load_digits()
x = images[:200].reshape(200, 64).astype(float)
mx.BayesianClassifier(epochs=1, verbose=False).fit(x, labels[:200]).predict_proba(x)
""", ["scipy.stats", "scipy.optimize", "formulaic"]),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_a_fit_imports_nothing_heavy(name):
    job, besides = JOBS[name]
    code = f"{HEAD}{job}\nprint([name for name in {HEAVY + besides} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
