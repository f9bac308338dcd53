"""`genref conformance`: hold a generation backend to the contract, check by check."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.config.errors import ConfigError

FAILED = 1


def conformance(
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME|package.module:Class", help="The backend's registered name, or its class."),
    ] = None,
    checks: Annotated[
        str, typer.Option(metavar="PATTERN", help="Run the checks whose names match, such as 'staleness/*'.")
    ] = "*",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="List the checks and run none.")] = False,
) -> None:
    """Hold a backend to the contract, and print a line a check.

    Exit status 1 if a check failed.
    """
    quiet_upstream()
    from reference_impl.conformance.backends import find_backend
    from reference_impl.conformance.report import as_json, line, listed, summary
    from reference_impl.conformance.suite import all_checks, run_suite

    chosen = all_checks(checks)
    if only_list:
        print(listed(chosen))
        return
    if backend is None:
        raise ConfigError("--backend is missing: a registered name, or package.module:Class")
    sys.path.insert(0, os.getcwd())  # a module of the user's lies where the command is run
    found, results = find_backend(backend), []
    width = max(len(check.name) for check in chosen)
    for result in run_suite(found, checks):
        print(line(result, width), flush=True)
        results.append(result)
    print(summary(results))
    if json_file:
        json_file.write_text(as_json(results) + "\n", encoding="utf-8")
    if any(result.outcome == "failed" for result in results):
        raise typer.Exit(FAILED)
