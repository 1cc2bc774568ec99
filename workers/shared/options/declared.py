"""What an option is: a field of a msgspec struct that `about` describes. Everything else is made from that field.

    threads: Annotated[AtLeastOne, about("Pipeline", "CPU threads a stage")] = 1

is `--threads` on the command line, `threads` in a configuration file, `ECHELON_THREADS` in the environment, a line of
`--help` and one of docs/options.md. The field's type says what is accepted, its default what holds otherwise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, inspect

from workers.shared.errors import ConfigError

AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Milliseconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]

S = TypeVar("S", bound=msgspec.Struct)

PREFIX = "ECHELON_"


def about(
    group: str, text: str, *, name: str = "", was: str = "", default: str = "", metavar: str = "", place: bool = False
) -> Meta:
    """Makes a field an option.

    `name` is the option's where the field has another one, `was` an earlier one that still works, `default` what
    holds where the field's default does not tell, `place` an argument without a flag.
    """
    extra = {"group": group, "name": name, "was": was, "default": default, "metavar": metavar, "place": place}
    return Meta(description=text, extra=extra)


def within(prefix: str = "", without: tuple[str, ...] = ()) -> Meta:
    """Makes the fields of a struct inside a struct options, named with a prefix, but for those named in `without`."""
    return Meta(extra={"prefix": prefix, "without": without})


@dataclass(frozen=True)
class Option:
    """One option as a program sees it."""

    name: str  # as in files: lower case, with underscores
    path: tuple[str, ...]  # of fields, from the outermost struct
    type: Any
    default: Any  # msgspec.NODEFAULT: must be given
    text: str
    group: str
    was: str
    default_text: str
    metavar: str
    place: bool

    @property
    def flag(self) -> str:
        """As on the command line."""
        return self.name.upper() if self.place else f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """As in the environment."""
        return PREFIX + self.name.upper()

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is msgspec.NODEFAULT

    @property
    def info(self) -> inspect.Type:
        """What it accepts, beside nothing."""
        return _without_none(inspect.type_info(self.type))

    @property
    def many(self) -> bool:
        """Whether it is a list: separated by commas, or given several times."""
        return isinstance(self.info, inspect.VarTupleType)

    @property
    def switch(self) -> bool:
        """Whether it is on or off."""
        return isinstance(self.info, inspect.BoolType)

    @property
    def accepts(self) -> str:
        """What it accepts, in words."""
        return describe(self.info)

    @property
    def help(self) -> str:
        """Its text and its default."""
        default = self.default_text
        if not default and self.default not in (None, (), "", msgspec.NODEFAULT) and not self.switch:
            default = _spelled(self.default)
        return f"{self.text} [default: {default}]" if default else self.text

    def convert(self, raw: Any, source: str) -> Any:
        """The value of `raw`, a text or what a file holds; raises `ConfigError` that begins with `source`."""
        try:
            if self.many:
                raw = _list(raw, nested=isinstance(_item(self.info), inspect.VarTupleType))
            value = msgspec.convert(raw, self.type, strict=False, dec_hook=_path)
            if not all(map(math.isfinite, _floats(value))):
                raise ValueError("not finite")
            return value
        except ValueError:  # msgspec's own errors are that, too
            shown = raw if isinstance(raw, str) else _spelled(raw)
            raise ConfigError(f"{source} {shown}: must be {self.accepts}") from None


def options_of(struct: type[msgspec.Struct], prefix: str = "", path: tuple[str, ...] = ()) -> list[Option]:
    """Every option that `struct` declares, itself or in structs within, in order."""
    found = []
    base = set(getattr(struct.__base__, "__struct_fields__", ()))
    for field in sorted(msgspec.structs.fields(struct), key=lambda field: field.name in base):  # its own ones first
        extra, text = _annotation(field.type)
        if "prefix" in extra:
            inner = options_of(_struct(field.type), prefix + extra["prefix"], (*path, field.name))
            found += [option for option in inner if option.name not in extra["without"]]
        elif "group" in extra:
            default = field.default
            if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            found.append(
                Option(
                    prefix + (extra["name"] or field.name),
                    (*path, field.name),
                    field.type,
                    default,
                    text,
                    extra["group"],
                    extra["was"],
                    extra["default"],
                    extra["metavar"],
                    extra["place"],
                )
            )
    return sorted(found, key=lambda option: not option.place)


def build(struct: type[S], values: Mapping[str, Any]) -> S:
    """`struct` with converted `values` by option name; the rest are defaults. Raises `ConfigError` for what lacks."""
    tree: dict[str, Any] = {}
    for option in options_of(struct):
        if option.name in values:
            inner = tree
            for name in option.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[option.path[-1]] = values[option.name]
        elif option.required:
            raise ConfigError(f"{option.flag} is missing: {option.text}")
    return _make(struct, tree)


def given(struct: msgspec.Struct) -> dict[str, Any]:
    """The options of `struct` whose values are not their defaults, by name."""
    found = {}
    for option in options_of(type(struct)):
        value: Any = struct
        for name in option.path:
            value = getattr(value, name)
        if value != option.default:
            found[option.name] = value
    return found


def flags(struct: msgspec.Struct) -> list[str]:
    """The command line that gives `struct`: flags of whatever is not a default."""
    options = {option.name: option for option in options_of(type(struct))}
    words: list[str] = []
    for name, value in given(struct).items():
        option = options[name]
        if option.switch:
            words.append(option.flag if value else f"--no-{option.flag[2:]}")
        else:
            words += [_spelled(value)] if option.place else [option.flag, _spelled(value)]
    return words


def describe(info: inspect.Type) -> str:
    """What a type accepts, in words."""
    if isinstance(info, inspect.UnionType):
        return ", or ".join(map(describe, info.types))
    if isinstance(info, inspect.BoolType):
        return "true or false"
    if isinstance(info, inspect.LiteralType):
        return f"one of {', '.join(map(str, info.values))}"
    if isinstance(info, inspect.EnumType):
        return f"one of {', '.join(map(str, info.cls))}"
    if isinstance(info, inspect.VarTupleType):
        item = _item(info)
        words = f"[{describe(item)}]" if isinstance(item, inspect.VarTupleType) else describe(item)
        return f"a list, each {words}"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        words = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        if info.ge is not None and info.le is not None:
            return f"{words}, {info.ge:g} to {info.le:g}"
        if info.ge is not None:
            return f"{words}, at least {info.ge:g}"
        return f"{words}, more than {info.gt:g}" if info.gt is not None else words
    return "a path" if isinstance(info, inspect.CustomType) else "a text"


def _make(struct: type[S], tree: Mapping[str, Any]) -> S:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    values = {
        name: _make(_struct(fields[name].type), value) if isinstance(value, dict) else value
        for name, value in tree.items()
    }
    return struct(**values)


def _annotation(type_: Any) -> tuple[Mapping[str, Any], str]:
    """What `about` or `within` said of a field."""
    if get_origin(type_) is Annotated:
        for meta in reversed(get_args(type_)[1:]):
            if isinstance(meta, Meta) and meta.extra:
                return meta.extra, meta.description or ""
    return {}, ""


def _struct(type_: Any) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = get_args(type_)[0]
    return struct


def _without_none(info: inspect.Type) -> inspect.Type:
    while True:
        if isinstance(info, inspect.Metadata):
            info = info.type
        elif isinstance(info, inspect.UnionType):
            kinds = [_without_none(kind) for kind in info.types if not isinstance(kind, inspect.NoneType)]
            if len(kinds) > 1 and all(isinstance(kind, inspect.LiteralType) for kind in kinds):
                return inspect.LiteralType(tuple(value for kind in kinds for value in kind.values))  # type: ignore[attr-defined]
            if len(kinds) > 1:
                return inspect.UnionType(tuple(kinds))
            info = kinds[0]
        else:
            return info


def _item(info: inspect.Type) -> inspect.Type:
    assert isinstance(info, inspect.VarTupleType)
    return _without_none(info.item_type)


def _list(raw: Any, *, nested: bool) -> Any:
    """A list of what was separated by commas, or was given several times; one list for each time where `nested`."""
    if isinstance(raw, str):
        parts = [part.strip() for part in raw.strip().rstrip(",").split(",")] if raw.strip() else []
        return [parts] if nested else parts
    if isinstance(raw, list) and nested:
        return [_list(part, nested=False) for part in raw]
    if isinstance(raw, list) and all(isinstance(part, str) for part in raw):
        return [part for text in raw for part in _list(text, nested=False)]
    return raw


def _path(type_: type[Any], value: Any) -> Any:
    """A path, the only type here that files have no word for."""
    if not isinstance(value, str) or not value:
        raise ValueError("no path")
    return type_(value)


def _floats(value: Any) -> list[float]:
    if isinstance(value, tuple):
        return [number for part in value for number in _floats(part)]
    return [value] if isinstance(value, float) else []


def _spelled(value: Any) -> str:
    """A value as one writes it after a flag."""
    if isinstance(value, list | tuple):
        return ",".join(map(_spelled, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
