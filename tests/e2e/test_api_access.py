"""API keys, https, CORS, deadlines, limits, and the endpoints around the generating ones."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.settings import ServerOptions, check_server
from tests.e2e.stub_api import MODEL, REPLY, Api, ask, events, launch
from tests.small_model import CHATML
from tests.stub_engine import INFO
from workers.shared.errors import ConfigError

KEYS = ("first-key", "second-key")


def closing(api: Api) -> Iterator[Api]:
    api.reply(REPLY)
    yield api
    api.end()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("guarded")
    yield from closing(
        launch(folder, api_keys=KEYS, cors_origins=("https://page.example",), request_timeout=0.5, max_requests=2)
    )


def with_key(api: Api, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=key, max_retries=0, timeout=120)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded: Api, key: str) -> None:
    assert with_key(guarded, key).chat.completions.create(**ask()).choices[0].message.content == REPLY


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer first-kez"}, {"Authorization": "Basic first-key"}])
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/chat/completions", "/tokenize", "/openapi.json", "/dashboard/events", "/nowhere"]
)
def test_without_a_key_nothing_opens(guarded: Api, headers: dict[str, str], path: str) -> None:
    response = httpx.post(f"{guarded.url}{path}", headers=headers, json={})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_a_wrong_key_is_what_the_client_expects(guarded: Api) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        with_key(guarded, "wrong").models.list()


@pytest.mark.parametrize("path", ["/health", "/metrics", "/status", "/", "/dashboard"])
def test_operators_need_no_key(guarded: Api, path: str) -> None:
    assert httpx.get(f"{guarded.url}{path}").status_code == 200


def test_pages_of_the_named_site_may_call(guarded: Api) -> None:
    ask_first = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    url = f"{guarded.url}/v1/chat/completions"
    response = httpx.options(url, headers={"Origin": "https://page.example", **ask_first})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    response = httpx.options(url, headers={"Origin": "https://other.example", **ask_first})
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends(guarded: Api, stream: bool) -> None:
    guarded.engine.pause_after = 2
    guarded.engine.aborts.clear()
    headers = {"Authorization": "Bearer first-key"}
    response = httpx.post(f"{guarded.url}/v1/chat/completions", json=ask(stream=stream), headers=headers, timeout=120)
    error = (events(response)[-1] if stream else response.json())["error"]
    assert error["code"] == "deadline_exceeded"
    assert response.status_code == (200 if stream else 504)
    guarded.engine.wait(lambda: len(guarded.engine.aborts) == 1)
    guarded.engine.pause_after = None
    test_each_key_opens(guarded, KEYS[0])


def test_more_requests_than_allowed_are_told_to_come_back(guarded: Api) -> None:
    guarded.engine.pause_after = 1
    client = with_key(guarded, KEYS[0])
    streams = [client.chat.completions.create(**ask(), stream=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as caught:
        client.models.list()
    assert caught.value.code == "too_many_requests"
    for stream in streams:
        stream.close()
    guarded.engine.pause_after = None


def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    (tmp_path / "api").mkdir()
    context = ssl.create_default_context(cafile=str(certificate))
    api = launch(tmp_path / "api", scheme="https", ssl_keyfile=str(key), ssl_certfile=str(certificate))
    for running in closing(api):
        response = httpx.post(f"{running.url}/v1/chat/completions", json=ask(), verify=context, timeout=120)
        assert response.json()["choices"][0]["message"]["content"] == REPLY
    check_server(ServerOptions(ssl_certfile=str(certificate), ssl_keyfile=str(key)))
    for files in ({"ssl_keyfile": str(key)}, {"ssl_certfile": str(key), "ssl_keyfile": str(certificate)}):
        with pytest.raises(ConfigError, match="--ssl-"):
            check_server(ServerOptions(**files))


def test_keys_that_cannot_be_sent_are_refused() -> None:
    check_server(ServerOptions(api_keys=("a", "b")))
    for wrong in ("", "é", "a b\n"):
        with pytest.raises(ConfigError, match="--api-key"):
            check_server(ServerOptions(api_keys=(wrong,)))


def test_tokenize_and_detokenize(api: Api) -> None:
    tokens = api.tokenizer.encode("the 🙂", add_special_tokens=False).ids
    answer = api.post({"prompt": "the 🙂", "return_token_strs": True}, "/tokenize").json()
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (tokens, len(tokens), INFO.max_model_len)
    assert len(answer["token_strs"]) == len(tokens)
    info = httpx.get(f"{api.url}/tokenizer_info").json()
    assert (info["eos_token"], info["bos_token"], info["chat_template"]) == ("<|im_end|>", "<|endoftext|>", CHATML)
    assert api.post({"model": MODEL, "tokens": tokens}, "/detokenize").json() == {"prompt": "the 🙂"}
    chat = api.post({"messages": ask()["messages"]}, "/tokenize").json()
    api.client().chat.completions.create(**ask())
    assert chat["tokens"] == api.engine.generates[0].prompt


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [400]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
)
def test_tokens_are_checked(api: Api, path: str, body: dict[str, Any], param: str) -> None:
    response = api.post(body, path)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def test_echo(api: Api) -> None:
    body = {"model": MODEL, "prompt": ["a <b>", "c"], "echo": True, "n": 2, "max_tokens": 100}
    whole = api.post(body, "/v1/completions").json()
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts == ["a <b>" + REPLY] * 2 + ["c" + REPLY] * 2
    streamed = ["", "", "", ""]
    for chunk in events(api.post(body | {"stream": True}, "/v1/completions")):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == texts


@pytest.mark.parametrize("max_tokens", [0, 1, 100])
def test_echo_with_logprobs(api: Api, max_tokens: int) -> None:
    """What lm-evaluation-harness asks for."""
    body = {"model": MODEL, "prompt": ["a <b>", "c"], "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    whole = api.post(body, "/v1/completions").json()
    chunks = events(api.post(body | {"stream": True}, "/v1/completions"))
    prompts = [api.tokenizer.encode(text).ids for text in ("a <b>", "c")]
    answer = api.tokenizer.encode(REPLY).ids
    for choice, prompt in zip(whole["choices"], prompts, strict=True):
        told = choice["logprobs"]
        assert told["token_logprobs"] == [None] + [-0.5] * (len(told["tokens"]) - 1)
        assert told["top_logprobs"][0] is None
        assert all(top[token] == -0.5 for token, top in zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True))
        shown = api.tokenizer.decode(prompt, skip_special_tokens=False)
        ends = [*told["text_offset"][1:], len(choice["text"])]
        pieces = [choice["text"][start:end] for start, end in zip(told["text_offset"], ends, strict=True)]
        assert "".join(pieces[: len(prompt)]) == shown
        assert choice["text"].startswith(shown)
        assert len(told["tokens"]) == len(prompt) + min(max_tokens, len(answer) + 1)
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for chunk in mine for item in (chunk["logprobs"] or {}).get(name, [])] == told[name]
    assert whole["usage"]["completion_tokens"] == 2 * min(max_tokens, len(answer) + 1)
    assert {request.sampling.prompt_logprobs for request in api.engine.generates} == {1}
    refused = api.post({"model": MODEL, "prompt": "x", "max_tokens": 0}, "/v1/completions")
    assert refused.json()["error"]["param"] == "max_tokens"


def test_the_openapi_document_is_served(api: Api) -> None:
    paths = httpx.get(f"{api.url}/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models", "/health"} <= set(paths)


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    for running in closing(launch(tmp_path, body_timeout=0.3)):
        release = threading.Event()

        def slow(release: threading.Event = release) -> Iterator[bytes]:
            yield b"{"
            release.wait(20)
            yield b"}"

        threading.Timer(1.0, release.set).start()
        response = httpx.post(f"{running.url}/v1/chat/completions", content=slow(), timeout=120)
        assert response.status_code == 408
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert running.client().chat.completions.create(**ask()).choices[0].message.content == REPLY
