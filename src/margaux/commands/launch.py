"""`margaux launch`: a script in several local processes that find each other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..numerics.threads import usable_cores

#: seconds between looks at the processes; those that the others have to end by themselves once one has failed, and once they
#: were asked to
PAUSE, PATIENCE, MERCY = 0.1, 60.0, 10.0

#: those that are passed on; a closed terminal's is not known everywhere
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def launch(
    script: Annotated[str, typer.Argument(help="A Python script that calls margaux.distributed.initialize() first.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to the script.")] = None,
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="How many.")] = 2,
    bind: Annotated[bool, typer.Option(help="Give each process cores of its own, where there are as many as processes.")] = True,
) -> None:
    """Run a script in several local processes, each of which fits its share of the units. Signals are passed on; the exit code
    is that of the first process that fails."""
    if not os.path.isfile(script):
        raise typer.BadParameter(f"there is no file {script}", param_hint="SCRIPT")
    address = f"127.0.0.1:{_free_port()}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    shared["MARGAUX_LAUNCHER"] = str(os.getpid())  # without which they end
    bound = shares_of_cores(processes) if bind else None
    running = []
    for index in range(processes):
        own = bound[index] if bound else None
        count = str(len(own) if own else max(usable_cores() // processes, 1))
        each = {"JAX_PROCESS_ID": str(index), "MARGAUX_THREADS": count, "OMP_NUM_THREADS": count}
        with _on(own):
            command = [sys.executable, script, *(arguments or [])]
            running.append(subprocess.Popen(command, env={**os.environ, **shared, **each}, stdin=subprocess.DEVNULL))
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        for one in running:
            if one.poll() is None:
                one.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        code = _awaited(running)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in running:
            if one.poll() is None:
                one.kill()
    if code or asked:
        raise typer.Exit(code or 128 + asked[0])


def shares_of_cores(processes: int) -> list[list[int]] | None:
    """Cores for each process alone, as equally many as may be; None where they are fewer than processes, or cannot be chosen.

    A program of XLA's has a thread for every core that its process may use: of processes that may use all, those of one would
    wait for those of another.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < processes:
        return None
    return [cores[len(cores) * p // processes : len(cores) * (p + 1) // processes] for p in range(processes)]


@contextmanager
def _on(cores: list[int] | None) -> Iterator[None]:
    """Processes that are started meanwhile have these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _awaited(running: list[subprocess.Popen]) -> int:
    """The exit code of the first process that fails; the others are given time to say what they know of it.

    Of several that have ended since the last look one that was killed is the first: the others have lost it.
    """
    failed, since = 0, 0.0
    while True:
        going = [one for one in running if one.poll() is None]
        ended = [index for index, one in enumerate(running) if one.returncode]
        index = min(ended, key=lambda index: running[index].returncode > 0, default=None)
        if index is not None and not failed:
            failed, since = running[index].returncode, time.monotonic()
            how = f"was killed by signal {-failed}" if failed < 0 else f"ended with code {failed}"
            typer.echo(f"process {index} {how}" + (f"; the others have {PATIENCE:g} s to end" if going else ""), err=True)
        if not going:
            return 128 - failed if failed < 0 else failed
        spent = time.monotonic() - since
        if failed and spent > PATIENCE:
            for one in going:
                one.terminate() if spent < PATIENCE + MERCY else one.kill()
        time.sleep(PAUSE)
