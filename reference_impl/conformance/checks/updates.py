"""Weight updates: between two steps, whole or not at all, under requests that go on."""

from collections.abc import Callable

import torch
from torch import Tensor

from reference_impl.conformance.batches import PROMPT, finish, greedy, prompts, response_logprobs, responses
from reference_impl.conformance.checks.company import pairs
from reference_impl.conformance.expect import equal, hold, raises
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import chain
from reference_impl.conformance.teacher import follows_greedily


@check()
def fall_between_two_steps(lab: Lab) -> None:
    """The first token after an update is the new weights', the last before it the old ones'."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), max_new_tokens=4)
    new = lab.weights(chain(6, 9, 10))
    output = finish(backend, [3, 2, 1], at={2: lambda: lab.update(backend, new, 3)})[0]
    equal(responses(output), [[5, 6, 9, 10]], "the response around an update after 2 tokens")
    equal(backend.epoch, 3, "epoch")


@check()
def running_requests_go_on(lab: Lab) -> None:
    """An update drops no request that runs, and none that waits."""
    backend = lab.backend(max_new_tokens=8, mcore={"max_requests": 4})
    rows = [PROMPT[: 3 + index] for index in range(6)]
    new = lab.weights(epoch=1)
    for index, output in enumerate(finish(backend, *rows, at={6: lambda: lab.update(backend, new, 1)})):
        equal(output["generation_lengths"].tolist(), [8], f"tokens of row {index}")
        equal(output["errors"], [None], f"errors of row {index}")


@check()
def before_the_engine_is_there(lab: Lab) -> None:
    """Weights that come before the engine is built are those it generates with."""
    backend = lab.backend(max_new_tokens=6, awake=False)
    lab.update(backend, lab.weights(epoch=1), 5)
    backend.prepare_for_generation()
    output = backend.generate(prompts(PROMPT), greedy=True)
    lab.teacher(epoch=1).agrees(PROMPT, *pairs(output)[0], "a response by weights given before prepare")
    equal(output["policy_epoch"][0].to_json(), [[0, 5]], "policy_epoch")


@check()
def while_asleep(lab: Lab) -> None:
    """Weights that come while the engine sleeps, as after a training step, are those it wakes with."""
    backend = lab.backend(max_new_tokens=6)
    greedy(backend, PROMPT)
    backend.finish_generation()
    lab.update(backend, lab.weights(epoch=1), 1)
    backend.prepare_for_generation()
    output = backend.generate(prompts(PROMPT), greedy=True)
    lab.teacher(epoch=1).agrees(PROMPT, *pairs(output)[0], "a response by weights given while asleep")


@check()
def every_weight_arrives(lab: Lab) -> None:
    """After an update the model is the new one in every layer, as transformers has it; and after another, too."""
    backend = lab.backend(max_new_tokens=8)
    for epoch in (1, 2, 3):
        lab.update(backend, lab.weights(epoch=epoch), epoch)
        output = backend.generate(prompts(PROMPT), greedy=True)
        lab.teacher(epoch=epoch).agrees(PROMPT, *pairs(output)[0], f"a response after update {epoch}")


@check()
def old_cache_new_weights(lab: Lab) -> None:
    """With a cache that persists, new weights go on over the keys and values that the old ones wrote."""
    backend = lab.backend(max_new_tokens=10)
    new = lab.weights(epoch=1)
    output = finish(backend, PROMPT, at={4: lambda: lab.update(backend, new, 1)})[0]
    ids, logprobs = pairs(output)[0]
    cut = len(PROMPT) + 4 - 1  # the fourth token is read first by the new weights
    logits = lab.teacher(epoch=1).logits([*PROMPT, *ids], after=lab.teacher(), cut=cut)[:-1]
    follows_greedily(logits.log_softmax(-1), ids[4:], logprobs[4:], "tokens after the update")


@check("recompute")
def new_cache_new_weights(lab: Lab) -> None:
    """With `recompute`, what follows an update is what the new model says to the same tokens."""
    backend = lab.backend(max_new_tokens=10, mcore={"kv_cache_management_mode": "recompute"})
    new = lab.weights(epoch=1)
    output = finish(backend, PROMPT, at={4: lambda: lab.update(backend, new, 1)})[0]
    ids, logprobs = pairs(output)[0]
    lab.teacher(epoch=1).agrees([*PROMPT, *ids[:4]], ids[4:], logprobs[4:], "tokens after the update")


@check("in-place")
def changed_in_place(lab: Lab) -> None:
    """`update_weights(None)` says that the shared parameters have changed where they lie, and generation follows."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=2)
    equal(greedy(backend, [1]), [[5, 6]], "the response before training")
    new = lab.named(backend, lab.weights(chain(1, 9, 10)))
    with torch.no_grad():
        for name, parameter in backend.model.named_parameters():
            parameter.copy_(new[name])
    backend.update_weights(None, epoch=1)
    equal(greedy(backend, [1]), [[9, 10]], "the response after training in place")


@check()
def epochs_do_not_fall(lab: Lab) -> None:
    """An epoch that falls is refused and changes nothing; one that stays is a second update of the same step."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=2, epoch=4)
    new = lab.named(backend, lab.weights(chain(1, 9, 10)))
    raises(ValueError, lambda: backend.update_weights(new, epoch=3), "update_weights(epoch=3) at epoch 4", "3", "4")
    equal(greedy(backend, [1]), [[5, 6]], "the response after a refused update")
    equal(backend.epoch, 4, "epoch after a refused update")
    backend.update_weights(new, epoch=4)
    equal(greedy(backend, [1]), [[9, 10]], "the response after an update at the same epoch")


def refused(lab: Lab, spoil: Callable[[str, dict[str, Tensor]], object], *words: str) -> None:
    """`spoil(name, weights)` makes a state dict wrong: refused whole, naming the weight, with old weights in place."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=2)
    new = lab.named(backend, lab.weights(chain(1, 9, 10)))
    name = list(new)[-1]
    spoil(name, new)
    raises(ValueError, lambda: backend.update_weights(new, epoch=1), "update_weights", *words or (name,))
    equal(greedy(backend, [1]), [[5, 6]], "the response after a refused update")
    equal(backend.epoch, 0, "epoch after a refused update")


@check()
def missing_weight_is_refused(lab: Lab) -> None:
    """A state dict with a weight missing is refused whole, by the weight's name."""
    refused(lab, lambda name, weights: weights.pop(name))


@check()
def unknown_weight_is_refused(lab: Lab) -> None:
    """A state dict with a weight of another model is refused whole, by the weight's name."""
    refused(lab, lambda name, weights: weights.update({"model.rotor.weight": torch.ones(2)}), "model.rotor.weight")


@check()
def misshapen_weight_is_refused(lab: Lab) -> None:
    """A state dict with a weight of another shape is refused whole, by the weight's name and both shapes."""
    refused(lab, lambda name, weights: weights.update({name: torch.zeros(3, 5)}), "3, 5")


@check("finite-weights")
def infinite_weight_is_refused(lab: Lab) -> None:
    """A state dict with a NaN or an infinity, of a diverged training, is refused whole, by the weight's name."""
    for value in (float("nan"), float("inf"), float("-inf")):

        def spoil(name: str, weights: dict[str, Tensor], value: float = value) -> None:
            weights[name] = weights[name].clone()
            weights[name][..., -1] = value

        refused(lab, spoil)


@check()
def logprobs_are_of_their_epoch(lab: Lab) -> None:
    """The log-probability of a token is by the weights that drew it, also when others have come since."""
    backend = lab.backend(chain(1, 5, 6, 7, strength=3.0), max_new_tokens=3)
    new = lab.weights(chain(1, 5, 6, 7, strength=1.0))
    output = finish(backend, [1], at={2: lambda: lab.update(backend, new, 1)})[0]
    old = lab.backend(chain(1, 5, 6, 7, strength=3.0), max_new_tokens=2).generate(prompts([1]), greedy=True)
    found, before = response_logprobs(output)[0], response_logprobs(old)[0]
    equal(responses(output), [[5, 6, 7]], "the response")
    hold(
        abs(found[0] - before[0]) + abs(found[1] - before[1]) < 1e-4,
        f"log-probabilities before the update: {found[:2]}",
    )
    hold(found[2] < before[1] - 0.5, f"log-probability after the update: {found[2]:.4f}, of a logit that fell by 2")
