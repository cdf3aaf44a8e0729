"""Headless Chromium by its DevTools protocol: the rendering of a page, and its messages."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)


class Browser:
    """One browser; `show` opens a page in a tab of its own."""

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive, self._numbers = send, receive, itertools.count(1)
        self.events = list[dict[str, Any]]()
        """The browser's events for the loaded page."""

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Return the answer to one request. Raises RuntimeError if the browser rejects it or ended."""
        number = next(self._numbers)
        message = {
            "id": number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while (reported := self._next()).get("id") != number:
            self.events.append(reported)
        if "error" in reported:
            raise RuntimeError(f"{method}: {reported['error']}")
        return reported["result"]  # type: ignore[no-any-return]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser is gone")
            text += byte
        return json.loads(text)  # type: ignore[no-any-return]

    def show(self, page: Path, width: int, scheme: str, height: int = 900) -> Shown:
        """The page at that width, for a reader who prefers `light` or `dark`, once it is loaded."""
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            session,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", session, url=page.as_uri())
        while not any(reported.get("method") == "Page.loadEventFired" for reported in self.events):
            self.events.append(self._next())
        return Shown(self, session, target)


class Shown:
    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def value(self, expression: str) -> Any:
        """Evaluate an expression of JavaScript in the page, outside of its policy."""
        answer = self._browser.call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True
        )
        return answer["result"].get("value")

    @property
    def complaints(self) -> list[Any]:
        """What the browser wrote on its console, and exceptions."""
        wanted = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [
            reported["params"]
            for reported in self._browser.events
            if reported.get("method") in wanted
        ]

    @property
    def requested(self) -> list[str]:
        return [
            reported["params"]["request"]["url"]
            for reported in self._browser.events
            if reported.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, most_height: int | None = None) -> bytes:
        """All of the page as PNG, or so much from its top."""
        clip: dict[str, Any] = {}
        if most_height is not None:
            width, height = (
                self.value("innerWidth"),
                min(most_height, int(self.value("document.documentElement.scrollHeight"))),
            )
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        answer = self._browser.call(
            "Page.captureScreenshot",
            self._session,
            format="png",
            captureBeyondViewport=True,
            **clip,
        )
        return base64.b64decode(answer["data"])

    def colors_at(self, points: Sequence[tuple[float, float]]) -> list[str]:
        """The color that was painted at each point of the page, as `rgb(R, G, B)`."""
        image = base64.b64encode(self.picture(most_height=20_000)).decode()
        blank = self._browser.call("Target.createTarget", url="about:blank")["targetId"]
        session = self._browser.call("Target.attachToTarget", targetId=blank, flatten=True)
        program = f"""(async () => {{
            const image = new Image()
            image.src = 'data:image/png;base64,{image}'
            await image.decode()
            const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d')
            canvas.drawImage(image, 0, 0)
            return {json.dumps(points)}.map(([x, y]) =>
                `rgb(${{[...canvas.getImageData(x, y, 1, 1).data].slice(0, 3).join(', ')}})`)
        }})()"""
        answer = self._browser.call(
            "Runtime.evaluate",
            session["sessionId"],
            expression=program,
            awaitPromise=True,
            returnByValue=True,
        )
        self._browser.call("Target.closeTarget", targetId=blank)
        colors: list[str] = answer["result"]["value"]
        return colors

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; it is gone at the end."""
    if CHROMIUM is None:
        raise RuntimeError("there is no Chromium here")
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()

    def hand_over() -> None:
        """The protocol has its messages at the numbers 3 and 4."""
        source, sink = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(source, 3)
        os.dup2(sink, 4)

    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=hand_over,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    with os.fdopen(ours_out, "wb") as send, os.fdopen(ours_in, "rb") as receive:
        try:
            yield Browser(send, receive)
        finally:
            process.terminate()
            process.wait()
