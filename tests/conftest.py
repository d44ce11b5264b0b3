"""Test set-up: CPU with four forced devices, run-time type checks of nothing global, and the shared folders."""

import os
from importlib import metadata
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("MARGAUX_THREADS", "1")  # most fits here are never asked for what would be compiled ahead
# Threads of BLAS wait for each other awake, which is many times the work where processes share cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
if os.environ["JAX_PLATFORMS"] == "cpu" and int(metadata.version("jax").split(".")[1]) < 12:
    # What tests compute themselves is compiled as the library's programs are (`margaux.numerics.compiling.CPU_OPTIONS`), and
    # all of it without what LLVM unrolls and joins, which runs as fast. Flags that an XLA does not know would end it.
    os.environ["XLA_FLAGS"] += (
        " --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
        " --xla_backend_extra_options=xla_cpu_disable_loop_unrolling,xla_cpu_slp_vectorizer_disabled"
    )

import json

import jax
import pytest
from threadpoolctl import threadpool_limits

if "cuda" in os.environ["JAX_PLATFORMS"] and jax.default_backend() != "gpu":
    pytest.exit("JAX_PLATFORMS asks for cuda, and jax finds no GPU here (is jax[cuda13] installed?): nothing was tested", 0)

import margaux.engine.job
from margaux.numerics import compiling, programs

ROOT = Path(__file__).resolve().parents[1]

# NumPy's own BLAS: a plugin of pytest may have imported it before the variable was set.
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")

# Statistical tests must hold for nearly every seed: MARGAUX_SEED=7 shifts the seed of every fit by 7.
if SHIFT := int(os.environ.get("MARGAUX_SEED", "0")):
    _check_key = margaux.engine.job.check_key
    margaux.engine.job.check_key = lambda key: _check_key(key + SHIFT if isinstance(key, int) else key)


def pytest_configure(config: pytest.Config) -> None:
    """Quick tests are for the most part compilation, of which what LLVM optimises is half; studies are as users run them."""
    if "not slow" in config.option.markexpr:
        compiling.CPU_OPTIONS["xla_backend_optimization_level"] = 0


def _folder(name: str, override: str | None = None) -> Path | None:
    path = Path(override) if override else ROOT.parent / "shared" / name
    return path if path.is_dir() else None


#: folders whose tests are of numbers, which an accelerator must find as well
NUMERICS = ("numerics", "kernels", "esteps", "algorithms", "engine")


#: tests that take long, of which a sister does not or whose subject others have: studies, too
SLOW = frozenset((ROOT / "tests" / "slow.txt").read_text().splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of numerics are those of `make test-gpu`. Those marked gpu in their file need an accelerator."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") is None:
            if item.path.parent.name in NUMERICS:
                item.add_marker(pytest.mark.gpu)
        elif jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason="needs a GPU: run by `make test-gpu` where there is one"))


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Compiled programs go before they are too many: Linux lets a process map 65,530 pieces of memory, XLA crashes beyond."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_text().splitlines()) > 15_000:
        compiling.forget()


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Programs are traced, and not read from files: tests put other things in place of what is named there."""
    monkeypatch.setattr(programs, "readable", False)


@pytest.fixture
def double():
    """Double precision; for a whole file by `pytestmark = pytest.mark.usefixtures("double")`."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of test data (MARGAUX_DATA overrides), or a skip that says so."""
    path = _folder("data", os.environ.get("MARGAUX_DATA"))
    if path is None:
        pytest.skip("no data folder: set MARGAUX_DATA")
    return path


@pytest.fixture(scope="session")
def reference():
    """Reads a reference JSON by name, or skips."""

    def read(name: str):
        path = _folder("reference")
        if path is None or not (path / f"{name}.json").exists():
            pytest.skip(f"no reference numbers {name}.json")
        return json.loads((path / f"{name}.json").read_text())

    return read
