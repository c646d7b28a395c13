"""A real Chromium, driven by its DevTools protocol: pages, clicks, keys, pictures, and what the console says."""

import base64
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support import chromium, processes
from tests.support.palette import reduced
from tests.support.waiting import wait_until

# No sandbox: it needs rights that a container does not give. The pages are ours. No background work: it asks for hosts.
OPTIONS = (
    "--headless=shell", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
    "--font-render-hinting=none", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


class PageError(AssertionError):
    """A script of a page, or of a test in it, has failed."""


class Browser:
    """One process; `page()` opens a page of its own, without cookies of others."""

    def __init__(self) -> None:
        home = chromium.home()
        self._profile = tempfile.TemporaryDirectory(prefix="mainstem-browser-", ignore_cleanup_errors=True)
        environment = os.environ | {
            "LD_LIBRARY_PATH": f"{home / 'lib'}:{home}",
            "FONTCONFIG_PATH": str(home / "fonts"),
            "HOME": self._profile.name,
        }
        command = [home / "chromium", *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = processes.start(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        else:
            raise AssertionError(f"no browser: {''.join(said)}")
        self._devtools = Devtools(found[1])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._devtools.close()
        processes.stop(self._process)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._profile.cleanup()

    def page(self, width: int = 1280, height: int = 800, *, dark: bool = False, mobile: bool = False) -> "Page":
        context = self._devtools.call("Target.createBrowserContext")["browserContextId"]
        return _page(self._devtools, context, width, height, dark=dark, mobile=mobile)


def _page(devtools: "Devtools", context: str, width: int, height: int, *, dark: bool, mobile: bool) -> "Page":
    target = devtools.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
    session = devtools.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    return Page(devtools, session, context, width, height, dark=dark, mobile=mobile)


class Devtools:
    """The connection: one call at a time, and the events that came meanwhile, by session."""

    def __init__(self, address: str) -> None:
        # No pings: the thread that sends them draws from Python's own generator, which hypothesis allows nobody else.
        self._socket: ClientConnection = connect(
            address, max_size=None, compression=None, ping_interval=None
        ).__enter__()
        self._number = 0
        self.events: dict[str, list[dict[str, Any]]] = {}

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(request | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            if "method" in answer:
                self.events.setdefault(answer.get("sessionId", ""), []).append(answer)


class Page:
    """One page. What is looked for is named by a CSS selector."""

    def __init__(
        self, devtools: Devtools, session: str, context: str, width: int, height: int, *, dark: bool, mobile: bool
    ) -> None:
        self._devtools, self._session, self._context = devtools, session, context
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1.5, mobile=mobile
        )
        self.colour(dark=dark)

    def colour(self, *, dark: bool) -> None:
        """What the person prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._devtools.call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Go there; on return its document is loaded."""
        self.call("Page.navigate", url=url)
        loaded = f"document.readyState === 'complete' && location.href === {json.dumps(url)}"
        wait_until(lambda: self.holds(loaded), url)

    def beside(self) -> "Page":
        """Another tab of the same browser, as a person has them: it shares connections, and what is kept."""
        return _page(self._devtools, self._context, 1280, 800, dark=False, mobile=False)

    def hide(self, *, hidden: bool = True) -> None:
        """As if another tab were before it, or no more: without a screen, all are seen at once."""
        self.run(
            f"Object.defineProperty(document, 'hidden', {{value: {json.dumps(hidden)}, configurable: true}});"
            "dispatchEvent(new Event('visibilitychange'))"
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page; it fails where the page is left before that has one."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def holds(self, script: str) -> bool:
        """Whether an expression is true in the page; not while one page gives way to another."""
        try:
            return bool(self.run(script))
        except PageError as error:
            if "Inspected target navigated or closed" in str(error) or "Cannot find context" in str(error):
                return False
            raise

    def back(self) -> None:
        """To the page before."""
        # Later: the answer to this call would be lost with the page that it leaves.
        self.run("void setTimeout(() => history.back())")

    def text(self, selector: str = "body") -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def count(self, selector: str) -> int:
        return int(self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def wait_for(self, selector: str, text: str = "", *, seconds: float = 30) -> None:
        """Until something is there, with `text` in it."""
        script = f"[...document.querySelectorAll({json.dumps(selector)})].some(e => e.textContent.includes({json.dumps(text)}))"
        wait_until(lambda: self.holds(script), f"{selector} with {text!r} in: {self.text()[:500]}", seconds=seconds)

    def click(self, selector: str, text: str = "") -> None:
        """With the mouse, in the middle of the first such thing that has `text`, once it can be seen."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find(e => e.textContent.includes({json.dumps(text)}) && e.checkVisibility())"
        )
        wait_until(
            lambda: self.holds(f"Boolean({find})"), f"{selector} with {text!r} in: {self.text()[:500]}", seconds=30
        )
        x, y = self.run(
            f"(() => {{ const e = {find}; e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A key: Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def problems(self) -> list[str]:
        """Errors and warnings of the console, so far: also what the content security policy has refused."""
        self.run("0")
        found = []
        for event in self._devtools.events.get(self._session, []):
            about = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(str(about["args"]))
            elif event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
        return found

    def picture(self, path: Path, height: int | None = None) -> None:
        """All of the page, or what is above `height`, with 256 colours."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        empty = self.beside()  # the policy of our pages does not allow what is done to the picture
        path.write_bytes(reduced(empty, base64.b64decode(data)))
