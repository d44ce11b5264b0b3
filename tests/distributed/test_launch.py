"""Where the processes that `margaux launch` starts run, and how."""

import json
import os
import subprocess
import sys

import pytest
from test_processes import ENVIRONMENT

from margaux.commands.launch import shares_of_cores

SCRIPT = """
import json, os
import margaux as mx
mx.distributed.initialize()
import jax
seen = [jax.process_index(), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), os.environ["MARGAUX_THREADS"]]
print("SEEN" + json.dumps(seen), flush=True)
"""

ON_LINUX = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are chosen on Linux alone")


def seen(tmp_path, *options, **environment):
    """Of two processes: their number, cores, scheduling policy and threads."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "margaux", "launch", "-n", "2", *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT | environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    decoder = json.JSONDecoder()
    return sorted(decoder.raw_decode(part)[0] for part in done.stdout.split("SEEN")[1:])


@ON_LINUX
def test_each_process_has_its_share_of_the_cores_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {9, 1, 2, 3, 5, 6, 7, 8})
    assert shares_of_cores(3) == [[1, 2], [3, 5, 6], [7, 8, 9]]
    assert shares_of_cores(8) == [[1], [2], [3], [5], [6], [7], [8], [9]]
    assert shares_of_cores(9) is None


@pytest.mark.slow
@ON_LINUX
def test_processes_have_cores_of_their_own_and_are_batch_work_unless_told_otherwise(tmp_path):
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("two processes share one core")
    first, second = seen(tmp_path)
    assert first[0] == 0 and second[0] == 1
    assert first[1] and second[1] and first[1] + second[1] == usable
    for _, cores, policy, threads in (first, second):
        assert policy == os.SCHED_BATCH and threads == str(len(cores))
    for _, cores, policy, threads in seen(tmp_path, "--no-bind", MARGAUX_BATCH="off"):
        assert cores == usable and policy == os.SCHED_OTHER and threads == str(len(usable) // 2)
