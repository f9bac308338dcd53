"""The commands of `genref` as pages speak of them, read from the application itself, which loads no heavy library."""

import inspect
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from schema_keys import UnknownNameError, did_you_mean

from reference_impl.cli.main import app

PROGRAM = "genref"


@dataclass(frozen=True)
class Option:
    """An option or argument of a command: the spellings, what a value looks like, default and help as a page shows them."""

    names: tuple[str, ...]
    value: str
    default: str
    help: str
    is_argument: bool

    @property
    def takes_value(self) -> bool:
        """Whether a word follows the option."""
        return bool(self.value)


@dataclass(frozen=True)
class Command:
    """A command by its full name (`genref bench update`), its one line of help, and its options in their order.

    `files` are those that define it.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    is_group: bool
    files: tuple[str, ...] = ()

    def option(self, name: str) -> Option | None:
        """The option that is spelt so."""
        return next((option for option in self.options if name in option.names), None)


def commands_of(application: typer.Typer, program: str = PROGRAM) -> dict[str, Command]:
    """Every command by its full name, the program itself first."""
    return {command.name: command for command in _walk(typer.main.get_command(application), program)}


def _walk(command: Any, name: str) -> Iterator[Command]:
    inside = getattr(command, "commands", None)
    first_line = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
    options = tuple(_option(parameter) for parameter in command.params)
    yield Command(name, first_line, options, inside is not None, _files(command.callback))
    for part, below in (inside or {}).items():
        yield from _walk(below, f"{name} {part}")


def _files(callback: Any) -> tuple[str, ...]:
    function = inspect.unwrap(callback) if callback else None
    return (inspect.getfile(function),) if function else ()


def _option(parameter: Any) -> Option:
    is_argument = parameter.param_type_name == "argument"
    is_flag = getattr(parameter, "is_flag", False)
    shown = parameter.metavar or (parameter.name.upper() if is_argument else _kind(parameter))
    default = "" if is_flag or parameter.default is None else str(parameter.default)
    names = (shown,) if is_argument else (*parameter.opts, *parameter.secondary_opts)
    return Option(names, "" if is_flag or is_argument else shown, default, parameter.help or "", is_argument)


def _kind(parameter: Any) -> str:
    """What stands for the value of an option: `--step INTEGER`."""
    kind = parameter.type_descriptor.annotation
    inner = getattr(kind, "__args__", (kind,))[0]
    return {int: "INTEGER", float: "NUMBER", str: "TEXT"}.get(inner, getattr(inner, "__name__", "VALUE").upper())


COMMANDS = commands_of(app)
"""Every command of `genref`."""


@dataclass(frozen=True)
class Mention:
    """What a page says of the command line: a command, and its options that are named."""

    command: Command
    options: tuple[Option, ...]


def find_command(text: str, commands: dict[str, Command] | None = None) -> Mention:
    """Read a command line such as `genref lint --fix FILE`; raises {class}`UnknownNameError` for what is not there."""
    commands = COMMANDS if commands is None else commands
    words = shlex.split(text)
    name = words[0] if words else ""
    if name not in commands:
        raise UnknownNameError(f"unknown command {text!r}: it begins with {PROGRAM}")
    rest = words[1:]
    while rest and commands[name].is_group and not rest[0].startswith("-"):
        if f"{name} {rest[0]}" not in commands:
            raise UnknownNameError(f"unknown command {text!r}{did_you_mean(f'{name} {rest[0]}', list(commands))}")
        name = f"{name} {rest.pop(0)}"
    return Mention(commands[name], tuple(_mentioned(commands[name], rest)))


def _mentioned(command: Command, words: list[str]) -> Iterator[Option]:
    takes_arguments = any(option.is_argument for option in command.options)
    value_follows = False
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("-") or word == "-":
            if not (value_follows or takes_arguments):
                raise UnknownNameError(f"{command.name} takes no argument, got {word!r}")
            value_follows = False
            continue
        option = command.option(name)
        if option is None and name != "--help":
            known = [spelling for option in command.options for spelling in option.names]
            raise UnknownNameError(f"unknown option {name!r} of {command.name}{did_you_mean(name, known)}")
        if option is not None:
            value_follows = option.takes_value and "=" not in word
            yield option
