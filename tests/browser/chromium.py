"""Chromium without a window, driven over its debugging protocol through a pipe. Standard library alone."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time

FLAGS = (
    # The flags keep it from reaching for the network; a private profile, because several may run at once.
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)


class Failed(Exception):
    """Something is not as a test expects."""


class Browser:
    """One browser with one page. `problems` collects script errors, refused resources and violations of the policy."""

    def __init__(self, scratch):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def connect():
            # Moved out of the way first: either could be 3 or 4 itself.
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        profile = tempfile.mkdtemp(dir=scratch)
        self._process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={profile}"], preexec_fn=connect, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._last, self._answers, self._events = b"", 0, {}, []
        self._session, self.problems = None, []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM", "Network"):
            self._call(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()

    # --- the protocol

    def _read(self, until):
        ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        chunk = os.read(self._in, 1 << 20)
        if not chunk:
            raise Failed("the browser has ended")
        self._buffer += chunk
        while b"\0" in self._buffer:
            text, self._buffer = self._buffer.split(b"\0", 1)
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._heard(message)
        return True

    def _heard(self, message):
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        else:
            self._events.append(method)

    def _call(self, method, params=None, seconds=30):
        self._last += 1
        own = self._last
        message = {"id": own, "method": method, "params": params or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + seconds
        while own not in self._answers:
            if not self._read(until):
                raise Failed(f"no answer to {method}")
        answer = self._answers.pop(own)
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    # --- what tests do

    def open(self, url):
        self._events.clear()
        self._call("Page.navigate", {"url": url})
        self.wait_for_load()

    def go(self, url):
        """Begins to open a page, and does not wait for it."""
        self._events.clear()
        self._call("Page.navigate", {"url": url})

    def press(self, key):
        """Presses a key in the element that has the focus."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": {"Enter": 13, "Escape": 27, "Tab": 9}[key]}
        event |= {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", {"type": kind, **event})

    def wait_for_load(self, seconds=30):
        until = time.monotonic() + seconds
        while "Page.loadEventFired" not in self._events:
            if not self._read(until):
                raise Failed("the page did not load")
        self._events.clear()

    def look(self, width, height=900, dark=False):
        """The size of the window, and the colours that the system prefers."""
        self._call("Emulation.setDeviceMetricsOverride",
                   {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def scripts(self, on):
        self._call("Emulation.setScriptExecutionDisabled", {"value": not on})

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Failed(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, script, what, seconds=20):
        """Waits until the expression is true; returns its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(script)
            if value:
                return value
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {seconds} s ({script})")
            self._read(time.monotonic() + 0.05)

    def _node(self, selector):
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        node = self._call("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        if not node:
            raise Failed(f"there is no {selector}")
        return node

    def click(self, selector):
        """Presses the mouse in the middle of an element, as a person does; works without scripts."""
        node = self._node(selector)
        self._call("DOM.scrollIntoViewIfNeeded", {"nodeId": node})
        quad = self._call("DOM.getContentQuads", {"nodeId": node})["quads"][0]
        x, y = sum(quad[0::2]) / 4, sum(quad[1::2]) / 4
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})

    def attribute(self, selector, name):
        """An attribute of an element; works without scripts."""
        pairs = self._call("DOM.getAttributes", {"nodeId": self._node(selector)})["attributes"]
        return dict(zip(pairs[0::2], pairs[1::2])).get(name)

    def html(self):
        """The document as it is now; works without scripts."""
        return self._call("DOM.getOuterHTML", {"nodeId": self._call("DOM.getDocument")["root"]["nodeId"]})["outerHTML"]

    def picture(self, path):
        """The whole page as a PNG; returns its size in bytes."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        shot = self._call("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        data = base64.b64decode(shot["data"])
        with open(path, "wb") as file:
            file.write(data)
        return len(data)

    def expect_no_problems(self, what):
        if self.problems:
            raise Failed(f"{what}: {'; '.join(self.problems)}")
