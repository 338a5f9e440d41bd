"""Pages as they look: light, dark and at phone width. Each picture is kept, and each page is checked for what no page may have."""

import os

from chromium import Failed

LOOKS = (("light", 1440, False), ("dark", 1440, True), ("phone", 390, False))


class Looks:
    """Takes the pictures of a test. `axe` is the script of axe-core, or `None` to leave that check out."""

    def __init__(self, browser, pictures, axe_path):
        self.browser, self.pictures = browser, pictures
        os.makedirs(pictures, exist_ok=True)
        self.axe = open(axe_path, encoding="utf-8").read() if axe_path else None

    def take(self, name):
        """The page that is open, in every look."""
        browser = self.browser
        for look, width, dark in LOOKS:
            browser.run("scrollTo(0, 0)")
            where = f"{name}-{look}"
            browser.look(width, dark=dark)
            browser.until("document.readyState === 'complete'", f"{where} is complete")
            size = browser.picture(f"{self.pictures}/{where}.png")
            if size < 10_000:
                raise Failed(f"{where}: the picture is blank ({size} bytes)")
            wide = browser.width_beyond_window()
            if wide > 0:
                raise Failed(f"{where}: {wide} pixels wider than the window")
            if self.axe:
                browser.accessible(self.axe, where)
        browser.look(1440)
        print(f"{name}: light, dark, phone")

    def for_the_docs(self, name, height):
        """The top of the page as docs/images has it: light, and small."""
        self.browser.look(1120, height)
        self.browser.run("scrollTo(0, 0)")
        self.browser.picture(f"{self.pictures}/docs-{name}.png", height)
        self.browser.look(1440)
