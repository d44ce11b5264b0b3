"""What goes wrong in one process is said by all, and nothing hangs or is lost."""

import signal
import subprocess
import sys
import time

import faults
import numpy as np
import pytest
from test_processes import ENVIRONMENT, launched

SCRIPT = faults.__file__


def test_a_killed_process_ends_the_others_and_a_checkpoint_goes_on(tmp_path):
    began = time.monotonic()
    done = launched(2, SCRIPT, tmp_path, "kill", timeout=150)
    assert done.returncode == 128 + 9 and time.monotonic() - began < 90
    assert "process 1 was killed by signal 9" in done.stderr and "has lost another process of this fit" in done.stderr
    kept = (tmp_path / "checkpoint").read_bytes()
    traces = {}
    for name, processes in (("again", 2), ("fresh", 2), ("fewer", 1)):
        (tmp_path / "checkpoint").unlink(missing_ok=True)
        if name == "again":
            (tmp_path / "checkpoint").write_bytes(kept)
        done = launched(processes, SCRIPT, tmp_path, "resume")
        assert done.returncode == 0, done.stderr[-1500:]
        traces[name] = np.load(tmp_path / f"resume.{processes}.0.npz")["trace"]
    np.testing.assert_array_equal(traces["again"], traces["fresh"])  # to the bit
    np.testing.assert_allclose(traces["fresh"], traces["fewer"], rtol=1e-9, atol=1e-11)


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
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert running.stdout is not None
    assert [running.stdout.readline().strip() for _ in range(2)] == ["here", "here"]
    running.send_signal(number)
    running.communicate(timeout=20)
    assert running.returncode not in (0, None)


def test_exit_codes_and_arguments_are_passed_on(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    assert launched(2, script, 0).returncode == 0
    done = launched(2, script, 7)
    assert done.returncode == 7 and "ended with code 7" in done.stderr
    done = launched(2, tmp_path / "nowhere.py")
    assert done.returncode == 2 and "there is no file" in done.stderr
