"""How the library's own programs are compiled."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer
from jaxtyping import PyTree

#: XLA's older CPU emitters and LLVM's first optimisation level compile the loops of a fit in a third of the time. The result
#: runs as fast, but for importance sampling, which pays 6 to 20% an iteration for seconds of compilation. The scheduler that is
#: not for concurrency keeps small steps on one thread, which halves their cost. Programs of large arrays are left to XLA's own
#: options: it then shifts and multiplies images in half the time.
CPU_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}

#: the first version of jax of which it is not known that its XLA has these options: there they are tried
KNOWN = (0, 12)

#: numbers from which on parameters are large
LARGE = 1 << 15


def is_large(params: PyTree, copies: int = 1) -> bool:
    """Whether a program is one of large arrays, by the parameters of each of its copies."""
    return sum(leaf.size for leaf in jax.tree.leaves(params)) >= LARGE * copies


@functools.cache
def _options() -> dict[str, Any] | None:
    """`CPU_OPTIONS` where this XLA knows them."""
    if jax.default_backend() != "cpu":
        return None
    if jax.__version_info__ < KNOWN:
        return CPU_OPTIONS
    try:
        jax.jit(lambda x: x, compiler_options=CPU_OPTIONS).lower(0.0).compile()
    except Exception:  # whatever an unknown option raises: it is only about speed
        return None
    return CPU_OPTIONS


def compiled(function: Callable[..., Any] | None = None, *, large: bool | Callable[..., bool] = False, **settings: Any) -> Any:
    """`equinox.filter_jit` with compiler options, which are looked up at the first call, not at import.

    `.lower` is that of jax.jit; `.programs()` counts what has been compiled.

    Args:
        large: whether the program is one of large arrays, compiled with XLA's own options, or a function of its arguments that
            tells.
    """
    if function is None:
        return functools.partial(compiled, large=large, **settings)

    @functools.cache
    def of_size(is_large: bool) -> Any:
        options: dict[str, Any] = {"compiler_options": _options()} if not is_large and _options() else {}
        return eqx.filter_jit(function, **settings, **options)

    def jitted(*args: Any, **kwargs: Any) -> Any:
        return of_size(bool(large(*args, **kwargs) if callable(large) else large))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Inside another program, which has options of its own, the function is only traced.
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return function(*args, **kwargs)
        return jitted(*args, **kwargs)(*args, **kwargs)

    call.lower = lambda *args, **kwargs: jitted(*args, **kwargs).lower(*args, **kwargs)  # type: ignore[attr-defined]
    call.programs = lambda: sum(of_size(size)._cached._cache_size() for size in (False, True))  # type: ignore[attr-defined]
    return call


def keep_compilations() -> None:
    """Keep compiled programs in the user's cache folder, so that a new process need not compile them again.

    `mx.fit` and estimators call this. A cache folder already given to jax is left alone. The environment variable
    MARGAUX_CACHE names another folder, or switches this off ("off").
    """
    wanted = os.environ.get("MARGAUX_CACHE", "")
    if wanted.lower() in ("off", "0", "no") or getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    folder = Path(wanted) if wanted else Path(base) / "margaux"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home: compile as usual
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
