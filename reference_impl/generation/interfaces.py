"""The generation contract: what goes into a backend, what comes out, and what it can be asked to do.

The names and shapes are NeMo RL's (`nemo_rl.models.generation.interfaces`), so that code written against one reads the
other. Backends exchange token ids, never text: a tokenizer that differs between trainer and engine cannot creep in.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NotRequired, Self, TypedDict

import torch
from torch import Tensor

from reference_impl.config.schema import GenerationConfig
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord


class GenerationDatumSpec(TypedDict):
    """A batch of prompts.

    * `input_ids`: int64 [batch, padded], right padded.
    * `input_lengths`: int64 [batch], tokens of each prompt without padding.
    * `stop_strings`: optional, for each sequence a list of strings (or `None`) that end it.
    * `prompt_logprobs`: optional, for each sequence whether the log-probabilities of its prompt are wanted; not part of NeMo
      RL's contract, and a backend that does not compute them refuses it.
    """

    input_ids: Tensor
    input_lengths: Tensor
    stop_strings: NotRequired[list[list[str] | None]]
    prompt_logprobs: NotRequired[list[bool]]


class GenerationOutputSpec(TypedDict):
    """A batch of finished sequences, in the order of the prompts.

    * `output_ids`: int64 [batch, padded], prompt then response, right padded.
    * `generation_lengths`: int64 [batch], tokens of the response.
    * `unpadded_sequence_lengths`: int64 [batch], tokens of prompt and response.
    * `logprobs`: float32 [batch, padded]; the log-probability of each sampled token at that token's own index, 0.0 at
      the prompt and at padding. Lengths alone decide what is padding: 0.0 is a legal log-probability.
    * `truncated`: bool [batch], a length limit ended the sequence before anything that stops it.
    * `policy_epoch`, `kv_cache_epoch`: for each sequence the epochs of prompt and response as
      {py:class}`~reference_impl.staleness.epochs.EpochRuns`, `None` where nothing was stamped.
    * `num_evictions`: int64 [batch].
    * `staleness`: for each sequence the {py:class}`~reference_impl.staleness.records.RequestRecord` that the three above
      are taken from, `None` where nothing was stamped.
    * `upstream_staleness`: the engine's own stamps as such records, for comparison; `None` where it has stamped nothing.
    * `errors`: for each sequence `None`, or one line that says why it failed. Of a sequence that was refused there is its
      prompt alone; one that failed on the way, or was interrupted, keeps what it had come to.
    * `prompt_logprobs`: float32 [batch, padded prompt], only where they were asked for: the log-probability of each prompt
      token given those before it, by the same `logprobs_mode`; 0.0 at position 0 and at padding.
    """

    output_ids: Tensor
    generation_lengths: Tensor
    unpadded_sequence_lengths: Tensor
    logprobs: Tensor
    truncated: Tensor
    policy_epoch: list[EpochRuns | None]
    kv_cache_epoch: list[EpochRuns | None]
    num_evictions: Tensor
    staleness: list[RequestRecord | None]
    upstream_staleness: list[RequestRecord | None]
    errors: list[str | None]
    prompt_logprobs: NotRequired[Tensor]


class GenerationError(RuntimeError):
    """Generation could not be done: the engine is asleep, or every request of a batch failed."""


@dataclass(frozen=True)
class Progress:
    """Between two looks at the engine: tokens it has sampled since the batch was submitted (for other batches too, if some
    run beside it), and sequences of the batch that have finished."""

    sampled_tokens: int
    finished: int


class GenerationInterface(ABC):
    """What a generation backend does.

    The life of a backend: `prepare_for_generation` (builds or wakes the engine), any number of `generate`,
    `generate_async` and `update_weights`, `finish_generation` (the engine sleeps and training may use the device), and
    again. `prepare_for_generation`, `finish_generation` and `shutdown` may be called twice; the second call does nothing.

    NeMo RL's contract also has `init_collective`, for weights that arrive over NCCL from other processes. A backend that
    shares the training model in one process has no use for it, so it is not part of this one. On the other hand `stream`,
    `sampled_tokens`, `unfinished` and the attributes below are ours: the command line runs on them, over any backend.

    * `config`: the validated `policy.generation` section.
    * `epoch`: the checkpoint that the engine generates with, 0 until the first `update_weights`.
    * `model`: the model whose parameters generate.
    * `tokenizer`: the tokenizer of stop strings and of the end-of-sequence id, or `None`.
    * `does_not_claim`: features that a backend does without, each with its reason; it is not held to the checks about
      them. {py:data}`~reference_impl.conformance.suite.FEATURES` has their names.
    """

    does_not_claim: ClassVar[dict[str, str]] = {}
    config: GenerationConfig
    epoch: int
    model: Any
    tokenizer: Any

    @abstractmethod
    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        """Generate for a whole batch (see {py:class}`GenerationDatumSpec` and {py:class}`GenerationOutputSpec`).

        Raises {py:exc}`GenerationError` when the engine is asleep or when all requests of the batch failed.
        """

    @abstractmethod
    def generate_async(self, data: BatchedDataDict, greedy: bool = False) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        """Yield (index in the batch, one-row output) as sequences finish; those of one engine step come in any order."""

    @abstractmethod
    def stream(self, data: BatchedDataDict, greedy: bool = False) -> Iterator[Progress | tuple[int, BatchedDataDict]]:
        """As `generate_async`, for callers without an event loop, with a {py:class}`Progress` after each look."""

    @property
    @abstractmethod
    def sampled_tokens(self) -> int:
        """Tokens sampled since the engine was built, over all batches."""

    @abstractmethod
    def unfinished(self) -> list[tuple[int, BatchedDataDict]]:
        """(index, one-row output) of what is under way, as far as it has come, `errors` saying `interrupted`."""

    @abstractmethod
    def prepare_for_generation(self) -> bool:
        """Build the engine, or wake it."""

    @abstractmethod
    def finish_generation(self) -> bool:
        """Put the engine to sleep; requests that are under way continue after the next `prepare_for_generation`."""

    @abstractmethod
    def update_weights(self, state_dict: Mapping[str, Tensor] | None, *, epoch: int) -> bool:
        """Continue with other weights, also while requests are running: the change falls between two engine steps.

        `state_dict` has the model's own parameter names. `None` says that the shared parameters were changed in place.
        `epoch` names the new checkpoint (the training step) and must not fall.
        """

    @abstractmethod
    def shutdown(self) -> bool:
        """Stop the engine and everything it started."""

    def prepare_refit_info(self, state_dict_info: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
        """Announce names, shapes and dtypes of the weights to come, which a backend may check. Default: anything goes."""
        return True

    def invalidate_kv_cache(self) -> bool:
        """Make reusable caches unusable, so that nothing written under older weights is read again.

        Returns whether the backend has such a cache. Default: it has none.
        """
        return False

    def __enter__(self) -> Self:
        """Build or wake the engine."""
        self.prepare_for_generation()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()


def verify_right_padding(data: BatchedDataDict, pad_value: int = 0) -> None:
    """Check that a batch of prompts or of outputs is right padded and that its lengths fit.

    Raises `ValueError` that names the row, the position and the value that is wrong.
    """
    if "input_ids" in data and "input_lengths" in data:
        ids_name, lengths_name = "input_ids", "input_lengths"
    elif "output_ids" in data and "unpadded_sequence_lengths" in data:
        ids_name, lengths_name = "output_ids", "unpadded_sequence_lengths"
    else:
        raise ValueError(
            "neither (input_ids, input_lengths) nor (output_ids, unpadded_sequence_lengths) in the batch; "
            f"it has {sorted(data)}"
        )
    ids, lengths = data[ids_name], data[lengths_name]
    verify_lengths(ids, lengths, ids_name, lengths_name)
    positions = torch.arange(ids.shape[1], device=ids.device)
    wrong = (positions >= lengths[:, None]) & (ids != pad_value)
    if wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{ids_name}[{row}, {position}] is {ids[row, position].item()}, but the row has {lengths[row].item()} tokens "
            f"and should hold the pad value {pad_value} after them: is it left padded?"
        )


def verify_lengths(
    ids: Tensor, lengths: Tensor, ids_name: str = "input_ids", lengths_name: str = "input_lengths"
) -> None:
    """Check types and shapes of token ids [batch, padded] and lengths [batch]; padding values do not matter here."""
    for name, tensor, dimensions in ((ids_name, ids, 2), (lengths_name, lengths, 1)):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}, expected an int64 tensor")
        if tensor.ndim != dimensions:
            shape = "[batch, padded]" if dimensions == 2 else "[batch]"
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {shape}")
        if tensor.dtype != torch.int64:
            raise ValueError(f"{name} is {tensor.dtype}, expected torch.int64")
    if len(ids) != len(lengths):
        raise ValueError(f"{ids_name} has {len(ids)} rows, {lengths_name} has {len(lengths)}")
    bad = (lengths < 0) | (lengths > ids.shape[1])
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"{lengths_name}[{row}] is {lengths[row].item()}, outside 0..{ids.shape[1]}, the padded length"
        )
