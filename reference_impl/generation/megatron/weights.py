"""What a weight update means to Megatron's engine: the epoch that it stamps, and prefixes that it must not find again."""

from typing import Any


def stamp_epoch(engine: Any, epoch: int) -> None:
    """Stamp `epoch` on the engine and its requests as Megatron does when `SET_GENERATION_EPOCH` arrives.

    Upstream's stamping is part of the coordinator's message loop (`DynamicInferenceEngine.schedule_requests`), which the
    direct mode does not run. A test holds this function to that loop's answers, imprecisions included.
    """
    engine._generation_epoch = epoch
    for entry in engine.requests.values():
        request = entry.record[-1]
        boundary = len(request.prompt_tokens) + len(request.generated_tokens) - 1
        for name in ("policy_epoch", "kv_cache_epoch"):
            stamps = getattr(request, name)
            if stamps is None:
                setattr(request, name, [(0, epoch)])
            else:
                stamps.append((boundary, epoch))


def forget_prefixes(engine: Any) -> bool:
    """Take every block out of the prefix cache, so that nothing written before is matched again; requests keep theirs.

    Returns whether the engine has a prefix cache.
    """
    allocator = engine.context.kv_block_allocator
    if not allocator.enable_prefix_caching:
        return False
    allocator.kv_hash_to_block_id.clear()
    allocator.block_hashes.fill_(-1)
    for entry in engine.requests.values():
        request = entry.record[-1]
        if request.finished_chunk_token_count:
            request.precomputed_block_hashes = []  # half a prompt is cached already: its later blocks are not new either
    return True
