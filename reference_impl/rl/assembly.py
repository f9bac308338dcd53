"""From a recipe to the parts of a training run: what is trained, what generates, what judges.

Everything that a recipe can get wrong about training is refused here, before a model is loaded.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl.config.checking import show
from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.config.training import LossConfig
from reference_impl.generation.devices import choose_device, choose_dtype
from reference_impl.generation.distribution import Rule
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.generation.registry import create_backend
from reference_impl.models.catalog import Checkpoint, Tokenizer, find_model
from reference_impl.models.checkpoints import parameters_of
from reference_impl.models.gpt import build_gpt_model
from reference_impl.platforms.cpu import enable
from reference_impl.rl.asynchronous import Colocated, Generation
from reference_impl.rl.environments import ENVIRONMENTS, Environment, Unreliable, find_environment
from reference_impl.rl.judging import Room
from reference_impl.rl.loss import LossSettings
from reference_impl.rl.player import Player
from reference_impl.rl.steps import Learner, Plan
from reference_impl.rl.worker import Worker

SMALL_HIDDEN = 256
"""Models no wider than this compute faster on one thread: what threads say to each other takes longer than the work."""

OTHER_CHOICES: dict[str, Any] = {
    "grpo.adv_estimator.name": "grpo",
    "grpo.advantage_clip_high": None,
    "grpo.advantage_clip_low": None,
    "grpo.overlong_filtering": False,
    "grpo.reward_scaling.enabled": False,
    "grpo.reward_shaping.enabled": False,
    "grpo.use_dynamic_sampling": False,
    "loss_fn.disable_ppo_ratio": False,
    "loss_fn.force_on_policy_ratio": False,
    "loss_fn.positive_example_nll_weight": 0.0,
    "loss_fn.ratio_clip_c": None,
    "loss_fn.reference_policy_kl_type": "k3",
    "loss_fn.sequence_level_importance_ratios": False,
    "loss_fn.token_level_loss": True,
    "loss_fn.use_cispo": False,
    "loss_fn.use_kl_in_reward": False,
    "loss_fn.use_on_policy_kl_approximation": False,
}
"""Keys of NeMo RL that would change what a policy learns, and the value that says what the loop here does.

The loop does not read them. A recipe that asks for anything else would train otherwise than it says, and is refused.
"""


@dataclass(frozen=True)
class Policy:
    """The model that a run trains, Megatron's own, and what goes with it."""

    model: Any
    checkpoint: Checkpoint
    tokenizer: Tokenizer


def check(recipe: Recipe) -> None:
    """Raise {py:exc}`~reference_impl.config.errors.ConfigError`, a line for each, for what cannot be trained by."""
    grpo, policy = recipe.grpo, recipe.policy
    rollouts = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    size = policy.train_global_batch_size
    wrong = []
    if recipe.env.name is None:
        wrong.append(f"env.name: nothing says what to train on; write one of {', '.join(ENVIRONMENTS)}")
    elif recipe.env.name not in ENVIRONMENTS:
        wrong.append(_message(lambda: find_environment(recipe.env.name or "")))
    elif grpo.demonstration_steps and not hasattr(ENVIRONMENTS[recipe.env.name], "demonstration"):
        wrong.append(
            f"grpo.demonstration_steps: {grpo.demonstration_steps}, but {recipe.env.name} demonstrates nothing; write 0"
        )
    if grpo.num_generations_per_prompt == 1:
        wrong.append(
            "grpo.num_generations_per_prompt: 1, but a reward is compared with others of its group, and alone is worth 0; "
            "write 2 or more"
        )
    if size is not None and rollouts % size:
        wrong.append(
            f"policy.train_global_batch_size: {size} does not divide the {rollouts} rollouts of a step "
            "(grpo.num_prompts_per_step times grpo.num_generations_per_prompt); write a divisor, or null"
        )
    if policy.generation.temperature == 0:
        wrong.append("policy.generation.temperature: 0 answers the same to a whole group; write 1.0")
    if not recipe.policy.generation.colocated.enabled and not grpo.async_grpo.enabled:
        wrong.append(
            "policy.generation.colocated.enabled: false, but synchronous training generates with the model that it trains; "
            "write true, or grpo.async_grpo.enabled: true"
        )
    wrong += filter(None, [_message(lambda: loss_settings(recipe.loss_fn))])
    wrong += [
        f"{key}: {show(recipe.others[key])}, which genref train does not do; write {show(ours)}, or remove the key"
        for key, ours in OTHER_CHOICES.items()
        if recipe.others.get(key, ours) != ours
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _message(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return ""


def loss_settings(config: LossConfig) -> LossSettings:
    """The section `loss_fn` as the loss takes it."""
    kind = config.truncated_importance_sampling_type
    if kind and not config.use_importance_sampling_correction:
        raise ConfigError(
            f"loss_fn.truncated_importance_sampling_type: {kind} bounds a correction that is off; write "
            "loss_fn.use_importance_sampling_correction: true"
        )
    low, high = config.truncated_importance_sampling_ratio_min or 0.0, config.truncated_importance_sampling_ratio
    if kind and high is None:
        raise ConfigError(
            f"loss_fn.truncated_importance_sampling_ratio: null, but {kind} needs an upper bound; write 2.0, say"
        )
    if high is not None and low > high:
        raise ConfigError(
            f"loss_fn.truncated_importance_sampling_ratio_min: {low:g} is above truncated_importance_sampling_ratio {high:g}"
        )
    return LossSettings(
        clip_min=config.ratio_clip_min,
        clip_max=config.ratio_clip_max,
        kl_weight=config.reference_policy_kl_penalty,
        correction=kind or ("weight" if config.use_importance_sampling_correction else "none"),
        weight_min=low,
        weight_max=high or 2.0,
        max_token_staleness=config.max_token_staleness,
    )


def plan_of(recipe: Recipe) -> Plan:
    """The sections `grpo` and `loss_fn` as the loops take them."""
    grpo = recipe.grpo
    return Plan(
        prompts=grpo.num_prompts_per_step,
        group_size=grpo.num_generations_per_prompt,
        steps=grpo.max_num_steps,
        context=recipe.policy.generation.mcore_generation_config.max_model_len,
        normalize=grpo.normalize_rewards,
        leave_one_out=grpo.use_leave_one_out_baseline,
        minibatch=recipe.policy.train_global_batch_size,
        microbatch=recipe.policy.train_micro_batch_size,
        loss=loss_settings(recipe.loss_fn),
    )


def rule_of(recipe: Recipe) -> Rule:
    """What log-probabilities are taken of, in generation and so in training."""
    generation = recipe.policy.generation
    if generation.logprobs_mode == "raw_logprobs":
        return 1.0, 0, 0.0
    return generation.temperature, generation.top_k or 0, generation.top_p


def make_environment(recipe: Recipe, tokenizer: Tokenizer) -> Environment:
    """One environment, slowed down and failing as the section `env` says."""
    made = find_environment(recipe.env.name or "")(tokenizer, recipe.grpo.seed)
    return Unreliable(made, recipe.env.delay_seconds, recipe.env.failure_rate, recipe.grpo.seed)


def room_of(recipe: Recipe, tokenizer: Tokenizer) -> Room:
    """Room for the environments of all rollouts under way."""
    return Room(lambda: make_environment(recipe, tokenizer), recipe.env.timeout_seconds)


def set_threads(checkpoint: Checkpoint, processes: int) -> int:
    """Share the cores among processes that compute at once; how many threads each has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = 1 if checkpoint.shape.hidden_size <= SMALL_HIDDEN else max(1, cores // processes)
    torch.set_num_threads(threads)
    return threads


def build_policy(recipe: Recipe) -> Policy:
    """The model that `policy.model_name` names, as Megatron's `GPTModel`."""
    device = choose_device(recipe.policy)
    enable()
    checkpoint = find_model(recipe.policy.model_name)
    model = build_gpt_model(
        checkpoint.shape,
        checkpoint.read_weights(),
        dtype=choose_dtype(recipe.policy, device),
        device=device,
        seed=recipe.policy.generation.seed,
    )
    return Policy(model, checkpoint, checkpoint.read_tokenizer())


def learner_of(recipe: Recipe, policy: Policy) -> Learner:
    """What trains it; where the loss wants a reference, the weights as they are now are copied for it."""
    plan, section = plan_of(recipe), recipe.policy.megatron_cfg.optimizer
    optimizer = torch.optim.AdamW(
        policy.model.parameters(),
        lr=section.lr,
        betas=(section.adam_beta1, section.adam_beta2),
        eps=section.adam_eps,
        weight_decay=section.weight_decay,
    )
    reference = parameters_of(policy.model) if plan.loss.kl_weight else None
    return Learner(policy.model, optimizer, rule_of(recipe), plan, reference, recipe.policy.max_grad_norm)


def backend_of(recipe: Recipe, policy: Policy) -> GenerationInterface:
    """The backend that `policy.generation` names, on the model that is trained."""
    return create_backend(recipe, model=policy.model, shape=policy.checkpoint.shape, tokenizer=policy.tokenizer)


@contextmanager
def open_generation(recipe: Recipe, policy: Policy, epoch: int) -> Iterator[Generation]:
    """What plays groups for asynchronous training, with the policy's weights as `epoch`."""
    with ExitStack() as stack:
        if recipe.policy.generation.colocated.enabled:
            backend = backend_of(recipe, policy)
            backend.update_weights(None, epoch=epoch)
            generation: Generation = Colocated(_player(recipe, policy.tokenizer, stack.enter_context(backend)))
        else:
            threads = set_threads(policy.checkpoint, processes=2)
            generation = Worker(recipe, policy.model, epoch, threads)
        stack.callback(generation.close)
        yield generation


@contextmanager
def generation_side(recipe: Recipe, weights: dict[str, Tensor], epoch: int) -> Iterator[Player]:
    """What a generation process has: its own model, with these `weights` as `epoch`, and a player on it."""
    policy = build_policy(recipe)
    backend = backend_of(recipe, policy)
    backend.update_weights(weights, epoch=epoch)
    with backend:
        yield _player(recipe, policy.tokenizer, backend)


def _player(recipe: Recipe, tokenizer: Tokenizer, backend: GenerationInterface) -> Player:
    plan = plan_of(recipe)
    return Player(
        backend,
        room_of(recipe, tokenizer),
        plan.group_size,
        plan.context,
        in_flight=recipe.grpo.async_grpo.in_flight_weight_updates,
    )
