"""A page in headless Chromium, driven over a pipe: nothing to install but the browser."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 120.0
# The browser wants the ends of its pipes to be descriptors 3 and 4.
_BECOME = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for wanted, end in zip((3, 4), ends):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. Errors that its scripts raise, and what its policy forbids, are in `troubles`."""

    def __init__(self, to: int, out_of: int) -> None:
        """Descriptors of both ends of the pipe."""
        self._to = to
        self._from = out_of
        self._buffer = b""
        self._number = 0
        self.troubles: list[str] = []
        page = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol to the page."""
        return self._call(method, sessionId=self._session, **parameters)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def prefer(self, **features: str) -> None:
        """Media features such as `prefers_color_scheme="dark"`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def open(self, url: str) -> None:
        """Begins to load a page; `wait` for what it should show."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = _SECONDS) -> None:
        """Returns once the expression holds, which is looked at whenever the page draws."""
        self.run(
            f"new Promise((good, bad) => {{ const end = performance.now() + {1000 * seconds};"
            f"const look = () => {{ let holds = false; try {{ holds = {condition}; }} catch {{}}"
            f"  if (holds) good();"
            f"  else if (performance.now() > end) bad(new Error('never: ' + {json.dumps(condition)}));"
            f"  else setTimeout(look, 20); }}; look(); }})"
        )

    def press(self, key: str, text: str = "") -> None:
        """A key of the keyboard, for whatever has the focus."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def type(self, text: str) -> None:
        """Text, for whatever has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """What is to be seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, sessionId: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if sessionId is not None:
            message["sessionId"] = sessionId
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._from, 2**16)
            assert data, "the browser has gone"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.troubles.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.troubles.append(event["params"]["entry"]["text"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium with a profile in `folder`; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [
        sys.executable,
        "-c",
        _BECOME,
        str(theirs_in),
        str(theirs_out),
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--remote-debugging-pipe",
    ]
    log = (folder / "browser.log").open("wb")
    process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(60)
        os.close(ours_out)
        os.close(ours_in)
        log.close()
