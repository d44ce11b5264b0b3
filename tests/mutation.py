"""Mutants of the engine against their tests: `make mutate`, `make mutate SAMPLE=100 SEED=1 ONLY='kernels/*'`.

cosmic-ray changes one operator, comparison, number or truth value of a module at a time. Its own runner changes the file on disk
and starts a Python for every mutant, with one command for all of them. Here a process is forked from one that has imported jax,
the mutated module is put in place as it is imported, and the tests are those of the module, in the order of `[tool.mutation]` in
pyproject.toml, until one fails. Compiled programs are kept from mutant to mutant: most of them are the same.

Left out are numbers in module-level assignments to names all in capitals, which are tuning figures that have no right value to be
held to; `strict=True`, which is a check of our own; and changes that leave the program as it was.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import importlib.machinery
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "margaux"
OUT = ROOT / "build" / "mutation"
PRELOAD = ["jax", "jax.numpy", "equinox", "optax", "scipy.stats", "scipy.optimize", "pandas", "matplotlib.figure", "pytest"]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutation"]


class Mutant(NamedTuple):
    """One change: the module (relative to the package), the operator's name, and which of the places it applies to."""

    module: str
    operator: str
    occurrence: int
    line: int


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a text in place of the file's own, and keeps no bytecode of it."""

    text = ""

    def get_code(self, fullname):
        return compile(self.text, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds one module, whose text is another."""

    def __init__(self, module: str, text: str) -> None:
        parts = Path("margaux", module).with_suffix("").parts
        self.name, self.path, self.text = ".".join(parts), str(SOURCE / module), text

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        loader = Loader(fullname, self.path)
        loader.text = self.text
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def tested(module: str, text: str, tests: list[str], log: str) -> None:
    """In a forked process: the tests of a module with its text changed; ends the process with pytest's code."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src")]
    sys.meta_path.insert(0, Finder(module, text))
    import pytest

    quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line"]
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what was imported before the fork
    sys.stdout.flush()
    os._exit(int(pytest.main([*quiet, *tests])))


def trial(module: str, text: str, seconds: float, name: str) -> tuple[str, float]:
    """What became of a mutant ("survived", "killed", "late") and the time it took."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=tested, args=(module, text, tests_of(module), str(OUT / f"{name}.log")))
    start = time.monotonic()
    process.start()
    process.join(seconds)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    word = "late" if late else "survived" if process.exitcode == 0 else "killed"
    return word, time.monotonic() - start


def tests_of(module: str) -> list[str]:
    """The tests of a module, by the first pattern that fits it."""
    return next(tests for pattern, tests in SETTINGS["tests"].items() if fnmatch.fnmatch(module, pattern))


def modules(only: str) -> list[str]:
    """Modules that have tests here, and whose name fits."""
    names = [str(path.relative_to(SOURCE)) for path in sorted(SOURCE.rglob("*.py"))]
    wanted = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in SETTINGS["tests"])]
    return [name for name in wanted if fnmatch.fnmatch(name, only)]


def annotated(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations stand, which are never evaluated: changes there change nothing."""
    tree, spans = ast.parse(source), []
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                spans.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
    return spans


def figures(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the values of names all in capitals stand that are assigned at module level."""
    spans = []
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        if names and all(name.isupper() for name in names):
            spans.append(((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)))
    return spans


def checks(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where `True` stands in `strict=True`."""
    words = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword) and node.arg == "strict"]
    values = [node.value for node in words]
    return [((v.lineno, v.col_offset), (v.end_lineno or 0, v.end_col_offset or 0)) for v in values]


def mutants(module: str) -> Iterator[Mutant]:
    """All changes of a module that could make a difference."""
    import cosmic_ray.ast
    import cosmic_ray.plugins

    source = (SOURCE / module).read_text()
    lines, tree = source.splitlines(), cosmic_ray.ast.get_ast(source)
    idle = {"core/NumberReplacer": figures(source), "core/ReplaceTrueWithFalse": checks(source)}
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if not any(fnmatch.fnmatch(name, "core/" + pattern) for pattern in SETTINGS["operators"]):
            continue
        operator, spans = cosmic_ray.plugins.get_operator(name)(), annotated(source) + idle.get(name, [])
        places = [place for node in cosmic_ray.ast.ast_nodes(tree) for place in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            skipped = any(pattern in lines[start[0] - 1] for pattern in SETTINGS["skip"])
            if not skipped and not any(low <= start < high for low, high in spans):
                yield Mutant(module, name.removeprefix("core/"), occurrence, start[0])


def mutated(mutant: Mutant) -> str:
    """The text of the module with the change."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    operator = cosmic_ray.plugins.get_operator("core/" + mutant.operator)()
    return str(mutate_code((SOURCE / mutant.module).read_text(), operator, mutant.occurrence))


def changed(mutant: Mutant) -> bool:
    """Whether it is another program, which a number written otherwise is not."""
    try:
        return ast.dump(ast.parse((SOURCE / mutant.module).read_text())) != ast.dump(ast.parse(mutated(mutant)))
    except SyntaxError:
        return True


def difference(mutant: Mutant) -> str:
    """The lines that change."""
    old, new = (SOURCE / mutant.module).read_text().splitlines(), mutated(mutant).splitlines()
    return "\n".join(line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:2] not in ("--", "++", "@@"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="*", help="modules, such as 'kernels/*' or memory.py")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only those that survived the last time")
    args = parser.parse_args()

    OUT.mkdir(parents=True, exist_ok=True)
    os.environ |= {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg", "MARGAUX_CACHE": "off", "PYTHONPATH": str(ROOT / "src"),
                   "JAX_COMPILATION_CACHE_DIR": str(OUT / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                   "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}  # fmt: skip
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)

    record = OUT / "survivors.json"
    if args.again:
        chosen = [Mutant(*row) for row in json.loads(record.read_text())]
    else:
        chosen = [mutant for module in modules(args.only) for mutant in mutants(module)]
        print(f"{len(chosen)} mutants", flush=True)
        if args.sample is not None and args.sample < len(chosen):
            random.Random(args.seed).shuffle(chosen)
        chosen = list(itertools.islice(filter(changed, chosen), args.sample))

    # As they are, the tests must pass: how long that takes tells when a mutant is late. It also fills the cache.
    limits: dict[tuple[str, ...], float] = {}
    for module in sorted({mutant.module for mutant in chosen}):
        tests = tuple(tests_of(module))
        if tests not in limits:
            word, took = trial(module, (SOURCE / module).read_text(), SETTINGS["timeout"], "baseline")
            limits[tests] = min(SETTINGS["timeout"], 30 + 4 * took) if word == "survived" else 0.0
            failed = "" if word == "survived" else f" fail as they are and are left out: {OUT / 'baseline.log'}"
            print(f"{took:6.1f} s  {' '.join(tests)}{failed}", flush=True)
    chosen = [mutant for mutant in chosen if limits[tuple(tests_of(mutant.module))] > 0]

    results: list[tuple[Mutant, str]] = []

    def run(pair: tuple[int, Mutant]) -> None:
        number, mutant = pair
        word, took = trial(mutant.module, mutated(mutant), limits[tuple(tests_of(mutant.module))], f"mutant-{number % args.jobs}")
        print(f"{word:9} {took:6.1f} s  {mutant.module}:{mutant.line} {mutant.operator} {mutant.occurrence}", flush=True)
        if word == "survived":
            print(difference(mutant), flush=True)
        results.append((mutant, word))

    pool = ThreadPoolExecutor(args.jobs)
    try:
        list(pool.map(run, enumerate(chosen)))
    except KeyboardInterrupt:  # those tried so far are a sample too, as they come in random order
        pool.shutdown(wait=False, cancel_futures=True)
    survivors = [mutant for mutant, word in results if word == "survived"]
    record.write_text(json.dumps(survivors))
    killed = len(results) - len(survivors)
    late = sum(word == "late" for _, word in results)
    print(f"\n{killed} of {len(results)} killed ({100 * killed / max(len(results), 1):.1f}%), {late} of them by time; survivors:")
    for mutant in survivors:
        print(f"{mutant.module}:{mutant.line} {mutant.operator} {mutant.occurrence}\n{difference(mutant)}")


if __name__ == "__main__":
    main()
