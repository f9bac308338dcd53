"""A plan as text for a terminal, 80 columns at most, and as the tree that `--format json` prints."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from reference_impl.planning.cache import GIB
from reference_impl.planning.graphs import GraphSize
from reference_impl.planning.plan import Plan

WIDTH = 80
NOT_COUNTED = (
    "Not counted: activations, sampling, memory of the CUDA context, of graphs and of NCCL, and, where this GPU also "
    "trains, gradients and optimizer."
)


def as_text(plan: Plan, gpu_memory: float | None = None) -> str:
    """The plan in sections, a unit in every line; `gpu_memory` (GiB) adds whether it fits."""
    parts = [_head(plan), _cache(plan), _requests(plan), _step(plan), _graphs(plan), _memory(plan, gpu_memory)]
    return "\n\n".join("\n".join(part) for part in parts)


def as_tree(plan: Plan, gpu_memory: float | None = None) -> dict[str, Any]:
    """The plan as JSON has it: bytes, tokens and counts, unrounded."""
    setup, memory = plan.setup, plan.memory
    return {
        "model": plan.model,
        "dtype": setup.dtype,
        "tensor_parallel": setup.tensor_parallel,
        "pipeline_parallel": setup.pipeline_parallel,
        "prompt_tokens": plan.lengths.prompt,
        "response_tokens": plan.lengths.response,
        "cache": {**asdict(plan.cache), "total_bytes": plan.cache.total_bytes},
        "requests": {**asdict(plan.concurrency), "next_larger": asdict(plan.gain) if plan.gain else None},
        "step": asdict(plan.step),
        "cuda_graphs": [asdict(graph) for graph in plan.graphs],
        "memory": {**asdict(memory), "logits": memory.logits, "total": memory.total},
        "gpu_memory": None if gpu_memory is None else int(gpu_memory * GIB),
        "fits": None if gpu_memory is None else fits(plan, gpu_memory),
    }


def fits(plan: Plan, gpu_memory: float) -> bool:
    """Whether what the plan counts is no more than `gpu_memory` GiB."""
    return plan.memory.total <= gpu_memory * GIB


def _line(label: str, number: str, unit: str, note: str = "") -> str:
    return f"  {label:<19}{number:>9} {unit:<9} {note}".rstrip()


def _bytes_line(label: str, count: int, note: str = "") -> str:
    size, unit = in_unit(count)
    return _line(label, f"{size:.2f}", unit, note)


def in_unit(count: int) -> tuple[float, str]:
    """Bytes in the largest binary unit of which there is at least one."""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if count >= 2**power:
            return count / 2**power, unit
    return count / 2**10, "KiB"


def _head(plan: Plan) -> Iterator[str]:
    setup = plan.setup
    ranks = f"{setup.tensor_parallel} × {setup.pipeline_parallel} ranks (tensor × pipeline parallel)"
    yield f"{plan.model}"
    yield f"{setup.dtype}, {ranks if setup.tensor_parallel * setup.pipeline_parallel > 1 else '1 rank'}"


def _cache(plan: Plan) -> Iterator[str]:
    cache = plan.cache
    yield "KV cache"
    yield _bytes_line("block", cache.block_bytes, f"{cache.block_tokens} tokens, all layers")
    yield _bytes_line("buffer", cache.total_bytes, f"{cache.total_blocks} blocks, 1 the engine's own")
    yield _line("active", str(cache.active_blocks), "blocks", f"{cache.active_tokens} tokens")
    yield _line("paused", str(cache.paused_blocks), "blocks", "a paused request may be evicted")
    if cache.host_bytes:
        yield _bytes_line("host copy", cache.host_bytes, "pinned, while the engine sleeps")


def _requests(plan: Plan) -> Iterator[str]:
    lengths, together, cache = plan.lengths, plan.concurrency, plan.cache
    config = plan.setup.config
    whence = "set" if config.max_requests is not None else f"from {cache.max_requests_key}"
    yield f"Requests of {lengths.prompt} prompt and {lengths.response} response tokens"
    yield _line("each holds", str(together.blocks_each), "blocks", f"{lengths.cached} tokens cached in the end")
    yield _line("max_requests", str(cache.max_requests), "requests", whence)
    yield _line("admitted", str(together.admitted), "requests", "there is room for their prompts")
    yield _line("run at once", str(together.at_once), "requests", "to full length, none evicted")
    yield from _wrapped(_limit(plan))
    if config.enable_prefix_caching:
        yield from _wrapped("Equal prompts share blocks (enable_prefix_caching), so more may run; that is not counted.")


def _limit(plan: Plan) -> str:
    """Which keys hold `at_once` down, and what the next larger values buy."""
    keys, now = plan.concurrency.limited_by, plan.concurrency.at_once
    said = f"Limited by {_listed(keys)}"
    if plan.gain is None:
        return f"{said}."
    changes = plan.gain.changes
    if tuple(changes) == keys and len(keys) == 1:
        said += f": {_number(changes[keys[0]])} gives"
    else:
        said += f"; {_listed([f'{key}: {_number(value)}' for key, value in changes.items()])} give"
    more = plan.gain.at_once
    return f"{said} {more} request{'s' if more > 1 else ''} instead of {now}."


def _number(value: float) -> str:
    return f"{value:.10g}"


def _step(plan: Plan) -> Iterator[str]:
    step, memory = plan.step, plan.memory
    yield "A step"
    yield _line("at most", str(step.most_tokens), "tokens", "max_tokens, prompts and responses")
    yield _line("all decoding", str(step.decode_tokens), "tokens", "one a request")
    yield _line("all prompts", str(step.prefill_tokens), "tokens", f"{step.prefill_steps} steps at least")
    last = plan.setup.config.materialize_only_last_token_logits
    rows = f"{memory.logits_rows} rows, one a {'request' if last else 'token'}"
    yield _bytes_line("logits", memory.logits_rows * memory.logits_row_bytes, rows)


def _graphs(plan: Plan) -> Iterator[str]:
    decode = [graph for graph in plan.graphs if not graph.prefill_requests]
    mixed = [graph for graph in plan.graphs if graph.prefill_requests]
    yield "CUDA graphs"
    if not plan.graphs:
        yield _line("captured", "0", "graphs")
        return
    yield _line("decode", str(len(decode)), "graphs", f"for {_sizes(decode)} tokens")
    yield _line("with prompts", str(len(mixed)), "graphs", f"for {_sizes(mixed)} tokens" if mixed else "")


def _sizes(graphs: Sequence[GraphSize]) -> str:
    """Token counts, largest first; those in the middle left out where there are more than four."""
    counts = [str(count) for count in sorted({graph.tokens for graph in graphs}, reverse=True)]
    return " ".join(counts if len(counts) <= 4 else [*counts[:2], "...", *counts[-2:]])


def _memory(plan: Plan, gpu_memory: float | None) -> Iterator[str]:
    memory = plan.memory
    yield "Memory of a GPU" if plan.setup.tensor_parallel * plan.setup.pipeline_parallel == 1 else "Memory of each GPU"
    yield _bytes_line("weights", memory.weights, f"{memory.parameters} parameters")
    yield _bytes_line("KV cache", memory.cache)
    copies = ", and a graph's copy" if memory.logits_copies > 1 else ""
    yield _bytes_line("logits", memory.logits, f"a step's{copies}")
    yield _bytes_line("tables", memory.tables, "ids, positions, block numbers")
    yield _bytes_line("sum", memory.total)
    if gpu_memory is not None:
        left = int(gpu_memory * GIB) - memory.total
        label = "fits, leaving" if left >= 0 else "does not fit, lacks"
        yield _bytes_line(label, abs(left), f"of {gpu_memory:g} GiB")
    yield from _wrapped(NOT_COUNTED)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
