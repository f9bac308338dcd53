"""One process, one rank: the process group and Megatron's parallel state that its engine expects to find."""

import torch
import torch.distributed as dist

from reference_impl.platforms.megatron_import import import_megatron


def ensure_single_rank() -> None:
    """Initialise `torch.distributed` (no port is opened) and Megatron's parallel state, unless they are there already."""
    import_megatron()
    from megatron.core import parallel_state

    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(1, 1)
