"""`echelon serve tiny`: processes that live, fail and end together, seen through the official client."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import openai
import pytest

from speculation.drafters.scripted import Recording, Script
from tests.e2e.serving import Serving, serving
from tests.measure.open_loop import open_loop, prompt
from tests.processes import children, command, wait_until
from workers.shared.processes.free_port import free_port

pytestmark = pytest.mark.timeout(900)

PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
STALL = 4.0  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    options = ("--stages", "3", "--stall-timeout", str(STALL), "--max-num-seqs", "3", "--max-queue", "4")
    with serving(tmp_path_factory.mktemp("serve"), "tiny", *options) as running:
        yield running


def tokens(server: Serving, new: int = 30, **extra: object) -> list[int]:
    """Greedy token ids after PROMPT."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": new, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{server.url}/v1/completions", json={**body, "return_token_ids": True, **extra}, timeout=300)
    response.raise_for_status()
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def test_the_official_client_gets_an_answer_streamed_and_not(server: Serving) -> None:
    client = server.client()
    question = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="tiny", messages=question, max_tokens=20, temperature=0)  # type: ignore[call-overload]
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model="tiny", messages=question, max_tokens=20, temperature=0, stream=True
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(parts) == whole.choices[0].message.content
    assert len(parts) > 3
    assert whole.usage.completion_tokens == 20


def test_every_stage_has_worked_on_the_sequence(server: Serving) -> None:
    series = [f'echelon:stage_frames_total{{outcome="computed",stage="{i}"}}' for i in range(3)]
    before = [server.metric(name) for name in series]
    tokens(server, 30)
    # Figures travel with the next ping, at most about a second later.
    wait_until(lambda: all(server.metric(name) - was >= 30 for name, was in zip(series, before, strict=True)), 60)


def test_when_more_come_than_can_be_served_some_are_refused_and_nobody_is_lost(server: Serving) -> None:
    """A hundred requests a second is more than any machine answers with forty tokens each."""
    load = open_loop(server.url, "tiny", rate=100, requests=60, tokens=40)
    outcome = asyncio.run(asyncio.wait_for(load, 600))
    assert set(outcome.statuses) == {200, 429}
    assert outcome.statuses[200] >= 3 + 4
    assert outcome.cut_short == []
    assert len(outcome.texts) == outcome.statuses[200]
    assert all(1 <= seconds <= 60 for seconds in outcome.retry_after)
    kinds: dict[tuple[int, ...], set[str]] = {}
    for number, text in outcome.texts.items():
        kinds.setdefault(tuple(prompt(number)), set()).add(text)
    assert all(len(texts) == 1 for texts in kinds.values()), "the same prompt, the same answer"
    wait_until(lambda: server.metric("echelon:open_sequences") == 0, 60)
    assert server.metric("echelon:request_queue_time_seconds_sum") > 0


def test_choices_and_prompts_of_one_request_share_what_they_begin_with(server: Serving) -> None:
    text = [50 + place % 40 for place in range(300)]
    body = {"model": "tiny", "prompt": [text, text], "n": 2, "max_tokens": 4, "temperature": 0}
    hits = server.metric("echelon:prefix_cache_hits_total")
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).json()
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    assert answer["usage"]["prompt_tokens"] == 600
    wait_until(lambda: server.metric("echelon:prefix_cache_hits_total") == hits + 3 * 256, 60)


def test_a_prompt_may_fill_the_context_but_for_one_token(server: Serving) -> None:
    room = int(httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"])
    assert len(tokens(server, 1, prompt=[40] * (room - 1))) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(model="tiny", prompt=[40] * room, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("length", [8, 3000], ids=["decode", "prefill"])
def test_a_client_that_goes_away_frees_the_pipeline_within_a_second(server: Serving, stream: bool, length: int) -> None:
    body = {"model": "tiny", "prompt": [40] * length, "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    impatient = httpx.Timeout(60, read=0.05)
    undisturbed = seconds_of_a_token(server)
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=impatient) as response,
    ):
        next(response.iter_raw())  # leaves with the first bytes, or because there were none
    # All that it asked for would take hundreds of times as long, on any machine.
    assert seconds_of_a_token(server) < 2 + 10 * undisturbed


def seconds_of_a_token(server: Serving) -> float:
    started = time.monotonic()
    tokens(server, 1)
    return time.monotonic() - started


def wait_for_restart(server: Serving) -> None:
    wait_until(lambda: server.health() == 200, 300)


@pytest.mark.parametrize("victim", [("--stage", "1"), ("speculation",)], ids=["stage", "rank 0"])
def test_a_stream_survives_a_killed_process(server: Serving, victim: tuple[str]) -> None:
    text = {"model": "tiny", "prompt": PROMPT, "max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}
    expected = server.client().completions.create(**text).choices[0].text
    stream = iter(server.client().completions.create(**text, stream=True))
    received = next(stream).choices[0].text
    os.kill(server.process(*victim), signal.SIGKILL)
    assert wait_until(lambda: server.health() == 503, 60) < STALL  # so it was not its silence that told
    refused = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": PROMPT}, timeout=10)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"]
    assert received + "".join(chunk.choices[0].text for chunk in stream) == expected
    wait_for_restart(server)


# Stages in rank 0's process: they start in a third of the time, and what is shown does not depend on the transport.
ONE_PROCESS = ("--transport", "inprocess")


@pytest.mark.parametrize(
    "options",
    [
        ("--transport", "gloo"),
        (*ONE_PROCESS, "--delta", "1", "--draft-model", "tiny"),
        (*ONE_PROCESS, "--draft-model", "tiny", "--num-speculative-tokens", "3", "--tree-width", "3"),
        ("--drafter", "ngram", "--always-draft", "--tree-width", "4", "--tokens-per-frame", "2"),
    ],
)
def test_transports_credits_drafters_and_policies_do_not_change_the_tokens(
    server: Serving, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with serving(tmp_path, "tiny", "--stages", "2", *options) as other:
        assert tokens(other) == tokens(server)
        assert tokens(other, temperature=1, seed=7) == tokens(server, temperature=1, seed=7)


def test_a_script_is_replayed_by_a_real_group(server: Serving, tmp_path: Path) -> None:
    plain = tokens(server)
    script = tmp_path / "script.json"
    wrong = frozenset(range(len(PROMPT) + 3, len(PROMPT) + 30, 4))
    script.write_bytes(msgspec.json.encode(Script([Recording(PROMPT + plain, wrong)])))
    drafter = ("--drafter", "scripted", "--script", str(script), "--always-draft")
    with serving(tmp_path, "tiny", "--stages", "4", *ONE_PROCESS, *drafter) as scripted:
        assert tokens(scripted) == plain
        wait_until(lambda: scripted.metric("echelon:speculation_rejected_total") == len(wrong), 60)


def test_after_a_kill_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path, "tiny", exit_code=-9) as server:
        pids = children(server.launcher.pid)
        roles = [word for pid in pids for word in command(pid) if word in ("server", "speculation", "--stage")]
        assert sorted(roles) == ["--stage", "--stage", "server", "speculation"]
        server.launcher.kill()
        server.launcher.wait(60)
        wait_until(lambda: not any(command(pid) for pid in pids), 60)


def test_after_a_signal_open_requests_finish_and_new_ones_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "tiny", "--shutdown-timeout", "300") as server:
        pids = children(server.launcher.pid)
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.launcher.send_signal(signal.SIGINT)
            wait_until(lambda: httpx.get(f"{server.url}/ready", timeout=60).status_code == 503, 60)
            assert httpx.get(f"{server.url}/live", timeout=60).status_code == 200
            refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            assert (refused.status_code, "shutting down" in refused.text) == (503, True)
            *_, last = [line for line in lines if line]
        assert last == "data: [DONE]"
        assert server.launcher.wait(60) == 0
        wait_until(lambda: not any(command(pid) for pid in pids), 60)


def test_a_rehearsal_says_so_everywhere_and_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    # Slow, and nothing to choose from, so that nothing is calibrated.
    slow = ("--emulate-stage-ms", "500", "--drafter", "scripted", "--scripted-acceptance", "1", "--always-draft")
    with serving(tmp_path, "tiny", "--shutdown-timeout", "3000", *slow) as server:
        short = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
        response = httpx.post(f"{server.url}/v1/completions", json=short, timeout=300)
        assert response.json()["echelon"]["rehearsal"] is True
        wait_until(lambda: "rehearsal" in server.log.read_text(), 60)  # once the launcher, too, finds it ready
        body = short | {"max_tokens": 3000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as answer:
            next(answer.iter_lines())
            server.launcher.terminate()
            wait_until(lambda: "open requests may finish" in server.log.read_text(), 60)
            server.launcher.terminate()
            server.launcher.wait(60)


def test_a_start_that_hangs_is_given_up_and_its_flag_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ["serve", "tiny", "--ready-timeout", "10", "--port", str(free_port())]
    with log.open("wb") as output:
        launcher = subprocess.Popen([sys.executable, "-m", "server.cli", *arguments], stderr=output)

    def stage() -> list[int]:
        return [pid for pid in children(launcher.pid) if "--stage" in command(pid)]

    wait_until(lambda: bool(stage()), 120)
    os.kill(stage()[-1], signal.SIGSTOP)
    assert launcher.wait(120) == 2
    assert "after --ready-timeout 10 s" in log.read_text()  # by rank 0, with the stage, or by the launcher


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stages", "99"), "--stages"),
        (("--max-model-len", "99999999"), "--max-model-len"),
        (("--drafter", "scripted"), "--script"),
        (("--drafter", "model"), "--draft-model"),
        (("--num-speculative-tokens", "2", "--delta", "1"), "--delta 1"),
        (("--device", "tpu"), "--device"),
        (("/no/such/folder",), "no such folder"),
    ],
)
def test_a_wrong_flag_is_one_clear_line(options: tuple[str, ...], message: str) -> None:
    model = () if options[0].startswith("/") else ("tiny",)
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", *model, *options], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(server: Serving) -> None:
    port = server.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", "tiny", "--port", port],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert f"--port {port}" in done.stderr


def test_the_curl_line_that_is_printed_works(server: Serving) -> None:
    wait_until(lambda: "\ncurl " in server.log.read_text(), 60)
    (line,) = [line for line in server.log.read_text().splitlines() if line.startswith("curl ")]
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"
