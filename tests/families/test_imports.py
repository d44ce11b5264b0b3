"""What a first fit does not import: what it can do without, and takes longer to import than the fit to run."""

import subprocess
import sys

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

#: a fit, and what must not be imported with it besides
JOBS = {
    "a model": ("""
class Normal(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -((y - z) ** 2 + (z - params["mu"]) ** 2) / 2
    def init_latents(self, key, params, y):
        return 0.0 * y
mx.fit(Normal(), z, mx.soul(step=1.0), mx.Quadrature(5), params={"mu": 0.0}, n_iter=3, polish=False, progress=False)
""", ["pandas", "scipy.stats", "scipy.optimize", "formulaic", "optax"]),
    "digits": ("""
from margaux.datasets import load_digits
images, labels = load_digits()
pixels = images[:200].reshape(200, 64).astype(float)
mx.BayesianClassifier(epochs=1, verbose=False).fit(pixels, labels[:200]).predict_proba(pixels)
""", ["scipy.stats", "scipy.optimize", "formulaic"]),
    "missing": ("""
x[::5, 1] = np.nan
mx.MissingLogistic(verbose=False).fit(x, y).summary()
""", ["scipy.stats", "formulaic"]),
}  # fmt: skip


def test_a_fit_imports_nothing_heavy():
    """One process, in which those come first that need least; of other families `tests/contract/test_programs.py` asks."""
    code = HEAD
    for name, (job, besides) in JOBS.items():
        code += f"{job}\nprint({name!r}, [name for name in {HEAVY + besides} if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} []" for name in JOBS]
