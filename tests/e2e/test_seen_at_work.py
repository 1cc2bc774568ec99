"""What an operator looks at, over one real server: the live page in a browser, and the boards by a real Prometheus."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.boards.grafana import BOARDS, board
from tests.e2e.browser import Browser, browser
from tests.e2e.serving import Serving, serving
from tests.processes import wait_until
from workers.shared.processes.free_port import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
STAGES = 3
_PERIOD = 8.0  # seconds of a crowd, then of one user

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    options = ("--stages", str(STAGES), "--drafter", "ngram", "--always-draft", "--max-num-seqs", "4")
    with serving(tmp_path_factory.mktemp("seen"), "tiny", *options, "--metrics-alias", "vllm") as running:
        yield running


@pytest.fixture(scope="module")
def page(server: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.size(1280, 900)
        opened.open(f"{server.url}/dashboard")
        opened.wait("document.querySelector('#state')?.textContent === 'ready'")
        yield opened


def ask(server: Serving, text: str, tokens: int) -> None:
    body = {"model": "tiny", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).status_code == 200


def test_the_start_leads_to_the_page(server: Serving, page: Browser) -> None:
    page.open(f"{server.url}/")
    page.wait("document.querySelector('a.main')")
    page.run("document.querySelector('a.main').click()")
    page.wait("location.pathname === '/dashboard' && document.querySelector('#state').textContent === 'ready'")
    assert page.run("document.querySelectorAll('#stages > div').length") == STAGES


def test_a_question_is_answered_and_its_frames_are_seen_on_their_way(server: Serving, page: Browser) -> None:
    page.run("""(() => { window.seen = new Set();
        new MutationObserver(() => document.querySelectorAll('.chip').forEach((chip) => seen.add(chip.className)))
          .observe(document.body, {subtree: true, childList: true, attributes: true}); })()""")
    page.run("document.querySelector('#most').value = 60; document.querySelector('#question').focus()")
    page.type("Hello, pipeline")
    with ThreadPoolExecutor() as pool:
        other = pool.submit(ask, server, "someone else", 40)
        page.press("Enter", "\r")
        page.wait("document.querySelectorAll('#done tr').length >= 2")
        other.result()
    assert page.run("document.querySelectorAll('#log .assistant:not(.thought)').length") == 1
    kinds = {name for looks in page.run("[...seen]") for name in looks.split()}
    assert {"prompt", "certain"} <= kinds
    assert kinds & {"draft", "right", "wrong", "gone"}, "on a slow machine a draft may be judged before it is drawn"
    assert page.run("Number(document.querySelector('#per-cycle').textContent)") > 0
    assert "the only choice" in page.run("document.querySelector('#why').textContent")
    names = page.run("[...document.querySelectorAll('#done th')].map((cell) => cell.textContent)")
    assert sum(name.startswith("Yours") for name in names) == 1, "the other request is a number"
    tokens = page.run("[...document.querySelectorAll('#done tr')].map((row) => Number(row.children[1].textContent))")
    assert sorted(tokens)[0] >= 1


def test_a_finished_request_opens_as_a_waterfall_by_keyboard(page: Browser) -> None:
    page.run("""[...document.querySelectorAll('#done tr')].find((row) => row.textContent.startsWith('Yours'))
        .querySelector('button').focus()""")
    page.press("Enter", "\r")
    page.wait("document.querySelector('#waterfall').open")
    frames = page.run("document.querySelectorAll('#frames tr').length")
    texts = page.run("[...document.querySelectorAll('#frames .mark')].map((mark) => mark.textContent)")
    assert frames == len(texts) > STAGES
    assert any("prompt" in text for text in texts)
    assert any("verified" in text for text in texts)
    bars = page.run("[...document.querySelectorAll('#frames svg')].map((bar) => bar.getAttribute('aria-label'))")
    live = [label for label, text in zip(bars, texts, strict=True) if "verified" in text and "skipped" not in label]
    assert all(f"stage {stage} " in label for label in live[:-STAGES] for stage in range(STAGES))
    assert page.run("[...document.querySelectorAll('#frames td.text')].some((cell) => cell.textContent !== '–')")
    page.press("Escape")
    page.wait("!document.querySelector('#waterfall').open")


def test_everything_that_can_be_used_has_a_name(page: Browser) -> None:
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "spinbutton", "combobox", "table", "dialog", "log", "region", "group"}
    used = [node for node in nodes if not node.get("ignored") and node["role"]["value"] in roles]
    assert {node["role"]["value"] for node in used} >= {"button", "textbox", "combobox", "log", "region"}
    assert [node for node in used if not node.get("name", {}).get("value") and node["role"]["value"] != "table"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(page: Browser, scheme: str) -> None:
    page.prefer(prefers_color_scheme=scheme)
    page.size(375, 800)
    page.wait("innerWidth === 375")
    assert page.run("document.documentElement.scrollWidth") <= 375
    dark = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(16, 18, 23)"
    assert dark == (scheme == "dark")
    page.size(1280, 900)
    assert page.troubles == [], "no script failed, and nothing was forbidden"


def test_the_event_stream_begins_with_the_engines_figures(server: Serving) -> None:
    with httpx.stream("GET", f"{server.url}/dashboard/events", timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
    told = json.loads(first.removeprefix("data: "))
    assert told["model"] == "tiny"
    assert told["status"]["info"]["stages"] == STAGES
    refused = httpx.get(f"{server.url}/dashboard/events", params={"session": "guess"}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "session")


# --- boards ---


def answered(prometheus: str, query: str) -> bool:
    response = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=60)
    response.raise_for_status()
    found = response.json()
    assert found["status"] == "success", (query, found)
    values = [series["value"][1] for series in found["data"]["result"]]
    return any(value != "NaN" for value in values)


def test_every_panel_has_something_to_show_after_a_run(server: Serving, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    port, address = free_port(), server.url.removeprefix("http://")
    config = (DEPLOY / "prometheus.yml").read_text().replace("api:8000", address)
    config = config.replace("scrape_interval: 5s", "scrape_interval: 2s").replace(
        "scrape_timeout: 4s", "scrape_timeout: 2s"
    )
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(DEPLOY / "rules.yml", tmp_path)
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    prometheus, stop = f"http://127.0.0.1:{port}", threading.Event()

    def load(user: int) -> None:
        number = 0
        while not stop.is_set():
            if user and int(time.monotonic() / _PERIOD) % 2:
                stop.wait(0.1)  # the first one is alone now and then: in a crowd nothing is drafted
                continue
            number += 1
            ask(server, "a b c a b c " * 40 + "x" * (number % 3), 40)
            httpx.post(f"{server.url}/v1/completions", json={"model": "none"}, timeout=60)  # a refusal

    queries = [
        (
            name,
            panel["title"],
            target["expr"].replace("$model", ".*").replace("$__rate_interval", "1m").replace("$__range", "1h"),
        )
        for name in BOARDS
        for panel in board(name)["panels"]
        for target in panel.get("targets", ())
        if "echelon:device_" not in target["expr"]  # this machine may have no device
    ]
    try:
        with ThreadPoolExecutor() as pool:
            users = [pool.submit(load, user) for user in range(6)]  # more than there are slots: some of them wait
            try:
                empty = queries
                deadline = time.monotonic() + 400
                while empty and time.monotonic() < deadline:
                    wait_until(lambda: up(prometheus), 200)
                    empty = [query for query in empty if not answered(prometheus, query[2])]
                    stop.wait(1)
            finally:
                stop.set()
            for user in users:
                user.result()
        assert empty == []
        assert answered(prometheus, 'vllm:num_requests_waiting{model_name="tiny"}')
        rules = httpx.get(f"{prometheus}/api/v1/rules", timeout=60).json()["data"]["groups"]
        assert [rule for group in rules for rule in group["rules"] if rule["health"] == "err"] == []
    finally:
        running.terminate()
        running.wait(60)


def up(prometheus: str) -> bool:
    try:
        return answered(prometheus, 'up{job="echelon"} == 1')
    except (httpx.TransportError, httpx.HTTPStatusError):  # it answers 503 until it has read what it kept
        return False
