"""A worker's side of the protocol, for tests: starts a real child and talks to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

HERE = Path(__file__).resolve().parent
TIMEOUT = 60.0


class Child:
    def __init__(self, module: str = "handlers", *, max_frame: int = 1 << 20, version: int = 1) -> None:
        near, far = socket.socketpair()
        near.settimeout(TIMEOUT)
        environment = {
            **os.environ,
            "TIDEGATE_SOCKET": str(far.fileno()),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "worker", module],
            env=environment,
            pass_fds=[far.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=HERE,
        )
        far.close()
        self.socket = near
        self.stream = near.makefile("rb")
        self.run_number = 0
        self.say({"type": "hello", "version": version, "max_frame": max_frame})

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=TIMEOUT)

    def say(self, message: Dict[str, Any]) -> None:
        self.socket.sendall(frame(message))

    def hear(self) -> Optional[Dict[str, Any]]:
        header = self.stream.read(4)
        if len(header) < 4:
            return None
        return json.loads(self.stream.read(int.from_bytes(header, "big")))

    def order(self, task: str, *args: Any, **extra: Any) -> Dict[str, Any]:
        self.run_number += 1
        return {
            "type": "run",
            "run": self.run_number,
            "id": f"id-{self.run_number}",
            "task": task,
            "args": list(args),
            "kwargs": {},
            "retries": 0,
            **extra,
        }

    def run(self, task: str, *args: Any, **extra: Any) -> Optional[Dict[str, Any]]:
        self.say(self.order(task, *args, **extra))
        return self.hear()

    def poke(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    def end(self) -> int:
        """Closes the socket and waits for the child."""
        self.socket.shutdown(socket.SHUT_WR)
        return self.process.wait(TIMEOUT)


def frame(message: Dict[str, Any]) -> bytes:
    content = json.dumps(message).encode()
    return len(content).to_bytes(4, "big") + content
