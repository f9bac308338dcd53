"""`ReferenceGeneration`: the reference engine behind the generation contract."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.generation.devices import choose_device, choose_dtype
from reference_impl.generation.reference.engine import ReferenceEngine, Settings
from reference_impl.generation.reference.sampling import Rule
from reference_impl.generation.reference.weights import Weights
from reference_impl.generation.rows import Limits
from reference_impl.generation.stepped import SteppedGeneration
from reference_impl.generation.updates import check_epoch, check_shapes
from reference_impl.models.catalog import Tokenizer, find_model
from reference_impl.models.llama import LlamaShape, megatron_from_hf
from reference_impl.planning.cache import Setup, kv_cache
from reference_impl.platforms.memory import give_back


class ReferenceGeneration(SteppedGeneration):
    """A generation backend whose engine is ours.

    `recipe`, `model`, `shape` and `tokenizer` are as for
    {py:class}`~reference_impl.generation.megatron.backend.MegatronGeneration`. A shared `GPTModel` is read by reference,
    with a packed copy of its matrices on a CPU in float32. Without one, the model that `policy.model_name` names is held
    once, packed where that applies, and `model` is its {py:class}`~reference_impl.generation.reference.weights.Weights`.
    """

    does_not_claim: ClassVar[dict[str, str]] = {
        "in-place": "weights of its own are held packed, and come out as copies; a shared GPTModel is read where it lies",
    }
    """Features of the conformance suite that this backend does without, and why."""

    _engine: ReferenceEngine | None

    def __init__(
        self, recipe: Recipe, *, model: Any = None, shape: LlamaShape | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        if (model is None) != (shape is None):
            raise ValueError("a shared model needs its shape, and a shape its model: give both or neither")
        if recipe.policy.generation.mode != "direct":
            raise ConfigError(
                f"policy.generation.mode: {recipe.policy.generation.mode}, but backend reference is stepped by its caller; "
                "write direct"
            )
        self.recipe = recipe
        self.config = recipe.policy.generation
        self.epoch = 0
        self.device = choose_device(recipe.policy)
        if model is not None and shape is not None:
            self.tokenizer, self.shape, self.model = tokenizer, shape, model
            first = next(iter(model.parameters()))
            self._weights = Weights(shape, (), dtype=first.dtype, device=first.device, model=model)
        else:
            checkpoint = find_model(recipe.policy.model_name)
            self.tokenizer, self.shape = tokenizer or checkpoint.read_tokenizer(), checkpoint.shape
            self.model = self._weights = Weights(
                self.shape,
                megatron_from_hf(checkpoint.read_weights(), self.shape),
                dtype=choose_dtype(recipe.policy, self.device),
                device=self.device,
            )
            give_back()
        if self.config.stop_strings and self.tokenizer is None:
            raise ValueError("policy.generation.stop_strings needs a tokenizer, and none was given")

    def _start(self) -> ReferenceEngine:
        config = self.config.mcore_generation_config
        plan = kv_cache(Setup(config, self.shape, str(self._weights.dtype).removeprefix("torch.")))
        limits = Limits(
            max_model_len=config.max_model_len,
            max_tokens=config.max_tokens,
            chunked_prefill=config.enable_chunked_prefill,
            block_size_tokens=config.block_size_tokens,
            block_size_bytes=plan.block_bytes,
            usable_blocks=plan.active_blocks,
            vocab_size=self.shape.vocab_size,
            unread_tokens=1,
        )
        settings = Settings(
            blocks=plan.total_blocks,
            max_requests=plan.max_requests,
            rule=Rule(
                self.config.temperature,
                self.config.top_k or 0,
                self.config.top_p,
                raw=self.config.logprobs_mode == "raw_logprobs",
            ),
            seed=self.config.seed,
            cache_mode=config.kv_cache_management_mode,
            prefix_caching=config.enable_prefix_caching,
            reuse_across_updates=self.config.reuse_across_updates,
        )
        decode = self.tokenizer.decode if self.tokenizer is not None else None
        try:
            return ReferenceEngine(self._weights, limits, settings, decode, self.epoch)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
                raise
            raise ConfigError(
                f"policy.generation.mcore_generation_config.buffer_size_gb: {config.buffer_size_gb:g} does not fit into "
                "memory"
            ) from error

    # --- weights ------------------------------------------------------------------------------------------------

    def update_weights(self, state_dict: Mapping[str, Tensor] | None, *, epoch: int) -> bool:
        """Continue with other weights from the next step on, and stamp `epoch` from there.

        Names are Megatron's. What is incomplete, misshapen or not finite is refused whole (`ValueError`), and the weights
        stay. With `kv_cache_management_mode: recompute` the cache of running requests is dropped and computed again.
        """
        check_epoch(epoch, self.epoch)
        if self._engine is None:
            self._weights.update(state_dict)
        else:
            self._engine.update(state_dict, epoch)
        self.epoch = epoch
        return True

    def prepare_refit_info(self, state_dict_info: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
        """Check the announced names and shapes against the model (`ValueError`); values are converted when they arrive."""
        check_shapes(self._weights.shapes, {name: size for name, (size, _) in state_dict_info.items()})
        return True

    def invalidate_kv_cache(self) -> bool:
        """Empty the prefix cache; weight updates do so by themselves. Running requests keep their own blocks."""
        return self._engine is not None and self._engine.forget_prefixes()
