"""A whole training run: from a recipe and a folder to steps, files and checkpoints, begun or gone on with."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import resolved_yaml
from reference_impl.config.schema import Recipe
from reference_impl.rl import asynchronous, checkpoints, sync
from reference_impl.rl.assembly import (
    Policy,
    backend_of,
    build_policy,
    check,
    learner_of,
    open_generation,
    room_of,
    set_threads,
)
from reference_impl.rl.environments import find_environment
from reference_impl.rl.journal import CHECKPOINTS, RECIPE_FILE, REFERENCE_FILE, Journal
from reference_impl.rl.policy import show
from reference_impl.rl.queue import Queue
from reference_impl.rl.steps import Learner, StepDone
from reference_impl.staleness.logger import StalenessLogger

SHOWN_AT_A_TIME = 64
"""Demonstrations of one supervised step."""

SHOWN_LR = 1e-3


def train(
    recipe: Recipe, folder: Path, logger: StalenessLogger | None = None, stop: Event | None = None
) -> Iterator[StepDone]:
    """Train by `recipe`, yielding each step when it is written to `folder`; go on from the newest checkpoint there.

    `logger` gets every step, too. It is the caller's to close, and knows nothing of checkpoints: a run that goes on logs the
    steps after its checkpoint again.

    Once `stop` is set, the step under way is the last; it gets a checkpoint, like the last one of the recipe. A step that
    could not be checkpointed, for want of disk, is no reason to stop: the run goes on, and the error is raised at its end.
    """
    check(recipe)
    torch.manual_seed(recipe.grpo.seed)
    policy = build_policy(recipe)
    set_threads(policy.checkpoint, processes=1)
    grpo, config = recipe.grpo, recipe.policy.generation
    lag = grpo.async_grpo.max_trajectory_age_steps if grpo.async_grpo.enabled else 0
    queue = Queue(grpo.num_prompts_per_step, grpo.num_generations_per_prompt, lag)
    with ExitStack() as stack:
        found = checkpoints.latest(folder / CHECKPOINTS)
        if found is None:
            journal = Journal(folder, policy.tokenizer)
            (folder / RECIPE_FILE).write_text(resolved_yaml(recipe), "utf-8")
            demonstrate(recipe, policy)
            learner = learner_of(recipe, policy)
            if learner.reference is not None:
                save_file(learner.reference, folder / REFERENCE_FILE)
            journal.begin(model=recipe.policy.model_name, backend=config.backend, mode=config.mode)
        else:
            learner = learner_of(recipe, policy)
            state = checkpoints.load(found, policy.model, learner.optimizer)
            if learner.reference is not None:
                learner.reference = read_reference(folder)
            queue.restore(state["queue"])
            journal = Journal(folder, policy.tokenizer, state["journal"])
        stack.callback(journal.close)
        # An engine numbers its requests from 0 and draws by that number: the same seed would repeat the run's first draws.
        recipe = with_seed(recipe, config.seed + queue.step)
        failed: checkpoints.CheckpointError | None = None
        for done in steps_of(recipe, policy, learner, queue, stack):
            journal.write(done)
            if logger is not None:
                logger.log(done.consumption, done.metrics)
            last = done.step + 1 == grpo.max_num_steps or (stop is not None and stop.is_set())
            if recipe.checkpointing.enabled and (last or (done.step + 1) % recipe.checkpointing.save_period == 0):
                state = {"queue": queue.to_json(), "journal": journal.state()}
                try:
                    checkpoints.save(folder / CHECKPOINTS, done.step + 1, policy.model, learner.optimizer, state)
                    failed = None
                except checkpoints.CheckpointError as error:
                    failed = error
            yield done
            if last:
                break
        if failed:
            raise failed


def steps_of(recipe: Recipe, policy: Policy, learner: Learner, queue: Queue, stack: ExitStack) -> Iterator[StepDone]:
    """The recipe's loop over the queue's steps; what it opens is closed with `stack`."""
    if recipe.grpo.async_grpo.enabled:
        generation = stack.enter_context(open_generation(recipe, policy, queue.step))
        return asynchronous.train(generation, learner, queue)
    backend = backend_of(recipe, policy)
    stack.callback(backend.shutdown)
    return sync.train(backend, learner, room_of(recipe, policy.tokenizer), queue)


def demonstrate(recipe: Recipe, policy: Policy) -> None:
    """Show the policy answers in the right form, as many steps as the recipe says, before its first rollout.

    From random weights GRPO finds no reward to climb: it ends in whatever token it happened to prefer.
    """
    optimizer = torch.optim.AdamW(policy.model.parameters(), SHOWN_LR, weight_decay=0.0)
    for step in range(recipe.grpo.demonstration_steps):
        environment: Any = find_environment(recipe.env.name or "")(policy.tokenizer, recipe.grpo.seed)
        first = -1 - step * SHOWN_AT_A_TIME  # episodes that no rollout is of
        show(policy.model, optimizer, [environment.demonstration(first - row) for row in range(SHOWN_AT_A_TIME)])


def read_reference(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that the run began with."""
    try:
        return load_file(folder / REFERENCE_FILE)
    except OSError as error:
        raise ConfigError(f"{folder / REFERENCE_FILE}: cannot be read: {error.strerror}") from error


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The same recipe, whose engine draws by another seed."""
    generation = recipe.policy.generation.model_copy(update={"seed": seed})
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"generation": generation})})
