"""The training side on Megatron's model, held to transformers and to the engine that shares it."""

import copy

import pytest
import torch
from support.batches import prompts, recipe
from transformers import LlamaConfig, LlamaForCausalLM

from reference_impl.generation.distribution import processed_log_probs
from reference_impl.generation.registry import create_backend
from reference_impl.models import tiny
from reference_impl.models.gpt import build_gpt_model
from reference_impl.platforms.cpu import cpu_platform
from reference_impl.rl import policy as policy_module
from reference_impl.rl.loss import LossSettings
from reference_impl.rl.policy import Batch, log_probs, show, train_step, training

IDS = (torch.arange(40) * 37 % 250).view(2, 20)


@pytest.fixture
def model():
    with cpu_platform():
        yield build_gpt_model(tiny.SHAPE, tiny.random_weights())


@pytest.fixture(scope="module")
def oracle():
    made = LlamaForCausalLM(LlamaConfig(**tiny.SHAPE.to_hf_config()))
    assert made.load_state_dict(tiny.random_weights(), strict=False).unexpected_keys == []
    return made


def a_batch(rows=6, length=12, seed=0):
    """Random tokens of which the last 5 were sampled, with log-probabilities near the model's."""
    draw = torch.Generator().manual_seed(seed)
    counts = torch.zeros(rows, length, dtype=torch.bool)
    counts[:, -5:] = True
    return Batch(
        ids=torch.randint(250, (rows, length), generator=draw),
        counts=counts,
        generation=torch.full((rows, length), -5.0),
        advantages=torch.randn(rows, generator=draw),
        staleness=torch.zeros(rows, length, dtype=torch.int64),
    )


@pytest.mark.parametrize("rule", [(1.0, 0, 0.0), (0.7, 0, 0.0), (0.7, 20, 0.9)])
def test_log_probabilities_are_those_of_transformers(model, oracle, rule):
    with torch.no_grad(), training(model):
        found = log_probs(model, IDS, rule)
        scores = oracle(IDS).logits
    expected = (
        processed_log_probs(scores[:, :-1].flatten(0, 1), *rule).view(2, 19, -1).gather(2, IDS[:, 1:, None])[..., 0]
    )
    assert found[:, 0].tolist() == [0, 0]
    assert (found[:, 1:].isneginf() == expected.isneginf()).all()
    known = expected.isfinite()
    torch.testing.assert_close(found[:, 1:][known], expected[known], atol=5e-4, rtol=0)


@pytest.mark.parametrize("name", ["reference", "megatron"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 9}])
def test_they_are_the_engines_own(model, name, settings):
    """What the engine said of the tokens it sampled, from the parameters that training reads."""
    made = recipe(backend=name, max_new_tokens=12, stop_token_ids=[], **settings)
    with create_backend(made, model=model, shape=tiny.SHAPE) as backend:
        backend.prepare_for_generation()
        output = backend.generate(prompts([5, 6, 7], [8, 9, 10]))
        backend.finish_generation()
    with torch.no_grad(), training(model):
        found = log_probs(
            model, output["output_ids"], (settings.get("temperature", 1.0), settings.get("top_k", 0), 0.0)
        )
    torch.testing.assert_close(found[:, 3:], output["logprobs"][:, 3:], atol=5e-4, rtol=0)


def test_a_step_does_what_the_loss_written_out_does(model, oracle):
    """Plain gradient descent on transformers' model, one step: on-policy the loss is minus advantage times log-probability."""
    batch = a_batch()
    metrics = train_step(
        model, torch.optim.SGD(model.parameters(), 0.1), batch, LossSettings(), (1.0, 0, 0.0), max_norm=None
    )
    oracle.zero_grad()
    scores = oracle(batch.ids[:, :-1]).logits.log_softmax(-1).gather(2, batch.ids[:, 1:, None])[..., 0][:, -5:]
    (-(batch.advantages[:, None] * scores).mean()).backward()
    expected = oracle.model.embed_tokens.weight.detach() - 0.1 * oracle.model.embed_tokens.weight.grad
    found = dict(model.named_parameters())["embedding.word_embeddings.weight"]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)
    norm = torch.stack([p.grad.norm() for p in oracle.parameters()]).norm()
    assert metrics["gradient_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert (metrics["tokens"], metrics["skipped"]) == (30, 0)
    assert not model.training


def test_parts_add_up_to_the_whole():
    """7 rollouts at once, and in parts of 3, 3 and 1: the same loss and the same weights."""
    found = []
    for rows in (32, 3):
        with cpu_platform():
            model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            settings = LossSettings(correction="tis")
            metrics = train_step(model, optimizer, a_batch(7), settings, (1.0, 0, 0.0), microbatch=rows)
        found.append((metrics, [parameter.detach() for parameter in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4, abs=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("correction", ["none", "icepop"])
def test_several_gradient_steps_are_taken_from_one_old_policy(model, oracle, correction):
    """Two steps of plain gradient descent on halves, written out on transformers' model: the second has ratios to before."""
    batch, oracle = a_batch(), copy.deepcopy(oracle)
    settings = LossSettings(correction=correction, weight_min=0.5, weight_max=2.0)

    def scores(rows):
        ids = batch.ids[rows]
        return oracle(ids[:, :-1]).logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0][:, -5:]

    with torch.no_grad():
        old = scores(slice(0, 6))
    weight = (0.8 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1))).exp()
    batch.generation[:, -5:] = old - weight.log()
    kept = torch.ones_like(weight, dtype=torch.bool)
    if correction == "icepop":
        kept = (weight >= 0.5) & (weight <= 2.0)
    else:
        weight = torch.ones_like(weight)
    metrics = train_step(
        model, torch.optim.SGD(model.parameters(), 0.01), batch, settings, (1.0, 0, 0.0), max_norm=None, minibatch=3
    )
    for rows in (slice(0, 3), slice(3, 6)):
        oracle.zero_grad()
        ratio, advantage = (scores(rows) - old[rows]).exp(), batch.advantages[rows, None]
        each = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * weight[rows]
        (-(each * kept[rows]).sum() / kept[rows].sum()).backward()
        with torch.no_grad():
            for parameter in oracle.parameters():
                parameter -= 0.01 * parameter.grad
    found = dict(model.named_parameters())["embedding.word_embeddings.weight"]
    torch.testing.assert_close(found, oracle.model.embed_tokens.weight.detach(), atol=5e-5, rtol=1e-3)
    assert metrics["tokens"] == 30
    assert metrics["tokens_left_out"] == 30 - int(kept.sum())


def test_other_weights_can_be_held_beside(model):
    """A reference policy's log-probabilities, by swapping all weights in, are those of `functional_call`."""
    held = {name: parameter.detach() * 1.01 for name, parameter in model.named_parameters()}
    with torch.no_grad(), training(model):
        found = policy_module._under(model, held, IDS, (1.0, 0, 0.0))
        for name, parameter in model.named_parameters():
            parameter.copy_(held[name])
        torch.testing.assert_close(found, log_probs(model, IDS, (1.0, 0, 0.0)))


def test_a_gradient_that_is_not_finite_changes_nothing(model):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    batch = a_batch()
    batch.advantages[0] = float("inf")
    metrics = train_step(model, torch.optim.SGD(model.parameters(), 0.1), batch, LossSettings(), (1.0, 0, 0.0))
    assert metrics["skipped"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_showing_lowers_the_loss_of_what_is_shown(model):
    rows = [([1, 2, 3], [4, 5]), ([3, 2, 1], [5, 4])]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = [show(model, optimizer, rows) for _ in range(12)]
    assert losses[-1] < 0.1 < losses[0]
