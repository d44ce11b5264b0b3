"""What a fit would cost: the work of one iteration by counting, and its seconds by what this machine does in one.

The formulae are those of docs/scale.md. They count products, exponentials, draws and bytes of the largest share, and leave out
what is small where units are many.
"""

from __future__ import annotations

import dataclasses
import math
import re

from .rates import TURN, Rates

#: transitions of the default E-step, and evaluations of a unit's density beyond one each: where chains begin, and the score
TRANSITIONS, BEYOND = 5, 2
#: exponentials or logarithms that a logistic answer takes as long as, by measured points, and those of an observation in a curve
#: of pharmacokinetics; nodes along a row's linear predictor
ANSWER, CURVE, NODES = 1 / 2, 10, 32
#: and a rate of a count, which is bounded, summed and written
RATE = 2
#: draws that a transition takes as long as, with the arithmetic around its own; and the order of an epoch, for each comparison
TRANSITION, COMPARISON = 3, 1 / 2
#: bytes of a table that stays in a core's cache, whose passes move nothing
CACHE = 1 << 22

WORDS = {
    "fit": "n units x p answers: SOUL, SAEM and the like by chains of `latents` (1)",
    "nlme": "n subjects x p observations: a curve with `latents` random effects (3) each",
    "missing": "n rows x p columns: regression with missing covariates",
    "pln": "n cells x p features: PLN-PCA of `rank` (5) with `covariates` (1); `density` of its counts (1)",
    "bnn": "n images x p inputs: a Bayesian network of `weights` (p * 100)",
}
FAMILIES = {"soul": "fit", **{name: name for name in WORDS}}
#: settings and what they are where nothing is said
SETTINGS = {
    "rank": 5.0,
    "latents": 0.0,
    "batch": 0.0,
    "processes": 1.0,
    "density": 1.0,
    "covariates": 1.0,
    "iterations": 0.0,
    "parameters": 0.0,
    "weights": 0.0,
}
#: iterations that fits of a family often take
ITERATIONS = {"fit": 2000, "nlme": 500, "missing": 30, "pln": 100, "bnn": 10_000}
SINGULAR = {"process": "processes", "iteration": "iterations", "latent": "latents", "covariate": "covariates", "cores": ""}

_NUMBER = r"\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?[kM]?%?"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A fit that is asked about: a family, a table n x p, and settings by name."""

    family: str
    n: float
    p: float
    settings: dict[str, float]
    single: bool = False

    def __getattr__(self, name: str) -> float:
        try:
            return self.settings[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one iteration in the process that has most: multiplications and additions, exponentials, draws, bytes moved; bytes that
    are summed over the processes; and bytes that a process holds."""

    flops: float
    specials: float
    draws: float
    moved: float
    message: float
    held: float

    def seconds(self, rates: Rates, several: bool) -> float:
        """Of an iteration."""
        own = self.flops / rates.flops + self.specials / rates.specials + self.draws / rates.draws + self.moved / rates.bytes
        return TURN + own + (rates.latency + self.message / rates.bandwidth if several else 0.0)


def parsed(text: str) -> Plan:
    """The plan that some words describe.

    Raises:
        ValueError: words that mean nothing here, numbers without a name, or a table without a size.

    >>> plan = parsed("pln 1e6 x 2e4 rank 20, 64 processes")
    >>> plan.family, plan.n, plan.p, plan.settings["rank"], plan.settings["processes"]
    ('pln', 1000000.0, 20000.0, 20.0, 64.0)
    """
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    family, *rest = re.split(r"\s+", joined.strip(), maxsplit=1)
    if family.lower() not in FAMILIES:
        raise ValueError(f"{family!r} is no family; a plan begins with one of {', '.join(FAMILIES)}: {EXAMPLE}")
    table = re.search(rf"({_NUMBER})\s*[x×]\s*({_NUMBER})", rest[0] if rest else "")
    if table is None:
        raise ValueError(f"no size of a table in {text!r}: say it as 100,000 x 20; {EXAMPLE}")
    rest_text = rest[0][: table.start()] + " " + rest[0][table.end() :]
    settings, single = _settings(re.findall(rf"{_NUMBER}(?![A-Za-z])|[A-Za-z]\w*|[^\s,=:]", rest_text), text)
    plan = Plan(FAMILIES[family.lower()], _number(table[1]), _number(table[2]), settings, single)
    _check(plan)
    return plan


EXAMPLE = 'margaux doctor --plan "pln 1e6 x 2e4 rank 20, 64 processes"'


def _settings(words: list[str], text: str) -> tuple[dict[str, float], bool]:
    settings, single, number, named = dict(SETTINGS), False, None, None
    for word in words:
        name = SINGULAR.get(word.lower(), word.lower())
        if re.fullmatch(_NUMBER, word):
            if number is not None:
                raise ValueError(f"{number} in {text!r} has no name; names are {', '.join(SETTINGS)}")
            if named is None:
                number = word
            else:
                settings[named], named = _number(word), None
        elif name in ("float32", "float64"):
            single = name == "float32"
        elif name in SETTINGS:
            if number is None and named is None:
                named = name
            elif named is None:
                settings[name], number = _number(str(number)), None
            else:
                raise ValueError(f"{named} in {text!r} has no number; say {named} 10")
        else:
            raise ValueError(f"{word!r} in {text!r} is not understood; names are {', '.join(SETTINGS)}, float32 and float64")
    if number is not None or named is not None:
        what = f"{number} has no name" if number is not None else f"{named} has no number"
        raise ValueError(f"{what} in {text!r}; {EXAMPLE}")
    return settings, single


def _number(text: str) -> float:
    scale = {"k": 1e3, "M": 1e6, "%": 1e-2}.get(text[-1], 1.0)
    return float(text.rstrip("kM%").replace("_", "")) * scale


def _check(plan: Plan) -> None:
    """Raises: ValueError: sizes that no fit has."""
    for name, value in {"units": plan.n, "columns": plan.p, "processes": plan.processes, "rank": plan.rank}.items():
        if value < 1 or value != int(value):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value:g}")
    if plan.processes > plan.n:
        raise ValueError(f"{plan.n:g} units cannot be shared by {plan.processes:g} processes")
    if plan.batch > plan.n:
        raise ValueError(f"batch {plan.batch:g} exceeds the {plan.n:g} units")
    if not 0 < plan.density <= 1:
        raise ValueError(f"density must lie in (0, 1], got {plan.density:g}; say 10% or 0.1")
    if plan.family == "pln" and plan.rank > plan.p:
        raise ValueError(f"rank {plan.rank:g} exceeds the {plan.p:g} features")


def work(plan: Plan) -> Work:
    """An iteration of the process that has most units."""
    return {"fit": _fit, "nlme": _nlme, "missing": _missing, "pln": _pln, "bnn": _bnn}[plan.family](plan)


def _size(plan: Plan) -> int:
    return 4 if plan.single else 8


def _shares(plan: Plan) -> tuple[float, float]:
    """Units of the largest share, and how many of them an iteration visits."""
    share = -(-plan.n // plan.processes)
    return share, min(share, (plan.batch or plan.n) / plan.processes)


def _order(plan: Plan) -> float:
    """Draws that the order of an epoch costs as much as, a batch: it is sorted, and every process works out all of it."""
    return COMPARISON * plan.batch * math.log2(plan.n) if plan.batch and plan.batch < plan.n else 0.0


def _chains(plan: Plan, latents: float, specials: float) -> Work:
    """Chains of each unit's latents: transitions, each with a gradient, and the score; `specials` an answer and evaluation."""
    held, visited = _shares(plan)
    d, s = plan.latents or latents, _size(plan)
    parameters = plan.parameters or 2 + d
    evaluations = TRANSITIONS + BEYOND
    return Work(
        flops=visited * evaluations * plan.p * 8,
        specials=visited * evaluations * plan.p * specials,
        draws=visited * TRANSITIONS * TRANSITION * (1 + (d - 1) / 4) + _order(plan),
        moved=visited * 2 * (plan.p + 4 * d) * s,
        message=(parameters + 2) * s,
        held=held * (plan.p + 4 * d) * s + 2 * visited * TRANSITIONS * (d + 1) * s,
    )


def _fit(plan: Plan) -> Work:
    return _chains(plan, 1, ANSWER)


def _nlme(plan: Plan) -> Work:
    return _chains(plan, 3, CURVE)


def _missing(plan: Plan) -> Work:
    """A pass over the rows with score and information: conditional moments of the missing by the observed, and nodes along the
    linear predictor."""
    held, visited = _shares(plan)
    p, s = plan.p, _size(plan)
    parameters = 1 + 2 * p + p * (p + 1) / 2
    return Work(
        flops=visited * (p**3 / 3 + 6 * p**2 + 4 * NODES),
        specials=visited * 2 * NODES,
        draws=0.0,
        moved=visited * (4 * p**2 + 4 * NODES) * s,
        message=(1 + parameters) * s,
        held=held * 2 * p * s,
    )


def _pln(plan: Plan) -> Work:
    """A sweep: rates before and after a Newton step of each cell, and the sums over cells that the features' equations need."""
    held, cells = _shares(plan)
    p, q, k, s = plan.p, plan.rank, plan.covariates, _size(plan)
    t, kk = q * (q + 1) / 2, k * (k + 1) / 2
    entry = 4 * (k + q + t) + 2 * (t + q) + 2 * (1 + k + kk + k * q + q + 2 * t) + 4 * q * plan.density
    sums = p * (2 + k + kk + k * q + 2 * q + 2 * t)
    return Work(
        flops=cells * (p * entry + 2 * q**3) + p * (k + q) ** 3,
        specials=2 * RATE * cells * p,
        draws=0.0,
        moved=6 * cells * p * s if cells * p * s > CACHE else 0.0,
        message=sums * s,
        held=held * (p * plan.density * (s if plan.density == 1 else s + 4) + 3 * (q + t) * s) + 8 * sums * s,
    )


def _bnn(plan: Plan) -> Work:
    """A batch forwards and backwards by one draw of the weights: three products a weight and image."""
    held, images = _shares(plan)
    weights, s = plan.weights or 100 * plan.p, _size(plan)
    return Work(
        flops=6 * images * weights,
        specials=weights,
        draws=weights,
        moved=(10 * weights + 3 * images * plan.p) * s,
        message=2 * weights * s,
        held=held * plan.p * s + 8 * weights * s,
    )


def lines(plan: Plan, rates: Rates) -> list[tuple[str, str]]:
    """What is to be shown, a name and a figure each."""
    done, several = work(plan), plan.processes > 1
    turns = plan.iterations or ITERATIONS[plan.family]
    each = done.seconds(rates, several)
    told = "measured here" if rates.measured else "the default, of one machine: there is nobody to measure it by"
    out = [
        ("bytes a process", _bytes(done.held)),
        ("flops an iteration and process", f"{done.flops:.3g}, and {done.specials:.3g} exponentials, {done.draws:.3g} draws"),
        ("moved through memory", _bytes(done.moved)),
        ("all-reduced an iteration", _bytes(done.message) if several else "nothing: one process"),
        (
            "an iteration",
            f"{_time(each)}" + (f", {_time(each - done.seconds(rates, False))} of them for the sum" if several else ""),
        ),
        (f"{turns:g} iterations", _time(turns * each)),
        (
            "by rates of this machine",
            f"{rates.flops / 1e9:.3g} Gflop/s, {rates.specials / 1e6:.3g} M exponentials/s, {rates.draws / 1e6:.3g} M draws/s, "
            f"{rates.bytes / 1e9:.3g} GB/s",
        ),
    ]
    if several:
        out.append(("messages", f"{_time(rates.latency)} and {rates.bandwidth / 1e9:.3g} GB/s ({told})"))
    return out


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
