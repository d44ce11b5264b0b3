"""`margaux doctor`: what this installation has, and whether a fit on it meets the exact answer."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..numerics.threads import usable_cores
from ..showing.answer import console, to_json, versions
from ..showing.errors import FAILED
from .selftest import ITERATIONS, MONTE_CARLO_ERROR, tried

#: extras, and the packages by which one sees whether they are installed
EXTRAS = {
    "arviz": ("arviz_base", "arviz_stats", "arviz_plots"),
    "blackjax": ("blackjax",),
    "numpyro": ("numpyro",),
    "outofcore": ("anndata", "zarr", "h5py"),
    "parquet": ("pyarrow",),
    "remote": ("pooch",),
    "images": ("skimage",),
}
GIB = 1 << 30


@dataclasses.dataclass
class Finding:
    """One line: what was looked at, what was found, whether that is as it must be (None: it may be anything), and what to do."""

    name: str
    found: str
    ok: bool | None = None
    mend: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the fit against an exact answer.")] = False,
    plan: Annotated[
        str | None,
        typer.Option(help='What a fit would cost instead: "pln 1e6 x 2e4 rank 20, 64 processes", "soul 1e7 x 6 batch 10,000".'),
    ] = None,
) -> None:
    """Look at this installation: versions, devices, precision, cache, and a fit against its exact answer. Exit code 1 if
    something is wrong. With --plan: bytes, flops, messages and seconds of a fit, by what this machine does in a second."""
    if plan is not None:
        planned(plan, as_json)
        return
    findings = list(examined(quick))
    fine = not any(one.ok is False for one in findings)
    if as_json:
        rows = [dataclasses.asdict(one) for one in findings]
        typer.echo(to_json({"ok": fine, "findings": rows, "versions": versions(), "extras": extras()}))
    else:
        show(findings)
    if not fine:
        raise typer.Exit(FAILED)


def planned(text: str, as_json: bool) -> None:
    """What a fit would cost."""
    import numpy as np
    from rich.markup import escape
    from rich.table import Table

    from .plan import lines, parsed, work
    from .rates import measured

    try:
        plan = parsed(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--plan") from error
    rates = measured(np.dtype(np.float32 if plan.single else np.float64))
    if as_json:
        done, several = work(plan), plan.processes > 1
        figures = dataclasses.asdict(done) | {"seconds": done.seconds(rates, several)}
        typer.echo(to_json({"plan": dataclasses.asdict(plan), "iteration": figures, "rates": dataclasses.asdict(rates)}))
        return
    table = Table(title=escape(text), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, figure in lines(plan, rates):
        table.add_row(name, escape(figure))
    console().print(table)


def examined(quick: bool = False) -> Iterator[Finding]:
    """Everything that is looked at, in the order of a line each."""
    for name, version in versions().items():
        yield Finding(name, version)
    for name, there in extras().items():
        how = "" if there else f" (pip install 'margaux[{name}]')"
        yield Finding(f"extra {name}", ("installed" if there else "not installed") + how)
    yield Finding("system", f"{platform.system()} {platform.machine()}")
    yield Finding("cores", f"{usable_cores()} of {os.cpu_count()}")
    yield Finding("memory", memory())
    yield devices()
    yield float64()
    yield cache()
    yield Finding("matplotlib backend", _backend())
    if not quick:
        yield from fits()


def extras() -> dict[str, bool]:
    """Which extras are installed; nothing of them is imported."""
    return {name: all(_there(package) for package in packages) for name, packages in EXTRAS.items()}


def _there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def memory() -> str:
    """Of the machine, and what is free of it where the system tells."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    except (AttributeError, ValueError, OSError):
        return "unknown"
    told = Path("/proc/meminfo")
    rows = dict(line.split(":", 1) for line in told.read_text().splitlines()) if told.exists() else {}
    free = rows.get("MemAvailable", "").split()
    return f"{total:.1f} GiB" + (f", {int(free[0]) * 1024 / GIB:.1f} GiB free" if free else "")


def devices() -> Finding:
    """What jax computes on."""
    import jax

    try:
        found = ", ".join(f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices())
        return Finding("devices", f"{found}; backend {jax.default_backend()}", True)
    except RuntimeError as problem:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        mend = f"JAX_PLATFORMS is {wanted!r}; unset it" if wanted else "reinstall jax as its documentation says"
        return Finding("devices", f"none: {str(problem).splitlines()[0]}", False, mend)


def float64() -> Finding:
    """Whether double precision is there inside the scope that fits run in, and leaves the global flag alone."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from ..numerics.precision import default_dtype, precision

    before = _config("jax_enable_x64")
    with precision(np.dtype(float)):
        third = np.asarray(jax.jit(lambda x: x / 3)(jnp.ones((), float)))
    good = third.dtype == np.float64 and abs(float(third) - 1 / 3) < 1e-16 and _config("jax_enable_x64") == before
    mend = "this jax does not compute in float64 on request; install the versions that margaux was tested with"
    return Finding("precision", f"float64 works; {default_dtype(None)} by default" if good else "no float64", good, mend)


def cache() -> Finding:
    """The folder of compiled programs, its size, and how to empty it."""
    from ..numerics.cache import held
    from ..numerics.compiling import keep_compilations

    keep_compilations()
    told = _config("jax_compilation_cache_dir")
    if told is None:
        off = os.environ.get("MARGAUX_CACHE", "")
        why = f"off (MARGAUX_CACHE={off})" if off else "off: its folder cannot be made; name one by MARGAUX_CACHE"
        return Finding("cache of programs", why)
    folder = Path(told)
    size = f"{folder}: {held(folder)}; `margaux cache clear` empties it"
    good = os.access(folder, os.W_OK) if folder.exists() else True
    return Finding("cache of programs", size, good, f"{folder} cannot be written to; name another folder by MARGAUX_CACHE")


def _config(name: str) -> Any:
    import jax

    return getattr(jax.config, name)


def _backend() -> str:
    import matplotlib

    return str(matplotlib.get_backend())


def fits() -> Iterator[Finding]:
    """A tiny model fitted twice, and compiled once more from what was kept."""
    began = time.perf_counter()
    trial = tried()
    seconds = time.perf_counter() - began
    mend = "this installation computes wrongly; install the versions that margaux was tested with, and report this"
    yield Finding(
        "fit by quadrature",
        f"mean {trial.quadrature:.9f}, exactly {trial.exact:.9f}",
        abs(trial.quadrature - trial.exact) < 1e-6,
        mend,
    )
    yield Finding(
        "fit by MCMC",
        f"mean {trial.mcmc:.4f}, {abs(trial.mcmc - trial.exact) / MONTE_CARLO_ERROR:.1f} Monte Carlo errors away",
        abs(trial.mcmc - trial.exact) < 5 * MONTE_CARLO_ERROR,
        mend,
    )
    yield Finding(
        "log-likelihood",
        f"{trial.loglik:.6f}, exactly {trial.exact_loglik:.6f}",
        abs(trial.loglik - trial.exact_loglik) < 1e-6,
        mend,
    )
    yield Finding(
        "time",
        f"{trial.compiling:.2f} s to compile a fit, {trial.running:.2f} s for {ITERATIONS} iterations; {seconds:.1f} s in all",
    )


def show(findings: list[Finding]) -> None:
    """Print the findings, and below them what to do."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="margaux doctor", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        table.add_row("" if one.ok is None else "ok" if one.ok else "WRONG", escape(one.name), escape(one.found))
    console().print(table)
    wrong = [one for one in findings if one.ok is False]
    for one in wrong:
        typer.echo(f"{one.name}: {one.mend}")
    typer.echo("everything is fine" if not wrong else f"{len(wrong)} of {len(findings)} are wrong")
