"""Compiled programs, found by what they do: again in this process, and in a new one without tracing them.

A program depends on the shapes of its arrays and on the token (`margaux.numerics.digest`) of all else. Where that is portable, it
is kept in memory under both, and in a file, whole, under a digest of both and of what surrounds them. XLA's own cache of
programs, which jax keeps, serves the rest after they were traced, and holds none of those that have a file.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .cache import SUFFIX
from .collecting import uncollected
from .digest import Digest, surroundings
from .threads import threads

#: XLA's option for the parts of a program that are compiled side by side
PARTS = "xla_cpu_parallel_codegen_split_count"

#: where programs are kept, None for nowhere; set by `margaux.numerics.compiling.keep_compilations`
folder: Path | None = None
#: whether files are read and written
readable = True
_programs: dict[Hashable, Program | Begun] = {}
#: those compiled here, not found in a file
_compiled: list[str] = []
#: those begun that nobody compiles yet
_waiting: collections.deque[Begun] = collections.deque()
#: those begun that are not compiled yet
_unfinished: set[Begun] = set()
#: of each thread: how many programs it has got from jax's own cache, and the work for while a long one is compiled
_here = threading.local()


def _note(event: str, **_: Any) -> None:
    if event.endswith("/cache_hits"):
        _here.hits = getattr(_here, "hits", 0) + 1


jax.monitoring.register_event_listener(_note)


class _Hole(NamedTuple):
    """Where an array stands in what a program returns."""


class Program(NamedTuple):
    """An executable of arrays alone, and what it returns with holes for its arrays."""

    run: Callable[..., list[jax.Array]]
    returned: PyTree

    def __call__(self, arrays: list[Any]) -> PyTree:
        leaves, structure = jax.tree.flatten(self.returned, is_leaf=_is_hole)
        outputs = iter(self.run(*arrays))
        return jax.tree.unflatten(structure, [next(outputs) if _is_hole(leaf) else leaf for leaf in leaves])


def _is_hole(leaf: Any) -> bool:
    return isinstance(leaf, _Hole)


class Begun(NamedTuple):
    """A program under way, and what compiles it."""

    future: Future[Program | None]
    build: Callable[[], Program | None]


class Request(NamedTuple):
    """A function, arguments, options of the compiler, whether arrays of all arguments but the first are given away, and whether
    it takes long to compile."""

    function: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    options: dict[str, Any] | None
    keep_first: bool
    long: bool = False

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


@contextlib.contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Within it, `work`, which may `begin` others, is done once this thread asks for a program that takes long to compile: its
    tracing then costs no time of its own."""
    before, _here.work = getattr(_here, "work", None), work
    try:
        yield
    finally:
        _here.work = before


def find(request: Request) -> Program:
    """The program of a function at arguments of these shapes and meanings."""
    meaning, path = _told(request)
    known = _programs.get(meaning)
    if known is None and path is not None:
        known = _read(path)
    work = getattr(_here, "work", None) if request.long else None
    if known is None:
        build = _traced(request, path)
        known = build() if work is None or threads() == 1 else _begun(build)
    if work is not None:
        _here.work = None
        work()
    program = _awaited(known) if isinstance(known, Begun) else known
    if program is None:  # a file that was read ahead, and is damaged
        program = _traced(request, path)()
    if meaning is not None:
        _programs[meaning] = program
    return program


def begin(request: Request) -> None:
    """Read from its file what has one, and compile what is nowhere to be found, on a thread of its own, for `find` to wait for.

    Tracing stays here: a user's code need not bear two threads.
    """
    if threads() == 1:
        return
    meaning, path = _told(request)
    if meaning is not None and meaning not in _programs:
        if path is not None and path.exists():
            _programs[meaning] = _begun(functools.partial(_read, path))
        else:
            _programs[meaning] = _begun(_traced(request, path))


def import_ahead(module: str) -> None:
    """Have a module imported once the programs begun so far are compiled, or by whoever waits for one."""
    if threads() > 1 and module not in sys.modules:
        _begun(functools.partial(uncollected()(importlib.import_module), module))


def _begun(build: Callable[[], Any]) -> Begun:
    begun = Begun(Future(), build)
    _unfinished.add(begun)
    _waiting.append(begun)
    _thread().submit(_next)
    return begun


def _next() -> None:
    """Compile the one that has waited longest, if any does."""
    with contextlib.suppress(IndexError):
        _compile(_waiting.popleft())


def _compile(begun: Begun) -> None:
    try:
        begun.future.set_result(begun.build())
    except Exception as error:  # whoever asks for the program is to hear of it
        begun.future.set_exception(error)
    except BaseException:  # an interrupt says nothing of the program
        begun.future.cancel()
        raise
    finally:
        _unfinished.discard(begun)


def _awaited(begun: Begun) -> Program | None:
    """It, compiled here if nobody does so yet. While another thread is at it, this one compiles those that wait."""
    with contextlib.suppress(ValueError):
        _waiting.remove(begun)
        _compile(begun)
    while not begun.future.done() and _waiting:
        _next()
    return begun.build() if begun.future.cancelled() else begun.future.result()


def _told(request: Request) -> tuple[Hashable, Path | None]:
    """The meaning of a program, and its file, if it may have one. None where something that it reads may have changed behind
    its back since it was compiled: then it is its caller's alone."""
    digest = Digest()
    described = _described(digest, (request.args, request.kwargs))
    meaning = digest.of(request.function), described, repr(request.options), request.keep_first, _settings()
    if not digest.portable:
        return None, None
    return meaning, _path(meaning) if readable and folder is not None else None


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "margaux compiles")


def compiled_here(function: Callable[..., Any]) -> int:
    """How many programs of a function were compiled in this process."""
    return _compiled.count(f"{function.__module__}.{function.__qualname__}")


def forget() -> None:
    """Let go of all programs in memory."""
    _programs.clear()


def flag(name: str) -> Any:
    """A setting of jax, as it is in this thread."""
    return getattr(jax.config, name)


def shape_of(array: Any) -> tuple:
    """What a program knows of an argument."""
    return array.shape, array.dtype, getattr(array, "weak_type", False)


def _described(digest: Digest, tree: PyTree) -> Hashable:
    """The token of arguments, arrays by their shapes."""
    leaves: list[tuple] = []

    def leaf(value):
        if eqx.is_array(value):
            leaves.append((value.shape, str(value.dtype), getattr(value, "weak_type", False)))
            return _Hole()
        return value

    structure = jax.tree.map(leaf, tree)
    return digest.of(structure), tuple(leaves)


def _settings() -> tuple:
    """Of jax, those that tracing goes by."""
    words = ("cache", "log", "profil", "dir", "trace", "debug", "check", "monitor", "distributed", "coordination")
    return tuple(
        (name, repr(value)) for name, value in sorted(jax.config.values.items()) if not any(w in name for w in words)
    ) + (flag("jax_enable_x64"),)


def _traced(request: Request, path: Path | None) -> Callable[[], Program]:
    """What compiles a program, which is traced here, and writes it to a file if it is given one."""
    leaves, structure = jax.tree.flatten((request.args, request.kwargs))
    places = [i for i, leaf in enumerate(leaves) if eqx.is_array(leaf)]
    box: list[PyTree] = []

    def of_arrays(*arrays):
        filled = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        args, kwargs = jax.tree.unflatten(structure, filled)
        returned = request.function(*args, **kwargs)
        box.append(jax.tree.map(lambda leaf: _Hole() if eqx.is_array(leaf) else leaf, returned))
        return [leaf for leaf in jax.tree.leaves(returned) if eqx.is_array(leaf)]

    # jax's own cache goes by the name too: what comes from it cannot be written whole again.
    of_arrays.__name__ = request.function.__name__ + (f"_{path.stem[:12]}" if path is not None else "")
    first = len(jax.tree.leaves(request.args[:1]))
    donated = tuple(j for j, i in enumerate(places) if i >= first) if request.keep_first else ()
    settings: dict[str, Any] = {"compiler_options": request.options} if request.options else {}
    with uncollected():
        lowered = jax.jit(of_arrays, donate_argnums=donated, **settings).lower(*(leaves[i] for i in places))
    returned = box[-1]

    def build() -> Program:
        _here.hits = 0
        # Beside other work it is compiled whole: no core is idle, and parts are more to do.
        beside = path is not None and _unfinished and PARTS in settings.get("compiler_options", ())
        whole: Any = {PARTS: 1} if beside else None
        with _unwritten() if path is not None else contextlib.nullcontext():
            executable = lowered.compile(whole)
        _compiled.append(request.name)
        if path is not None and not _here.hits:
            _write(path, returned, executable)
        return Program(executable, returned)

    return build


def _unwritten() -> contextlib.AbstractContextManager[Any]:
    """jax's own cache keeps nothing within it: a program that has a file here would be serialised twice."""
    try:
        from jax._src.config import persistent_cache_min_compile_time_secs as least

        return least(float("inf"))
    except Exception:  # another jax, in which it is a twentieth of a first fit, and no more
        return contextlib.nullcontext()


def _path(meaning: Hashable) -> Path:
    whole = hashlib.blake2b(repr((meaning, surroundings())).encode(), digest_size=20).hexdigest()
    assert folder is not None
    return folder / (whole + SUFFIX)


def _read(path: Path) -> Program | None:
    """From a file; None if there is none, or it is not whole."""
    from jax.experimental import serialize_executable

    if not path.exists():
        return None
    _linear_algebra()
    try:
        count, payload, returned = pickle.loads(path.read_bytes())
        inputs = jax.tree.structure((tuple(range(count)), {}))
        outputs = jax.tree.structure([0] * sum(map(_is_hole, jax.tree.leaves(returned, is_leaf=_is_hole))))
        run = serialize_executable.deserialize_and_load(payload, inputs, outputs, execution_devices=jax.local_devices()[:1])
        os.utime(path)
    except Exception:  # whatever a damaged file, or another machine, makes of it: the program is compiled again
        return None
    return Program(run, returned)


@functools.cache
def _linear_algebra() -> None:
    """jax looks up the addresses of LAPACK as it lowers the first program that needs them; programs from files assume them."""
    try:
        from jaxlib.lapack import prepare_lapack_call

        prepare_lapack_call("potrf_ffi", np.float32)
    except Exception:  # another jaxlib: a program that needs them, which takes twice as long
        jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))


def _write(path: Path, returned: PyTree, executable: Any) -> None:
    from jax.experimental import serialize_executable

    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        payload, inputs, _ = serialize_executable.serialize(executable)
        beside.write_bytes(pickle.dumps((inputs.num_leaves, payload, returned)))
        os.replace(beside, path)
    except Exception:  # a program that calls back to Python, a full disk: it is compiled again in the next process
        beside.unlink(missing_ok=True)
