"""Full queues, clients that leave, engines that fail, hang or die, and shutdown."""

import itertools
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stub_api import MAX_QUEUE, REPLY, Api, ask, events, health, launch, wait_until


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


def test_a_stream_is_kept_alive_while_nothing_comes(api: Api) -> None:
    api.engine.pause_after = 0
    with httpx.stream("POST", f"{api.url}/v1/chat/completions", json=ask(stream=True), timeout=120) as response:
        lines = response.iter_lines()
        assert sum(line.startswith(": ping") for line in itertools.islice(lines, 6)) >= 1
    api.engine.pause_after = None
    stream = api.client().chat.completions.create(**ask(), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == REPLY


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pause_after", [0, 2])
def test_a_client_that_leaves_is_noticed_while_nothing_comes(api: Api, stream: bool, pause_after: int) -> None:
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
    api.engine.wait(lambda: len(api.engine.aborts) == 1)
    api.engine.pause_after = None
    assert api.client().chat.completions.create(**ask()).choices[0].message.content == REPLY


def test_a_request_that_fails_in_the_engine(api: Api) -> None:
    api.engine.fail_after = 2
    with pytest.raises(openai.InternalServerError, match="stage 1 died"):
        api.client().chat.completions.create(**ask())
    last = events(api.post(ask(stream=True)))[-1]
    assert last["error"]["code"] == "engine_failed"


def read(api: Api, body: dict[str, Any], pinged: threading.Event) -> list[Any]:
    """What an answer consists of, streamed or not."""
    with httpx.stream("POST", f"{api.url}/v1/chat/completions", json=body, timeout=120) as response:
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            if line.startswith(": ping"):
                pinged.set()
    return [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_goes_on_when_the_engine_is_back_from_the_dead(api: Api, streamed: bool) -> None:
    api.engine.pause_after = 2
    pinged = threading.Event()
    with ThreadPoolExecutor() as pool:
        body = ask(stream=streamed, stream_options={"include_usage": True} if streamed else None, logprobs=True)
        given = api.metric("echelon:generation_tokens_total")
        waiting = pool.submit(read, api, body, pinged)
        wait_until(lambda: api.metric("echelon:generation_tokens_total") == given + 2)
        api.engine.stop()
        wait_until(lambda: health(api.url) == 503)
        refused = api.post(ask())
        assert refused.status_code == 503
        assert "connection to the engine was lost" in refused.json()["error"]["message"]
        assert api.metric("echelon:engine_up") == 0
        api.engine.pause_after = None
        pinged.clear()
        assert not streamed or pinged.wait(60), "nothing keeps the stream alive"
        api.engine.start()
        whole = waiting.result(120)
    choices = [choice for chunk in whole for choice in chunk["choices"]]
    text = "".join(choice.get("delta", choice.get("message")).get("content") or "" for choice in choices)
    assert text == REPLY
    assert choices[-1]["finish_reason"] == "stop"
    logprobs = [item for choice in choices if choice["logprobs"] for item in choice["logprobs"]["content"]]
    assert len(logprobs) == whole[-1]["usage"]["completion_tokens"]
    assert api.metric("echelon:engine_up") == 1
    assert len(api.engine.generates[-1].generated) == 2


def test_an_engine_that_hangs_is_noticed_and_may_go_on(api: Api) -> None:
    api.engine.pause_after = 1
    stream = iter(api.client().chat.completions.create(**ask(), stream=True))
    next(stream)
    api.engine.silent = True
    wait_until(lambda: "does not answer" in httpx.get(f"{api.url}/health").text)
    assert health(api.url) == 503
    api.engine.silent, api.engine.pause_after = False, None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == REPLY
    wait_until(lambda: health(api.url) == 200)


def test_an_engine_of_another_model_is_refused_by_name(api: Api) -> None:
    mine = api.engine.fingerprint
    try:
        api.engine.stop()
        api.engine.fingerprint = mine | {"tokenizer.json": "another"}
        api.engine.start()
        wait_until(lambda: "tokenizer.json is" in httpx.get(f"{api.url}/health").text, 10)
        assert health(api.url) == 503
    finally:
        api.engine.fingerprint = mine
    wait_until(lambda: health(api.url) == 200, 10)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_ends_streams_with_an_error_when_its_time_is_up(tmp_path: Path, sent: int) -> None:
    api = launch(tmp_path, shutdown_timeout=0.5)
    try:
        api.reply(REPLY)
        api.engine.pause_after = 2
        with httpx.stream("POST", f"{api.url}/v1/chat/completions", json=ask(stream=True), timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            start = time.monotonic()
            api.process.send_signal(sent)
            rest = [line for line in lines if line]
        assert "shutting down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert api.process.wait(60) == 0
        assert time.monotonic() - start < 30.0, "a request that waits for ever held it up"
        assert "Traceback" not in api.log.read_text()
    finally:
        api.process.kill()
        api.process.wait(60)
        api.engine.stop()
