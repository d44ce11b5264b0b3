"""Kills at random instants: `python tests/distributed/soak.py [--kills 200] [--seed 0]`.

A fit over two processes, with a checkpoint after every chunk, is killed with -9 again and again, one of its processes at a time
and at random instants from their start, and started again, until so many kills are made; then it is left to end. A fit that ends
before that begins anew. Every life must go on from the last checkpoint that is there before it, every file must be whole after
each kill, no process may be left, and each fit that ends must have the bits of one that nobody disturbed.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

import numpy as np  # noqa: E402

#: seconds after which the others of a killed process must have ended
LIMIT = 60.0
ITERATIONS = 4_000


def fit(folder: Path) -> None:
    """One life: where it goes on is told by a line, its end by a file."""
    import margaux as mx
    from helpers import random_intercept

    # The others of a process that is killed before it has joined wait for it.
    mx.distributed.initialize(heartbeat_timeout_seconds=10, initialization_timeout=30)
    import jax

    problem, began = random_intercept(41, 3), []

    class Slowly(mx.AbstractCallback):
        """Has chunks last so long that kills meet them."""

        period = 200

        def __call__(self, progress):
            if not began:
                began.append(progress.iteration - len(progress.latest["params"]))
                print(f"FROM {began[0]}", flush=True)
            time.sleep(0.02)
            return False

        def close(self):
            return None

    done = mx.fit(problem.model, mx.shard(problem.data), mx.saga(0.1), mx.MCMC(), params=problem.start, space=problem.space,
                  key=1, n_iter=ITERATIONS, batch_size=8, polish=False, progress=False, callbacks=[Slowly()],
                  checkpoint=mx.Checkpoint(folder / "fit", seconds=0.0))  # fmt: skip
    np.savez(folder / f"end.{jax.process_index()}.npz", trace=done.trace["params"], params=done.params["mu"])


def started(folder: Path) -> list[subprocess.Popen]:
    """The processes of a life."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu", "MARGAUX_THREADS": "1"}
    out = []
    for index in range(2):
        with open(folder / f"log.{index}", "w") as log:
            command = [sys.executable, __file__, "--fit", str(folder)]
            environment = os.environ | settings | {"JAX_PROCESS_ID": str(index)}
            out.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return out


def check_files(folder: Path) -> int:
    """Iterations of the checkpoint; every file of its generation is whole."""
    from margaux.engine import generations

    path = folder / "fit"
    if not path.exists():
        return 0
    header, _ = generations.read(path)
    for process, _ in enumerate(header["sizes"]):
        file = path if process == 0 else generations.shard(path, header["generation"], process, len(header["sizes"]))
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None, f"{file} is damaged"
    return header["k"]


def life(folder: Path, random_: random.Random, instant: float | None) -> bool:
    """One life, ended by a kill at an instant if there is one. Returns whether the fit ended by itself."""
    before = check_files(folder)
    processes = started(folder)
    try:
        if instant is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes[0].wait(instant)
            victim = random_.choice(processes)
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + (LIMIT if instant is not None else 600.0)
        for process in processes:
            process.wait(max(deadline - time.monotonic(), 0.1))  # raises where one is left
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = [line for line in (folder / "log.0").read_text().splitlines() if line.startswith("FROM")]
    if said:
        assert int(said[0].split()[1]) == before, f"{said[0]}, where the checkpoint had {before}"
    assert check_files(folder) >= before
    return all(process.returncode == 0 for process in processes)


def soak(kills: int, seed: int, told=print) -> None:
    """Raises: AssertionError, subprocess.TimeoutExpired: a fault."""
    random_, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert life(folder, random_, None), (folder / "log.0").read_text()[-2000:]
        straight = dict(np.load(folder / "end.0.npz"))
        made, ends, met, resumed = 0, 0, 0, False
        shutil.rmtree(folder)
        folder.mkdir()
        since = time.monotonic()
        assert life(folder, random_, None)
        whole = time.monotonic() - since  # of a fit that finds its programs compiled
        shutil.rmtree(folder)
        folder.mkdir()
        told(f"a fit takes {whole:.1f} s", flush=True)
        while made < kills or ends == 0:
            since = time.monotonic()
            ended = life(folder, random_, random_.uniform(0.0, whole) if made < kills else None)
            whole = min(whole, time.monotonic() - since) if ended and not resumed else whole
            resumed, made = not ended, made + (not ended)
            met += not ended and (folder / "fit").exists()
            if ended:
                ends += 1
                for index in range(2):
                    found = dict(np.load(folder / f"end.{index}.npz"))
                    assert all(np.array_equal(found[key], straight[key]) for key in straight), "other bits"
                assert len(list(folder.glob("fit*"))) == 2, sorted(folder.glob("fit*"))
                for file in folder.iterdir():
                    file.unlink()
            if made % 10 == 0 and not ended:
                told(f"{made} kills, {ends} fits to their end, {time.monotonic() - began:.0f} s", flush=True)
        spent = sum(os.times()[:4])
        told(f"{made} kills, {met} with a checkpoint there, {ends} fits to the same bits; {spent:.0f} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    fit(args.fit) if args.fit else soak(args.kills, args.seed)


if __name__ == "__main__":
    main()
