"""What goes wrong in one process is said by all, and nothing hangs or is lost."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import numpy as np
import pytest
from test_processes import ENVIRONMENT, launched

from margaux.engine import storage

SCRIPT = faults.__file__


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_a_checkpoint_goes_on(tmp_path):
    began = time.monotonic()
    done = launched(2, SCRIPT, tmp_path, "kill", timeout=150)
    assert done.returncode == 128 + 9 and time.monotonic() - began < 90
    assert "process 1 was killed by signal 9" in done.stderr and "has lost another process of this fit" in done.stderr
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert any(name.endswith(".1-of-2") for name in kept)
    again = found(2, tmp_path, "resume")["trace"]
    for file in tmp_path.iterdir():
        file.unlink()
    fresh = found(2, tmp_path, "resume")["trace"]
    for file in tmp_path.iterdir():
        file.unlink()
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    fewer = found(1, tmp_path, "resume")["trace"]
    np.testing.assert_array_equal(again, fresh)  # to the bit
    np.testing.assert_allclose(fewer, fresh, rtol=1e-9, atol=1e-11)
    assert not list(tmp_path.glob("checkpoint.*"))  # one process has one file
    assert launched(3, SCRIPT, tmp_path, "resume").returncode == 0  # and several go on from it: there is nothing left to do


@pytest.mark.slow
def test_a_checkpoint_goes_on_over_another_number_of_processes(tmp_path):
    assert launched(3, SCRIPT, tmp_path, "kill", timeout=150).returncode == 137
    assert launched(2, SCRIPT, tmp_path, "resume").returncode == 0
    (tmp_path / "checkpoint").unlink()
    assert launched(2, SCRIPT, tmp_path, "resume").returncode == 0
    trace = np.load(tmp_path / "resume.2.0.npz")["trace"]
    assert launched(3, SCRIPT, tmp_path, "resume").returncode == 0  # there is nothing left to do
    np.testing.assert_allclose(np.load(tmp_path / "resume.3.0.npz")["trace"], trace, rtol=1e-9, atol=1e-11)


def test_what_one_process_refuses_all_refuse(tmp_path):
    done = launched(2, SCRIPT, tmp_path, "nan")
    assert done.returncode == 1
    assert "holds nan at index (10, 0) (unit 10)" in done.stderr  # by the process's own numbers
    assert "process 1 gave up: ValueError: data y holds nan" in done.stderr


@pytest.mark.slow
def test_kills_at_random_instants_lose_nothing():
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run([sys.executable, script, "--kills", "8"], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_shapes_that_differ_between_processes_are_refused(tmp_path):
    done = launched(2, SCRIPT, tmp_path, "shapes")
    assert done.returncode == 1 and "differ between processes" in done.stderr


@pytest.mark.slow
def test_units_that_each_process_has_read_for_itself(tmp_path):
    assert launched(2, SCRIPT, tmp_path, "local").returncode == 0
    assert launched(1, SCRIPT, tmp_path, "resume").returncode == 0
    one, other = (np.load(tmp_path / f"local.2.{index}.npz") for index in (0, 1))
    assert (int(one["rows"]), int(other["rows"])) == (20, 21)
    np.testing.assert_array_equal(one["trace"], other["trace"])
    np.testing.assert_allclose(one["trace"], np.load(tmp_path / "resume.1.0.npz")["trace"], rtol=1e-9, atol=1e-11)


def found(processes, folder, *faults):
    """What every process has found of the last of some faults, which must be the same."""
    done = launched(processes, SCRIPT, folder, *faults)
    assert done.returncode == 0, done.stderr[-1500:]
    every = [of_process(folder, faults[-1], processes, index) for index in range(processes)]
    for other in every[1:]:
        np.testing.assert_array_equal(every[0].get("trace", 0.0), other.get("trace", 0.0))
    return every[0]


def of_process(folder, fault, processes, index):
    return dict(np.load(folder / f"{fault}.{processes}.{index}.npz"))


@pytest.mark.slow
def test_disks_and_clocks_change_no_number_and_what_is_left_is_whole(tmp_path):
    found(2, tmp_path, "full disk", "slow disk", "clocks", "one")
    full, slow, clocks, one = (of_process(tmp_path, name, 2, 1) for name in ("full disk", "slow disk", "clocks", "one"))
    for other in (slow, clocks):
        np.testing.assert_array_equal(full["trace"], other["trace"])
    np.testing.assert_allclose(full["trace"], one["trace"], rtol=1e-9, atol=1e-11)  # a share of one unit
    assert "could not be written (No space left on device)" in str(full["said"])
    assert "process 1 gave up: OSError: [Errno 28] No space left" in str(of_process(tmp_path, "full disk", 2, 0)["said"])
    assert not str(slow["said"]) and not str(clocks["said"])
    for name in ("full disk", "slow disk", "clocks", "one"):
        header = storage.read(tmp_path / name)[0]
        assert (header["k"] < 400) == (name == "full disk"), name
        assert [file.name for file in tmp_path.glob(f"{name}.*-of-*")] == [f"{name}.{header['generation']}.1-of-2"]
    # What was kept before the disk was full is gone on from.
    shutil.copy(tmp_path / "full disk", tmp_path / "checkpoint")
    (shard,) = tmp_path.glob("full disk.*-of-*")
    shutil.copy(shard, tmp_path / shard.name.replace("full disk", "checkpoint"))
    np.testing.assert_array_equal(found(2, tmp_path, "resume")["trace"], full["trace"])


@pytest.mark.slow
def test_a_shard_that_is_missing_or_damaged_is_named_by_all(tmp_path):
    kinds = ("missing shard", "truncated shard", "changed shard")
    found(2, tmp_path, *kinds)
    for kind in kinds:
        for index in range(2):
            error = str(of_process(tmp_path, kind, 2, index)["error"])
            assert error.startswith("ValueError: " if index else "RuntimeError: process 1 gave up: ValueError: "), error
            assert "1-of-2" in error and ("is not beside it" if kind == "missing shard" else "is damaged") in error
        assert "put the file back as it was written, or delete" in str(of_process(tmp_path, kind, 2, 1)["error"])


@pytest.mark.slow
def test_an_interrupt_of_one_process_ends_all_and_state_is_kept(tmp_path):
    began = time.monotonic()
    found(2, tmp_path, "interrupt", "interrupt inside", "callback")
    assert time.monotonic() - began < 120
    for name in ("interrupt", "interrupt inside"):
        every = [of_process(tmp_path, name, 2, index) for index in range(2)]
        assert [str(one["result"]) for one in every] == ["interrupted"] * 2
        done = len(every[0]["trace"])
        assert 100 < done < 400 and storage.read(tmp_path / name)[0]["k"] == done
    told = [str(of_process(tmp_path, "callback", 2, index)["error"]) for index in range(2)]
    assert told == [
        "RuntimeError: process 1 gave up: ZeroDivisionError: a callback's own",
        "ZeroDivisionError: a callback's own",
    ]


LONELY = """
import sys
import numpy as np
import margaux as mx
mx.distributed.initialize(heartbeat_timeout_seconds=20)
import jax
from margaux.engine.share import everyones
everyones(np.zeros(1))
if jax.process_index() == 1:
    raise KeyboardInterrupt if sys.argv[1] == "interrupt" else LookupError("of one process alone")
everyones(np.zeros(1))
"""


@pytest.mark.parametrize("what", ["error", pytest.param("interrupt", marks=pytest.mark.slow)])
def test_an_error_of_one_process_alone_ends_the_others_soon(what, tmp_path):
    script = tmp_path / "lonely.py"
    script.write_text(LONELY)
    began = time.monotonic()
    done = launched(2, script, what, timeout=100)
    assert time.monotonic() - began < 60 and done.returncode != 0
    # The other one is told by the broken connection, or ended by jax's service, whichever comes first.
    assert "has lost another process" in done.stderr or "another task died" in done.stderr
    assert ("KeyboardInterrupt" if what == "interrupt" else "LookupError: of one process alone") in done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_processes_end_with_their_launcher(tmp_path):
    script = tmp_path / "lonely.py"
    script.write_text(
        LONELY.replace("everyones(np.zeros(1))\n", "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(99)\n")
    )
    command = [sys.executable, "-m", "margaux", "launch", "-n", "2", str(script)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert running.stdout is not None
    pids = []
    while len(pids) < 2:
        pids += [int(word) for word in running.stdout.readline().split() if word.isdigit() and int(word) > 9]
    running.kill()
    running.wait()
    running.stdout.close()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.2)


def alive(pid):
    """Whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SLEEPER = """
import sys, time
sys.stdout.write("here\\n")  # at once: prints of two processes may run into each other
sys.stdout.flush()
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number, tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    command = [sys.executable, "-m", "margaux", "launch", "-n", "2", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as running:
        assert running.stdout is not None
        assert [running.stdout.readline().strip() for _ in range(2)] == ["here", "here"]
        running.send_signal(number)
        try:
            running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode not in (0, None)


def test_exit_codes_and_arguments_are_passed_on(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    assert launched(2, script, 0).returncode == 0
    done = launched(2, script, 7)
    assert done.returncode == 7 and "ended with code 7" in done.stderr
    done = launched(2, tmp_path / "nowhere.py")
    assert done.returncode == 2 and "there is no file" in done.stderr
