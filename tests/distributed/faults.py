"""A fit over the processes that run this script, in which something goes wrong: `python faults.py FOLDER FAULT`."""

import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import margaux as mx
from helpers import random_intercept


class Kill(mx.AbstractCallback):
    """Ends process 1 as the system would, in the middle."""

    def __call__(self, progress):
        import jax

        if jax.process_index() == 1 and progress.iteration > 100:
            os.kill(os.getpid(), 9)
        return False

    def close(self):
        return None


def main():
    warnings.simplefilter("ignore")
    mx.distributed.initialize(heartbeat_timeout_seconds=10)
    import jax

    folder, fault = Path(sys.argv[1]), sys.argv[2]
    index, problem = jax.process_index(), random_intercept(41, 3)
    data = {name: np.array(leaf) for name, leaf in problem.data.items()}
    if fault == "nan":
        data["y"][30] = np.nan
    if fault == "shapes" and index == 1:
        data = {name: leaf[:, None] if leaf.ndim == 1 else leaf[:, :1] for name, leaf in data.items()}
    cut = slice(0, 20) if index == 0 else slice(20, 41)
    shared = mx.shard({name: leaf[cut] for name, leaf in data.items()}, local=True) if fault == "local" else mx.shard(data)
    callbacks = [Kill()] if fault == "kill" else []
    checkpoint = mx.Checkpoint(folder / "checkpoint", seconds=0.0) if fault in ("kill", "resume") else None
    fit = mx.fit(problem.model, shared, mx.saga(0.1), mx.MCMC(), params=problem.start, space=problem.space, n_iter=400, key=1,
                 batch_size=8, polish=False, progress=False, callbacks=callbacks, checkpoint=checkpoint)  # fmt: skip
    np.savez(folder / f"{fault}.{jax.process_count()}.{index}.npz", trace=fit.trace["params"], rows=len(fit.data["y"]))


if __name__ == "__main__":
    main()
