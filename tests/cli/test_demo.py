"""`genref demo` on the model that starts at once."""

from __future__ import annotations

import signal

from reference_impl.staleness.runs import RunWriter, read_run


def policies(run) -> list[int]:
    """Policy epochs that each sequence's generated tokens carry."""
    return [len(record.generated_policy.runs) for record in run.sequences]


def test_the_demo_shows_sequences_sampled_across_two_updates(genref, tmp_path):
    result = genref("demo", "--model", "tiny", "--run-folder", "shown")
    assert (result.status, result.err) == (0, "")
    run = read_run(tmp_path / "shown")
    assert [update["epoch"] for update in run.updates] == [1, 2]
    assert sum(count >= 2 for count in policies(run)) >= 2
    assert result.out.endswith("run:    shown/run.jsonl\nreport: shown/report.html\n")
    assert "2 weight updates; 8 of 8 answers carry more than one policy epoch" in result.out
    page = (tmp_path / "shown" / "report.html").read_text(encoding="utf-8")
    assert all(record.prompt.split()[0] in page for record in run.sequences)


def test_an_interrupted_demo_reports_what_there_is(genref, tmp_path, monkeypatch):
    update = RunWriter.update

    def update_and_interrupt(self, **what):
        update(self, **what)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunWriter, "update", update_and_interrupt)
    result = genref("demo", "--model", "tiny", "--run-folder", "cut", "--update-every", "80")
    assert (result.status, result.err) == (130, "genref: interrupted; the run folder holds what was generated\n")
    run = read_run(tmp_path / "cut")
    # The update came at 80 tokens, ten for each of 8 sequences, and Ctrl-C is looked at after the next step.
    assert [(record.error, len(record.token_ids)) for record in run.sequences] == [("interrupted", 11)] * 8
    assert policies(run) == [2] * 8
    assert "ended early: interrupted" in result.out
    assert "Ended early: interrupted" in (tmp_path / "cut" / "report.html").read_text(encoding="utf-8")


def test_another_backend_is_held_to_megatrons_engine(genref, tmp_path):
    """Two updates move eight answers' stamps: Megatron calls the last token before each one epoch too new, 16 in all."""
    result = genref("demo", "--model", "tiny", "--backend", "reference", "--run-folder", "both")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert "beside Megatron's engine: 8 of 8 answers and 8 of 8 exact records agree" in lines
    assert any(line.startswith("its own policy stamps differ from ours for 16 of ") for line in lines)
    assert any(line.startswith("its own KV stamps agree with ours for all ") for line in lines)
    assert len(read_run(tmp_path / "both" / "megatron").sequences) == 8
