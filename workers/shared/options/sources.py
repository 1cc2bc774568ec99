"""Where values of options come from: flags first, then the environment, then a file, then the defaults."""

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NoReturn

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.options.declared import PREFIX, Option, S, build, options_of

CONFIG = "--config"
_NO_OPTIONS = ("ECHELON_CACHE", "ECHELON_LOG_FORMAT", "ECHELON_LOG_LEVEL")


@dataclass(frozen=True)
class Program(Generic[S]):
    """A command with options."""

    name: str  # as it is called: `echelon serve`
    text: str
    options: type[S]
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # flags of other programs, and what to use here


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    elsewhere: Mapping[str, str] = MappingProxyType({})

    def error(self, message: str) -> NoReturn:
        words = [word.partition("=")[0] for word in message.split()]
        known = [f"{word} is here {self.elsewhere[word]}" for word in words if word in self.elsewhere]
        self.exit(2, f"{'; '.join([f'{self.prog}: {message}', *known])}; see {self.prog} --help\n")


def read(program: Program[S], arguments: Sequence[str], environment: Mapping[str, str]) -> S:
    """The options of a call; raises `ConfigError` naming flag, variable or file and what is accepted.

    Leaves the process, as argparse does, for `--help` (0) and for flags that do not exist (2).
    """
    options = options_of(program.options)
    given = vars(_parser(program, options).parse_args(arguments))
    file = given.pop("config", None)
    values = {} if file is None else read_file(Path(file), options)
    values |= read_environment(environment, options)
    by_name = {option.name: option for option in options}
    earlier = {option.was: option for option in options if option.was}
    for name, raw in given.items():
        option = by_name.get(name) or earlier[name]
        if name in earlier:
            _warn(f"--{name.replace('_', '-')} is now {option.flag}")
        values[option.name] = option.convert(raw, option.flag)
    return build(program.options, values)


def read_file(path: Path, options: Sequence[Option]) -> dict[str, Any]:
    """Values by option name from a TOML or JSON file of `name = value`; raises `ConfigError` naming what is wrong."""
    values = {}
    by_name = {option.name: option for option in options} | {option.was: option for option in options if option.was}
    for key, raw in decode(path).items():
        name = key.replace("-", "_")
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{path}: {key} is no option here{hint}")
        option = by_name[name]
        values[option.name] = option.convert(raw, f"{path}: {key}")
    return values


def decode(path: Path) -> dict[str, Any]:
    """The table in a `.toml` file, or the object in any other, which is JSON; raises `ConfigError`."""
    decoder: Any = msgspec.toml if path.suffix == ".toml" else msgspec.json
    try:
        found: dict[str, Any] = decoder.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def read_environment(environment: Mapping[str, str], options: Sequence[Option]) -> dict[str, Any]:
    """Values by option name from variables such as ECHELON_MAX_MODEL_LEN; empty ones count as not there."""
    values = {}
    for option in options:
        raw = environment.get(option.variable, "")
        if option.variable == "ECHELON_PORT" and "://" in raw:
            raise ConfigError(
                f"ECHELON_PORT={raw} is what Kubernetes sets for a service called echelon: give the service another "
                f"name, or the pod enableServiceLinks: false"
            )
        if raw:
            values[option.name] = option.convert(raw, option.variable)
    return values


def without_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that gets all its options as flags."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX) or name in _NO_OPTIONS}


def _parser(program: Program[S], options: Sequence[Option]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program.name,
        usage=f"{program.name} {''.join(f'[{option.flag}] ' for option in options if option.place)}[OPTIONS]",
        description=program.text,
        epilog="Every option may also be set by a variable, such as ECHELON_STAGES=4, or in a file (--config); flags "
        "come before variables, and these before the file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.elsewhere = program.elsewhere
    parser.add_argument(CONFIG, metavar="FILE", help="TOML or JSON file of options: max_model_len = 4096")
    groups: dict[str, Any] = {}
    for option in options:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        _add(group, option)
    return parser


def _add(group: Any, option: Option) -> None:
    text = option.help.replace("%", "%%")
    names = [option.flag] + ([f"--{option.was.replace('_', '-')}"] if option.was else [])
    if option.place:
        group.add_argument(option.name, nargs="?", metavar=option.flag, help=text)
        return
    for number, name in enumerate(names):
        settings: dict[str, Any] = {"help": text if number == 0 else argparse.SUPPRESS}
        if option.switch:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["metavar"] = option.metavar or _metavar(option)
            if option.many:
                settings["action"] = "append"
        group.add_argument(name, dest=name[2:].replace("-", "_"), **settings)


def _metavar(option: Option) -> str:
    info = option.info
    if isinstance(info, msgspec.inspect.LiteralType):
        return "{" + ",".join(map(str, info.values)) + "}"
    if isinstance(info, msgspec.inspect.EnumType):
        return "{" + ",".join(map(str, info.cls)) + "}"
    if isinstance(info, msgspec.inspect.IntType):
        return "N"
    if isinstance(info, msgspec.inspect.FloatType):
        return "X"
    return "X,..." if option.many else "TEXT"


def _warn(text: str) -> None:
    sys.stderr.write(f"echelon: {text}\n")
