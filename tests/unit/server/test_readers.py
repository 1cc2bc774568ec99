"""Tool calls and reasoning: however the stream is cut, what a look at the whole text finds."""

import itertools
import json
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.output.parts import CallPiece, Part, PlainReader, Reader, Reasoning, Text, merge, reasoning_of, text_of
from server.output.reasoning_parser import ReasoningReader
from server.tool_parsers.harmony import HarmonyReader
from server.tool_parsers.hermes import HermesReader
from server.tool_parsers.llama3 import Llama3Reader
from server.tool_parsers.mistral import MistralReader


def ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


READERS: dict[str, Callable[[], Reader]] = {
    "hermes": lambda: HermesReader(ids()),
    "llama3": lambda: Llama3Reader(ids()),
    "mistral": lambda: MistralReader(ids()),
    "harmony": lambda: HarmonyReader(ids()),
    "single": lambda: HermesReader(ids(), single=True),
    "reasoning": lambda: ReasoningReader(HermesReader(ids()), inside=False),
    "inside": lambda: ReasoningReader(PlainReader(), inside=True),
}


def read(reader: Reader, pieces: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.push(piece)
    return merge([*parts, *reader.flush()])


def cut(text: str, places: Sequence[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(marks)]


fragments = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>"),
            *(
                "<|channel|>",
                "<|message|>",
                "<|end|>",
                "<|start|>assistant",
                " to=functions.f",
                "analysis",
                "final",
                "<|",
            ),
            *("<tool", "</", "<", "[TOOL_", "<|py", "</thi", "{", "}", "[", "]", '"', "\\", ":", ",", ";", "\n", " "),
            *('{"name": "f", ', '"arguments": {"a": "}"}', '"parameters": {"b": [1, "]"]}', '"name":"g"', "12", "é🙂"),
        ]
    ),
    max_size=24,
).map("".join)


@pytest.mark.parametrize("name", READERS)
@given(text=fragments, places=st.lists(st.integers(0, 500), max_size=12))
def test_the_cutting_does_not_matter(name: str, text: str, places: list[int]) -> None:
    whole = read(READERS[name](), [text])
    assert read(READERS[name](), cut(text, places)) == whole
    assert read(READERS[name](), list(text)) == whole


plain = st.text("ab é🙂<>{}[]\"'\n", max_size=12)
values = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.text('a"\\{}[]</ é', max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)),
    max_leaves=6,
)
arguments = st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["f", "get_weather"]), arguments), min_size=1, max_size=3)


def found(parts: list[Part]) -> list[tuple[str, object]]:
    joined: dict[int, tuple[str, str]] = {}
    for part in parts:
        if isinstance(part, CallPiece):
            name, text = joined.get(part.index, ("", ""))
            joined[part.index] = (name + (part.name or ""), text + part.arguments)
    assert list(joined) == list(range(len(joined)))
    return [(name, json.loads(text)) for name, text in joined.values()]


@given(before=plain, expected=calls, after=plain, order=st.booleans(), indent=st.sampled_from([None, 2]))
def test_hermes_finds_what_a_look_at_the_whole_text_finds(
    before: str, expected: list[tuple[str, object]], after: str, order: bool, indent: int | None
) -> None:
    bodies = [{"name": name, "arguments": given} for name, given in expected]
    if order:
        bodies = [dict(reversed(body.items())) for body in bodies]
    blocks = [f"<tool_call>\n{json.dumps(body, indent=indent)}\n</tool_call>" for body in bodies]
    parts = read(HermesReader(ids()), [before + "\n".join(blocks) + after])
    assert found(parts) == expected
    assert text_of(parts) == before.rstrip() + after.rstrip()


@given(expected=calls, key=st.sampled_from(["parameters", "arguments"]), separator=st.sampled_from(["; ", ";", "\n"]))
def test_llama3_finds_its_calls(expected: list[tuple[str, object]], key: str, separator: str) -> None:
    text = separator.join(json.dumps({"name": name, key: given}) for name, given in expected)
    for prefix in ("", "<|python_tag|>", "\n"):
        parts = read(Llama3Reader(ids()), [prefix + text])
        assert (found(parts), text_of(parts)) == (expected, "")


@given(before=plain, expected=calls, ended=st.booleans())
def test_mistral_finds_its_calls_in_both_notations(
    before: str, expected: list[tuple[str, object]], ended: bool
) -> None:
    listed = json.dumps([{"name": name, "arguments": given} for name, given in expected])
    parts = read(MistralReader(ids()), [f"{before}[TOOL_CALLS] {listed}{'</s>' if ended else ''}"])
    assert (found(parts), text_of(parts)) == (expected, before.rstrip())
    spelled = "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in expected)
    parts = read(MistralReader(ids()), [before + spelled])
    assert (found(parts), text_of(parts)) == (expected, before.rstrip())


messages = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["analysis", "final", "commentary"]), plain),
        st.tuples(st.just("commentary to=functions.get_weather <|constrain|>json"), arguments.map(json.dumps)),
        st.tuples(st.just("to=functions.f"), arguments.map(json.dumps)),
    ),
    min_size=1,
    max_size=4,
)


@given(messages)
def test_harmony_tells_channels_apart(written: list[tuple[str, str]]) -> None:
    heads = [f" {head}<|channel|>commentary" if head.startswith("to=") else f"<|channel|>{head}" for head, _ in written]
    blocks = [f"{head}<|message|>{body}" for head, (_, body) in zip(heads, written, strict=True)]
    parts = read(HarmonyReader(ids()), ["<|end|><|start|>assistant".join(blocks)])
    called = [(head, body) for head, body in written if "functions" in head]
    assert found(parts) == [
        ("f" if head == "to=functions.f" else "get_weather", json.loads(body)) for head, body in called
    ]
    assert reasoning_of(parts) == "".join(body for head, body in written if head == "analysis")
    assert text_of(parts) == "".join(body for head, body in written if head in ("final", "commentary"))


def test_harmony_without_channels_is_text() -> None:
    for text in ('{"a": 1}', "Hello <|", " too", "<|x"):
        assert read(HarmonyReader(ids()), [text]) == [Text(text)]
    assert read(HarmonyReader(ids()), ["<|channel|>analysis<|mess"]) == []
    single = HarmonyReader(ids(), single=True)
    assert found(read(single, [" to=functions.f<|message|>{}<|call|><|start|>assistant"])) == [("f", {})]
    assert single.finished


def test_arguments_arrive_as_they_are_written() -> None:
    reader = HermesReader(ids())
    assert reader.push('Well. <tool_call>{"name": "f", "arg') == [Text("Well.")]
    assert reader.push('uments": {"a": ') == [CallPiece(0, '{"a": ', "call_0", "f")]
    assert reader.push("1}}</tool_call>\n") == [CallPiece(0, "1}")]
    assert reader.flush() == []


def test_a_string_that_holds_the_arguments_is_unpacked() -> None:
    text = json.dumps({"name": "f", "arguments": json.dumps({"a": 1})})
    assert found(read(HermesReader(ids()), [f"<tool_call>{text}</tool_call>"])) == [("f", {"a": 1})]


@pytest.mark.parametrize(
    "text", ["<tool_call>no json</tool_call> then", '<tool_call>{"name": 5}</tool_call>', "<tool_"]
)
def test_a_block_without_a_call_is_text(text: str) -> None:
    assert read(HermesReader(ids()), [text]) == [Text(text)]


def test_a_call_that_breaks_off_is_a_call() -> None:
    parts = read(HermesReader(ids()), ['<tool_call>{"name": "f", "arguments": {"a": "unfin'])
    assert parts == [CallPiece(0, '{"a": "unfin', "call_0", "f")]


def test_a_json_answer_of_llama3_that_is_no_call_is_text() -> None:
    for text in ('{"name": "Bob", "age": 5}', '{"answer": [1, 2]}', "Hi {x}", '{"name": "x"'):
        assert read(Llama3Reader(ids()), [text]) == [Text(text)]


def test_one_call_may_end_the_answer() -> None:
    block = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = HermesReader(ids(), single=True)
    assert found(read(reader, [block + block])) == [("f", {})]
    assert reader.finished


@given(
    thought=st.text("ab <é\n", max_size=12),
    answer=st.text("ab <é\n", max_size=12),
    opened=st.booleans(),
    gap=st.sampled_from(["", "\n\n"]),
)
def test_reasoning(thought: str, answer: str, opened: bool, gap: str) -> None:
    written = ("" if opened else "<think>\n") + thought + "</think>" + gap + answer
    parts = read(ReasoningReader(PlainReader(), inside=opened), [written])
    pattern = re.fullmatch(r"(?:<think>)?\s*(.*?)\s*</think>\s*(.*)", written, re.DOTALL)
    assert pattern is not None
    assert (reasoning_of(parts), text_of(parts)) == (pattern[1], pattern[2])


def test_an_answer_without_reasoning_is_an_answer() -> None:
    for text in ("Hello <think>", "  hi", "<thin", ""):
        parts = read(ReasoningReader(PlainReader(), inside=False), [text])
        assert (reasoning_of(parts), text_of(parts)) == ("", text)


def test_reasoning_that_does_not_end_is_no_answer() -> None:
    assert read(ReasoningReader(PlainReader(), inside=True), ["\nhm </thi"]) == [Reasoning("hm </thi")]
