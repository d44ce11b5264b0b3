"""How the library's own programs are compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Literal

import equinox as eqx
import jax
from jax.core import Tracer
from jaxtyping import PyTree

from . import cache, programs
from .threads import threads

#: XLA's older CPU emitters and LLVM's first optimisation level compile the loops of a fit in a third of the time. The result
#: runs as fast, but for importance sampling, which pays 6 to 20% an iteration for seconds of compilation. The scheduler that is
#: not for concurrency keeps small steps on one thread, which halves their cost. Programs of large arrays are left to XLA's own
#: options: it then shifts and multiplies images in half the time.
CPU_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}

#: parts of a program that are compiled side by side, at most
MOST_PARTS = 8

#: LLVM does not optimise small programs, which run for less time than it would take
UNOPTIMISED = CPU_OPTIONS | {"xla_backend_optimization_level": 0}

#: the first version of jax of which it is not known that its XLA has these options: there they are tried
KNOWN = (0, 12)

#: numbers from which on parameters are large
LARGE = 1 << 15


#: units, and numbers in their data, below which a table is short
FEW_UNITS, FEW_NUMBERS = 64, 10_000


#: what functions have found
tables: list[dict] = []


def is_large(params: PyTree, copies: int = 1) -> bool:
    """Whether a program is one of large arrays, by the parameters of each of its copies."""
    return sum(leaf.size for leaf in jax.tree.leaves(params)) >= LARGE * copies


def is_short(data: PyTree) -> bool:
    """Whether a table is so short that what comes back to it a few times is a small program."""
    leaves = jax.tree.leaves(data)
    return leaves[0].shape[0] < FEW_UNITS and sum(leaf.size for leaf in leaves) < FEW_NUMBERS


@functools.cache
def _options(small: bool) -> dict[str, Any] | None:
    """`CPU_OPTIONS`, or those of small programs, where this XLA knows them."""
    # A program in as many parts as there are threads: more are more work for LLVM, and none the sooner.
    parts = min(max(threads(), 1), MOST_PARTS)
    options = (UNOPTIMISED if small else CPU_OPTIONS) | {programs.PARTS: parts}
    if jax.default_backend() != "cpu":
        return None
    if jax.__version_info__ < KNOWN:
        return options
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except Exception:  # whatever an unknown option raises: it is only about speed
        return None
    return options


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    large: bool | Callable[..., bool] = False,
    small: bool | Callable[..., bool] = False,
    long: bool | Callable[..., bool] = False,
    donate: Literal["none", "all-except-first"] = "none",
) -> Any:
    """As `equinox.filter_jit`, arguments that are no arrays being part of the program, with compiler options.

    Programs are found by what they do (see `margaux.numerics.programs`): a model, or a function, written anew is no other one.
    `.lower` is that of jax.jit; `.programs()` counts what this process has compiled; `.ahead(...)` has a program compiled while
    other work goes on.

    Args:
        large: whether the program is one of large arrays, compiled with XLA's own options; as the next two, or a function of its
            arguments that tells. small: whether it is one of few numbers that runs a few times. long: whether it takes long to
            compile (see `margaux.numerics.programs.meanwhile`). donate: "all-except-first" gives the program the arrays of all
            arguments but the first.
    """
    if function is None:
        return functools.partial(compiled, large=large, small=small, long=long, donate=donate)
    found: dict[Hashable, programs.Program] = {}
    begun: dict[Hashable, None] = {}
    tables.extend((found, begun))

    @functools.cache
    def by_options(is_large: bool, is_small: bool) -> Any:
        options: dict[str, Any] = {"compiler_options": _options(is_small)} if not is_large and _options(is_small) else {}
        return eqx.filter_jit(function, donate=donate, **options)

    def of_size(args: tuple, kwargs: dict[str, Any]) -> Any:
        return by_options(is_so(large, args, kwargs), is_so(small, args, kwargs))

    def is_so(told: bool | Callable[..., bool], args: tuple, kwargs: dict[str, Any]) -> bool:
        return bool(told(*args, **kwargs) if callable(told) else told)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        # Inside another program, which has options of its own, the function is only traced.
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
        if not _plain(arrays):
            return of_size(args, kwargs)(*args, **kwargs)
        known = _known(structure, leaves)
        program = found.get(known)
        if program is None:
            program = found[known] = programs.find(request(args, kwargs))
        return program(arrays)

    def request(args: tuple, kwargs: dict[str, Any]) -> programs.Request:
        options = None if is_so(large, args, kwargs) else _options(is_so(small, args, kwargs))
        return programs.Request(function, args, kwargs, options, donate == "all-except-first", is_so(long, args, kwargs))

    def ahead(*args: Any) -> None:
        leaves, structure = jax.tree.flatten((args, {}))
        if not _plain([leaf for leaf in leaves if eqx.is_array(leaf)]):
            return
        known = _known(structure, leaves)
        if known not in found and known not in begun:
            begun[known] = None
            programs.begin(request(args, {}))

    call.ahead = ahead  # type: ignore[attr-defined]
    call.lower = lambda *args, **kwargs: of_size(args, kwargs).lower(*args, **kwargs)  # type: ignore[attr-defined]
    call.programs = lambda: programs.compiled_here(function)  # type: ignore[attr-defined]
    return call


def by_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the shapes of arrays, and of all that is no array, that remembers what it said."""
    found: dict[Hashable, Any] = {}
    tables.append(found)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        known = _known(structure, leaves)
        if known not in found:
            found[known] = function(*args)
        return found[known]

    return call


@by_shape
def shapes_of(function: Callable[..., Any], *args: Any) -> PyTree:
    """Shapes of what a function returns; what is no array is left as it is, as in a compiled function."""
    return eqx.filter_eval_shape(function, *args)


def _known(structure: Any, leaves: list[Any]) -> Hashable:
    """What decides on a program: arrays by their shapes, all else by its type and value."""
    parts = (programs.shape_of(leaf) if eqx.is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
    return structure, tuple(parts), programs.flag("jax_enable_x64")


def forget() -> None:
    """Let go of all compiled programs of this process."""
    for table in tables:
        table.clear()
    programs.forget()
    jax.clear_caches()


def _plain(arrays: list[Any]) -> bool:
    """Whether arguments are on the one CPU that programs are kept for, and nothing looks into them."""
    looked_into = programs.flag("jax_disable_jit") or programs.flag("jax_debug_nans")
    if looked_into or jax.default_backend() != "cpu" or programs.flag("jax_default_device") is not None:
        return False
    here = {jax.local_devices()[0]}
    return all(not isinstance(leaf, jax.Array) or leaf.sharding.device_set == here for leaf in arrays)


def keep_compilations() -> None:
    """Keep compiled programs in the user's cache folder, so that a new process need not compile them again.

    `mx.fit` and estimators call this. A cache folder already given to jax is left alone. The environment variable
    MARGAUX_CACHE names another folder, or switches this off ("off").
    """
    folder = cache.place()
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        cache.tidy(folder)
    except OSError:
        return  # a read-only home: compile as usual
    programs.folder = folder
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
