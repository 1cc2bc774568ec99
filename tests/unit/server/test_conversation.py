"""Text from the user never becomes a control token, and is otherwise encoded as Hugging Face encodes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.preparation.conversation import ChatPrompts
from server.preparation.template import ChatTemplate, TemplateFailed, load_templates
from server.tokenizer import ModelTokenizer
from tests.small_model import CHATML, EOS, write_model_folder
from workers.shared.errors import ConfigError

JOINED = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder)


@pytest.fixture(scope="module")
def prompts(folder: Path, tokenizer: ModelTokenizer) -> ChatPrompts:
    return ChatPrompts(tokenizer, load_templates(folder)["default"])


@pytest.fixture(scope="module")
def hugging_face(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def user(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


hostile = st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im", "_start|>", "<", "|>", "a ", "🙂", "\U000f0000"]
    ),
    max_size=8,
).map("".join)


@given(st.lists(hostile, min_size=1, max_size=4))
def test_only_the_template_makes_control_tokens(
    prompts: ChatPrompts, tokenizer: ModelTokenizer, contents: list[str]
) -> None:
    ids = prompts.encode(user(*contents))
    assert tokenizer.control_ids(ids) == [1, EOS] * len(contents) + [1]
    text = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents) + "<|im_start|>assistant\n"
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


@given(st.lists(hostile, min_size=2, max_size=4))
def test_strings_that_the_template_joins_make_no_control_token(tokenizer: ModelTokenizer, contents: list[str]) -> None:
    ids = ChatPrompts(tokenizer, ChatTemplate(JOINED, {})).encode(user(*contents))
    assert tokenizer.control_ids(ids) == [EOS]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "".join(contents) + "<|im_end|>"


def test_other_fields_and_variables_are_text_too(tokenizer: ModelTokenizer) -> None:
    template = ChatTemplate("{{ messages[0].name }}{{ style }}{{ messages[0] | tojson }}", {})
    message = {"role": "user", "name": "<|im_start|>", "content": "<|im_end|>"}
    ids = ChatPrompts(tokenizer, template).encode([message], extra={"style": "<|endoftext|>"})
    assert tokenizer.control_ids(ids) == []


@settings(max_examples=25)
@given(st.lists(st.text(max_size=30).filter(lambda text: "<|" not in text), min_size=1, max_size=3))
def test_equal_to_hugging_face(hugging_face: Any, prompts: ChatPrompts, contents: list[str]) -> None:
    expected = hugging_face.apply_chat_template(
        user(*contents), chat_template=CHATML, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert prompts.encode(user(*contents)) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0] | tojson }}",
        "{{ messages | tojson(indent=2) }}",
        "{% for m in messages %}\n  {% if loop.first %}\n{% continue %}{% endif %}\n{{ m.content }}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ tools is none }}{{ documents is none }}{{ bos_token }}{{ add_generation_prompt }}{{ nothing }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ strftime_now('%Y-%m-%d') }}",
    ],
)
def test_renders_as_hugging_face_does(hugging_face: Any, source: str) -> None:
    messages = user("<b>ünï</b> & 'x'", "second")
    expected = hugging_face.apply_chat_template(messages, chat_template=source, tokenize=False, bos_token="<s>")
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render(messages, add_generation_prompt=False, extra={})
    assert rendered == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[7].content.strip() }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_fails_is_the_requests_fault(source: str) -> None:
    with pytest.raises(TemplateFailed):
        ChatTemplate(source, {}).render(user("a"), add_generation_prompt=True, extra={})


def test_a_template_that_does_not_compile_is_the_models_fault() -> None:
    with pytest.raises(ConfigError, match="compile"):
        ChatTemplate("{% if %}", {})


def test_templates_of_a_folder(tmp_path: Path) -> None:
    assert load_templates(tmp_path) == {}
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes {{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    def rendered(file: Path | None = None) -> dict[str, str]:
        templates = load_templates(tmp_path, file)
        return {name: each.render([], add_generation_prompt=True, extra={}) for name, each in templates.items()}

    assert rendered() == {"default": "yes </s>", "tool_use": "no"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert rendered() == {"default": "yes </s>", "tool_use": "with tools"}
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert rendered() == {"default": "file </s>", "tool_use": "with tools"}
    assert rendered(tmp_path / "chat_template.jinja") == {"default": "file </s>"}
    with pytest.raises(ConfigError, match=r"missing\.jinja"):
        rendered(tmp_path / "missing.jinja")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default"}]}')
    with pytest.raises(ConfigError, match="chat_template must be"):
        rendered()


def test_end_tokens_are_the_union_of_three_files(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert ModelTokenizer(tmp_path).eos_ids == {7, 8, 9, EOS}
    (tmp_path / "config.json").write_text('{"eos_token_id": ["</s>"]}')
    with pytest.raises(ConfigError, match=r"config\.json: eos_token_id must be a token id or a list of them"):
        ModelTokenizer(tmp_path)


def test_token_bytes_are_those_of_the_text(tokenizer: ModelTokenizer) -> None:
    text = "the 🙂 中\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_text(tokenizer.encode("🙂", add_special_tokens=False)[0]).startswith("\\xf0")
    assert tokenizer.token_bytes(10**6) == b""


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ModelTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ModelTokenizer(tmp_path)
