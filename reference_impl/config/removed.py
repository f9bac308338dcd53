"""Keys of `mcore_generation_config` that older files still carry: what became of each, and how to rewrite it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RemovedKey:
    """A key that is no longer read.

    `advice`
    : What happened to it and what to write now, in one line.

    `since`
    : The release, or the change after it, from which on that is so; read from the histories of NeMo RL and Megatron-LM.

    `rewrite`
    : For each value that `genref lint --fix` can carry over, the key and value to write instead. `None`: the key is
      deleted, whatever its value.
    """

    advice: str
    since: str
    rewrite: Mapping[Any, tuple[str, str]] | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.advice} ({self.since})"


REMOVED_KEYS = {
    # NeMo RL's commit 306c9de98, 17 August 2026, after 0.7.0.
    "async_engine": RemovedKey(
        "removed: the engine is always asynchronous; delete the key", "since August 2026 in NeMo RL, after 0.7"
    ),
    # Last in NeMo RL 0.5.0 and megatron-core 0.15.
    "buffer_guaranteed_fraction": RemovedKey(
        "removed; size the cache with buffer_size_gb alone", "since NeMo RL 0.6 and megatron-core 0.16"
    ),
    # The context of 0.16.0 warns that it is deprecated; 0.19 has a field of that name in `InferenceConfig`.
    "cuda_graph_max_tokens": RemovedKey(
        "deprecated, and its name came back with another meaning; use num_cuda_graphs", "since megatron-core 0.16"
    ),
    # `TransformerConfig` of 0.14 has no `cuda_graph_impl`, that of 0.15.0 calls the older key deprecated.
    "enable_cuda_graph": RemovedKey(
        "renamed; use cuda_graph_impl: local for true, none for false",
        "since megatron-core 0.15",
        {True: ("cuda_graph_impl", "local"), False: ("cuda_graph_impl", "none")},
    ),
    # A field of megatron-core from 0.16 on that no release of NeMo RL sets.
    "paused_buffer_size_gb": RemovedKey(
        "not read: paused requests share the one buffer; use buffer_size_gb", "no release of NeMo RL had it"
    ),
    # In the recipes of NeMo RL 0.5 and 0.6; its commit 48d13ec69 took it out before 0.7.0.
    "unified_memory_level": RemovedKey(
        "not read, the buffer is always device memory; use buffer_size_gb", "since NeMo RL 0.7"
    ),
}
