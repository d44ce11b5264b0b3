"""Labelled images: MNIST and CIFAR-10 from files or by download, and the small digits of scikit-learn.

A loader gives `Images(x, y)`, which unpacks as `x, y = load_mnist()`: pixels of type uint8, shape (n, height, width,
channels), and integer labels (n,) from 0 to 9.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np

Split = Literal["train", "test"]

#: What a gzip stream can fail with when it is cut short or altered.
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class Images(NamedTuple):
    """Images x, uint8 (n, height, width, channels), and their labels y, int (n,)."""

    x: np.ndarray
    y: np.ndarray


class Source(NamedTuple):
    """Where a data set is downloaded from: its title, the name of its folder, an address, and checksums by file."""

    title: str
    key: str
    url: str
    checksums: Mapping[str, str]


MNIST = Source(
    title="MNIST",
    key="mnist",
    url="https://storage.googleapis.com/cvdf-datasets/mnist",
    checksums={
        "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
CIFAR10 = Source(
    title="CIFAR-10",
    key="cifar10",
    url="https://www.cs.toronto.edu/~kriz",
    checksums={"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"},
)
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def load_mnist(split: Split = "train", folder: str | os.PathLike | None = None) -> Images:
    """MNIST: grey images (n, 28, 28, 1) of handwritten digits, 60,000 to train on and 10,000 to test, and which digit each is.

    For example `x, y = load_mnist("test", folder="data/mnist")`.

    Args:
        split: "train" or "test".
        folder: where the idx files lie (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...), plain or gzipped.
            None takes the folder mnist of the folder MARGAUX_DATA if it has them; otherwise they are downloaded once
            into the user's cache, their checksums verified.

    Raises:
        ValueError: another split; a file that is truncated, corrupted or not what its name says; a download of another checksum.
        FileNotFoundError: the folder lacks a file.
        ImportError: a download is needed and pooch is not installed.
        ConnectionError: a download is needed and fails.
    """
    _check(split)
    prefix = "train" if split == "train" else "t10k"
    names = [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]
    paths = _idx_paths(_folders(MNIST, folder), names)
    if folder is None and len(paths) < len(names):
        paths = _idx_paths([_download(MNIST, [f"{name}.gz" for name in names])], names)
    if missing := [name for name in names if name not in paths]:
        raise FileNotFoundError(
            f"{folder} has no {' and no '.join(missing)}, plain or with .gz at its end: pass the folder of the MNIST files as "
            "folder=..., or no folder to have them downloaded"
        )
    x_path, y_path = paths.values()
    x, y = read_idx(x_path, ndim=3), read_idx(y_path, ndim=1)
    if x.shape[1:] != (28, 28):
        raise ValueError(f"{x_path} has images of {x.shape[1]} x {x.shape[2]} pixels; those of MNIST have 28 x 28")
    if len(x) != len(y):
        raise ValueError(f"{x_path} has {len(x)} images, but {y_path} has {len(y)} labels: they do not belong together")
    if y.max(initial=0) > 9:
        raise ValueError(f"{y_path} has a label {y.max()}; those of MNIST go from 0 to 9")
    return Images(x[..., None], y.astype(int))


def load_cifar10(split: Split = "train", folder: str | os.PathLike | None = None) -> Images:
    """CIFAR-10: colour images (n, 32, 32, 3), 50,000 to train on and 10,000 to test, and their classes.

    The classes are airplane, automobile, bird, cat, deer, dog, frog, horse, ship and truck, from 0 to 9; the channels
    are red, green and blue. For example `x, y = load_cifar10("test", folder="data/cifar10")`.

    Args:
        split: "train" or "test".
        folder: the archive cifar-10-python.tar.gz, which is read in place, its unpacked folder cifar-10-batches-py, or
            a folder with either. None takes the folder cifar10 of the folder MARGAUX_DATA if it has one of them;
            otherwise the archive (170 MB) is downloaded once into the user's cache, its checksum verified.

    Raises:
        ValueError: another split; a file that is truncated, corrupted or holds more than images; a download of another checksum.
        FileNotFoundError: the folder has neither, or lacks a batch.
        ImportError: a download is needed and pooch is not installed.
        ConnectionError: a download is needed and fails.
    """
    _check(split)
    (archive,) = CIFAR10.checksums
    names = _BATCHES[split]
    path = _cifar_path(_folders(CIFAR10, folder), archive, names)
    if path is None and folder is None:
        path = _download(CIFAR10, [archive]) / archive
    if path is None:
        raise FileNotFoundError(
            f"{folder} has neither {archive} nor cifar-10-batches-py: pass one of them, or their folder, as folder=..., "
            "or no folder to have the archive downloaded"
        )
    batches = {name: _parse(data, f"{name} of {path}") for name, data in _read(path, names)}
    missing = [name for name in names if name not in batches]
    if missing:
        raise FileNotFoundError(f"{path} has no {', '.join(missing)}: it is not complete")
    return Images(*(np.concatenate(parts) for parts in zip(*(batches[name] for name in names), strict=True)))


def load_digits() -> Images:
    """The digits that come with scikit-learn: 1797 grey images (n, 8, 8, 1), its 17 shades spread from 0 to 255, for tests and
    trials.

    >>> x, y = load_digits()
    >>> x.shape, x.dtype.name, y[:5].tolist()
    ((1797, 8, 8, 1), 'uint8', [0, 1, 2, 3, 4])
    """
    spec = find_spec("sklearn")
    assert spec is not None and spec.origin is not None
    # Its file alone: scikit-learn takes longer to import than a fit to the digits.
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = table[:, :64].reshape(-1, 8, 8, 1)
    return Images(np.round(images * (255 / 16)).astype(np.uint8), table[:, 64].astype(int))


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array of an idx file, plain or gzipped: 0, 0, type, ndim, ndim sizes as big-endian int32, and the values.

    Raises:
        ValueError: the file has another type, other dimensions, or more or less bytes than its header says.
    """
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except _DAMAGED as error:
            raise ValueError(f"{path} is truncated or corrupted: {error}") from error
    start = 4 + 4 * ndim
    if len(data) < start or data[:2] != b"\0\0":
        raise ValueError(f"{path} is no idx file: it has no header of {start} bytes that starts with two zeros")
    if data[2] != 8:
        raise ValueError(f"{path} holds values of the idx type 0x{data[2]:02x}; unsigned bytes, 0x08, are needed")
    if data[3] != ndim:
        raise ValueError(f"{path} holds an array of {data[3]} dimensions; {ndim} are needed")
    shape = tuple(np.frombuffer(data, ">u4", ndim, offset=4).tolist())
    size = math.prod(shape)
    if len(data) - start != size:
        raise ValueError(
            f"{path} is truncated or corrupted: its header announces {size} values, {' x '.join(map(str, shape))}, "
            f"but {len(data) - start} follow"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def _check(split: str) -> None:
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', not {split!r}")


def _folders(source: Source, folder: str | os.PathLike | None) -> list[Path]:
    """Where to look: the folder given, or the data set's folder in the folder MARGAUX_DATA if that is set."""
    if folder is not None:
        return [Path(folder).expanduser()]
    held = os.environ.get("MARGAUX_DATA")
    return [Path(held) / source.key] if held else []


def _idx_paths(folders: list[Path], names: list[str]) -> dict[str, Path]:
    """The files found, by name, plain or gzipped."""
    ends = ("", ".gz")
    return {name: path for name in names for at in folders for end in ends if (path := at / (name + end)).is_file()}


def _cifar_path(folders: list[Path], archive: str, names: list[str]) -> Path | None:
    """The archive or the unpacked folder that a folder is or has in it, or None."""
    paths = [path for at in folders for path in (at, at / "cifar-10-batches-py", at / archive)]
    return next((path for path in paths if path.is_file() or any((path / name).is_file() for name in names)), None)


def _download(source: Source, names: Iterable[str]) -> Path:
    """The folder of the user's cache with these files, downloaded unless they are there and have their checksum."""
    mend = f"pass the folder of the files as folder=..., or put them in the folder {source.key} of the folder MARGAUX_DATA"
    try:
        pooch: Any = import_module("pooch")
    except ImportError as error:
        message = f"downloading {source.title} needs pooch; install it via: pip install 'margaux[remote]'. Or {mend}"
        raise ImportError(message) from error
    requests: Any = import_module("requests")
    cache = Path(pooch.os_cache("margaux")) / source.key
    for name in names:
        url = f"{source.url}/{name}"
        try:
            pooch.retrieve(url, known_hash=source.checksums[name], fname=name, path=cache)
        except requests.exceptions.RequestException as error:
            answer = error.response
            reason = f"no connection ({type(error).__name__})"
            if answer is not None:
                reason = f"the server answered {answer.status_code} {answer.reason}"
            raise ConnectionError(
                f"{source.title} could not be downloaded, {reason}: {url}. Download {' and '.join(names)} elsewhere and {mend}"
            ) from error
        except ValueError as error:
            raise ValueError(f"{source.title}: what came from {url} was refused and not kept. {error}") from error
    return cache


def _read(path: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files of a folder, or of an archive of which nothing is written to disk."""
    if path.is_dir():
        yield from ((name, (path / name).read_bytes()) for name in names if (path / name).is_file())
        return
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                content = archive.extractfile(member) if name in names and member.isfile() else None
                if content is not None:
                    yield name, content.read()
            while stream.read(2**20):  # gzip compares its checksum at the very end
                pass
    except (*_DAMAGED, tarfile.TarError) as error:
        raise ValueError(f"{path} is truncated, corrupted or no archive: {error}") from error


class _Saved:
    """What a pickle says of an array or of its dtype: arguments and state. NumPy never acts on them."""

    def __init__(self, *args: Any):
        self.args, self.state = args, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Plain values and descriptions of arrays: whatever else a pickle names is refused, so that none of its code runs."""

    def find_class(self, module: str, name: str) -> Any:
        packages = {
            "_reconstruct": ("numpy.core.multiarray", "numpy._core.multiarray"),
            "ndarray": ("numpy",),
            "dtype": ("numpy",),
        }
        if module in packages.get(name, ()):
            return _Saved
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data of images needs")


def _parse(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) and labels (n,) of one batch: a pickled dictionary whose rows are red, green and blue planes."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        *_, shape, dtype, by_column, pixels = content[b"data"].state
        x = np.frombuffer(pixels, np.uint8).reshape(shape, order="F" if by_column else "C")
        y = np.array(content[b"labels"])
        code = dtype.args[0]
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"{where} was refused, it is damaged or no batch of CIFAR-10: {type(error).__name__}: {error}"
        ) from error
    if code not in (b"u1", "u1") or y.ndim != 1 or x.shape != (len(y), 3072):
        raise ValueError(f"{where} was refused: it must hold uint8 pixels (n, 3072) and n labels, not {x.shape} and {y.shape}")
    if y.dtype.kind != "i" or y.min() < 0 or y.max() > 9:
        raise ValueError(f"{where} was refused: its labels must be integers from 0 to 9")
    return np.ascontiguousarray(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), y.astype(int)
