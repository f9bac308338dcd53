"""GRPO's loss by hand: ratios, clipping, corrections, masks; and its gradient against finite differences."""

import math

import pytest
import torch

from reference_impl.rl.loss import CORRECTIONS, LossSettings, Tokens, grpo_loss

LN2 = math.log(2)


def batch(previous, generation, advantages, counts=None, **more):
    """Tokens of one rollout, or several rows."""
    rows = [torch.tensor(each, dtype=torch.float64) for each in (previous, generation, advantages)]
    mask = torch.ones_like(rows[0], dtype=torch.bool) if counts is None else torch.tensor(counts)
    return Tokens(*rows, mask, **{name: torch.tensor(value) for name, value in more.items()})


def loss_of(current, tokens, **settings):
    value, metrics = grpo_loss(torch.tensor(current, dtype=torch.float64), tokens, LossSettings(**settings))
    return value.item(), metrics


def test_ratios_and_clipping_by_hand():
    """Ratios 2, 0.5, 2, 0.5 with advantages 1, 1, -1, -1: the terms are min(2, 1.2), 0.5, -2 and min(-0.5, -0.8)."""
    tokens = batch([[-1.0] * 4], [[-1.0] * 4], [[1.0, 1.0, -1.0, -1.0]])
    current = [[-1 + LN2, -1 - LN2, -1 + LN2, -1 - LN2]]
    value, metrics = loss_of(current, tokens)
    assert value == pytest.approx(-(1.2 + 0.5 - 2.0 - 0.8) / 4)
    assert metrics["clip_fraction"] == 0.5
    assert metrics["tokens"] == 4


@pytest.mark.parametrize(
    ("correction", "terms", "left_out"),
    [
        ("none", [1, 1, 1], 0),  # on-policy ratios of 1, advantage 1
        ("weight", [1, 4, 0.25], 0),
        ("tis", [1, 2, 0.5], 0),  # clamped to [0.5, 2]
        ("icepop", [1], 2),  # 4 and 0.25 are outside
        ("seq-mask-tis", [1, 4, 0.25], 0),  # the geometric mean is 1
    ],
)
def test_corrections_by_hand(correction, terms, left_out):
    """Importance weights 1, 4 and 1/4."""
    tokens = batch([[-2.0, -2.0, -2.0]], [[-2.0, -2 - 2 * LN2, -2 + 2 * LN2]], [[1.0, 1.0, 1.0]])
    value, metrics = loss_of([[-2.0] * 3], tokens, correction=correction, weight_min=0.5, weight_max=2.0)
    assert value == pytest.approx(-sum(terms) / len(terms))
    assert metrics["tokens_left_out"] == left_out
    assert metrics["token_mult_prob_error"] == pytest.approx((1 + 4 + 4) / 3)


def test_a_sequence_outside_the_bounds_is_left_out_whole():
    """Weights 1 and 4 have the mean 2, within 2; 4 and 4 have 4. The masked token of row 0 does not count in its mean."""
    tokens = batch(
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[0.0, -2 * LN2, -50.0], [-2 * LN2, -2 * LN2, 0.0]],
        [[1.0] * 3, [7.0] * 3],
        counts=[[True, True, False], [True, True, False]],
    )
    value, metrics = loss_of([[0.0] * 3] * 2, tokens, correction="seq-mask-tis", weight_min=0.5, weight_max=2.001)
    assert value == pytest.approx(-(1 + 4) / 2)
    assert metrics["tokens_left_out"] == 2


def test_tokens_that_are_too_old_do_not_count():
    """Staleness 0, 1 and 2 with advantages 1, 10 and 100, at most 1: the mean of 1 and 10."""
    tokens = batch([[-1.0] * 3], [[-1.0] * 3], [[1.0, 10.0, 100.0]], staleness=[[0, 1, 2]])
    value, metrics = loss_of([[-1.0] * 3], tokens, max_token_staleness=1)
    assert (value, metrics["tokens_left_out"]) == (pytest.approx(-5.5), 1)


def test_divergence_from_a_reference():
    """d = reference - current = ln 2: 2 - 1 - ln 2 = 0.30685, times 0.1, beside an advantage of 0."""
    tokens = batch([[-1.0]], [[-1.0]], [[0.0]], reference=[[-1.0 + LN2]])
    value, metrics = loss_of([[-1.0]], tokens, kl_weight=0.1)
    assert value == pytest.approx(0.1 * (1 - LN2))
    assert metrics["kl"] == pytest.approx(1 - LN2)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_what_does_not_count_is_not_read(correction):
    """NaN in prompts and padding, in every column and in the gradient; and where nothing counts, all is 0."""
    nan = float("nan")
    tokens = batch([[nan, -1.0]], [[nan, -1.5]], [[nan, 1.0]], [[False, True]], reference=[[nan, -1.0]])
    current = torch.tensor([[nan, -0.9]], dtype=torch.float64, requires_grad=True)
    settings = LossSettings(correction=correction, kl_weight=0.1)
    value, metrics = grpo_loss(current, tokens, settings)
    value.backward()
    assert value.isfinite()
    assert (current.grad[0, 0], current.grad[0, 1].isfinite()) == (0, True)
    assert all(math.isfinite(each) for each in metrics.values())
    nothing = batch([[nan]], [[nan]], [[nan]], [[False]], reference=[[nan]])
    current = torch.tensor([[nan]], dtype=torch.float64, requires_grad=True)
    value, metrics = grpo_loss(current, nothing, settings)
    value.backward()
    assert (value.item(), current.grad.item(), metrics["tokens"]) == (0, 0, 0)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_gradient_is_that_of_finite_differences(correction):
    """Central differences of every log-probability, away from the corners where clipping sets in."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda: torch.randn(3, 4, generator=generator, dtype=torch.float64)  # noqa: E731
    previous = -2 + 0.1 * draw()
    tokens = Tokens(
        previous, previous + 0.3 * draw(), draw(), torch.rand(3, 4, generator=generator) < 0.8, reference=previous - 0.2
    )
    settings = LossSettings(correction=correction, kl_weight=0.05, weight_min=0.7, weight_max=1.4)
    current = (previous + 0.3 * draw()).requires_grad_()
    grpo_loss(current, tokens, settings)[0].backward()
    small = 1e-6
    for i in range(3):
        for j in range(4):
            step = torch.zeros(3, 4, dtype=torch.float64)
            step[i, j] = small
            with torch.no_grad():
                up, down = (grpo_loss(current + sign * step, tokens, settings)[0] for sign in (1, -1))
            assert current.grad[i, j].item() == pytest.approx(((up - down) / (2 * small)).item(), abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction": "tiss"}, "expected one of none"),
        ({"weight_min": 3.0}, "0 <= min <= max"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        LossSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "words"), [({"kl_weight": 1.0}, "reference"), ({"max_token_staleness": 1}, "staleness")]
)
def test_what_a_setting_needs(settings, words):
    with pytest.raises(ValueError, match=words):
        loss_of([[0.0]], batch([[0.0]], [[0.0]], [[1.0]]), **settings)
