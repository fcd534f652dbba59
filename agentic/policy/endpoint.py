"""A policy behind any OpenAI-compatible chat-completions server (vLLM, llama.cpp, Ollama, a hosted API).

Whatever the server does ends in a Reply: a failure is retried where that can help and otherwise said with its cause.
"""

from __future__ import annotations

import asyncio
import email.utils
import http
import ipaddress
import math
import os
import random
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from agentic.errors import UserError
from agentic.policy.base import Conversation, Reply
from agentic.policy.chat_api import Failure, ToolMode, api_messages, read_completion, server_message

if TYPE_CHECKING:
    import openai

MAX_BACKOFF_S = 30.0
MAX_RETRY_AFTER_S = 60.0
"""A server that asks for more is asked again after this long."""
MAX_CONNECT_S = 10.0


# ------------------------------------------------------------------------------------------- the policy


class EndpointPolicy:
    """Asks one server for every turn. Belongs to one event loop; close() ends it.

    `retries` counts the requests repeated so far, over all turns. Raises UserError for a base URL or key that cannot
    be sent at all.
    """

    version = "unknown"
    """A server does not say which weights it holds."""

    def __init__(
        self,
        base_url: str,
        model: str = "default",
        api_key: str | None = None,
        tool_mode: ToolMode = "text",
        temperature: float = 0.0,
        seed: int | None = None,
        timeout_s: float = 120.0,
        max_retries: int = 5,
        *,
        backoff_s: float = 0.5,
        max_concurrency: int = 16,
    ) -> None:
        """`timeout_s` bounds one request from connecting to the last byte; `backoff_s` is the first wait, then doubled.

        Without `api_key`, AGENTIC_API_KEY or OPENAI_API_KEY is used. `seed` is sent as seed + sample number, so that
        the samples of one task differ.
        """
        self.name = model
        self.model = model
        self.tool_mode = tool_mode
        self.temperature = temperature
        self.seed = seed
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self.backoff_s = backoff_s
        self.retries = 0
        self._key = usable_key(api_key)
        self.base_url, self._client = connect(base_url, self._key, timeout_s)
        self._slots = asyncio.Semaphore(max_concurrency)
        self._reached = False

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        """Ask for the next assistant turn; a failure that stays after all retries is Reply.error."""
        request = self._request(conversation, max_new_tokens)
        attempt = 0
        while True:
            outcome = await self._ask(request)
            if isinstance(outcome, Reply):
                return outcome
            if not outcome.retry or attempt >= self.max_retries:
                break
            await asyncio.sleep(self._wait_s(attempt, outcome.retry_after_s))
            attempt += 1
            self.retries += 1
        after = f" after {attempt} {'retry' if attempt == 1 else 'retries'}" if attempt else ""
        return Reply("", finish="error", error=self._without_key(f"{outcome.cause}{after}: {outcome.message}"))

    async def close(self) -> None:
        await self._client.close()

    def _request(self, conversation: Conversation, max_new_tokens: int) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": api_messages(conversation.messages, conversation.tools, self.tool_mode),
            "max_tokens": max_new_tokens,
            "temperature": self.temperature,
        }
        if self.seed is not None:
            request["seed"] = self.seed + conversation.sample
        if self.tool_mode == "native" and conversation.tools:
            request["tools"] = [tool.schema() for tool in conversation.tools]
        return request

    async def _ask(self, request: dict[str, Any]) -> Reply | Failure:
        """One request. A slot is held while it runs and not while a failure waits for its retry."""
        import openai

        async with self._slots:
            try:
                async with asyncio.timeout(self.timeout_s):
                    response = await self._client.chat.completions.with_raw_response.create(**request)
            except openai.APIStatusError as error:
                self._reached = True
                return self._refused(error.status_code, error.response.headers, error.response.text)
            except (openai.APIConnectionError, TimeoutError) as error:
                return self._unanswered(error)
        self._reached = True
        return read_completion(response.http_response.text)

    def _refused(self, status: int, headers: Any, body: str) -> Failure:
        phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
        message = server_message(body)
        if status in (401, 403):
            message += "; set AGENTIC_API_KEY (or OPENAI_API_KEY) to a key that this server accepts"
        elif status == 404:
            message += f"; check the base URL {self.base_url} (it often ends in /v1) and the model name {self.model!r}"
        elif "location" in headers:
            message += f"; the server redirects {self.base_url} to {headers['location']}: give that as base URL"
        retry = status in (408, 409, 429) or status >= 500
        return Failure(f"HTTP {status} {phrase}".rstrip(), message, retry, _retry_after_s(headers))

    def _unanswered(self, error: Exception) -> Failure:
        """No whole answer came back. `error` comes from the client, its cause from the HTTP library below."""
        import openai

        cause = error.__cause__ or error
        if type(cause).__name__ in ("ConnectError", "ConnectTimeout"):
            # An address that never answered is most likely wrong: say so at once. One that did may be restarting.
            what = f"{cause}".strip() or type(cause).__name__
            remedy = "start the server there or correct the base URL"
            return Failure(f"cannot connect to {self.base_url}", f"{what}; {remedy}", retry=self._reached)
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            remedy = "the server is overloaded or the time limit too short"
            return Failure(f"no answer from {self.base_url} within {self.timeout_s:g} s", remedy)
        return Failure(f"connection to {self.base_url} dropped", f"{cause}".strip() or type(cause).__name__)

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Seconds before the next attempt: never less than the server asked for (up to the cap), spread by jitter."""
        backoff = min(self.backoff_s * 2.0**attempt, MAX_BACKOFF_S)
        if retry_after_s is not None:
            return min(retry_after_s, MAX_RETRY_AFTER_S) + self.backoff_s * random.random()
        return backoff * (0.5 + 0.5 * random.random())

    def _without_key(self, text: str) -> str:
        # Some servers repeat the key they refuse. A key this short is a placeholder ("none", "EMPTY"), not a secret.
        return text.replace(self._key, "[key]") if len(self._key) >= 8 else text


# --------------------------------------------------------------------------------------------- the client


def usable_key(given: str | None = None) -> str:
    """The API key: as given, else of the environment. Raises UserError for one that no header can hold."""
    key = (given or os.environ.get("AGENTIC_API_KEY") or os.environ.get("OPENAI_API_KEY") or "none").strip()
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError("the API key holds a blank or a character that is not ASCII; copy it again")
    return key


def check_url(base_url: str) -> tuple[str, str, tuple[str, str] | None]:
    """The base URL as it may be shown (without a login), its host and its login. Raises UserError for what is no base URL."""
    base_url = base_url.strip().rstrip("/").removesuffix("/chat/completions")
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"endpoint: bad base URL ({error}); expected something like http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError("endpoint: the base URL must start with http:// or https://, like http://127.0.0.1:8000/v1")
    if parts.query or parts.fragment:
        raise UserError("endpoint: give the base URL without '?' and '#' and what follows them")
    # A login in the URL goes into the client, because the HTTP library logs URLs.
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    url = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}{parts.path}"
    return url, host, login


def connect(base_url: str, key: str, timeout_s: float) -> tuple[str, openai.AsyncOpenAI]:
    """The base URL as it may be shown (without a login) and a client for it."""
    import openai

    url, host, login = check_url(base_url)
    try:
        http_client = openai.DefaultAsyncHttpxClient(
            # A proxy cannot reach this machine's loopback; a redirected POST may lose its body or leak the key.
            trust_env=not _is_loopback(host),
            follow_redirects=False,
            auth=login,
            timeout=openai.Timeout(timeout_s, connect=min(MAX_CONNECT_S, timeout_s)),
        )
    except (ImportError, ValueError) as error:
        raise UserError(f"endpoint: a proxy variable cannot be used ({error}); correct or unset ALL_PROXY") from None
    # Retries are this module's own: the library neither caps them as we need nor says how many there were.
    return url, openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=http_client)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _retry_after_s(headers: Any) -> float | None:
    """Seconds from a Retry-After header (a number or an HTTP date); None when absent, unreadable or negative."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
