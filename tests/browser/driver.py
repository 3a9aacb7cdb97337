"""A headless Chromium, driven through chromedriver's WebDriver protocol with the standard library alone."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

ENTER, ESCAPE = "\ue007", "\ue00c"


class Browser:
    """One session. Elements are found by CSS selectors."""

    def __init__(self, address: str, session: str):
        self.root = f"{address}/session/{session}"

    def open(self, file: Path) -> None:
        _call("POST", f"{self.root}/url", {"url": file.as_uri()})
        self.wait("document.documentElement.dataset.ready !== undefined")

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return _call("POST", f"{self.root}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"return {condition}"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def click(self, selector: str) -> None:
        _call("POST", f"{self.root}/element/{self._find(selector)}/click", {})

    def type(self, selector: str, keys: str) -> None:
        _call("POST", f"{self.root}/element/{self._find(selector)}/value", {"text": keys})

    def press(self, keys: str) -> None:
        """Keys for whatever has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        _call("POST", f"{self.root}/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def drag(self, selector: str, *places: float) -> None:
        """Press the pointer at the first place, move it over the others, and release it at the last: a click, if there
        is one place. Places are shares of an element's width, at half its height."""
        box = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({ block: 'center' });"
            "const b = e.getBoundingClientRect(); return [b.left, b.top + b.height / 2, b.width]",
            selector,
        )
        first, *others = (
            {"type": "pointerMove", "x": round(box[0] + box[2] * at), "y": round(box[1])} for at in places
        )
        strokes = [first, {"type": "pointerDown", "button": 0}, *others, {"type": "pointerUp", "button": 0}]
        _call("POST", f"{self.root}/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": strokes}]})

    def size(self, width: int, height: int) -> None:
        _call("POST", f"{self.root}/window/rect", {"width": width, "height": height})

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(_call("GET", f"{self.root}/screenshot")))

    def messages(self) -> list[str]:
        """What the page logged since the last call: errors, refused requests, violations of the policy."""
        entries = _call("POST", f"{self.root}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def _find(self, selector: str) -> str:
        found = _call("POST", f"{self.root}/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([CHROMEDRIVER, f"--port={port}", "--silent"], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        _until_ready(address)
        session = _call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(address, session)
        finally:
            _call("DELETE", f"{address}/session/{session}")
    finally:
        driver.terminate()
        driver.wait(10)


def _until_ready(address: str) -> None:
    end = time.monotonic() + 15
    while True:
        with contextlib.suppress(OSError):
            if _call("GET", f"{address}/status")["ready"]:
                return
        assert time.monotonic() < end, "chromedriver does not answer"
        time.sleep(0.05)


def _call(method: str, url: str, values: Any = None) -> Any:
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from None
