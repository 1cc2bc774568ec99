"""Grammars that the server makes: whatever a model writes under them is what was asked for."""

import dataclasses
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from server.errors import ApiError
from server.output.parts import CallPiece, Part, Reader, Text, merge, reasoning_of, text_of
from server.preparation.chat_model import ChatModel, ChatModels
from server.preparation.intent import ChatIntent
from server.preparation.template import ChatTemplate
from server.protocol.requests import ChatCompletionRequest
from server.structured_output.grammars import Restriction
from server.tokenizer import ModelTokenizer
from server.tool_parsers.dialects import DIALECTS, choose_dialect
from tests.small_model import EOS, SPECIAL, byte_level_tokenizer, write_model_folder
from workers.shared.errors import ConfigError
from workers.shared.grammar import GrammarMatcher, Grammars, permits

MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>")
ENDING = ('"', "}", ",", "</think>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
                "additionalProperties": False,
                "$defs": {"City": {"enum": ["the town", "the river"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "sleep", "description": "takes nothing"}},
]


@pytest.fixture(scope="module", params=[False, True], ids=["spelled", "special"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model_folder(tmp_path_factory.mktemp("model"))
    tokenizer = byte_level_tokenizer((*SPECIAL, *(MARKERS if request.param else ())))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def body(**fields: Any) -> ChatCompletionRequest:
    message = {"role": "user", "content": "x"}
    return ChatCompletionRequest.model_validate({"model": "m", "messages": [message]} | fields)


class Model:
    """Writes random tokens, as far as a grammar lets it."""

    def __init__(self, folder: Path, dialect: str | None = None, template: str = "") -> None:
        self.tokenizer = ModelTokenizer(folder)
        self.grammars = Grammars(folder)
        self.chat = ChatModel.of(ChatTemplate(template, {}), self.tokenizer, dialect)
        self._ending = {token for token in range(400) if self.tokenizer.token_text(token) in ENDING} | {EOS}

    def restriction(self, request: ChatCompletionRequest, prompt: str = "") -> Restriction | None:
        return self.intent(request).after(self._encode(prompt))[1]

    def intent(self, request: ChatCompletionRequest) -> ChatIntent:
        return ChatIntent.of(request, ChatModels({"default": self.chat}))

    def write(self, request: ChatCompletionRequest, seed: int, prompt: str = "", begin: str = "") -> list[Part]:
        """The parts of one answer that starts with `begin`, read as if nothing had restricted it."""
        reading, _ = dataclasses.replace(self.intent(request), calls=None).after(self._encode(prompt))
        reader, decode = reading.reader(), self.tokenizer.decode_keeping(reading.kept)
        tokens = self.tokens(request, seed, prompt, begin)
        return merge([*reader.push(decode(tokens)), *reader.flush()])

    def tokens(self, request: ChatCompletionRequest, seed: int, prompt: str = "", begin: str = "") -> list[int]:
        """One answer without its end token; the walk favours the end, so that it comes to one."""
        restriction = self.restriction(request, prompt)
        assert restriction is not None
        matcher, chance = GrammarMatcher(self.grammars, restriction.grammar), random.Random(seed)
        output = self._encode(begin)
        matcher.write(0, output)
        while not output or output[-1] != EOS:
            allowed = matcher.allowed()
            assert allowed is not None
            legal = [token for token in range(400) if allowed[token >> 3] >> (token & 7) & 1]
            assert legal
            ending = [token for token in legal if token in self._ending]
            token = chance.choice(ending if ending and chance.random() < 0.3 else legal)
            matcher.write(len(output), [token])
            output.append(token)
            assert len(output) < 500
        return output[:-1]

    def _encode(self, prompt: str) -> list[int]:
        return self.tokenizer.encode(prompt, add_special_tokens=False)


def read_whole(reader: Reader, text: str) -> list[Part]:
    return merge([*reader.push(text), *reader.flush()])


def called(parts: list[Part]) -> list[tuple[str, Any]]:
    calls = [part for part in parts if isinstance(part, CallPiece)]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    return [(str(call.name), json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_required_calls_are_calls_and_fit_their_schemas(folder: Path, dialect: str) -> None:
    model = Model(folder, dialect)
    request = body(tools=TOOLS, tool_choice="required")
    counts = set()
    for seed in range(12):
        parts = model.write(request, seed)
        assert text_of(parts) == ""
        calls = called(parts)
        counts.add(len(calls))
        for name, arguments in calls:
            assert name in ("get_weather", "sleep")
            if name == "get_weather":
                assert arguments["city"] in ("the town", "the river")
                assert isinstance(arguments["days"], int)
            else:
                assert arguments == {}
    assert min(counts) >= 1
    assert max(counts) > 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_required_call_that_is_cut_off_is_never_text(folder: Path, dialect: str) -> None:
    model = Model(folder, dialect)
    request = body(tools=TOOLS[:1], tool_choice="required")
    tokens = model.tokens(request, 3)
    reading, _ = model.intent(request).after([])
    decode = model.tokenizer.decode_keeping(reading.kept)
    whole = called(read_whole(reading.reader(), decode(tokens)))
    for cut in range(len(tokens)):
        text = decode(tokens[:cut])
        parts = read_whole(reading.reader(), text)
        assert text_of(parts) == ""
        calls = [part for part in parts if isinstance(part, CallPiece)]
        names = [call.name for call in calls]
        named = {"mistral_args": "get_weather[ARGS]", "harmony": "functions.get_weather <|constrain|>json<|message|>"}
        assert names == ["get_weather"] * text.count(named.get(dialect, '"get_weather"'))
        for call, (_, arguments) in zip(calls, whole, strict=False):
            assert json.dumps(arguments).startswith(call.arguments)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_named_tool_is_called_once(folder: Path, dialect: str) -> None:
    choice = {"type": "function", "function": {"name": "sleep"}}
    parts = Model(folder, dialect).write(body(tools=TOOLS, tool_choice=choice), 1)
    assert called(parts) == [("sleep", {})]


def test_a_schema_and_tools_leave_the_model_the_choice(folder: Path) -> None:
    model = Model(folder, "hermes")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema | {"additionalProperties": False}}}
    request = body(tools=TOOLS, response_format=named)
    answers = [model.write(request, seed) for seed in range(12)]
    texts = [text_of(parts) for parts in answers if not called(parts)]
    assert 0 < len(texts) < 12
    assert {json.loads(text)["a"] for text in texts} <= {True, False}


STRICT = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]
MIXED = [name for name, dialect in DIALECTS.items() if dialect.begins_with is not None]


@pytest.mark.parametrize("dialect", MIXED)
@pytest.mark.parametrize("thinks", [False, True])
def test_strict_calls_between_free_text_fit_their_schemas(folder: Path, dialect: str, thinks: bool) -> None:
    model = Model(folder, dialect, "<think> </think>" if thinks else "")
    thought, prompt = ("hm</think>\n", "<think>\n") if thinks else ("", "")
    marker = str(DIALECTS[dialect].begins_with)
    names = set()
    for seed in range(12):
        parts = model.write(body(tools=STRICT), seed, prompt, f"{thought}well {marker}")
        assert parts[0] == Text("well") or (thinks and parts[1] == Text("well"))
        assert called(parts)
        for name, arguments in called(parts):
            names.add(name)
            if name == "get_weather":
                assert arguments.keys() == {"city", "days"}
                assert arguments["city"] in ("the town", "the river")
                assert isinstance(arguments["days"], int)
            else:
                assert isinstance(arguments, dict)
        assert reasoning_of(parts) == ("hm" if thinks else "")
    assert names == {"get_weather", "sleep"}


@pytest.mark.parametrize("dialect", MIXED)
def test_text_beside_strict_tools_is_free(folder: Path, dialect: str) -> None:
    model = Model(folder, dialect)
    for text in ("", "a < b [T {1} <tool", '{"name": "get_weather", "arguments": {}}'):
        matcher = GrammarMatcher(model.grammars, str(getattr(model.restriction(body(tools=STRICT)), "grammar", None)))
        matcher.write(0, model.tokenizer.encode(text, add_special_tokens=False))
        allowed = matcher.allowed()
        assert allowed is not None
        assert permits(allowed, EOS)


def test_strict_is_refused_where_any_json_may_be_a_call(folder: Path) -> None:
    with pytest.raises(ApiError, match="'strict' of the function 'get_weather'") as caught:
        Model(folder, "llama3_json").restriction(body(tools=STRICT))
    assert caught.value.param == "tools"
    assert Model(folder, "llama3_json").restriction(body(tools=STRICT, tool_choice="required")) is not None


def test_reasoning_comes_before_a_restricted_answer(folder: Path) -> None:
    model = Model(folder, template="<think> </think>")
    request = body(guided_choice=["yes", 'no "quoted"', "é🙂/\n"])
    for seed, opened in itertools.product(range(4), (False, True)):
        prompt, begin = ("<think>\n", "hm</think>\n\n") if opened else ("", "<think>hm</think>")
        parts = model.write(request, seed, prompt, begin)
        assert text_of(parts) in ("yes", 'no "quoted"', "é🙂/\n")
        assert reasoning_of(parts) == "hm"


@pytest.mark.parametrize("pattern", [r"[ab]/\d\/x{2}", r"(?i)\w+\n?", "é|🙂"])
def test_a_regular_expression(folder: Path, pattern: str) -> None:
    text = text_of(Model(folder).write(body(guided_regex=pattern), 3))
    assert re.fullmatch(pattern, text)


def test_a_lark_grammar_and_spellings_of_json(folder: Path) -> None:
    model = Model(folder)
    assert text_of(model.write(body(guided_grammar='start: "a" ("b" | "c")'), 3)) in ("ab", "ac")
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    for fields in (
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
    ):
        assert text_of(model.write(body(**fields), 3)) == '{"a": 1}'
    for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        assert isinstance(json.loads(text_of(model.write(body(**fields), 4))), dict)


def test_a_free_answer_has_no_grammar(folder: Path) -> None:
    model = Model(folder)
    for fields in (
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
    ):
        assert model.restriction(body(**fields)) is None


def test_two_restrictions_are_refused(folder: Path) -> None:
    with pytest.raises(ApiError) as caught:
        Model(folder).restriction(body(guided_regex="a", guided_choice=["b"]))
    assert caught.value.param == "guided_choice"


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("{{ tools }} <tool_call>", [], ("hermes", True)),
        ("{{ tools }} [TOOL_CALLS]", [], ("mistral", True)),
        ("{{ tools }}", ["[TOOL_CALLS]", "[ARGS]"], ("mistral_args", True)),
        ("{{ tools }}", ["<|python_tag|>"], ("llama3_json", True)),
        ("{{ tools }} <|channel|>", ["<|channel|>"], ("harmony", True)),
        ("{{ tools }} <tool_call><function=", [], ("hermes", False)),
        ("{{ messages }}", [], ("hermes", False)),
    ],
)
def test_the_dialect_of_a_model(template: str, tokens: list[str], expected: tuple[str, bool]) -> None:
    dialect, native = choose_dialect(template, tokens, None)
    assert (dialect.name, native) == expected


def test_the_dialect_may_be_chosen_by_name() -> None:
    assert choose_dialect("", [], "mistral")[0].name == "mistral"
    with pytest.raises(ConfigError, match="--tool-call-parser"):
        choose_dialect("", [], "pirate")
