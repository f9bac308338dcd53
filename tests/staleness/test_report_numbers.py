"""The report's numbers on rollouts small enough to count by hand: by step, overall, as text and as charts."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.report.charts import events, gap_and_events_over_steps, staleness_over_steps
from reference_impl.staleness.report.histograms import rollouts_by_average, rollouts_by_gap, tokens_by_staleness
from reference_impl.staleness.report.numbers import coverage, differences, headline
from reference_impl.staleness.report.page import chosen_sequences, write_html, write_views
from reference_impl.staleness.report.text import comparison, summary
from reference_impl.staleness.report.view import view_of
from reference_impl.staleness.runs import Run, SequenceRecord, Step


def rollout(index, policy, kv, *, gap_epoch=None, error=None, tokens=4, **more):
    """A prompt of one token and `tokens` sampled ones, each of `policy` and `kv` an epoch or a list of one a token."""
    policy, kv = ([each] * tokens if not isinstance(each, list) else each for each in (policy, kv))
    record = RequestRecord(
        request=index,
        policy_epoch=EpochRuns.from_tokens([policy[0], *policy]),
        kv_cache_epoch=EpochRuns.from_tokens([kv[0], *kv]),
        oldest_attended_kv_epoch=EpochRuns.from_tokens([None, *([policy[0]] * len(policy))]),
        sampled=((1, 1 + len(policy)),),
        completion_epoch=gap_epoch,
        **more,
    )
    return SequenceRecord(index=index, prompt_length=1, record=record, error=error)


FAILED = SequenceRecord(index=9, prompt="x", error="too long")


def run(*sequences, steps=(), **header):
    return Run(
        {"model": "tiny", "backend": "megatron", "mode": "direct", "epoch": 0, **header}, [], [*sequences], [*steps]
    )


@pytest.fixture
def trained():
    """Megatron-RL's example at step 6, whose oldest tokens are 2, 4, 1 and 6 steps old and KV 2, 3, 1 and 5; then step 7."""
    return run(
        rollout(0, [4, 4, 5, 5], [4, 4, 5, 5], gap_epoch=5, num_evictions=0),
        rollout(1, 2, 3, gap_epoch=3, num_evictions=2),
        rollout(2, 5, 5, gap_epoch=6, num_evictions=0),
        rollout(3, 0, 1, gap_epoch=6, num_evictions=1),
        rollout(4, 6, 6, gap_epoch=6, tokens=8),
        rollout(5, 0, 0, gap_epoch=1),
        rollout(6, 3, 3),
        FAILED,
        steps=[Step(7, (4, 9), (5,)), Step(6, (0, 1, 2, 3))],
    )


def test_each_step_is_measured_over_what_it_consumed(trained):
    view = view_of(trained)
    six, seven = view.measured
    assert [consumption.step for consumption in view.consumptions] == [6, 7]
    assert (six["mean_policy_staleness"], six["mean_kv_cache_staleness"]) == (3.25, 2.75)
    assert (six["mean_completion_gap"], six["total_eviction_count"]) == (1.0, 3)  # (1 + 3 + 0 + 0) / 4
    assert (seven["consumed_rollouts"], seven["dropped_rollouts"], seven["failed_rollouts"]) == (1, 1, 1)
    assert seven["mean_policy_staleness"] == 1
    # Over both: sums of counts, the extreme of extremes, the mean of means.
    assert (view.overall["total_eviction_count"], view.overall["consumed_rollouts"]) == (3, 5)
    assert (view.overall["max_policy_staleness"], view.overall["min_policy_staleness"]) == (6, 1)
    assert view.overall["mean_policy_staleness"] == (3.25 + 1) / 2
    assert view.at == "Consumed by 2 training steps, 6 to 7."


def test_one_step_of_several_can_be_chosen(trained):
    view = view_of(trained, step=7)
    assert [consumption.step for consumption in view.consumptions] == [7]
    assert view.at == "Consumed by training step 7."
    with pytest.raises(ValueError, match="^no training step 5 in the run; its steps are 6 to 7$"):
        view_of(trained, step=5)


def test_without_steps_the_newest_epoch_consumes_all_and_the_report_says_so(trained):
    trained.steps = []
    view = view_of(trained)
    assert view.at == (
        "The run names no training step that consumed it, so staleness is shown as if step 6 had consumed all of it."
    )
    assert view.measured[0]["consumed_rollouts"] == 7
    trained.updates = [{"epoch": 8, "after_tokens": 99, "what": "SGD"}]
    assert view_of(trained).consumptions[0].step == 8
    assert view_of(trained, step=10).consumptions[0].step == 10


@pytest.mark.parametrize(
    ("steps", "step", "message"),
    [
        ([], 5, "step 5 is older than the policy epoch 6 of sampled token 0 of request 4"),
        ([Step(5, (4,))], None, "step 5 is older than the policy epoch 6 of sampled token 0 of request 4"),
        ([Step(5, (2,))], None, "step 5 is older than the completion epoch 6 of request 2"),
        ([Step(5, (77,))], None, "training step 5: no sequence 77 in the run"),
    ],
)
def test_a_step_that_cannot_have_consumed_what_it_says_is_refused(trained, steps, step, message):
    trained.steps = steps
    with pytest.raises(ValueError, match=f"^{message}$"):
        view_of(trained, step=step)


def test_the_headline_counts_the_whole_run(trained):
    trained.bad_lines = 2
    assert headline(view_of(trained)) == {
        "sequences": "8",
        "generated tokens": "32",  # six of 4 and one of 8
        "weight updates": "0",
        "training steps": "2",
        "mean policy staleness": "2.12",  # of 3.25 and 1
        "mean KV staleness": "1.88",  # of 2.75 and 1
        "mean attended KV staleness": "2.12",
        "mean completion gap": "1.00",
        "sequences with two or more policy epochs": "1",
        "evictions": "3",
        "failed sequences": "1",
        "sequences that no step consumed": "1",
        "unreadable lines, left out": "2",
    }


def test_text_for_a_terminal(trained):
    trained.bad_lines = 1
    assert summary(view_of(trained, "runs/a")).splitlines() == [
        "runs/a: tiny on megatron, direct",
        "8 sequences, 32 generated tokens, 0 updates. Not consumed by any step: 1. Unreadable lines, left out: 1.",
        "Consumed by 2 training steps, 6 to 7.",
        "",
        "        policy                   KV                       attended KV",
        "step    mean  max  min  cover    mean  max  min  cover    mean  max  min  cover",
        "   6    3.25    6    1   100%    2.75    5    1   100%    3.25    6    1   100%",
        "   7    1.00    1    1   100%    1.00    1    1   100%    1.00    1    1   100%",
        "",
        "        rollouts",
        "step    consumed  dropped  failed  empty    tokens  completion gap  evictions",
        "   6           4        0       0      0        16            1.00          3",
        "   7           1        1       1      0         8            1.00          0",
        "",
        "policy, KV, attended KV: mean_, max_ and min_policy_staleness, _kv_cache_staleness and",
        "_attended_kv_staleness, in training steps; cover: the share of sampled tokens with a stamp.",
        "completion gap: mean_completion_gap. evictions: total_eviction_count.",
    ]


def test_what_is_not_known_is_a_dash_and_in_no_mean(trained):
    first = trained.sequences[0]
    first.record = replace(first.record, kv_cache_epoch=EpochRuns.missing(5), num_evictions=None)
    view = view_of(trained, step=6)
    # KV of the three others: 3, 1 and 5 steps; 12 of 16 tokens.
    assert "   6    3.25    6    1   100%    3.00    5    1    75%" in summary(view)
    assert coverage(view) == (
        "Tokens with a stamp: policy 100%, KV 75%, attended KV 100%. What is not known is grey, and in no mean."
    )
    for sequence in trained.sequences[:8]:
        if sequence.record:
            sequence.record = replace(sequence.record, kv_cache_epoch=EpochRuns.missing(sequence.length))
    assert "   6    3.25    6    1   100%       –    –    –     0%" in summary(view_of(trained, step=6))


def test_coverage_just_below_all_is_not_written_as_all():
    epochs = [1] * 999 + [None]
    view = view_of(run(rollout(0, epochs, [1] * 1000)))
    assert coverage(view).startswith("Tokens with a stamp: policy <100%, KV 100%,")


def test_two_runs_side_by_side(trained):
    first, second = view_of(trained, "a", step=6), view_of(trained, "b", step=7)
    found = {difference.name: difference.written for difference in differences(first, second)}
    assert found["mean_policy_staleness"] == ("3.250", "1", "−2.250")
    assert found["consumed_tokens"] == ("16", "8", "−8")
    assert found["dropped_rollouts"] == ("0", "1", "+1")
    assert found["mean_dropped_length"] == ("–", "4", "–")
    lines = comparison(first, second).splitlines()
    assert lines[:2] == ["first: a. Consumed by training step 6.", "second: b. Consumed by training step 7."]
    [line] = [line for line in lines if line.startswith("mean_policy_staleness")]
    assert line.split() == ["mean_policy_staleness", "3.250", "1", "−2.250"]


def validated(panels):
    """The figures as Plotly's own classes, which refuse a property that they do not know."""
    for panel in panels:
        go.Figure(data=panel.figure["data"], layout=panel.figure["layout"])
    return [panel.figure["data"] for panel in panels]


def test_lines_over_steps_lie_in_their_bands(trained):
    policy, kv, _ = validated(staleness_over_steps([view_of(trained)]))
    low, high, mean = policy
    assert (low["x"], low["y"], high["y"], mean["y"]) == ([6, 7], [1, 1], [6, 1], [3.25, 1])
    assert kv[2]["y"] == [2.75, 1]
    gap, evictions = validated(gap_and_events_over_steps([view_of(trained)]))  # nothing was preempted or recomputed
    assert gap[2]["y"] == [1, 1]
    assert (evictions[0]["x"], evictions[0]["y"]) == ([6, 7], [3, 0])


def test_histograms_count_tokens_and_rollouts(trained):
    view = view_of(trained, step=6)
    policy, *_ = validated(tokens_by_staleness([view]))
    # At step 6: 2 tokens of epoch 4, 2 + 4 of 5, 4 of 2, 4 of 0.
    assert (policy[0]["x"], policy[0]["y"]) == ([1, 2, 4, 6], [6 / 16, 2 / 16, 4 / 16, 4 / 16])
    assert policy[0]["hovertext"][0] == "1: 6 tokens, 37.5%"
    policy, *_ = validated(rollouts_by_average([view]))
    # Means 1.5, 4, 1 and 6; bins of 0.25, drawn at their middles.
    assert (policy[0]["x"], set(policy[0]["y"])) == ([1.125, 1.625, 4.125, 6.125], {0.25})
    [gap] = validated([rollouts_by_gap([view])])
    assert (gap[0]["x"], gap[0]["y"]) == ([0, 1, 3], [0.5, 0.25, 0.25])
    [happened] = validated([events([view])])
    assert (happened[0]["x"], happened[0]["y"]) == (["Evictions", "Preemptions", "Recomputes"], [3, 0, 0])


def test_unknown_tokens_are_a_grey_bar_apart(trained):
    first = trained.sequences[0]
    first.record = replace(first.record, kv_cache_epoch=EpochRuns.missing(5))
    _, kv, _ = validated(tokens_by_staleness([view_of(trained, step=6)]))
    assert kv[0]["y"] == [0.25, 0.25, 0.25, 0.25]  # 1, 3 and 5 steps, and not known
    assert kv[0]["x"][-1] > 6
    assert kv[0]["marker"]["color"] == ["#4c86c0"] * 3 + ["#bbbbbb"]


def test_a_kind_of_which_nothing_is_known_is_said_and_not_drawn(trained):
    for sequence in trained.sequences[:7]:
        sequence.record = replace(
            sequence.record,
            oldest_attended_kv_epoch=EpochRuns.missing(sequence.length),
            num_evictions=None,
            num_preemptions=None,
            num_recomputes=None,
        )
    view = view_of(trained)
    for panels in (staleness_over_steps([view]), tokens_by_staleness([view]), rollouts_by_average([view])):
        assert (panels[2].figure, panels[2].said) == (None, "not known")
    assert (events([view]).figure, events([view]).said) == (None, "not known")


def test_two_runs_are_drawn_in_two_styles(trained):
    views = [view_of(trained), view_of(trained, step=7)]
    lines = validated(staleness_over_steps(views))[0]
    assert [(line["line"]["dash"], line["marker"]["symbol"]) for line in lines if "dash" in line["line"]] == [
        ("solid", "circle"),
        ("dash", "diamond-open"),
    ]
    first, second = validated(tokens_by_staleness(views))[0]
    assert second["marker"]["color"] == "rgba(0,0,0,0)"  # hollow
    assert first["offset"] + first["width"] == pytest.approx(second["offset"])


def test_the_first_sequences_are_drawn_unless_others_are_asked_for(trained, tmp_path):
    view = view_of(run(*(rollout(index, 0, 0, tokens=1000) for index in range(30))))
    assert [sequence.index for sequence in chosen_sequences(view, None)] == list(range(12))  # 12,000 tokens
    assert [sequence.index for sequence in chosen_sequences(view, [17, 3])] == [3, 17]
    long = view_of(run(rollout(0, 0, 0, tokens=20_000), rollout(1, 0, 0)))
    assert [sequence.index for sequence in chosen_sequences(long, None)] == [0]
    write_views([long], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "20,000 tokens · policy 0 x 20000" in page
    assert "the first 12,000 are shown" in page
    with pytest.raises(ValueError, match="^no sequence 30; there are 2, 0 to 1$"):
        write_views([long], tmp_path / "report.html", show=[30])


def test_ten_thousand_rollouts_are_a_page_of_a_few_megabytes(tmp_path):
    sequences = [rollout(index, [index % 5] * 3 + [5], 5, gap_epoch=5) for index in range(10_000)]
    steps = [Step(6 + at, tuple(range(at, 10_000, 20))) for at in range(20)]
    write_html(run(*sequences, steps=steps), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
