"""One generation run of the command line: prompts through a backend, every finished sequence into the run folder."""

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.generation.megatron.backend import MegatronGeneration, Progress
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.staleness.runs import RunWriter, SequenceRecord


@dataclass(frozen=True)
class Updates:
    """When weights change during a run: after every `every` sampled tokens, `most` times at most (None: no limit)."""

    every: int
    most: int | None = None
    strength: float = 0.1


def new_run_folder(command: str) -> Path:
    """`runs/COMMAND-DATE-TIME`, not there yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder, copies = Path("runs") / f"{command}-{stamp}", 1
    while folder.exists():
        copies += 1
        folder = Path("runs") / f"{command}-{stamp}-{copies}"
    return folder


def generate_run(
    backend: MegatronGeneration,
    prompts: Sequence[tuple[str, list[int]]],
    writer: RunWriter,
    *,
    greedy: bool,
    updates: Updates | None,
    finished: Callable[[SequenceRecord], None],
) -> list[SequenceRecord]:
    """Generate for (text, token ids) prompts, writing each sequence when it is done; returns them in the prompts' order.

    On Ctrl-C the sequences under way are written as far as they have come, and the interrupt goes on to the caller.
    """
    ids = [prompt for _, prompt in prompts]
    data = BatchedDataDict(
        input_ids=right_padded(ids, 0, torch.int64), input_lengths=torch.tensor([len(prompt) for prompt in ids])
    )
    records: list[SequenceRecord] = []

    def keep(index: int, output: BatchedDataDict) -> None:
        record = to_record(index, prompts[index], output, backend.tokenizer)
        writer.sequence(record)
        records.append(record)
        finished(record)

    update = weight_updates(backend, updates, writer)
    try:
        with tqdm(total=backend.config.max_new_tokens * len(ids), unit="tok", desc="generating", leave=False) as bar:
            for event in backend.stream(data, greedy):
                if isinstance(event, Progress):
                    bar.update(event.sampled_tokens - bar.n)
                    update.send(event)
                else:
                    keep(*event)
    except KeyboardInterrupt:
        for index, output in backend.unfinished():
            keep(index, output)
        raise
    return sorted(records, key=lambda record: record.index)


def weight_updates(backend: MegatronGeneration, updates: Updates | None, writer: RunWriter) -> Any:
    """A primed generator that is sent each `Progress` and changes the weights when it is time."""

    def watch() -> Iterator[None]:
        made, base = 0, None
        while True:
            progress = yield
            if updates is None or (updates.most is not None and made >= updates.most):
                continue
            if progress.sampled_tokens < (made + 1) * updates.every:
                continue
            base = base or parameters_of(backend.model)
            made += 1
            backend.update_weights(perturbed(base, made, updates.strength), epoch=backend.epoch + 1)
            writer.update(
                epoch=backend.epoch,
                after_tokens=progress.sampled_tokens,
                what=f"each matrix moved by noise of {updates.strength:g} times its deviation, seed {made}",
            )

    watcher = watch()
    next(watcher)
    return watcher


def to_record(index: int, prompt: tuple[str, list[int]], output: BatchedDataDict, tokenizer: Any) -> SequenceRecord:
    """One output row as a line of the run file."""
    text, prompt_ids = prompt
    start, end = len(prompt_ids), int(output["unpadded_sequence_lengths"][0])
    token_ids = output["output_ids"][0, start:end].tolist()
    policy, kv = output["policy_epoch"][0], output["kv_cache_epoch"][0]
    return SequenceRecord(
        index=index,
        prompt=text,
        prompt_length=start,
        prompt_token_ids=prompt_ids,
        token_ids=token_ids,
        tokens=[tokenizer.decode([token]) for token in token_ids],
        text=tokenizer.decode(token_ids, skip_special_tokens=True),
        logprobs=[round(value, 6) for value in output["logprobs"][0, start:end].tolist()],
        policy_epoch=policy.to_json() if policy is not None else None,
        kv_cache_epoch=kv.to_json() if kv is not None else None,
        num_evictions=int(output["num_evictions"][0]),
        truncated=bool(output["truncated"][0]),
        error=output["errors"][0],
    )
