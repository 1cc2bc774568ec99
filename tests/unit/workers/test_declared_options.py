"""An option is declared once; flags, variables and files give the same value, and bad ones are named."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from workers.shared.errors import ConfigError
from workers.shared.options.declared import AtLeastOne, Share, about, flags, options_of, within
from workers.shared.options.sources import Program, read


class Inner(Struct, frozen=True):
    ms: Annotated[float, about("B", "Time")] = 0.0


class Options(Struct, frozen=True, kw_only=True):
    model: Annotated[str, about("A", "Which", place=True)] = "default"
    count: Annotated[AtLeastOne, about("A", "How many", was="number")] = 2
    limit: Annotated[AtLeastOne | None, about("A", "At most")] = None
    kind: Annotated[Literal["auto"] | Literal["x", "y"], about("A", "Which way")] = "auto"
    loud: Annotated[bool, about("A", "Say more", name="very_loud")] = False
    share: Annotated[Share, about("A", "Part")] = 0.5
    sizes: Annotated[tuple[int, ...], about("A", "Sizes")] = ()
    splits: Annotated[tuple[tuple[int, ...], ...], about("A", "Splits")] = ()
    inner: Annotated[Inner, within("emulate_")] = Inner()
    other: int = 7  # no option


PROGRAM = Program("try", "A try.", Options)


def given_as(arguments: list[str], **environment: str) -> Options:
    return read(PROGRAM, arguments, environment)


def test_flags_come_before_variables_before_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('count = 3\nlimit = 30\nkind = "x"\nsizes = [1, 2]\nvery-loud = true\nsplits = [[1, 2], [3]]\n')
    arguments = ["--config", str(file), "--kind", "y", "--no-very-loud"]
    found = given_as(arguments, ECHELON_LIMIT="40", ECHELON_KIND="auto")
    assert found == Options(count=3, limit=40, kind="y", sizes=(1, 2), splits=((1, 2), (3,)))
    json = tmp_path / "options.json"
    json.write_text('{"emulate_ms": 2.5, "model": "m"}')
    assert given_as(["--config", str(json)]) == Options(inner=Inner(2.5), model="m")


def test_lists_may_be_separated_by_commas_or_given_several_times() -> None:
    assert given_as(["--sizes", "1,2", "--sizes", "3", "--splits", "1,2", "--splits", "3"]) == Options(
        sizes=(1, 2, 3), splits=((1, 2), (3,))
    )
    assert given_as([], ECHELON_SIZES=" 4, 5,").sizes == (4, 5)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--count", "0"], {}, "--count 0: must be a whole number, at least 1"),
        (["--count", "two"], {}, "--count two: must be a whole number"),
        (["--share", "1.5"], {}, "--share 1.5: must be a number, 0 to 1"),
        (["--kind", "z"], {}, "--kind z: must be one of auto, x, y"),
        (["--sizes", "1,b"], {}, "--sizes 1,b: must be a list, each a whole number"),
        ([], {"ECHELON_VERY_LOUD": "maybe"}, "ECHELON_VERY_LOUD maybe: must be true or false"),
    ],
)
def test_a_bad_value_is_named_with_what_is_accepted(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        given_as(arguments, **environment)


@pytest.mark.parametrize(
    ("content", "message"),
    [("cuont = 1", "cuont is no option here; did you mean count?"), ("count = 0", "count 0: must be"), ("=", "toml")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "options.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"options\.toml") as caught:
        given_as(["--config", str(file)])
    assert message in str(caught.value)


def test_an_earlier_name_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert given_as(["--number", "5"]).count == 5
    assert "--number is now --count" in capsys.readouterr().err


def test_what_is_missing_is_named() -> None:
    class Needs(Struct, frozen=True, kw_only=True):
        prompts: Annotated[str, about("A", "Folder of prompts")]

    with pytest.raises(ConfigError, match="--prompts is missing: Folder of prompts"):
        read(Program("try", "", Needs), [], {})


def test_help_tells_types_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        given_as(["--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: try [MODEL] [OPTIONS]" in text
    assert "--count N How many [default: 2]" in text
    assert "--number" not in text


def test_a_flag_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        given_as(["--nothing"])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


words = st.text(alphabet="abz/.", min_size=1, max_size=5)


@given(
    st.builds(
        Options,
        model=words,
        count=st.integers(1, 10**9),
        limit=st.none() | st.integers(1, 9),
        kind=st.sampled_from(["auto", "x", "y"]),
        loud=st.booleans(),
        share=st.floats(0, 1).map(lambda share: round(share, 5)),
        sizes=st.lists(st.integers(0, 99)).map(tuple),
        inner=st.builds(Inner, ms=st.integers(0, 100).map(float)),
    )
)
def test_the_flags_of_options_give_them_again(options: Options) -> None:
    assert given_as(flags(options)) == options


def test_only_what_is_declared_is_an_option() -> None:
    names = [option.name for option in options_of(Options)]
    assert names == ["model", "count", "limit", "kind", "very_loud", "share", "sizes", "splits", "emulate_ms"]
    without: Any = msgspec.defstruct("Outer", [("o", Annotated[Options, within(without=("model", "kind"))], Options())])
    assert [option.name for option in options_of(without)] == [name for name in names if name not in ("model", "kind")]
