"""`HuggingFaceGeneration`: the oracle. Each request runs alone through a transformers model, so that every rule is easy to see.

There is no batch, no padding, no block and no queue: a step gives each running request one forward pass over the tokens that
have no keys and values yet, and one token. It is slow, and what the other backends are held to.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.generation.devices import choose_device, choose_dtype
from reference_impl.generation.distribution import Rule, processed_log_probs
from reference_impl.generation.outputs import Completion
from reference_impl.generation.rows import Limits, Row
from reference_impl.generation.stepped import SteppedGeneration
from reference_impl.generation.updates import check_epoch, check_finite, check_shapes, copy_weights, shapes_of
from reference_impl.models.catalog import Tokenizer, find_model
from reference_impl.models.gpt import export_weights
from reference_impl.models.llama import LlamaShape, check_weights
from reference_impl.staleness.tracker import StalenessTracker

THE_MODELS_OWN: Rule = (0.0, 0, 0.0)
"""No temperature and no filter: the choice is the best token, the log-probabilities are log-softmax of the logits."""


class HuggingFaceGeneration(SteppedGeneration):
    """A generation backend on a transformers model, one request at a time.

    Without `model`, the model that `policy.model_name` names is built. With it, and its `shape`, a transformers model is used
    as it is and where it lies. A Megatron `GPTModel` cannot run here: it stays `model`, with Megatron's names, and a
    transformers model beside it holds a copy of its weights, which every `update_weights` renews, also one with `None`.
    `tokenizer` is only needed for `stop_strings` and for the end of sequence that a null `stop_token_ids` means.

    Of `mcore_generation_config`, `max_model_len` and `kv_cache_management_mode` mean what they say, and a prompt longer than
    `max_tokens` is refused without `enable_chunked_prefill`. The keys of the buffer, of `max_requests` and of prefixes have
    nothing to act on. What is drawn depends on `seed`, the request's number in the engine and the position alone.

    `prompt_logprobs` are of logits divided by the temperature (`processed_logprobs`) or as they are (`raw_logprobs`, and
    under greedy decoding). Top-k and top-p do not count: nobody drew a prompt, and a filter would make its tokens impossible.
    """

    does_not_claim: ClassVar[dict[str, str]] = dict.fromkeys(
        ("max-requests", "chunked-prefill", "prefix-cache", "kv-buffer", "exact-admission", "eviction"),
        "each request runs alone, at once, with a cache of its own",
    )
    """What the conformance suite asks of some engines and this one has no use for, each with the reason."""

    def __init__(
        self, recipe: Recipe, *, model: Any = None, shape: LlamaShape | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        if (model is None) != (shape is None):
            raise ValueError("a shared model needs its shape, and a shape its model: give both or neither")
        self.config, self.epoch = recipe.policy.generation, 0
        if self.config.mode != "direct":
            raise ConfigError("policy.generation.mode: coordinator, but the caller steps this backend; write direct")
        device = choose_device(recipe.policy)
        checkpoint = None if model is not None else find_model(recipe.policy.model_name)
        self.tokenizer = tokenizer if tokenizer or checkpoint is None else checkpoint.read_tokenizer()
        if self.config.stop_strings and self.tokenizer is None:
            raise ValueError("policy.generation.stop_strings needs a tokenizer, and none was given")
        if checkpoint is not None:
            shape = checkpoint.shape
            model = build_llama(shape, checkpoint.read_weights(), choose_dtype(recipe.policy, device), device)
        assert shape is not None
        self.model, self.shape = model, shape
        self._runs = model if isinstance(model, PreTrainedModel) else copy_of_megatron(model, shape)

    def _start(self) -> "_Engine":
        return _Engine(self, self._runs)

    def update_weights(self, state_dict: Mapping[str, Tensor] | None, *, epoch: int) -> bool:
        """Copy other values into the model's parameters between two steps, and stamp `epoch` from there on.

        Names are those of `model.named_parameters()`. Weights that are unknown, missing, of another shape or not finite are
        refused before anything is changed (`ValueError`). With `kv_cache_management_mode: recompute` running requests
        compute their keys and values again by the new weights.
        """
        check_epoch(epoch, self.epoch)
        if state_dict is not None:
            check_shapes(shapes_of(self.model), {name: tensor.shape for name, tensor in state_dict.items()})
            check_finite(state_dict)

        def change() -> None:
            if state_dict is not None:
                copy_weights(self.model, state_dict)
            if self._runs is not self.model:
                copy_weights(self._runs, export_weights(self.model, self.shape))

        if isinstance(self._engine, _Engine):
            self._engine.change_weights(change, epoch)
        else:
            change()
        self.epoch = epoch
        return True

    def prepare_refit_info(self, state_dict_info: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
        """Check the announced names and shapes against the model (`ValueError`); values are converted when they arrive."""
        check_shapes(shapes_of(self.model), {name: size for name, (size, _) in state_dict_info.items()})
        return True


@dataclass
class _Request:
    """A running request. `rule` is what its tokens are chosen by, `reported` what their log-probabilities are of; its keys
    and values lie in `cache`, and count as slots of the `lane`-th stretch of `max_model_len`."""

    number: int
    lane: int
    row: Row
    rule: Rule
    reported: Rule
    cache: DynamicCache
    so_far: Completion = field(default_factory=Completion)


class _Engine:
    """The {py:class}`~reference_impl.generation.stepped.Engine` of the backend `owner`, whose settings it reads."""

    def __init__(self, owner: HuggingFaceGeneration, model: Any) -> None:
        self.owner, self.model = owner, model.eval()
        self.tracker, self.sampled_tokens = StalenessTracker(owner.epoch), 0
        settings = owner.config.mcore_generation_config
        self.mode = settings.kv_cache_management_mode
        self.limits = Limits(
            max_model_len=settings.max_model_len,
            max_tokens=settings.max_tokens,
            chunked_prefill=settings.enable_chunked_prefill,
            block_size_tokens=settings.max_model_len,  # one block holds any sequence, and each request gets one
            block_size_bytes=0,
            usable_blocks=1,
            vocab_size=owner.shape.vocab_size,
        )
        self._running: dict[int, _Request] = {}
        self._numbers = itertools.count()

    def add(self, row: Row, greedy: bool) -> int:
        """Admit a row; it is part of the next step."""
        config, number = self.owner.config, next(self._numbers)
        greedy = greedy or config.temperature == 0.0
        rule = THE_MODELS_OWN if greedy else (config.temperature, config.top_k or 0, config.top_p)
        reported = THE_MODELS_OWN if config.logprobs_mode == "raw_logprobs" else rule
        lane = min(set(range(len(self._running) + 1)) - {request.lane for request in self._running.values()})
        cache = DynamicCache(config=self.model.config)
        self._running[number] = _Request(number, lane, row, rule, reported, cache)
        self.tracker.admit(number, len(row.prompt))
        return number

    @torch.no_grad()
    def step(self) -> list[tuple[int, Completion]]:
        """One forward pass and one token for each running request; what that ended."""
        looks = [(number, self._advance(request)) for number, request in list(self._running.items())]
        return [(number, completion) for number, completion in looks if completion is not None]

    def _advance(self, request: _Request) -> Completion | None:
        row, generated = request.row, request.so_far.token_ids
        of_prompt = row.prompt_logprobs and request.so_far.prompt_logprobs is None
        logits = self._forward(request, every=of_prompt)
        if not logits.isfinite().all():
            error = f"logits are not finite under the weights of epoch {self.tracker.epoch}"
            return replace(self.abort(request.number), error=error)
        if of_prompt:
            values = prompt_log_probs(logits, row.prompt, request.reported[0])
            request.so_far = replace(request.so_far, prompt_logprobs=values)
        self._choose(request, logits[-1])
        tokenizer = self.owner.tokenizer
        stopped = row.stops.completed_by(generated, tokenizer and tokenizer.decode)
        if stopped or len(generated) == row.limit:
            del self._running[request.number]
            return replace(request.so_far, record=self.tracker.finish(request.number), truncated=not stopped)
        return None

    def _forward(self, request: _Request, every: bool) -> Tensor:
        """Logits after `every` token that has no keys and values yet, [tokens, vocabulary], or after the last alone."""
        tokens, cached = request.row.prompt + request.so_far.token_ids, request.cache.get_seq_length()
        output = self.model(
            input_ids=torch.tensor([tokens[cached:]], device=self.model.device),
            cache=request.cache,
            use_cache=True,
            logits_to_keep=0 if every else 1,
        )
        positions = np.arange(cached, len(tokens))
        slots = request.lane * self.limits.max_model_len + positions
        self.tracker.forward([request.number] * len(positions), positions, slots)
        return output.logits[0]

    def _choose(self, request: _Request, logits: Tensor) -> None:
        """Choose the next token by its logits, [vocabulary]."""
        if request.rule == THE_MODELS_OWN:
            token = int(logits.argmax())  # the first, where several are best
        else:
            position = len(request.row.prompt) + len(request.so_far.token_ids)
            token = draw(processed_log_probs(logits, *request.rule), (self.owner.config.seed, request.number, position))
        request.so_far.token_ids.append(token)
        request.so_far.logprobs.append(float(processed_log_probs(logits, *request.reported)[token]))
        self.tracker.sample([request.number])
        self.sampled_tokens += 1

    def so_far(self, request: int) -> Completion:
        """What a running request has come to."""
        return replace(self._running[request].so_far, record=self.tracker.so_far(request))

    def abort(self, request: int) -> Completion:
        """End a running request; what it had come to."""
        return replace(self._running.pop(request).so_far, record=self.tracker.abort(request))

    def change_weights(self, change: Callable[[], None], epoch: int) -> None:
        """Call `change` between two steps; with `recompute` no keys and values of the old weights are left."""
        renew = self.mode == "recompute" and not self.tracker.suspended
        if renew:
            self.suspend()
        change()
        self.tracker.weights_changed(epoch)
        if renew:
            self.resume()

    def suspend(self) -> None:
        """Sleep: the caches stay, go to the host (where those of a CPU lie already), or are dropped."""
        for request in self._running.values():
            if self.mode == "recompute":
                request.cache = DynamicCache(config=self.model.config)
            elif self.mode == "offload":
                for layer in request.cache.layers:
                    layer.offload()
        self.tracker.suspend(self.mode)

    def resume(self) -> None:
        """Wake; caches that went to the host come back."""
        self.model.eval()  # training may have had it
        for request in self._running.values():
            for layer in request.cache.layers:
                layer.prefetch()
        self.tracker.resume()

    def close(self) -> None:
        """Let go of the caches."""
        self._running.clear()


def draw(log_probs: Tensor, key: tuple[int, ...]) -> int:
    """A token by its log-probabilities, [vocabulary]: the one into whose share of [0, 1) a number falls that `key` seeds."""
    shares = log_probs.double().exp().cumsum(dim=-1).cpu().numpy()
    return int(np.searchsorted(shares / shares[-1], np.random.default_rng(key).random(), side="right"))


def prompt_log_probs(logits: Tensor, prompt: list[int], temperature: float) -> list[float]:
    """Of each prompt token given those before it, 0.0 for the first. `logits` are [prompt, vocabulary]."""
    log_probs = processed_log_probs(logits[:-1], temperature, 0, 0.0)
    return [0.0, *(float(row[token]) for row, token in zip(log_probs, prompt[1:], strict=True))]


def build_llama(shape: LlamaShape, weights: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> Any:
    """A transformers Llama that holds a copy of `weights` (Hugging Face names), in evaluation mode."""
    check_weights(weights, shape, "state dict")
    with no_init_weights():  # drawing weights first would only cost time
        # Not `.to(dtype)`, which would round the rotary frequencies too.
        model = LlamaForCausalLM._from_config(LlamaConfig(**shape.to_hf_config()), dtype=dtype)
    model.tie_weights()
    copy_weights(model, weights)
    return model.to(device).eval()


def copy_of_megatron(model: Any, shape: LlamaShape) -> Any:
    """A transformers Llama with a copy of a `GPTModel`'s weights, in their type and on their device."""
    parameters = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    if (embedding := parameters.get("embedding.word_embeddings.weight")) is None:
        raise ValueError(f"model is a {type(model).__name__}, expected a transformers model or a Megatron GPTModel")
    return build_llama(shape, export_weights(model, shape), embedding.dtype, embedding.device)
