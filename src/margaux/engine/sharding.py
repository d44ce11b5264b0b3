"""Units spread over devices: data placed along one mesh axis, one all-reduce an iteration."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ..numerics.precision import settle
from .rows import is_chunked


def units_mesh(devices: int) -> Mesh:
    """A one-dimensional mesh whose axis "units" runs over the first `devices` devices.

    Raises:
        ValueError: fewer devices are there.
    """
    available = jax.devices()
    if devices > len(available):
        raise ValueError(
            f"devices = {devices}, but {len(available)} {available[0].platform} device(s) are there; on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} before importing jax"
        )
    return jax.make_mesh((devices,), ("units",), axis_types=(AxisType.Auto,), devices=available[:devices])


def placed(data: PyTree, dtype: np.dtype, mesh: Mesh | None) -> PyTree:
    """Data as device arrays of the given precision, spread over the mesh's devices if there is one."""
    data = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, np.memmap) or is_chunked(leaf) else leaf, data)
    data = settle(data, dtype)
    if mesh is None:
        return data
    sharding = NamedSharding(mesh, PartitionSpec("units"))
    return jax.device_put(data, sharding)
