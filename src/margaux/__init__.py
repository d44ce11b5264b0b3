"""margaux: maximum marginal likelihood for latent-variable models, on JAX.

Public names are listed in `__init__.pyi` and imported when first asked for; what only writers of models, kernels and
algorithms need is in `margaux.problem`, `margaux.kernels`, `margaux.esteps`, `margaux.algorithms` and `margaux.engine`.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import Any

import lazy_loader as _lazy_loader

from .families import moved as _moved
from .numerics.collecting import uncollected as _uncollected

__version__ = "0.1.0"

_listed, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)
_moved.install(__name__)


@_uncollected()
def __getattr__(name: str) -> Any:
    if name in __all__:
        return _listed(name)
    if name in _moved.NAMES:
        return getattr(_import_module(f"{__name__}.{_moved.NAMES[name]}"), name)
    if not name.startswith("_") and _find_spec(f"{__name__}.{name}") is not None:
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"margaux has no {name!r}")
