"""Where things were before they moved: import paths and names that keep working."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..numerics.collecting import uncollected

#: names that `margaux` had, by the module that has them
NAMES = {
    **dict.fromkeys(
        (
            "AbstractBatchSurrogate",
            "AbstractFactorised",
            "AbstractNonSmooth",
            "AbstractPointwise",
            "AbstractPredictive",
            "AbstractShared",
            "AbstractSurrogate",
            "AbstractPenalty",
            "AbstractSchedule",
            "AbstractSpace",
            "check_schedules",
        ),
        "problem",
    ),
    **dict.fromkeys(("AbstractAlgorithm", "AbstractAverage", "ParticleLangevin", "ScaledAscent"), "algorithms"),
    "Progress": "engine.callbacks",
    "RankChoice": "families.pln.ranks",
    "bernoulli_logit": "numerics.density",
}
#: modules and packages by where they are now -> their names there, with "=" and the former name where it was another
_MOVED = {
    "numerics": "compiling density gaussian naming packing sampling",
    "problem": "model penalty schedule space",
    "algorithms": "base=algorithm average curved memory particles scaled statistics updates",
    "engine": "callbacks checkpoints fingerprint job loop passes progress rows settling sharding storage validate batches=data",
    "answers": "certificate restoring fit=result information=inference.fisher likelihood=inference.marginal",
    "showing": "cards=shown report",
    "families": "missing nlme pln variational",
    "families.inverse": "priors",
    "tables": "checks=missing.checks",
}
#: former path -> path
PATHS = {
    (name.partition("=")[2] or name): f"{place}.{name.partition('=')[0]}"
    for place, names in _MOVED.items()
    for name in names.split()
} | {"inference": "answers"}


def moved(path: str) -> str | None:
    """Where what had this path is now, or None where it has not moved."""
    head, below = path, ""
    while head:
        if head in PATHS:
            return PATHS[head] + below
        head, _, last = head.rpartition(".")
        below = f".{last}{below}"
    return None


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its former name; it is the same module."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        return ModuleSpec(fullname, self) if first == self.root and moved(rest) else None

    def create_module(self, spec: ModuleSpec) -> Any:
        root, _, rest = spec.name.partition(".")
        with uncollected():
            module = import_module(f"{root}.{moved(rest)}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the former name's specification into the module: its own is put back.
        former: Any = module.__spec__
        module.__spec__ = former.loader_state


def install(root: str) -> None:
    """Let the former names of a package's modules be found."""
    if not any(isinstance(one, _Moved) for one in sys.meta_path):
        # Before the finder of files, which would load a second copy of what is below.
        sys.meta_path.insert(0, _Moved(root))
