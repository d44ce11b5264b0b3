"""Ten million units of twenty numbers in 600 MB of memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "out_of_core.py"


@pytest.mark.slow
def test_ten_million_units_take_600_megabytes(tmp_path):
    found = {}
    for job in ("memmap", "memmap, rows in a folder", "memmap, no thread"):
        command = [sys.executable, str(SCRIPT), "--one", job, "--iterations", "200", "--steps", "1", "--folder", str(tmp_path)]
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "MARGAUX_THREADS": "1" if "no thread" in job else "2"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found[job] = json.loads(done.stdout.split("RESULT")[1])
        print(job, found[job])
    assert max(one["peak"] for one in found.values()) * 2**20 < 600e6
    assert found["memmap, rows in a folder"]["peak"] < found["memmap"]["peak"] - 100  # 240 MB of rows
    assert len({tuple(one["found"]) for one in found.values()}) == 1
