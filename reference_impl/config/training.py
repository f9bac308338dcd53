"""The keys of a recipe that say how a policy is trained: GRPO, its loss, the optimizer, the environment, checkpoints.

Names and defaults are those of NeMo RL's `examples/configs/grpo_math_1B.yaml`; keys that only this package has say so.
"""

from typing import Annotated, Literal

from pydantic import Field

from reference_impl.config.section import NULL_IS_EMPTY, Section

RECOMPUTE_KEY = "grpo.async_grpo.recompute_kv_cache_after_weight_updates"


class AsyncGrpoConfig(Section):
    """How far generation may run ahead of training, and what a weight update does to rollouts under way."""

    enabled: bool = Field(False, description="Whether generation goes on while the model is trained.")
    max_trajectory_age_steps: int = Field(
        1,
        ge=0,
        description="Most training steps that a consumed token may be stale; 0 waits for each update, as synchronous "
        "training does.",
    )
    in_flight_weight_updates: bool = Field(
        False,
        description="Whether new weights reach rollouts under way; if not, an update waits until they have ended.",
    )
    recompute_kv_cache_after_weight_updates: bool = Field(
        False,
        description="Whether cached keys and values are dropped when weights change; true sets kv_cache_management_mode to "
        "recompute, which is how NeMo RL spells that mode.",
    )


class GrpoConfig(Section):
    """What a training step is made of, and how rewards become advantages."""

    keys_of_others = frozenset({"max_num_epochs", "num_val_generations_per_prompt", "val_num_generations_per_prompt"})

    num_prompts_per_step: int = Field(32, gt=0, description="Episodes that one training step takes.")
    num_generations_per_prompt: int = Field(
        16, gt=0, description="Rollouts of each episode, a group: their rewards are compared with each other."
    )
    max_num_steps: int = Field(1000000, gt=0, description="Training steps after which the run ends.")
    normalize_rewards: bool = Field(True, description="Whether advantages are divided by their group's deviation.")
    use_leave_one_out_baseline: bool = Field(
        True, description="Whether a reward is compared with the mean of its group's others, not of all of it."
    )
    seed: int = Field(42, ge=0, description="Seed of the episodes and of everything random in training.")
    demonstration_steps: int = Field(
        0,
        ge=0,
        description="Supervised steps on the environment's demonstrations before the first rollout; not a NeMo RL key.",
    )
    async_grpo: Annotated[AsyncGrpoConfig, NULL_IS_EMPTY] = Field(
        AsyncGrpoConfig.model_validate({}), description="Settings of asynchronous training."
    )


class LossConfig(Section):
    """How tokens count in the loss, and what is done about those that an older policy has sampled."""

    keys_of_others = frozenset({"ratio_clip_c", "reference_policy_kl_type"})

    reference_policy_kl_penalty: float = Field(
        0.01,
        ge=0,
        description="Weight of the divergence from the weights that training began with; 0 needs none of them.",
    )
    ratio_clip_min: float = Field(
        0.2, ge=0, le=1, description="How far below 1 the ratio of new to old probability still counts."
    )
    ratio_clip_max: float = Field(
        0.2, ge=0, description="How far above 1 the ratio of new to old probability still counts."
    )
    use_importance_sampling_correction: bool = Field(
        False, description="Whether each token weighs as its probability at training divided by that at sampling."
    )
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = Field(
        None,
        description="What is done about weights outside the two bounds: tis clamps them, icepop leaves their tokens out, "
        "seq-mask-tis leaves out sequences by their geometric mean; null does nothing.",
    )
    truncated_importance_sampling_ratio: float | None = Field(
        None, gt=0, description="Upper bound of importance weights; only read with a type, which needs it."
    )
    truncated_importance_sampling_ratio_min: float | None = Field(
        None, ge=0, description="Lower bound of importance weights; null means 0."
    )
    max_token_staleness: int | None = Field(
        None,
        ge=0,
        description="Most training steps that a token which counts may be stale, however old others of its rollout are; null "
        "counts all; not a NeMo RL key.",
    )


class OptimizerConfig(Section):
    """AdamW's settings, by the names that Megatron gives them."""

    lr: float = Field(5.0e-6, gt=0, description="Learning rate, constant over the run.")
    weight_decay: float = Field(0.01, ge=0, description="Share of each weight that a step takes away, times lr.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    adam_eps: float = Field(1e-8, gt=0, description="Added to the root that a step is divided by.")


class EnvConfig(Section):
    """What the policy is trained on. NeMo RL has a section for each of its environments here; this package has these keys."""

    name: str | None = Field(
        None, description="The environment, by the name that this package gives it; not a NeMo RL key."
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="Longest that it may take over a response, after which the rollout fails; not a NeMo RL key.",
    )
    delay_seconds: float = Field(
        0.0, ge=0, description="How long it waits before it answers, as a tool or a judge would; not a NeMo RL key."
    )
    failure_rate: float = Field(
        0.0, ge=0, le=1, description="Share of the rollouts that it fails, to see what that does; not a NeMo RL key."
    )


class CheckpointingConfig(Section):
    """When a run is written down so that it can be resumed. The folder is the run's own."""

    keys_of_others = frozenset({"ft_save_period"})

    enabled: bool = Field(True, description="Whether checkpoints are written at all.")
    save_period: int = Field(
        10, gt=0, description="Training steps between two checkpoints; the last step has one, too."
    )
