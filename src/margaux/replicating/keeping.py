"""Replicates in a folder: a file each, and one that says which study they are of."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from .identity import code_of, name_of

STUDY, SUFFIX, HEAD = "study.json", ".replicate", b"margaux replicate 1\n"
#: what each entry of a study is called in a refusal
WORDS = {"seed": "the seed", "function": "the function", "code": "the function's code, or a value that it reads,"}


class Folder:
    """The finished replicates of one study.

    Raises:
        ValueError: a folder that cannot be written, or of another study; what differs is named.
    """

    def __init__(self, path: str | Path, function: Callable[..., Any], seed: int) -> None:
        self.path = Path(path)
        _check(self.path)
        study = {"seed": seed, "function": name_of(function), "code": code_of(function)}
        self._same(study)
        _write(self.path / STUDY, json.dumps(study, indent=1).encode())
        self._warned = False

    def _same(self, study: dict[str, Any]) -> None:
        if not any(self.path.glob(f"*{SUFFIX}")):
            return
        mend = "pass another folder, or delete this one"
        try:
            there = json.loads((self.path / STUDY).read_text())
            differ = [name for name in WORDS if there[name] != study[name]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} has replicates, but no readable {STUDY} that says of which study; {mend}") from error
        if differ:
            told = "; ".join(
                f"{WORDS[name]} is another" if name == "code" else f"{WORDS[name]} is {there[name]} there and {study[name]} here"
                for name in differ
            )
            raise ValueError(f"the folder {self.path} is of another study: {told}. For this one, {mend}")

    def read(self, n: int) -> dict[int, Any]:
        """The results below n, by index; a file that is not whole is warned of, and left out."""
        found, damaged = {}, []
        for index in range(n):
            path = self._file(index)
            if path.exists():
                try:
                    found[index] = _unpacked(path.read_bytes())
                except Exception:  # whatever a damaged file makes of it
                    damaged.append(index)
        if damaged:
            listed = ", ".join(map(str, damaged))
            warnings.warn(f"damaged files of replicates {listed} in {self.path}: they are run again", stacklevel=4)
        return found

    def write(self, index: int, pickled: bytes) -> None:
        """Keep one; a disk that is full is warned of, and does not end the study."""
        try:
            _write(self._file(index), HEAD + xxhash.xxh3_128_digest(pickled) + pickled)
        except OSError as error:
            if not self._warned:
                warnings.warn(f"replicate {index} cannot be kept in {self.path}: {error.strerror or error}", stacklevel=4)
            self._warned = True

    def _file(self, index: int) -> Path:
        return self.path / f"{index:06d}{SUFFIX}"


def _unpacked(held: bytes) -> Any:
    start = len(HEAD) + 16
    if held[: len(HEAD)] != HEAD or xxhash.xxh3_128_digest(held[start:]) != held[len(HEAD) : start]:
        raise ValueError("not whole")
    return pickle.loads(held[start:])


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _check(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise ValueError(f"checkpoint {path} is a file; pass the path of a folder") from error
    except OSError as error:
        raise ValueError(f"no replicates can be kept in {path}: {error.strerror or error}; pass another folder") from error
