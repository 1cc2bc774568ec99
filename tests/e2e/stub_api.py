"""The API server as a real process on a real port, over a real bus to a stub engine in the test process."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
from tokenizers import Tokenizer

from server.settings import ServerSettings, save_settings
from tests.e2e.serving import MODEL_LABEL
from tests.small_model import CHATML, EOS, write_model_folder
from tests.stub_engine import StubEngine
from workers.shared.fingerprint import server_fingerprint
from workers.shared.processes.free_port import free_port

MODEL = "org/small"
REPLY = "The quick brown fox: 🙂 jumps over 中文!"
MAX_QUEUE = 3
NATIVE = """\
{%- if tools %}<|im_start|>tools {{ tools | tojson }} <tool_call><|im_end|>{% endif -%}
{%- for message in messages -%}<|im_start|>{{ message['role'] }} {{ message['content'] }}
{%- for call in message.tool_calls or [] %} <tool_call>{{ call.function | tojson }}</tool_call>{% endfor -%}
<|im_end|>{%- endfor -%}
<|im_start|>assistant {{ '<think>\n' if thinking else '' }}{# </think> #}
"""  # a template that knows tools and marks its reasoning


@dataclass
class Api:
    """A running server and the engine behind it."""

    url: str
    process: "subprocess.Popen[bytes]"
    engine: StubEngine
    tokenizer: Tokenizer
    log: Path

    def client(self) -> openai.OpenAI:
        http = httpx.Client(verify=False)  # reading the certificates of this machine would take longer than most tests
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, http_client=http)

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=120, verify=False)

    def metric(self, series: str) -> float:
        for line in httpx.get(f"{self.url}/metrics", verify=False).text.splitlines():
            name, _, value = MODEL_LABEL.sub("", line).rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def reply(self, text: str, *, end: bool = True) -> None:
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.engine.script = lambda request: [*tokens, EOS] if end else tokens * 100

    def end(self) -> None:
        """Ends server and engine; fails where the server does not leave as it was asked to."""
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log.read_text()
        self.engine.stop()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> float:
    """Polls another process; returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "timed out"
        threading.Event().wait(0.02)
    return time.monotonic() - start


def health(url: str) -> int:
    try:
        return httpx.get(f"{url}/health", timeout=30, verify=False).status_code
    except httpx.TransportError:
        return 0


def launch(folder: Path, scheme: str = "http", template: str = CHATML, **changes: Any) -> Api:
    """`changes` go to the settings."""
    (folder / "model").mkdir()
    model = write_model_folder(folder / "model", template)
    settings = ServerSettings(
        model=str(model),
        served_model_name=MODEL,
        bus=f"ipc://{folder}/bus",
        port=free_port(),
        max_queue=MAX_QUEUE,
        health_timeout=2.0,
        ping_interval=0.3,
        created=1700000000,
    )
    settings = msgspec.structs.replace(settings, **changes)
    save_settings(settings, folder / "settings.json")
    engine = StubEngine(settings.bus, lambda request: [EOS], fingerprint=server_fingerprint(model))
    engine.start()
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "server", "--settings", str(folder / "settings.json")],
            stderr=sink,
            env=os.environ | {"PYTHONWARNINGS": "default"},
        )
    url = f"{scheme}://127.0.0.1:{settings.port}"
    try:
        wait_until(lambda: health(url) == 200)
    except AssertionError:
        process.kill()
        raise AssertionError(log.read_text()) from None
    return Api(url, process, engine, Tokenizer.from_file(str(model / "tokenizer.json")), log)


def ask(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]} | fields


def events(response: httpx.Response) -> list[Any]:
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]
