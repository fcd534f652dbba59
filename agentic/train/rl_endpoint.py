"""Sampling from a server that gives token ids and logprobs (vLLM's OpenAI-compatible completions), weights kept in step.

Prompts go as token ids and completions come back as token ids: nothing is encoded twice. The server's logprobs are those
of another engine, so the loss corrects for the gap, and the gap is logged. Start vLLM with
`--logprobs-mode processed_logprobs`: at a temperature other than 1 the raw logprobs are those of another distribution.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch

from agentic.errors import MissingExtra, UserError
from agentic.model.chat import Renderer
from agentic.policy.endpoint import check_url, connect, usable_key
from agentic.policy.generate import Generation
from agentic.policy.tokens import TokenPolicy, first_line
from agentic.train.rl_rollouts import Episode

T = TypeVar("T")
RETRIES = 4
TIMEOUT_S = 300.0
BACKOFF_S = 0.1


class EndpointSampler:
    """Many episodes over one server, which batches by itself. `version` says which weights it has: those last sent, or its own."""

    def __init__(
        self, base_url: str, renderer: Renderer, *, sync: Literal["vllm", "none"] = "vllm", model: str | None = None
    ) -> None:
        """`base_url`: the API, like http://127.0.0.1:8000/v1. Raises UserError where the weights cannot be sent."""
        self._key = usable_key()
        self._given = base_url
        self.base_url, _, _ = check_url(base_url)
        self.renderer = renderer
        self.model = model
        self.version = ""
        self.generated = 0
        self._client: Any = None
        self._weights = _weight_client(self.base_url) if sync == "vllm" else None

    def sync(self, model: torch.nn.Module, version: str) -> None:
        """Send the trained weights, adapters merged, from the first process; without a channel the server keeps its own."""
        if self._weights is not None:
            send_weights(self._weights, model)
            self.version = version
        else:
            self.version = f"own weights of {self.base_url}"

    async def run(self, episodes: Sequence[Episode[T]], *, concurrency: int, seed: str, temperature: float) -> list[T]:
        """Results in the order of `episodes`, at most `concurrency` of them at once."""
        slots = asyncio.Semaphore(concurrency)
        _, self._client = connect(self._given, self._key, TIMEOUT_S)
        async with self._client:
            if self.model is None:
                self.model = await self._served_model()

            async def one(episode: Episode[T]) -> T:
                async with slots:
                    return await episode(_Seat(self, seed, temperature))

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(episode)) for episode in episodes]
            return [task.result() for task in tasks]

    async def _served_model(self) -> str:
        import openai

        try:
            models = await self._client.models.list()
            return str(models.data[0].id)
        except (openai.OpenAIError, IndexError, AttributeError) as error:
            raise UserError(
                f"{self.base_url}: no models are served there ({first_line(error)}); start the server, or correct "
                "--endpoint (it often ends in /v1)"
            ) from None

    async def complete(self, prompt: list[int], budget: int, seed: int, temperature: float) -> Generation:
        """One completion. Raises RuntimeError for what stays wrong after the retries."""
        import openai

        more = {
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "stop_token_ids": list(self.renderer.end_ids),
        }
        problem = ""
        for attempt in range(RETRIES + 1):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2**attempt)
            try:
                response = await self._client.completions.with_raw_response.create(
                    model=self.model,
                    prompt=prompt,
                    max_tokens=budget,
                    temperature=temperature,
                    seed=seed,
                    logprobs=0,
                    extra_body=more,
                )
            except openai.APIStatusError as error:
                if error.status_code < 500 and error.status_code not in (408, 409, 429):
                    raise RuntimeError(
                        f"{self.base_url}: HTTP {error.status_code}: {first_line(error)[:200]}"
                    ) from None
                problem = f"HTTP {error.status_code}"
                continue
            except openai.OpenAIError as error:
                problem = f"{type(error).__name__}: {first_line(error)}"
                continue
            found = read_choice(response.http_response.text, self.renderer.end_ids, prompt)
            self.generated += len(found.ids)
            return found
        raise RuntimeError(f"{self.base_url}: {problem} after {RETRIES} retries")

    async def close(self) -> None:
        """Clients live only as long as a batch of episodes."""


class _Seat(TokenPolicy):
    def __init__(self, sampler: EndpointSampler, seed: str, temperature: float) -> None:
        self.sampler, self.seed, self.temperature = sampler, seed, temperature
        self.renderer, self.max_context = sampler.renderer, None
        self.name, self.version = sampler.base_url, sampler.version

    async def generate(self, prompt: list[int], budget: int, key: str) -> Generation:
        return await self.sampler.complete(prompt, budget, zlib.crc32(f"{self.seed}/{key}".encode()), self.temperature)


def read_choice(body: str, end_ids: Sequence[int], prompt: Sequence[int]) -> Generation:
    """The first choice of a completion. Raises RuntimeError when ids or logprobs are missing or do not fit together."""
    try:
        choice = json.loads(body)["choices"][0]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        seen, finish = choice.get("prompt_token_ids"), choice.get("finish_reason")
    except (ValueError, KeyError, TypeError, IndexError):
        raise RuntimeError(
            "the server's answer has no token_ids with logprobs; training needs both (vLLM 0.10 or newer gives them)"
        ) from None
    if not ids or len(ids) != len(logprobs):
        raise RuntimeError(f"the server gave {len(ids)} token ids and {len(logprobs)} logprobs")
    if seen is not None and list(seen) != list(prompt):
        raise RuntimeError("the server changed the prompt's token ids")
    ids, logprobs = [int(one) for one in ids], [float("nan") if one is None else float(one) for one in logprobs]
    return Generation(ids, logprobs, "stop" if finish != "length" and ids[-1] in end_ids else "length")


def _weight_client(base_url: str) -> Any:
    """TRL's client for vLLM's weight transfer."""
    try:
        from trl.generation.vllm_client import VLLMClient

        client = VLLMClient(base_url=base_url.removesuffix("/v1"), connection_timeout=60.0)
        client.init_communicator(device=torch.device("cuda"))
    except ImportError as error:
        raise MissingExtra(f"--endpoint_sync vllm ({error})", "train") from None
    except Exception as error:
        raise UserError(
            f"{base_url}: the weights cannot be sent there ({str(error).splitlines()[0][:300]}); start vLLM with "
            "VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config, or sample from its own weights with --endpoint_sync none"
        ) from None
    return client


def send_weights(client: Any, model: torch.nn.Module) -> None:
    """All weights in one update, adapters merged; under ZeRO-3 gathered by all processes and sent by the first."""
    from agentic.train.launch import rank
    from agentic.train.rl_sampler import merged_weights

    if rank() == 0:
        with client.weight_update():
            for name, weight in merged_weights(model):
                client.update_named_param(name, weight)
        client.reset_prefix_cache()
    else:
        for _ in merged_weights(model):
            pass
