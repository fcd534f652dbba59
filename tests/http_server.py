"""A small OpenAI-compatible server on 127.0.0.1 that answers what a test tells it to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self


@dataclass(frozen=True)
class Scripted:
    """One HTTP answer, sent after `delay_s`. A dict as body is sent as JSON."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | str | bytes = b""
    delay_s: float = 0.0


Answer = Scripted | dict[str, Any] | Literal["drop"]
"""A plain dict is the JSON body of a 200; "drop" closes the connection without an answer."""
Script = Answer | Callable[[dict[str, Any]], Answer]
"""A function gets the request's body."""


@dataclass(frozen=True)
class Recorded:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class ScriptedServer:
    """Serves while the `with` block runs. Request n gets reply n; `repeat` makes the last one answer all that follow.

    A request beyond the script gets status 400 (no client retries that). `url` is the base URL, `requests` what came.
    """

    def __init__(self, replies: Iterable[Script], repeat: bool = False, port: int = 0) -> None:
        self.requests: list[Recorded] = []
        self.max_in_flight = 0
        self._replies = list(replies)
        self._repeat = repeat
        self._lock = threading.Lock()
        self._in_flight = 0
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            for connection in self._connections:
                connection.shutdown(socket.SHUT_RDWR)  # kept alive by the client, whose thread waits for more
        self._thread.join()

    def _next(self, request: Recorded) -> Scripted | Literal["drop"]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
        if self._repeat:
            number = min(number, len(self._replies) - 1)
        if number >= len(self._replies):
            return Scripted(400, body={"error": {"message": f"no reply scripted for request {number + 1}"}})
        reply = self._replies[number]
        answer = reply(request.body) if callable(reply) else reply
        return Scripted(body=answer) if isinstance(answer, dict) else answer

    def _count(self, change: int) -> None:
        with self._lock:
            self._in_flight += change
            self.max_in_flight = max(self.max_in_flight, self._in_flight)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body are two writes; without this the second waits for the first one's acknowledgement.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
                headers = {name.lower(): value for name, value in self.headers.items()}
                server._count(+1)
                answer = server._next(Recorded(self.path, headers, body))
                if answer != "drop":
                    server._closing.wait(answer.delay_s)
                server._count(-1)
                if answer == "drop":
                    self.close_connection = True
                    return  # with no line written the client sees a closed connection
                data = json.dumps(answer.body) if isinstance(answer.body, dict) else answer.body
                data = data.encode() if isinstance(data, str) else data
                self.send_response(answer.status)
                for name, value in (
                    {"Content-Type": "application/json", "Content-Length": str(len(data))} | answer.headers
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def handle(self) -> None:
                with server._lock:
                    server._connections.add(self.connection)
                try:
                    super().handle()
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client had given up
                finally:
                    with server._lock:
                        server._connections.discard(self.connection)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler


def chat_reply(
    content: str | None = None,
    tool_calls: list[tuple[str, str | dict[str, Any]]] | None = None,
    finish_reason: str | None = "stop",
    tokens: int = 7,
) -> dict[str, Any]:
    """Body of a chat completion; `tool_calls` are (name, arguments), arguments that are text are sent as they are."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [
            {
                "id": f"srv-{place}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for place, (name, given) in enumerate(tool_calls)
        ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": tokens, "total_tokens": 11 + tokens},
    }


def error_reply(status: int, message: str, headers: dict[str, str] | None = None) -> Scripted:
    return Scripted(status, headers or {}, {"error": {"message": message, "type": "error", "code": status}})
