"""The API server as a real process on a real port, through the official client, over a real bus to a stub engine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from tokenizers import Tokenizer

from server.settings import ServerSettings, save_settings
from tests.small_model import EOS, write_model_folder
from tests.stub_engine import INFO, StubEngine
from workers.messages import Generate

pytestmark = pytest.mark.timeout(60)

MODEL = "org/small"
REPLY = "The quick brown fox: 🙂 jumps over 中文!"
MAX_QUEUE = 3


@dataclass
class Api:
    """A running server and the engine behind it."""

    url: str
    process: "subprocess.Popen[bytes]"
    engine: StubEngine
    tokenizer: Tokenizer
    log: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=20)

    def metric(self, series: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"{series} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def reply(self, text: str, *, end: bool = True) -> None:
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.engine.script = lambda request: [*tokens, EOS] if end else tokens * 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> float:
    """Polls another process; returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "timed out"
        threading.Event().wait(0.02)
    return time.monotonic() - start


def health(url: str) -> int:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    api = launch(folder)
    yield api
    api.process.terminate()
    assert api.process.wait(10) == 0
    api.engine.stop()


def launch(folder: Path) -> Api:
    (folder / "model").mkdir()
    model = write_model_folder(folder / "model")
    settings = ServerSettings(
        model=str(model),
        served_model_name=MODEL,
        bus=f"ipc://{folder}/bus",
        port=free_port(),
        max_queue=MAX_QUEUE,
        health_timeout=2.0,
        created=1700000000,
    )
    save_settings(settings, folder / "settings.json")
    engine = StubEngine(settings.bus, lambda request: [EOS])
    engine.start()
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "server", "--settings", str(folder / "settings.json")],
            stderr=sink,
            env=os.environ | {"PYTHONWARNINGS": "default"},
        )
    url = f"http://127.0.0.1:{settings.port}"
    try:
        wait_until(lambda: health(url) == 200)
    except AssertionError:
        process.kill()
        raise AssertionError(log.read_text()) from None
    return Api(url, process, engine, Tokenizer.from_file(str(model / "tokenizer.json")), log)


@pytest.fixture
def api(running: Api) -> Api:
    engine = running.engine
    engine.batch, engine.pause_after, engine.fail_after, engine.silent, engine.info = 1, None, None, False, INFO
    running.reply(REPLY)
    wait_until(lambda: health(running.url) == 200 and running.metric("echelon:open_sequences") == 0)
    engine.generates.clear()
    engine.aborts.clear()
    return running


def ask(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]} | fields


def events(response: httpx.Response) -> list[Any]:
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def test_chat(api: Api) -> None:
    answer = api.client().chat.completions.create(**ask())
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    request = api.engine.generates[0]
    assert request.prompt == api.tokenizer.encode(prompt, add_special_tokens=False).ids
    assert request.stop_tokens == (EOS,)
    assert request.max_tokens == INFO.max_model_len - len(request.prompt)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.prompt)
    assert answer.usage.completion_tokens == len(api.tokenizer.encode(REPLY, add_special_tokens=False).ids) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("stop", [None, "jumps", [" over", "🙂 j"]])
def test_a_stream_says_what_the_whole_response_says(api: Api, batch: int, stop: Any) -> None:
    api.engine.batch = batch
    fields = ask(stop=stop, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
    whole = api.client().chat.completions.create(**fields)
    stream = api.client().chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    text, logprobs, ids, finishes, usages = "", [], [], [], []
    for chunk in stream:
        if not chunk.choices:
            usages.append(chunk.usage)
            continue
        assert "usage" in chunk.model_fields_set
        assert chunk.usage is None
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        ids += getattr(choice, "token_ids", None) or []
        logprobs += choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
        finishes += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert finishes == [whole.choices[0].finish_reason] == ["stop"]
    assert usages == [whole.usage]
    assert whole.choices[0].logprobs is not None
    assert logprobs == whole.choices[0].logprobs.content
    assert ids == whole.choices[0].token_ids  # type: ignore[attr-defined]
    assert len(ids) == len(logprobs) == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert text == REPLY[: min((REPLY.index(s) for s in ([stop] if isinstance(stop, str) else stop or [])), default=99)]


def test_a_stop_string_ends_the_sequence_in_the_engine(api: Api) -> None:
    api.reply("one two three ", end=False)
    answer = api.client().chat.completions.create(**ask(stop=["three"]))
    assert answer.choices[0].message.content == "one two "
    api.engine.wait(lambda: api.engine.aborts == [api.engine.generates[0].id])


def test_length(api: Api) -> None:
    answer = api.client().chat.completions.create(**ask(max_completion_tokens=3))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_completions(api: Api) -> None:
    answer = api.client().completions.create(model=MODEL, prompt=["a b", "c"], max_tokens=100, n=2, logprobs=2, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {REPLY}
    assert [request.sampling.seed for request in api.engine.generates] == [5, 6, 5, 6]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens[-1] == "<|im_end|>"
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset[-1] == len(REPLY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(request.prompt) for request in api.engine.generates[::2])


def test_completion_prompts_parse_control_tokens_and_take_ids(api: Api) -> None:
    api.client().completions.create(model=MODEL, prompt="<|im_start|>", max_tokens=1)
    api.client().completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=1)
    assert [request.prompt for request in api.engine.generates] == [[1], [5, 6, 7]]


def test_completion_stream_equals_whole(api: Api) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "logprobs": 1}
    whole = api.post(body, "/v1/completions").json()
    chunks = events(api.post(body | {"stream": True}, "/v1/completions"))
    assert "usage" not in chunks[0]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [item for choice in choices if choice["logprobs"] for item in choice["logprobs"][name]]
        assert streamed == whole["choices"][0]["logprobs"][name]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


def test_choices_without_a_seed_all_differ(api: Api) -> None:
    api.client().chat.completions.create(**ask(n=3))
    assert len({request.sampling.seed for request in api.engine.generates}) == 3


def test_models_and_version(api: Api) -> None:
    models = api.client().models.list().data
    assert [(model.id, model.created) for model in models] == [(MODEL, 1700000000)]
    assert api.client().models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        api.client().models.retrieve("other")
    assert httpx.get(f"{api.url}/version").json()["version"]


def test_context_length(api: Api) -> None:
    client = api.client()
    limit = INFO.max_model_len
    answer = client.completions.create(model=MODEL, prompt=[7] * (limit - 1))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[7] * limit)
    assert caught.value.code == "context_length_exceeded"
    assert f"maximum context length is {limit} tokens" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[7] * 10, max_tokens=limit - 9)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


BAD = [
    ({"temperature": True}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": 0, "stream": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"top_k": 10**20}, "top_k"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e9}, "repetition_penalty"),
    ({"logit_bias": {"400": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop_token_ids": [400]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"what": True}}, "stream_options.what"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_bad_fields_are_refused_by_name(api: Api, fields: dict[str, Any], param: str) -> None:
    response = api.post(ask() | fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert not api.engine.generates


def raw(api: Api, content: bytes, content_type: str = "application/json") -> httpx.Response:
    headers = {"Content-Type": content_type}
    return httpx.post(f"{api.url}/v1/chat/completions", content=content, headers=headers, timeout=20)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"{}", "text/plain", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (json.dumps(ask(temperature=float("nan"))).encode(), "application/json", 400),
        (json.dumps(ask(top_p=float("inf"))).encode(), "application/json", 400),
        (json.dumps(ask("\ud800")).encode(), "application/json", 400),
        (json.dumps(ask(stop="\ud800")).encode(), "application/json", 400),
        (json.dumps(ask(chat_template_kwargs={"a": ["\ud800"]})).encode(), "application/json", 400),
        (json.dumps(ask(model="\ud800")).encode(), "application/json", 400),
        (json.dumps(ask() | {"\ud800": 1}).encode(), "application/json", 400),
        (b" " * (8 * 1024 * 1024 + 1), "application/json", 413),
    ],
)
def test_bodies_that_are_no_request(api: Api, content: bytes, content_type: str, status: int) -> None:
    response = raw(api, content, content_type)
    assert response.status_code == status, response.text
    if status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_chunked_body_is_limited_too(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(9):
            yield b" " * 1024 * 1024

    response = httpx.post(f"{api.url}/v1/chat/completions", content=chunks(), timeout=20)
    assert response.status_code == 413


def test_wrong_places_have_the_error_shape(api: Api) -> None:
    for response, status in [
        (httpx.get(f"{api.url}/nowhere"), 404),
        (httpx.get(f"{api.url}/v1/chat/completions"), 405),
        (api.post(ask() | {"model": "other"}), 404),
    ]:
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert api.post(ask() | {"model": "other"}).json()["error"]["code"] == "model_not_found"


def test_a_full_queue_answers_429_and_serves_again_afterwards(api: Api) -> None:
    api.engine.pause_after = 1
    streams = [api.client().chat.completions.create(**ask(), stream=True) for _ in range(1 + MAX_QUEUE)]
    with pytest.raises(openai.RateLimitError) as caught:
        api.client().chat.completions.create(**ask())
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.code == "queue_full"
    api.engine.wait(lambda: len(api.engine.generates) == 1 + MAX_QUEUE)
    for stream in streams:
        stream.close()
    api.engine.wait(lambda: len(api.engine.aborts) == 1 + MAX_QUEUE)
    api.engine.pause_after = None
    assert api.client().chat.completions.create(**ask()).choices[0].message.content == REPLY


def test_more_choices_than_the_queue_could_ever_hold_are_a_bad_request(api: Api) -> None:
    response = api.post(ask(n=2 + MAX_QUEUE))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pause_after", [0, 2])
def test_a_client_that_leaves_is_noticed_within_a_second(api: Api, stream: bool, pause_after: int) -> None:
    api.engine.pause_after = pause_after
    body = json.dumps(ask(stream=stream)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    port = int(api.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        api.engine.wait(lambda: len(api.engine.generates) == 1)
        if stream:
            assert connection.recv(100)
    left = time.monotonic()
    api.engine.wait(lambda: len(api.engine.aborts) == 1)
    assert time.monotonic() - left < 1.0
    api.engine.pause_after = None
    assert api.client().chat.completions.create(**ask()).choices[0].message.content == REPLY


def test_a_request_that_fails_in_the_engine(api: Api) -> None:
    api.engine.fail_after = 2
    with pytest.raises(openai.InternalServerError, match="stage 1 died"):
        api.client().chat.completions.create(**ask())
    last = events(api.post(ask(stream=True)))[-1]
    assert last["error"]["code"] == "engine_failed"


def test_engine_death_ends_streams_at_once_and_a_restart_serves_again(api: Api) -> None:
    api.engine.pause_after = 2
    stream = api.client().chat.completions.create(**ask(), stream=True)
    received = iter(stream)
    next(received)
    next(received)
    died = time.monotonic()
    api.engine.stop()
    with pytest.raises(openai.APIError, match="restarting"):
        list(received)
    assert time.monotonic() - died < 1.0
    assert health(api.url) == 503
    with pytest.raises(openai.InternalServerError) as caught:
        api.client().chat.completions.create(**ask())
    assert caught.value.status_code == 503
    assert api.metric("echelon:engine_up") == 0
    api.engine.pause_after = None
    api.engine.start()
    wait_until(lambda: health(api.url) == 200, 5)
    assert api.client().chat.completions.create(**ask()).choices[0].message.content == REPLY
    assert api.metric("echelon:engine_up") == 1


def test_an_engine_that_hangs_is_noticed(api: Api) -> None:
    api.engine.pause_after = 1
    stream = iter(api.client().chat.completions.create(**ask(), stream=True))
    next(stream)
    api.engine.silent = True
    with pytest.raises(openai.APIError, match="does not answer"):
        list(stream)
    assert health(api.url) == 503
    api.engine.silent = False
    wait_until(lambda: health(api.url) == 200, 5)


def test_rehearsals_say_so(api: Api) -> None:
    api.engine.info = msgspec.structs.replace(INFO, rehearsal=True)
    wait_until(lambda: httpx.get(f"{api.url}/health").json()["rehearsal"] is True)
    response = api.post(ask())
    assert response.headers["x-echelon-rehearsal"] == "true"
    assert response.json()["echelon"]["rehearsal"] is True
    streamed = api.post(ask(stream=True))
    assert streamed.headers["x-echelon-rehearsal"] == "true"
    assert all(chunk["echelon"]["rehearsal"] for chunk in events(streamed))
    api.engine.info = INFO
    wait_until(lambda: httpx.get(f"{api.url}/health").json()["rehearsal"] is False)
    assert "echelon" not in api.post(ask()).json()


def test_sampling_parameters_arrive(api: Api) -> None:
    extra = {
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    api.client().chat.completions.create(
        **ask(temperature=0, top_p=0.5, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": -100}, seed=-1),
        extra_body=extra,
    )
    request: Generate = api.engine.generates[0]
    sampling = request.sampling
    assert request.stop_tokens == sampling.end_tokens == (9,)
    assert (sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k) == (2**64 - 1, 0.0, 0.5, 7)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.min_tokens) == (0.1, 1.5, 2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.logit_bias, sampling.logprobs) == ({5: -100.0}, None)


def test_metrics_parse_with_a_naive_reader_and_count(api: Api) -> None:
    before = api.metric('echelon:request_success_total{finished_reason="stop"}')
    tokens = api.metric("echelon:generation_tokens_total")
    answer = api.client().chat.completions.create(**ask())
    assert answer.usage is not None
    assert api.metric('echelon:request_success_total{finished_reason="stop"}') == before + 1
    assert api.metric("echelon:generation_tokens_total") == tokens + answer.usage.completion_tokens
    wait_until(lambda: api.metric("echelon:cycle_seconds") == 0.2)
    assert api.metric('echelon:stage_busy_ratio{stage="1"}') == 0.5
    assert api.metric("echelon:fixed_cost_seconds") == pytest.approx(0.1)
    text = httpx.get(f"{api.url}/metrics").text
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z_0-9:]+(\{[^{}]*\})? [-+0-9.eInf]+", line), line
    assert "_created" not in text


def test_an_idle_server_sleeps(api: Api) -> None:
    def cpu() -> float:
        fields = Path(f"/proc/{api.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    start = cpu()
    threading.Event().wait(2.0)
    assert cpu() - start < 0.1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_ends_streams_with_an_error_and_is_quick(tmp_path: Path, sent: int) -> None:
    api = launch(tmp_path)
    try:
        api.reply(REPLY)
        api.engine.pause_after = 2
        with httpx.stream("POST", f"{api.url}/v1/chat/completions", json=ask(stream=True), timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            start = time.monotonic()
            api.process.send_signal(sent)
            rest = [line for line in lines if line]
        assert "shutting down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert api.process.wait(10) == 0
        assert time.monotonic() - start < 3.0
        assert "Traceback" not in api.log.read_text()
    finally:
        api.process.kill()
        api.process.wait(10)
        api.engine.stop()
