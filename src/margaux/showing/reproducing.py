"""How to repeat a fit: the call, the seed, versions, and a checksum of the data."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import scipy

from .checksum import checksum
from .facts import facts
from .page import Code, Part, Section, section

ID, TITLE = "reproduce", "How to reproduce it"
#: characters of a call
LONGEST = 3000


def reproducing(
    call: str, seed: Any, data: Callable[[], Any], command: str | None, how: str, dtype: np.dtype | None = None
) -> Section:
    """The section.

    Args:
        call: the call in Python. data: a function that returns what the checksum is of. command: the command line, if any.
        how: what to pass to `margaux.showing.checksum` for the same checksum.
    """
    calls: list[Part] = [Code(command, "The command")] if command else []
    whole = "" if call.startswith("margaux.fit(") else ", with the settings that differ from their defaults"
    calls.append(Code(trimmed(call), "The call" + whole))
    made = facts(
        ("Seed", seed),
        ("margaux", version("margaux")),
        ("Python", platform.python_version()),
        ("jax", f"{jax.__version__}, on {jax.default_backend()}"),
        ("numpy", np.__version__),
        ("scipy", scipy.__version__),
        ("Precision", dtype),
        ("System", f"{platform.system()} {platform.machine()}"),
        ("Data (SHA-256)", _checksum(data)),
        ("Made by", how),
    )
    return section(ID, TITLE, calls, made)


def _checksum(data: Callable[[], Any]) -> str:
    try:
        return checksum(data())
    except Exception as error:
        return f"not computed: {error}"


def trimmed(call: str) -> str:
    """A call without addresses of this process, and not too long."""
    call = re.sub(r" at 0x[0-9a-f]+", "", call)
    return call if len(call) <= LONGEST else call[:LONGEST] + " ..."
