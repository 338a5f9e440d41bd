"""The programs that the tests of the web page start: `tidegate serve`, and the mock server behind it."""

import os
import signal
import subprocess

from chromium import Failed

WORDS = "The tide rises twice a day, and the gate lets through what the basin can hold. Level {page} of {pages}."


class Program:
    """A program that prints its address in its first line. It ends with the block that uses it."""

    def __init__(self, *words, log):
        self._log = open(log, "ab")
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, text=True)
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{words[1]} does not start; see {log}")
        self.link = next(word for word in line.split() if word.startswith("http"))
        self.url = self.link.split("?")[0].rstrip("/").removesuffix("/v1")
        self.address = self.url.removeprefix("http://")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def stand_still(self):
        """It keeps its connections and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """After it stood still."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        """As `kill -9`; also when it stands still."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def mock_server(tidegate, scratch, *options, listen="127.0.0.1:0"):
    return Program(tidegate, "provider", "--listen", listen, *options, log=os.path.join(scratch, "mock.log"))


def serve(tidegate, scratch, *options, listen="127.0.0.1:0"):
    return Program(tidegate, "serve", "--listen", listen, *options, log=os.path.join(scratch, "serve.log"))


def write_pdf(path, pages):
    """Writes a PDF of `pages` pages, each with a sentence."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for page in range(1, pages + 1):
        text = f"BT /F1 11 Tf 50 700 Td ({WORDS.format(page=page, pages=pages)}) Tj ET"
        objects.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {len(objects)} 0 R "
                       "/Resources << /Font << /F1 3 0 R >> >> >>")
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {pages} >>"
    data, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    data += (f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
             f"startxref\n{len(data)}\n%%EOF\n").encode()
    with open(path, "wb") as file:
        file.write(data)
    return path
