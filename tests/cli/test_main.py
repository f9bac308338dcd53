"""The command line around the commands: help, version, and a start that waits for no heavy library."""

from __future__ import annotations

import io
import subprocess
import sys

from reference_impl import __version__
from reference_impl.cli.streams import accept_any_text


def test_help_and_version(genref):
    assert genref("--version").out == f"{__version__}\n"
    assert genref("--help").out.startswith("Usage: genref ")
    assert "blank lines are" in genref("generate", "--help").out
    assert genref("demo", "--help").status == 0


def test_without_arguments_the_help_is_shown(genref):
    result = genref()
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("Usage: genref ")


def test_help_loads_no_heavy_library():
    script = """
import sys
from reference_impl.cli.main import run
sys.argv = ["genref", "generate", "--help"]
try:
    run()
finally:
    print(*{"torch", "transformers", "megatron", "numpy", "plotly"} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--max-new-tokens" in done.stdout
    assert done.stderr == "\n"


def test_an_encoding_that_lacks_a_character_does_not_end_a_run(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    accept_any_text()
    print("é", flush=True)
    assert raw.getvalue() == b"?\n"


def test_a_command_that_needs_the_engine_says_how_to_install_it():
    """The light installation has no torch; reading, reporting and helping work without it."""
    script = """
import sys
from reference_impl.cli.main import run
sys.modules["torch"] = None
sys.argv = ["genref", "generate", "--prompt", "hello"]
run()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "genref: this command needs torch; pip install 'megatron-generation-reference[megatron]' brings it\n"
    )
