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
# How long anything may take on a busy machine.
PATIENCE = 60
# What an expression is answered with while its page gives way to another one.
GIVES_WAY = ("context was destroyed", "Cannot find context", "navigated or closed", "Cannot find default execution context")
KEYS = {
    "Enter": (13, "\r"), "Escape": (27, None), "Tab": (9, None), " ": (32, " "), "ArrowLeft": (37, None), "ArrowUp": (38, None),
    "ArrowRight": (39, None), "ArrowDown": (40, None), "Home": (36, None), "End": (35, None),
}


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
        self._session, self.problems, self._chooser, self._downloads = None, [], None, {}
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

    def _wait(self, is_there, what, seconds=PATIENCE):
        """Reads events until `is_there` returns something; returns that."""
        until = time.monotonic() + seconds
        while not (found := is_there()):
            if not self._read(until):
                raise Failed(f"{what}: not within {seconds} s")
        return found

    def _heard(self, message):
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.fileChooserOpened":
            self._chooser = params["backendNodeId"]
        elif method == "Browser.downloadWillBegin":
            self._downloads[params["guid"]] = [params["suggestedFilename"], False]
        elif method == "Browser.downloadProgress" and params["state"] == "completed":
            self._downloads[params["guid"]][1] = True
        else:
            self._events.append(method)

    def _call(self, method, params=None, seconds=PATIENCE):
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

    def press(self, key, times=1):
        """Presses a key in the element that has the focus."""
        code, text = KEYS.get(key) or (ord(key.upper()), key)
        event = {"key": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", {"type": "keyDown", **event, **({"text": text} if text else {})})
            self._call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def type(self, text):
        """Types into the element that has the focus, in place of what is selected there."""
        self._call("Input.insertText", {"text": text})

    def tab_to(self, selector, most=60):
        """Presses Tab until this element has the focus."""
        for _ in range(most):
            self.press("Tab")
            if self.run(f"!!document.activeElement?.matches({json.dumps(selector)})"):
                return
        raise Failed(f"{selector} is not reached within {most} presses of Tab")

    def wait_for_load(self, seconds=PATIENCE):
        self._wait(lambda: "Page.loadEventFired" in self._events, "the page loads", seconds)
        self._events.clear()

    def follow(self, selector):
        """Clicks what leads to another page, and waits for it; works without scripts."""
        self._events.clear()
        self.click(selector)
        self.wait_for_load()

    def look(self, width, height=900, dark=False):
        """The size of the window, and the colours that the system prefers."""
        self._call("Emulation.setDeviceMetricsOverride",
                   {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        # Without motion: halfway through a transition colours are those of neither look.
        preferred = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self._call("Emulation.setEmulatedMedia", {"features": features})

    def before_pages(self, script):
        """Runs a script in every page that is opened from now on, before the page's own."""
        self._call("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def block(self, *patterns):
        """Lets requests to such addresses fail, and no others any more."""
        self._call("Network.setBlockedURLs", {"urls": list(patterns)})

    def scripts(self, on):
        self._call("Emulation.setScriptExecutionDisabled", {"value": not on})

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Failed(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, script, what, seconds=PATIENCE):
        """Waits until the expression is true, also across pages; returns its value. An element counts as true."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.run(f"(it => it instanceof Node ? true : it)({script})")
            except Failed as failure:
                if not any(words in str(failure) for words in GIVES_WAY):
                    raise
                value = None
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

    def _middle(self, selector):
        node = self._node(selector)
        self._call("DOM.scrollIntoViewIfNeeded", {"nodeId": node})
        quad = self._call("DOM.getContentQuads", {"nodeId": node})["quads"][0]
        return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4

    def click(self, selector, times=1):
        """Presses the mouse in the middle of an element, as a person does; works without scripts."""
        x, y = self._middle(selector)
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": count})

    def choose(self, selector, files):
        """Chooses files in a file input; works without scripts."""
        self._call("DOM.setFileInputFiles", {"nodeId": self._node(selector), "files": files})

    def choose_with_keys(self, selector, files):
        """Chooses files in the dialog that the element with the focus opens when Space is pressed."""
        self._chooser = None
        self._call("Page.setInterceptFileChooserDialog", {"enabled": True})
        self.tab_to(selector)
        self.press(" ")
        node = self._wait(lambda: self._chooser, "a dialog for files opens")
        self._call("DOM.setFileInputFiles", {"backendNodeId": node, "files": files})
        self._call("Page.setInterceptFileChooserDialog", {"enabled": False})

    def drop(self, selector, files):
        """Drags files from elsewhere over an element, and lets them fall there."""
        x, y = self._middle(selector)
        data = {"items": [], "files": files, "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._call("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})

    def download(self, selector, directory):
        """Clicks a link to a file; returns the path of what was saved."""
        self._downloads.clear()
        self._call("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": directory, "eventsEnabled": True})
        self.click(selector)
        return os.path.join(directory, self._wait(self._downloaded, "the file is saved"))

    def _downloaded(self):
        return next((name for name, is_whole in self._downloads.values() if is_whole), None)

    def attribute(self, selector, name):
        """An attribute of an element; works without scripts."""
        pairs = self._call("DOM.getAttributes", {"nodeId": self._node(selector)})["attributes"]
        return dict(zip(pairs[0::2], pairs[1::2])).get(name)

    def html(self):
        """The document as it is now; works without scripts."""
        return self._call("DOM.getOuterHTML", {"nodeId": self._call("DOM.getDocument")["root"]["nodeId"]})["outerHTML"]

    def picture(self, path, most=8000):
        """The page as a PNG, down to `most` pixels; returns its size in bytes."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        for attempt in range(3):
            try:
                shot = self._call("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}, 20)
                break
            except Failed:
                # The browser forgets the request when the page is loaded anew meanwhile.
                if attempt == 2:
                    raise
        data = base64.b64decode(shot["data"])
        with open(path, "wb") as file:
            file.write(data)
        return len(data)

    def width_beyond_window(self):
        """How many pixels have to be scrolled sideways."""
        return self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def accessible(self, axe, where):
        """Fails if axe-core finds something serious or critical on the page. `axe` is its script."""
        # Evaluated by the debugger, which the page's policy does not bind.
        self.run(f"{axe}; 0")
        found = self.run("axe.run({resultTypes: ['violations']}).then(r => JSON.stringify(r.violations.map("
                         "v => [v.impact, v.id, v.nodes.map(n => n.html).slice(0, 3)])))")
        bad = [one for one in json.loads(found) if one[0] in ("serious", "critical")]
        if bad:
            raise Failed(f"{where}: axe-core: {bad}")

    def expect_no_problems(self, what):
        if self.problems:
            raise Failed(f"{what}: {'; '.join(self.problems)}")
