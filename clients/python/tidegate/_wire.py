"""Frames over the worker's socket: four bytes of length, then JSON."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any, Deque, Dict, Optional

VERSION = 1
HEADER = 4
CHUNK = 256 * 1024

Message = Dict[str, Any]

encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
decode_json = json.JSONDecoder().decode


class FrameTooLong(Exception):
    """A message that the worker would not take."""


class Wire:
    """The child's side of the socket. Reads whole batches, writes each answer at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""
        self._messages: Deque[Message] = deque()
        #: Longer ones are not sent; the worker's greeting says.
        self.max_frame = 1 << 20

    def receive(self) -> Optional[Message]:
        """The next message; waits for it. None: the worker has closed its side."""
        while not self._messages:
            data = self._socket.recv(CHUNK)
            if not data:
                return None
            self._take(data)
        return self._messages.popleft()

    def look(self) -> Deque[Message]:
        """All that has come, without waiting. They stay here until they are received or removed."""
        try:
            while True:
                data = self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
                if not data:
                    break
                self._take(data)
        except BlockingIOError:
            pass
        return self._messages

    def _take(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at, end = 0, len(buffer)
        while end - at >= HEADER:
            start = at + HEADER
            stop = start + int.from_bytes(buffer[at:start], "big")
            if stop > end:
                break
            self._messages.append(decode_json(buffer[start:stop].decode()))
            at = stop
        self._buffer = buffer[at:]

    def send(self, message: Message) -> None:
        """Writes it; waits until all of it is written.

        Raises FrameTooLong, and what the encoder raises, before anything is written.
        """
        content = encode_json(message).encode()
        if len(content) > self.max_frame:
            raise FrameTooLong(f"{len(content)} bytes of JSON; the worker takes {self.max_frame}")
        self._socket.sendall(len(content).to_bytes(HEADER, "big") + content)

    def close(self) -> None:
        self._socket.close()
