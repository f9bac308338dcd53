"""The folder of a training run: what is written of each step, and what a run that goes on takes back.

A checkpoint knows how long the files were when it was made. A run that goes on from it cuts off what came later: those steps
are trained again, from the weights of the checkpoint, and stand in the files once.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from reference_impl.models.catalog import Tokenizer
from reference_impl.rl.rollouts import Rollout
from reference_impl.rl.steps import StepDone
from reference_impl.staleness.runs import RUN_FILE, RunWriter, SequenceRecord

METRICS_FILE = "metrics.jsonl"
CHECKPOINTS, RECIPE_FILE, REFERENCE_FILE = "checkpoints", "recipe.yaml", "reference.safetensors"


class Journal:
    """Writes steps to `folder`: every rollout to `run.jsonl`, as `genref generate` does, and the metrics to `metrics.jsonl`.

    `known`
    : What {py:meth}`state` was at the checkpoint to go on from; without it the folder's files are begun anew.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, known: dict[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._paths = {name: folder / name for name in (RUN_FILE, METRICS_FILE)}
        self._next: int = known["next"] if known else 0
        self._tokens: int = known["tokens"] if known else 0
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in self._paths.items():
            path.touch()
            os.truncate(path, known["bytes"][name] if known else 0)
        self._run = RunWriter(folder)
        self._metrics = self._paths[METRICS_FILE].open("a", encoding="ascii")

    def state(self) -> dict[str, Any]:
        """How far the files have come, for a checkpoint."""
        sizes = {name: path.stat().st_size for name, path in self._paths.items()}
        return {"next": self._next, "tokens": self._tokens, "bytes": sizes}

    def begin(self, *, model: str, backend: str, mode: str) -> None:
        """Write the header of a run that begins."""
        self._run.header(model=model, backend=backend, mode=mode, epoch=0, command="train")

    def write(self, done: StepDone) -> None:
        """Write a step: its rollouts, those that were dropped for it, and its metrics."""
        consumed = [self._sequence(rollout) for rollout in done.rollouts]
        dropped = [self._sequence(rollout) for rollout in done.dropped]
        counts = vars(done.counts) if done.counts else {}
        self._run.step(step=done.step, consumed=consumed, dropped=dropped, metrics=done.metrics, counts=counts)
        self._run.update(epoch=done.step + 1, after_tokens=self._tokens, what=f"training step {done.step}")
        self._metrics.write(json.dumps({"step": done.step, **done.metrics, **counts}) + "\n")
        self._metrics.flush()

    def _sequence(self, rollout: Rollout) -> int:
        """Write a rollout and return its number among the run's sequences."""
        index, self._next = self._next, self._next + 1
        record = replace(rollout.record, request=index) if rollout.record else None
        start = rollout.sampled.index(True) if any(rollout.sampled) else len(rollout.tokens)
        # What an environment said last, and no request continued, the engine has never seen.
        end = record.length if record else start
        self._tokens += sum(rollout.sampled)
        prompt, answer, decode = rollout.tokens[:start], rollout.tokens[start:end], self._tokenizer.decode
        self._run.sequence(
            SequenceRecord(
                index=index,
                prompt=decode(prompt),
                prompt_length=start,
                prompt_token_ids=prompt,
                token_ids=answer,
                tokens=[decode([token]) for token in answer],
                text=decode(answer, skip_special_tokens=True),
                logprobs=[round(value, 6) for value in rollout.logprobs[start:end]],
                record=record,
                reward=rollout.reward,
                truncated=rollout.truncated,
                error=rollout.reason,
            )
        )
        return index

    def close(self) -> None:
        """Close the files."""
        self._run.close()
        self._metrics.close()
