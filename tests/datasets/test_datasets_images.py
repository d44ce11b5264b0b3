"""Images from idx files and from the archive of CIFAR-10, and their download: nothing leaves this machine."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np
import pooch
import pytest

from margaux.datasets import images, load_cifar10, load_digits, load_mnist

RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 256, (7, 28, 28, 1), np.uint8), RNG.integers(0, 10, 7)
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
COLOURS = {
    name: (RNG.integers(0, 256, (n, 32, 32, 3), np.uint8), RNG.integers(0, 10, n))
    for n, name in enumerate([*BATCHES, "test_batch"], 2)
}
ROWS, LABELS = np.zeros((7, 3072), np.uint8), COLOURS["test_batch"][1].tolist()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Downloads go to an address that nobody serves and to an empty cache, unless a test says otherwise."""
    for name in ("MNIST", "CIFAR10"):
        monkeypatch.setattr(images, name, getattr(images, name)._replace(url="http://127.0.0.1:9"))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MARGAUX_DATA", raising=False)


def idx(values, code=8):
    """An idx file."""
    return bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(np.uint8).tobytes()


def write_mnist(folder, x, y, zipped=True, prefix="t10k"):
    folder.mkdir(exist_ok=True)
    for part, values in (("images-idx3-ubyte", x), ("labels-idx1-ubyte", y)):
        data = idx(np.squeeze(values))
        (folder / f"{prefix}-{part}{'.gz' * zipped}").write_bytes(gzip.compress(data) if zipped else data)
    return folder


def planes(x):
    """Rows of CIFAR-10: entry 1024 c + 32 i + j is channel c of the pixel in row i and column j."""
    rows = np.zeros((len(x), 3072), np.uint8)
    for c, i, j in np.ndindex(3, 32, 32):
        rows[:, 1024 * c + 32 * i + j] = x[:, i, j, c]
    return rows


def of_python2(x, y):
    """A batch in the very operations of the original files, which Python 2 wrote."""
    rows = planes(x)
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x08cnumpy\nndarray\nq\tK\x00\x85U\x01b\x87Rq\n(K\x01"
    shape = b"M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x0bU\x02u1K\x00K\x01\x87Rq\x0c(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pixels = b"\x89T" + struct.pack("<I", rows.size) + rows.tobytes() + b"tb"
    labels = b"U\x06labelsq\x05]q\x06(" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x05abcdeq\x03" + labels + b"U\x04dataq\x07"
    return head + array + shape + dtype + pixels + b"u."


def archived(files):
    """A gzipped archive of the files in cifar-10-batches-py."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def cifar_files():
    """The files of the archive, not in the order of their names, as in the original."""
    files = {name: of_python2(*COLOURS[name]) for name in reversed(COLOURS)}
    return {"batches.meta": pickle.dumps({b"label_names": [b"airplane"]}, 2)} | files


@contextmanager
def served(folder):
    """The address of a server of the folder, and the list of paths it was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, format, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        (thread := threading.Thread(target=server.serve_forever, args=(0.01,))).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def point(monkeypatch, name, url, folder, hashed="sha256"):
    """The data set comes from the address, with checksums of the files in the folder."""
    sums = {file.name: f"{hashed}:{hashlib.new(hashed, file.read_bytes()).hexdigest()}" for file in folder.iterdir()}
    monkeypatch.setattr(images, name, getattr(images, name)._replace(url=url, checksums=sums))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("split, prefix", [("train", "train"), ("test", "t10k")])
def test_idx_files_give_images_and_labels(tmp_path, zipped, split, prefix):
    x, y = load_mnist(split, folder=write_mnist(tmp_path / "files", *DIGITS, zipped=zipped, prefix=prefix))
    assert x.dtype == np.uint8 and y.dtype == int and x.shape == (7, 28, 28, 1)
    np.testing.assert_array_equal(x, DIGITS[0])
    np.testing.assert_array_equal(y, DIGITS[1])
    x[0] = 0  # the caller's own


def test_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MARGAUX_DATA", str(tmp_path))
    write_mnist(tmp_path / "mnist", *DIGITS)
    np.testing.assert_array_equal(load_mnist("test").x, DIGITS[0])
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(archived(cifar_files()))
    np.testing.assert_array_equal(load_cifar10("test").x, COLOURS["test_batch"][0])


IMAGES = idx(DIGITS[0][..., 0])
DAMAGED = {
    "cut": (IMAGES[:-1], r"truncated or corrupted: its header announces 5488 values, 7 x 28 x 28, but 5487 follow"),
    "longer": (IMAGES + b"0", r"but 5489 follow"),
    "huge": (IMAGES[:4] + b"\xff" * 12 + IMAGES[16:], r"announces 79228162458924105385300197375 values"),
    "cut when gzipped": (gzip.compress(IMAGES)[:-20], r"truncated or corrupted: Compressed file ended"),
    "altered when gzipped": (gzip.compress(IMAGES)[:-8] + b"abcd1234", r"truncated or corrupted: CRC check failed"),
    "empty": (b"", r"is no idx file: it has no header of 16 bytes"),
    "a header cut": (IMAGES[:15], r"is no idx file"),
    "a page of HTML": (b"<!DOCTYPE html><html></html>", r"is no idx file"),
    "floats": (idx(DIGITS[0][..., 0], code=0x0D), r"of the idx type 0x0d; unsigned bytes, 0x08, are needed"),
    "labels": (idx(np.zeros(20)), r"an array of 1 dimensions; 3 are needed"),
    "too small": (idx(DIGITS[0][:, 1:, :, 0]), r"images of 27 x 28 pixels; those of MNIST have 28 x 28"),
    "too few": (idx(DIGITS[0][1:, ..., 0]), r"6 images, but .*t10k-labels-idx1-ubyte has 7 labels"),
}


@pytest.mark.parametrize("data, message", DAMAGED.values(), ids=DAMAGED)
def test_damaged_idx_files_are_refused_by_name(tmp_path, data, message):
    folder = write_mnist(tmp_path / "files", *DIGITS, zipped=False)
    (folder / "t10k-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(ValueError, match=f"t10k-images-idx3-ubyte.*{message}"):
        load_mnist("test", folder=folder)


def test_labels_beyond_nine_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz has a label 1\d; those of MNIST go from 0 to 9"):
        load_mnist("test", folder=write_mnist(tmp_path / "files", DIGITS[0], DIGITS[1] + 10))


def test_what_a_folder_lacks_is_named(tmp_path):
    folder = write_mnist(tmp_path / "files", *DIGITS)
    with pytest.raises(FileNotFoundError, match="no train-images-idx3-ubyte and no train-labels-idx1-ubyte, plain or with .gz"):
        load_mnist("train", folder=folder)
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="files has no t10k-images-idx3-ubyte, plain"):
        load_mnist("test", folder=str(folder))
    with pytest.raises(FileNotFoundError, match="files has neither cifar-10-python.tar.gz nor cifar-10-batches-py"):
        load_cifar10("test", folder=folder)


def test_splits_are_two():
    for load in (load_mnist, load_cifar10):
        with pytest.raises(ValueError, match="split must be 'train' or 'test', not 'valid'"):
            load("valid")  # pyright: ignore[reportArgumentType]


def test_the_real_mnist(data_folder):
    if not (data_folder / "mnist").is_dir():
        pytest.skip("no folder mnist in the data folder")
    counts: dict[Any, list[int]] = {
        "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    }
    # Of the unpacked images, as published beside the original files.
    sums = {
        "train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    }
    for split, n in zip(counts, (60_000, 10_000), strict=True):
        x, y = load_mnist(split, folder=data_folder / "mnist")
        assert x.shape == (n, 28, 28, 1) and np.bincount(y).tolist() == counts[split]
        assert hashlib.sha256(idx(x[..., 0])).hexdigest() == sums[split]
    # The images to train on are kept in another compression there.
    for name in ("train-labels", "t10k-images", "t10k-labels"):
        (file,) = (data_folder / "mnist").glob(f"{name}*.gz")
        assert images.MNIST.checksums[file.name] == "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()


def test_our_pickles_are_those_of_python_2():
    x, y = COLOURS["data_batch_1"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases of NumPy warn of arrays that Python 2 wrote
        content = pickle.loads(of_python2(x, y), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"], planes(x))
    assert content[b"labels"] == y.tolist() and content[b"batch_label"] == b"abcde"


@pytest.mark.parametrize("form", ["archive", "folder of the archive", "unpacked", "folder of the unpacked"])
def test_every_pixel_of_cifar10_is_in_its_place(tmp_path, form):
    files, place = cifar_files(), tmp_path / "files"
    place.mkdir()
    if "archive" in form:
        path = place / "cifar-10-python.tar.gz"
        path.write_bytes(archived(files))
    else:
        path = place / "cifar-10-batches-py"
        path.mkdir()
        for name, data in files.items():
            (path / name).write_bytes(data)
    folder = place if "folder" in form else path
    train, test = load_cifar10("train", folder=folder), load_cifar10("test", folder=folder)
    for found, names in ((train, BATCHES), (test, ["test_batch"])):
        assert found.x.dtype == np.uint8 and found.y.dtype == int and found.x.flags.c_contiguous
        np.testing.assert_array_equal(found.x, np.concatenate([COLOURS[name][0] for name in names]))
        np.testing.assert_array_equal(found.y, np.concatenate([COLOURS[name][1] for name in names]))
    assert sorted(os.listdir(place)) == [path.name]


@pytest.mark.parametrize("protocol, order", [(3, "C"), (4, "C"), (3, "F")])
def test_batches_written_by_this_python_are_read(protocol, order):
    x, y = COLOURS["data_batch_2"]
    data = pickle.dumps({b"labels": y.tolist(), b"data": np.asarray(planes(x), order=order)}, protocol)
    for found, wanted in zip(images._parse(data, "here"), (x, y), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec])
def test_a_pickle_runs_no_code(tmp_path, function, protocol):
    mark = tmp_path / "mark"
    command = f"echo > {mark}" if function is os.system else f"open({str(mark)!r}, 'w').close()"

    class Touch:
        def __reduce__(self):
            return function, (command,)

    data = pickle.dumps(Touch(), protocol)
    pickle.loads(data)
    assert mark.exists()  # which is what an unguarded reader does
    mark.unlink()
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(archived({"test_batch": data}))
    with pytest.raises(ValueError, match=rf"test_batch of .*tar.gz was refused.*asks for \w+\.{function.__name__}, which"):
        load_cifar10("test", folder=path)
    assert not mark.exists()


def test_a_pickle_calls_nothing_of_numpy():
    # An array of objects whose dtype says it holds bytes: NumPy takes these bytes for addresses of objects.
    kind = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    honest = of_python2(*COLOURS["test_batch"])
    start, stop = honest.index(b"cnumpy\ndtype"), honest.index(b"\x89T")
    with pytest.raises(ValueError, match="it must hold uint8 pixels"):
        images._parse(honest[:start] + kind + honest[stop:], "here")
    for name in (b"numpy\nload", b"numpy\nfromfile", b"numpy.core.multiarray\nscalar", b"margaux.datasets\nload_digits"):
        with pytest.raises(ValueError, match="it asks for " + name.decode().replace("\n", ".")):
            images._parse(b"\x80\x02c" + name + b"\n)R.", "here")


def dictionary(x: Any = ROWS, y: Any = LABELS):
    return pickle.dumps({b"data": x, b"labels": y}, 3)


NO_BATCH = {
    "cut": (of_python2(*COLOURS["test_batch"])[:-100], "damaged or no batch"),
    "empty": (b"", "damaged or no batch of CIFAR-10: EOFError"),
    "text": (b"<html></html>", "damaged or no batch"),
    "a list": (pickle.dumps([1, 2]), "damaged or no batch"),
    "no data": (pickle.dumps({b"labels": LABELS}, 3), "damaged or no batch of CIFAR-10: KeyError: b'data'"),
    "no array": (dictionary(x=b"abc"), "damaged or no batch"),
    "fewer labels": (dictionary(y=LABELS[1:]), r"must hold uint8 pixels \(n, 3072\) and n labels, not \(7, 3072\) and \(6,\)"),
    "narrower": (dictionary(x=ROWS[:, 1:]), r"not \(7, 3071\) and \(7,\)"),
    "signed": (dictionary(x=ROWS.view(np.int8)), "must hold uint8 pixels"),
    "nested labels": (dictionary(y=[[label] for label in LABELS]), r"and \(7, 1\)"),
    "a class too many": (dictionary(y=[*LABELS[1:], 10]), "labels must be integers from 0 to 9"),
    "a class too few": (dictionary(y=[*LABELS[1:], -1]), "labels must be integers from 0 to 9"),
    "names for labels": (dictionary(y=[str(label) for label in LABELS]), "labels must be integers from 0 to 9"),
    "no image": (dictionary(x=ROWS[:0], y=[]), "labels must be integers from 0 to 9"),
}


@pytest.mark.parametrize("data, message", NO_BATCH.values(), ids=NO_BATCH)
def test_what_is_no_batch_is_refused_by_name(tmp_path, data, message):
    path = tmp_path / "cifar-10-batches-py"
    path.mkdir()
    (path / "test_batch").write_bytes(data)
    with pytest.raises(ValueError, match=f"test_batch of .*cifar-10-batches-py was refused.*{message}"):
        load_cifar10("test", folder=path)


def test_damaged_archives_are_refused_by_name(tmp_path):
    path, whole = tmp_path / "cifar-10-python.tar.gz", archived(cifar_files())
    altered = whole[:-8] + b"abcd1234"
    for data in (whole[: len(whole) // 2], whole[:-12], altered, b"", b"<html></html>", gzip.compress(b"abc" * 999)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="cifar-10-python.tar.gz is truncated, corrupted or no archive"):
            load_cifar10("train", folder=tmp_path)
    path.write_bytes(archived({name: data for name, data in cifar_files().items() if name != "data_batch_3"}))
    with pytest.raises(FileNotFoundError, match=r"tar.gz has no data_batch_3: it is not complete"):
        load_cifar10("train", folder=path)


def test_a_download_is_kept(tmp_path, monkeypatch):
    folder = write_mnist(tmp_path / "files", *DIGITS)
    with served(folder) as (url, asked):
        point(monkeypatch, "MNIST", url, folder)
        first = load_mnist("test")
        np.testing.assert_array_equal(first.x, DIGITS[0])
        assert asked == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]
    np.testing.assert_array_equal(load_mnist("test").x, first.x)  # the server is gone
    held = tmp_path / "cache" / "margaux" / "mnist" / "t10k-images-idx3-ubyte.gz"
    held.write_bytes(held.read_bytes()[:-1])
    with pytest.raises(ConnectionError):  # what is spoilt is asked for again
        load_mnist("test")


def test_a_download_of_cifar10(tmp_path, monkeypatch):
    monkeypatch.setenv("MARGAUX_DATA", str(tmp_path))  # which has no cifar10
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "cifar-10-python.tar.gz").write_bytes(archived(cifar_files()))
    with served(folder) as (url, asked):
        point(monkeypatch, "CIFAR10", url, folder, hashed="md5")
        np.testing.assert_array_equal(load_cifar10("test").x, COLOURS["test_batch"][0])
    np.testing.assert_array_equal(load_cifar10("train").y, np.concatenate([COLOURS[name][1] for name in BATCHES]))
    assert asked == ["/cifar-10-python.tar.gz"]


def test_another_checksum_is_refused(tmp_path, monkeypatch):
    folder = write_mnist(tmp_path / "files", *DIGITS)
    with served(folder) as (url, asked):
        monkeypatch.setattr(images, "MNIST", images.MNIST._replace(url=url))
        with pytest.raises(ValueError, match=f"MNIST: what came from {url}/t10k-images-.* was refused and not kept.*hash"):
            load_mnist("test")
        assert len(asked) == 1
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]


def test_no_connection_is_one_clear_error():
    with pytest.raises(ConnectionError) as raised:
        load_mnist("train")
    assert str(raised.value) == (
        "MNIST could not be downloaded, no connection (ConnectionError): http://127.0.0.1:9/train-images-idx3-ubyte.gz. "
        "Download train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz elsewhere and pass the folder of the files as "
        "folder=..., or put them in the folder mnist of the folder MARGAUX_DATA"
    )
    assert raised.value.__cause__ is not None
    with pytest.raises(ConnectionError, match="CIFAR-10 could not be .* no connection .*9/cifar-10-python.tar.gz. Download"):
        load_cifar10()


def test_what_a_server_lacks(tmp_path, monkeypatch):
    with served(tmp_path) as (url, asked):
        monkeypatch.setattr(images, "MNIST", images.MNIST._replace(url=url))
        with pytest.raises(ConnectionError, match=f"downloaded, the server answered 404 File not found: {url}/t10k-images"):
            load_mnist("test")
        assert len(asked) <= 2  # the request, and the handler's own word on the error


def test_without_pooch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"MNIST needs pooch; install it via: pip install 'margaux\[remote\]'. Or pass"):
        load_mnist("test")


def test_digits():
    from sklearn import datasets

    x, y = load_digits()
    assert x.shape == (1797, 8, 8, 1) and x.dtype == np.uint8 and y.dtype == int
    flat, labels = datasets.load_digits(return_X_y=True)
    np.testing.assert_array_equal(x.reshape(1797, 64), np.round(flat * 255 / 16))
    np.testing.assert_array_equal(y, labels)


def test_data_sets_import_nothing_heavy():
    code = "import sys, margaux.datasets; print({'pooch', 'requests', 'sklearn', 'skimage'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
