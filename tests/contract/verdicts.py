"""How often a verdict lies: random problems with an oracle each, and what the certificates said.

    python tests/contract/verdicts.py --problems 600 --seed 0 --jobs 2

**Silent wrong**: certified, but an estimate more than a quarter of a standard error off, or a log-likelihood more than 0.1 or
five stated errors, or a standard error off by a tenth. **False alarm**: right, but not certified. A problem without a regular
maximum (a variance of zero, separation) is right if it is not certified. An estimate that is right may be doubted where the
data are not of the model, or where the likelihood is far from a parabola. Numbers of families without standard errors are held
to the oracle's.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE, MAPS = Path(__file__).resolve().parent, Path("/proc/self/maps")
sys.path.insert(0, str(HERE))

from margaux.numerics.compiling import forget  # noqa: E402
from problem import Problem  # noqa: E402

#: variants of one problem's data, and what draws it: (generator, variant, seed) -> Problem
Family = tuple[tuple[str, ...], dict[str, Callable[..., Problem]]]


def families() -> dict[str, Family]:
    """Every `problems_*.py` beside this file."""
    found = {}
    for path in sorted(HERE.glob("problems_*.py")):
        module = importlib.import_module(path.stem)
        found[path.stem.removeprefix("problems_")] = (module.VARIANTS, module.MODELS)
    return found


def judge(problem: Problem) -> dict[str, Any]:
    """What came of one problem."""
    began = time.process_time()
    found = problem.run()
    spent = time.process_time() - began
    truth = problem.truth()
    with np.errstate(all="ignore"):
        away = float(np.max(np.abs(found.theta - truth.theta) / truth.se))
        off = np.abs(found.se / truth.se - 1)
        se_off = float(np.max(off)) if np.isfinite(found.se).any() else 0.0
    gap = abs(found.loglik - truth.loglik)
    # A search that ends higher than the oracle's has found the better maximum.
    higher = found.loglik > truth.loglik + 0.05 + 5 * found.error
    right = truth.regular and away <= 0.25 and gap <= max(0.1, 5 * found.error) and se_off <= 0.1
    certified = found.word == "certified"
    kind = (
        "right, certified" if right and certified else "false alarm" if right else "silent wrong" if certified else "wrong, said"
    )
    if kind == "false alarm" and (problem.misspecified or truth.shallow):
        kind = "right, doubted"
    if not truth.regular or higher:
        kind = "no regular maximum" if not certified else "beyond the oracle" if higher else "silent wrong"
    figures = {"away": away, "gap": gap, "se_off": se_off, "seconds": spent}
    return {"family": problem.family, "model": problem.model, "variant": problem.variant, "kind": kind, "word": found.word,
            **figures, "said": found.said}  # fmt: skip


def judged(options: argparse.Namespace, part: int) -> None:
    """Every `jobs`-th problem of a run, kept in a file as they come."""
    known = {f"{family}/{name}": (variants, draw) for family, (variants, models) in families().items()
             for name, draw in models.items()}  # fmt: skip
    chosen = [name for name in known if not options.only or any(name.startswith(o) for o in options.only)]
    rows = []
    for i in range(options.problems):
        name = chosen[i % len(chosen)]
        if i % len(chosen) % options.jobs != part:  # a model stays with one process, which has compiled it
            continue
        # Linux lets a process map 65,530 pieces of memory, and XLA, whose programs take some each, ends it beyond.
        if MAPS.exists() and len(MAPS.read_text().splitlines()) > 20_000:
            forget()
        variants, draw = known[name]
        variant = variants[(i // len(chosen)) % len(variants)]
        began = time.perf_counter()
        try:
            row = judge(draw(np.random.default_rng([options.seed, i]), variant, options.seed + i))
        except Exception as error:
            traceback.print_exc()
            family, model = name.split("/")
            row = {"family": family, "model": model, "variant": variant, "kind": "raised", "said": repr(error)}
        rows.append(row | {"problem": i, "wall": time.perf_counter() - began})
        pd.DataFrame(rows).to_pickle(options.out / f"{part}.pickle")
        if row["kind"] not in ("right, certified", "right, doubted", "no regular maximum"):
            print(i, {key: value for key, value in row.items() if key != "seconds"}, flush=True)


def tell(frame: pd.DataFrame) -> None:
    """The tables, and the three figures that have bars."""
    for by in ("family", "model", "variant"):
        print(pd.crosstab(frame[by], frame["kind"], margins=by == "family").to_string())
    share = lambda some, kind: f"{(some['kind'] == kind).sum()} of {len(some)}, {(some['kind'] == kind).mean():.1%}"  # noqa: E731
    known = frame.query("kind != 'beyond the oracle'")
    right = known.query("kind in ['right, certified', 'false alarm']")
    regular = known.query("kind not in ['no regular maximum', 'right, doubted']")
    print(f"silent wrong: {share(known, 'silent wrong')}")
    print(f"false alarms: {share(right, 'false alarm')} of what is right")
    print(f"right and certified: {share(regular, 'right, certified')} of those with a regular maximum")
    print(f"CPU seconds a fit with its answers: median {frame['seconds'].median():.2f}, mean {frame['seconds'].mean():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--problems", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="families or family/model, such as core or core/poisson")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", type=int, help="of one process alone, its rows to --out")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "build" / "verdicts")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part is not None:
        judged(options, options.part)
        return
    others = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--part", str(part)]) for part in range(options.jobs)]
    ended = [one.wait() for one in others]
    tell(pd.concat([pd.DataFrame(pd.read_pickle(options.out / f"{part}.pickle")) for part in range(options.jobs)]))
    if any(ended):
        raise SystemExit("a process ended early: the tables are of what there was until then")


if __name__ == "__main__":
    main()
