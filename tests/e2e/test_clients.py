"""Other clients that people point at an OpenAI API, each against a real server process.

The npm client is fetched once; where there is no npm, or nowhere to fetch from, it is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.e2e.stub_api import MODEL, REPLY, Api

pytestmark = pytest.mark.timeout(600)

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
NPM_VERSION = "6"


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


class City(BaseModel):
    """A city."""

    name: str


def test_langchain(api: Api) -> None:
    model = ChatOpenAI(model=MODEL, base_url=f"{api.url}/v1", api_key="none", max_retries=0)
    assert model.invoke("hello").content == REPLY
    assert "".join(chunk.content for chunk in model.stream("hello")) == REPLY
    api.reply(CALL)
    for answer in (model.bind_tools([get_weather]).invoke("hello"), _added(model.bind_tools([get_weather]))):
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "x"})]
    api.reply('{"name": "x"}')
    assert model.with_structured_output(City).invoke("hello") == City(name="x")
    assert '"name"' in str(api.engine.generates[-1].sampling.grammar)


def _added(model: Any) -> Any:
    chunks = list(model.stream("hello"))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


def test_langchain_over_responses(api: Api) -> None:
    model = ChatOpenAI(model=MODEL, base_url=f"{api.url}/v1", api_key="none", max_retries=0, use_responses_api=True)
    assert model.invoke("hello").text == REPLY
    assert "".join(chunk.text for chunk in model.stream("hello")) == REPLY


def test_litellm(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    fields: Any = {
        "model": f"openai/{MODEL}",
        "api_base": f"{api.url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "hello"}],
        "max_retries": 0,
    }
    assert litellm.completion(**fields).choices[0].message.content == REPLY
    stream = litellm.completion(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == REPLY
    api.reply(CALL)
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    (call,) = litellm.completion(**fields, tools=tools).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "x"})


@pytest.mark.parametrize("option", ["--no-stream", "--stream"])
def test_the_llm_command_line_tool(api: Api, tmp_path: Path, option: str) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: {MODEL}\n  api_base: {api.url}/v1\n  api_key_name: here\n"
    )
    command = [sys.executable, "-m", "llm", "-m", "here", "--key", "none", "hello"]
    if option == "--no-stream":
        command.insert(-1, option)
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == REPLY


@pytest.fixture(scope="session")
def npm_folder() -> Path:
    """A folder in which node finds the official client; kept between runs."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no npm on this machine")
    folder = Path(tempfile.gettempdir()) / f"echelon-npm-openai-{NPM_VERSION}"
    folder.mkdir(exist_ok=True)
    if not (folder / "node_modules" / "openai").exists():
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", f"openai@{NPM_VERSION}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch the client here: {done.stderr.strip()[:200]}")
    return folder


def test_the_npm_client(api: Api, npm_folder: Path) -> None:
    script = npm_folder / "client.mjs"
    script.write_text((Path(__file__).parent / "openai_client.mjs").read_text())
    command = ["node", str(script), f"{api.url}/v1", MODEL]
    done = subprocess.run(command, cwd=npm_folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("whole", "streamed", "helper", "completion", "response", "responseStreamed"):
        assert result[name] == REPLY, name
    assert (result["finish"], result["status"], result["models"]) == ("stop", "completed", [MODEL])
    assert result["usage"]["total_tokens"] > 0
    assert result["error"] == {"status": 404, "code": "model_not_found", "kind": "NotFoundError"}
