"""A strict LLM server for bench/limits/run.py. It shares no code with tidegate: Python's standard library alone.

It answers POST requests of OpenAI's chat format after a fixed time, within one limit, and refuses the rest with a bare 429 that
says neither when to come back nor what the limit is. Refused requests count towards no limit.
"""

import asyncio
import collections
import json
import time

ANSWER = json.dumps({
    "id": "strict", "object": "chat.completion", "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}).encode()
REFUSAL = b'{"error":{"message":"Too many requests","type":"requests"}}'


class Sliding:
    """At most `amount` requests in any `length` seconds."""

    def __init__(self, amount, length):
        self.amount, self.length, self.times = amount, length, collections.deque()

    def admit(self, now, _in_flight):
        while self.times and self.times[0] <= now - self.length:
            self.times.popleft()
        if len(self.times) >= self.amount:
            return False
        self.times.append(now)
        return True

    def ideal(self, requests, latency, _began):
        return (-(-requests // self.amount) - 1) * self.length + latency

    def __str__(self):
        return f"{self.amount} per {self.length:g} s"


class Calendar:
    """At most `amount` requests in each window of the clock."""

    def __init__(self, amount, length):
        self.amount, self.length, self.window, self.used = amount, length, None, 0

    def admit(self, _now, _in_flight):
        window = int(time.time() // self.length)
        if window != self.window:
            self.window, self.used = window, 0
        if self.used >= self.amount:
            return False
        self.used += 1
        return True

    def ideal(self, requests, latency, began):
        turns = -(-requests // self.amount) - 1
        return (latency if turns == 0 else self.length - began % self.length + (turns - 1) * self.length + latency)

    def __str__(self):
        return f"{self.amount} per calendar window of {self.length:g} s"


class AtOnce:
    """At most `amount` requests in flight. It may say so in its refusals."""

    def __init__(self, amount, says=False):
        self.amount = amount
        if says:
            message = f"too many concurrent requests: at most {amount} at once"
            self.refusal = json.dumps({"error": {"message": message, "code": "concurrency_limit_exceeded"}}).encode()

    def admit(self, _now, in_flight):
        return in_flight < self.amount

    def ideal(self, requests, latency, _began):
        return requests * latency / self.amount

    def __str__(self):
        return f"{self.amount} at once"


class Server:
    def __init__(self, limit, latency):
        self.limit, self.latency = limit, latency
        self.in_flight = self.peak = self.refused = self.served = 0
        self.first = self.last = self.first_wall = None

    async def start(self):
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=4096)
        return self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()

    async def connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                await reader.readexactly(length)
                status, body = await self.answer()
                writer.write(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                             % (status, len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self):
        now = time.monotonic()
        if self.first is None:
            self.first, self.first_wall = now, time.time()
        if not self.limit.admit(now, self.in_flight):
            self.refused += 1
            return b"429 Too Many Requests", getattr(self.limit, "refusal", REFUSAL)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.in_flight -= 1
        self.served += 1
        self.last = time.monotonic()
        return b"200 OK", ANSWER

    def took(self):
        return self.last - self.first

    def ideal(self, requests):
        return self.limit.ideal(requests, self.latency, self.first_wall)
