"""The suite around its checks: names, the list, what is not claimed, time limits, and bad names of backends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from conformance.plain_backend import Plain
from typer.testing import CliRunner

from reference_impl.cli.main import app
from reference_impl.config.errors import ConfigError
from reference_impl.conformance.backends import find_backend
from reference_impl.conformance.report import listed
from reference_impl.conformance.suite import FEATURES, GROUPS, Check, all_checks, not_claimed, run_check, run_suite

TESTS = Path(__file__).parents[1]


def genref(*arguments: str) -> subprocess.CompletedProcess:
    """The command, in a folder in which `conformance.plain_backend` can be imported."""
    script = "from reference_impl.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", script, "conformance", *arguments],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=100,
    )


class Unclaimed(Plain):
    """Claims less than it does."""

    does_not_claim: ClassVar[dict[str, str]] = {"recompute": "has no cache"}


class TestChecks:
    def test_have_a_group_a_line_and_known_features(self):
        """A name says the group; a line of documentation says what is protected; features are the suite's."""
        checks = all_checks()
        assert len({check.name for check in checks}) == len(checks) >= 80
        for check in checks:
            assert check.name.partition("/")[0] in GROUPS
            assert "_" not in check.name
            assert check.protects and "\n" not in check.protects and check.protects.endswith("."), check.name
            assert set(check.needs) <= set(FEATURES)
        assert {need for check in checks for need in check.needs} == set(FEATURES)

    def test_are_chosen_by_pattern(self):
        """A shell pattern; one that matches nothing names what is near."""
        assert [check.name for check in all_checks("sampling/top-k-o*")] == [
            "sampling/top-k-off",
            "sampling/top-k-of-one",
        ]
        with pytest.raises(ConfigError, match="no check matches 'sampling/topk-off'; did you mean sampling/top-k-off"):
            all_checks("sampling/topk-off")

    def test_are_listed(self):
        """Name, what it protects, and the features that it is about."""
        text = listed(all_checks("invariance/evicted-*"))
        assert len(text.splitlines()) == 3
        assert text.splitlines()[0].startswith("invariance/evicted-as-alone")
        assert text.splitlines()[0].endswith("[eviction]")


class TestResults:
    def test_what_is_not_claimed_is_said_and_not_run(self):
        """With the backend's reason."""
        results = {result.check: result for result in run_suite(Unclaimed, "staleness/sleep-that-*")}
        assert results["staleness/sleep-that-persists"].outcome == "passed"
        assert results["staleness/sleep-that-recomputes"].outcome == "does not claim"
        assert results["staleness/sleep-that-recomputes"].why == "recompute: has no cache"

    def test_a_backend_without_the_attribute_claims_all(self):
        """And one that names no feature is told so."""
        assert not_claimed(type("Bare", (), {})) == {}
        with pytest.raises(ConfigError, match="Odd.does_not_claim: no feature 'evictions'; did you mean 'eviction'?"):
            not_claimed(type("Odd", (), {"does_not_claim": {"evictions": "none"}}))

    def test_a_check_that_hangs_has_failed(self):
        """Its thread is left behind; what comes after it runs."""
        hanging = Check("faults/hang", "Ends.", (), lambda lab: time.sleep(30))
        result = run_check(hanging, Plain, None, limit_s=0.2)
        assert (result.outcome, result.why) == ("failed", "not over after 0.2 s")

    def test_an_error_is_one_line(self):
        """Of whatever kind, with its name."""

        def breaks(lab):
            raise KeyError("a\nb")

        result = run_check(Check("faults/broken", "Ends.", (), breaks), Plain, None)
        assert (result.outcome, result.why) == ("failed", r"KeyError: 'a\nb'")

    def test_the_number_of_threads_is_as_before(self):
        """Checks run on one; the caller's setting comes back."""
        import torch

        before, seen = torch.get_num_threads(), []
        torch.set_num_threads(2)
        try:
            run_check(
                Check("faults/threads", "Ends.", (), lambda lab: seen.append(torch.get_num_threads())), Plain, None
            )
            assert (seen, torch.get_num_threads()) == ([1], 2)
        finally:
            torch.set_num_threads(before)


class TestBackendNames:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("megatrom", "no backend 'megatrom'; did you mean megatron?"),
            ("no_such_module:Backend", "cannot import no_such_module: ModuleNotFoundError: No module named 'no_such"),
            ("conformance.plain_backend:Plane", "no class Plane in conformance.plain_backend; did you mean Plain?"),
        ],
    )
    def test_that_are_not_there(self, name, message):
        """One line each."""
        with pytest.raises(ConfigError) as caught:
            find_backend(name)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_module_that_does_not_parse(self, tmp_path, monkeypatch):
        """Is somebody's own, and no reason for a traceback."""
        (tmp_path / "half_written.py").write_text("class Backend(:\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigError, match="cannot import half_written: SyntaxError"):
            find_backend("half_written:Backend")


class TestCommand:
    def test_prints_a_line_a_check_and_a_sum(self, tmp_path):
        """A class from the folder the command runs in; results also as JSON."""
        file = tmp_path / "results.json"
        done = genref("--backend", "conformance.plain_backend:Plain", "--checks", "stopping/t*", "--json", str(file))
        assert done.stdout.splitlines() == [
            "stopping/truncated-says-what-ended-it  passed",
            "stopping/truncated-by-the-context      passed",
            "2 checks: 2 passed, 0 failed, 0 not claimed",
        ]
        assert done.returncode == 0
        assert [(r["check"], r["outcome"], r["why"]) for r in json.loads(file.read_text())] == [
            ("stopping/truncated-says-what-ended-it", "passed", ""),
            ("stopping/truncated-by-the-context", "passed", ""),
        ]

    def test_a_failure_is_status_1_with_one_line_why(self):
        """What was found, and what was expected."""
        done = genref(
            "--backend", "conformance.faulty:TruncatedAtTheLimit", "--checks", "stopping/stop-string-at-the-limit"
        )
        assert done.stdout.splitlines() == [
            "stopping/stop-string-at-the-limit  failed          truncated: [True], expected [False]",
            "1 check: 0 passed, 1 failed, 0 not claimed",
        ]
        assert done.returncode == 1

    def test_an_unknown_backend_is_status_2(self):
        """One line on standard error."""
        done = genref("--backend", "hugingface")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == "genref: no backend 'hugingface'; did you mean huggingface?"

    def test_lists_without_a_backend(self):
        """And says what is missing when it is to run."""
        runner = CliRunner()
        listing = runner.invoke(app, ["conformance", "--list", "--checks", "company/*"]).stdout
        assert [each.split()[0] for each in listing.splitlines()] == [
            "company/batched-as-alone",
            "company/arriving-late",
            "company/more-than-fit",
            "company/nobody-starves",
        ]
        result = runner.invoke(app, ["conformance"])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == "--backend is missing: a registered name, or package.module:Class"


class TestPlugin:
    def session(self, folder: Path, *arguments: str) -> tuple[int, list[str]]:
        """A pytest run in a folder without tests of its own."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(folder),
                *arguments,
                str(folder),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.returncode, done.stdout.splitlines()

    @pytest.fixture
    def folder(self, tmp_path):
        """With pytest's own settings."""
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {TESTS}\naddopts = -p reference_impl.conformance.pytest_plugin\n"
        )
        return tmp_path

    def test_a_check_is_a_test(self, folder):
        """Of its name; what is not claimed is counted, and no test."""
        backend = "conformance.plain_backend:Plain"
        status, lines = self.session(
            folder, "-v", "--conformance-backend", backend, "--conformance-checks", "invariance/[be]*"
        )
        assert status == 0
        assert [line.split()[:2] for line in lines if "::" in line] == [
            ["conformance::invariance/block-size-does-not-matter", "PASSED"]
        ]
        assert f"{backend}: 1 checks, 3 not claimed" in lines
        assert "does not claim eviction: each request runs alone" in lines

    def test_a_failing_check_is_a_failing_test(self, folder):
        """With what it protects and what was found; `-k` picks among checks."""
        arguments = (
            "--conformance-backend",
            "conformance.faulty:TruncatedAtTheLimit",
            "-k",
            "stop-string-at-the-limit",
        )
        status, lines = self.session(folder, *arguments)
        assert status == 1
        assert "A stop string that the last token completes is a stop, no truncation." in lines
        assert "truncated: [True], expected [False]" in lines
        assert lines[-1].startswith("=") and "1 failed" in lines[-1]

    def test_an_unknown_backend_is_a_usage_error(self, folder):
        """In one line."""
        status, lines = self.session(folder, "--conformance-backend", "megatrom")
        assert status == 4, lines
