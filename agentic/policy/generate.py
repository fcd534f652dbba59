"""Continuous batched decoding over a transformers causal LM.

One running batch holds up to `batch_size` rows. A row that finishes leaves the cache at once and a waiting request
takes its place, so no row waits for the longest. Prompts are left-padded with explicit masks and positions: a row's
tokens do not depend on its neighbours (up to rounding). Keys and values of finished rows are kept, and a new prompt
starts from the longest kept prefix: the next turn of a conversation, the G samples of one prompt and a shared system
text are not computed again. What rows share is also held once and read once a step, where the model's attention is
known to allow it (attention.py).

Models whose layers keep something else than plain keys and values (sliding windows, linear attention) are decoded with
their own cache: rows are still dropped, but new ones enter only when the batch is empty, and nothing is kept.
"""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from agentic.policy import attention
from agentic.policy.cache import GrowingLayer, Pasts, Start, common, gather, plain, stack

MIN_SHARED = 32
"""A prefix common to the prompts of one admission is computed once when at least this many tokens would be saved."""
MIN_BASE = 64
"""A prompt of several requests is held once, not once a row, when that spares each row at least this many tokens."""


@dataclass
class Generation:
    ids: list[int]
    """Sampled ids, at least one; the end id is included when the model wrote one."""
    logprobs: list[float]
    """Log-probability of each id: float32 log_softmax of the logits at the engine's `logprob_temperature`. By default 1,
    the model's own distribution, whatever the sampling temperature was."""
    stop_reason: Literal["stop", "length"]
    """stop: the last id is an end id. length: the budget (or the model's context) is used up."""


@dataclass(eq=False)
class Request:
    """One prompt on its way through the engine."""

    prompt: list[int]
    budget: int
    random: random.Random
    """Its own stream of numbers: what is sampled does not depend on when the request came or beside which others."""
    start: Start = field(default_factory=Start)
    """Its first `start.shared` tokens are not in the running cache but in `start.base`."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    cancelled: bool = False

    @property
    def finished(self) -> bool:
        return self.stopped or self.cancelled or len(self.ids) >= self.budget

    def result(self) -> Generation:
        return Generation(self.ids, self.logprobs, "stop" if self.stopped else "length")


class Engine:
    """Decodes requests; `generate` for a list at once, `submit` and `step` for requests that come and go.

    Not thread-safe: one thread owns it. After a change of the weights call `forget`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        end_ids: Sequence[int],
        *,
        temperature: float = 0.0,
        logprob_temperature: float = 1.0,
        seed: int | str = 0,
        batch_size: int = 16,
        prefill_tokens: int = 4096,
        keep_bytes: int = 512 << 20,
    ) -> None:
        """`prefill_tokens` bounds rows x columns of a prefill pass, `keep_bytes` the keys and values kept for reuse."""
        self.model = model.eval()
        self.end_ids = frozenset(end_ids)
        self.temperature = temperature
        self.logprob_temperature = logprob_temperature
        self.seed = seed
        self.batch_size = batch_size
        self.prefill_tokens = prefill_tokens
        config: Any = model.config
        self.max_context: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
        self.device = next(model.parameters()).device
        kinds = DynamicCache(config=config).layers
        self.layers = len(kinds) if all(type(kind) is DynamicLayer for kind in kinds) else 0
        """Number of plain layers; 0: the model needs a cache of its own kind."""
        accepted = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.extra: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []
        self.cache: Cache | None = None
        self.mask = torch.zeros((0, 0), dtype=torch.long, device=self.device)
        """[rows, columns of the cache]: 1 where a column holds a token of the row."""
        self.sharing = bool(self.layers) and attention.supports(model)
        self.pasts = Pasts(keep_bytes)
        self.submitted = 0

    # ------------------------------------------------------------------------------------------ requests

    @property
    def idle(self) -> bool:
        return not self.rows and not self.waiting

    def generate(self, prompts: Sequence[Sequence[int]], budgets: Sequence[int]) -> list[Generation]:
        """Complete every prompt with at most its budget of tokens; results in the order of the prompts."""
        requests = [self.submit(prompt, budget) for prompt, budget in zip(prompts, budgets, strict=True)]
        while not self.idle:
            self.step()
        return [request.result() for request in requests]

    def submit(self, prompt: Sequence[int], budget: int, key: str = "") -> Request:
        """Queue a request. Same `key`, seed and prompt: same tokens; without a key, submissions are numbered.

        Raises ValueError for an empty prompt, a budget below 1 (a completion is never empty) or a prompt that leaves no
        room in the model's context; a budget beyond the context is cut to it.
        """
        if not prompt or budget < 1:
            raise ValueError(f"a request needs a prompt and a budget of at least 1 (got {len(prompt)} ids, {budget})")
        if self.max_context is not None:
            if len(prompt) >= self.max_context:
                raise ValueError(f"the prompt has {len(prompt)} tokens, the model's context is {self.max_context}")
            budget = min(budget, self.max_context - len(prompt))
        key = key or f"#{self.submitted}"
        self.submitted += 1
        request = Request(list(prompt), budget, random.Random(f"{self.seed}/{key}"))
        self.waiting.append(request)
        return request

    def step(self) -> list[Request]:
        """Admit waiting requests or decode one token for every row; returns the requests that ended."""
        with torch.inference_mode():
            dropped = [request for request in self.waiting if request.cancelled]
            for request in dropped:
                self.waiting.remove(request)
            if self._worth_admitting():
                self._admit()
            elif self.rows:
                self._decode()
            return dropped + self._retire()

    def _worth_admitting(self) -> bool:
        """An admission copies the whole running cache, so requests enter a few together once the batch is at work."""
        free = self.batch_size - len(self.rows)
        if not self.waiting or not free:
            return False
        if not self.rows:
            return True
        return bool(self.layers) and len(self.waiting) >= min(free, max(1, self.batch_size // 4))

    def forget(self) -> None:
        """Drop kept keys and values: needed when the weights change."""
        self.pasts.clear()

    def reset(self) -> None:
        """Drop everything, also rows in flight."""
        self.forget()
        self.waiting.clear()
        self.rows, self.cache = [], None
        self.mask = self.mask.new_zeros((0, 0))

    # ------------------------------------------------------------------------------------------- decoding

    def _decode(self) -> None:
        assert self.cache is not None
        last = torch.tensor([[request.ids[-1]] for request in self.rows], device=self.device)
        self.mask = torch.cat([self.mask, self.mask.new_ones((len(self.rows), 1))], dim=1)
        starts = [request.start for request in self.rows]
        self._choose(self._forward(last, self.mask, self.cache, starts), self.rows)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: Cache, starts: Sequence[Start]) -> torch.Tensor:
        """ids [rows, new columns], mask [rows, all columns] -> logits of the last column [rows, vocabulary]."""
        before = torch.tensor([[start.shared] for start in starts], device=self.device)
        # Base tokens of a row have no columns; they come first.
        positions = (before + mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        groups: dict[tuple[int, int], list[int]] = {}
        for row, start in enumerate(starts):
            if start.base is not None:
                groups.setdefault((id(start.base), start.shared), []).append(row)
        shared = []
        for rows in groups.values():
            start = starts[rows[0]]
            assert start.base is not None
            layers = [(keys[:, : start.shared], values[:, : start.shared]) for keys, values in start.base.layers]
            shared.append(attention.Shared(torch.tensor(rows), layers))
        with attention.sharing(self.model, shared) if shared else nullcontext():
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self.cache_name: cache},
                **self.extra,
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits.float()

    def _choose(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """Append one token to every request: the likeliest at temperature 0, else by inverse cumulative probability."""
        if self.temperature <= 0:
            chosen = logits.argmax(-1, keepdim=True)
        else:
            cumulative = torch.softmax(logits.double() / self.temperature, -1).cumsum(-1)
            draws = torch.tensor([[r.random.random()] for r in requests], dtype=torch.float64, device=self.device)
            chosen = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
            chosen = chosen.clamp(max=logits.shape[-1] - 1)
        logprobs = torch.log_softmax(logits / self.logprob_temperature, -1).gather(-1, chosen)
        if not torch.isfinite(logprobs).all():
            raise RuntimeError("the model's probabilities are not finite: its weights or its number type are at fault")
        for request, token, logprob in zip(requests, chosen[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.stopped = token in self.end_ids

    def _retire(self) -> list[Request]:
        """Take finished rows out of the cache, keep their keys and values, cut columns that no row uses any more."""
        finished = [request for request in self.rows if request.finished]
        if not finished:
            return []
        for row, request in enumerate(self.rows):
            if request.finished and self.layers:
                self._keep(request, row)
        index = [row for row, request in enumerate(self.rows) if not request.finished]
        self.rows = [self.rows[row] for row in index]
        if not index:
            self.cache, self.mask = None, self.mask.new_zeros((0, 0))
            return finished
        assert self.cache is not None
        chosen = torch.tensor(index, device=self.device)
        self.mask = self.mask[chosen]
        if self.layers:
            first = int(self.mask.any(0).int().argmax()) if self.mask.shape[1] else 0
            self.mask = self.mask[:, first:]
            for layer in plain(self.cache):
                layer.replace(layer.keys[:, :, first:][chosen], layer.values[:, :, first:][chosen])
        else:
            self.cache.reorder_cache(chosen)
        return finished

    def _keep(self, request: Request, row: int) -> None:
        assert self.cache is not None
        columns = self.mask[row].bool()
        layers = [(layer.keys[row][:, columns], layer.values[row][:, columns]) for layer in plain(self.cache)]
        self.pasts.add(request.prompt + request.ids[:-1], layers, request.start.base, request.start.shared)

    # -------------------------------------------------------------------------------------------- prefill

    def _admit(self) -> None:
        """Prefill as many waiting requests as there are free rows; equal prompts are computed once."""
        free = self.batch_size - len(self.rows)
        same: dict[tuple[int, ...], list[Request]] = {}
        for request in [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]:
            same.setdefault(tuple(request.prompt), []).append(request)
        prompts = [list(prompt) for prompt in same]
        if not self.layers:
            self._enter(prompts, [Start()] * len(prompts), list(same.values()))
            return
        self._share(prompts)
        starts = [self.pasts.longest(prompt) for prompt in prompts]
        groups = list(same.values())
        new = [len(prompt) - start.length for prompt, start in zip(prompts, starts, strict=True)]
        # Rows of like length together: columns of padding cost as much as tokens.
        order = sorted(range(len(prompts)), key=lambda i: -new[i])
        while order:
            widest = new[order[0]]
            fit = max(1, self.prefill_tokens // widest)
            chunk = [i for i in order[:fit] if 2 * new[i] >= widest]
            order = order[len(chunk) :]
            self._enter([prompts[i] for i in chunk], [starts[i] for i in chunk], [groups[i] for i in chunk])

    def _share(self, prompts: list[list[int]]) -> None:
        """Compute the prefix that all prompts have in common once, unless it is already kept."""
        if len(prompts) < 2:
            return
        low, high = min(prompts), max(prompts)
        shared = common(np.asarray(low), np.asarray(high))
        prefix = low[: min(shared, min(map(len, prompts)) - 1)]
        start = self.pasts.longest([*prefix, -1])
        if len(prefix) - start.length < MIN_SHARED:
            return
        cache, mask, _ = self._prefill([prefix], [start])
        if self.sharing:
            self._make_base(prefix, start, cache, mask, 0)
        else:
            self.pasts.add(prefix, [(layer.keys[0], layer.values[0]) for layer in plain(cache)])

    def _make_base(self, ids: list[int], start: Start, cache: Cache, mask: torch.Tensor, row: int) -> Start:
        """Hold the tokens of a prefilled row once, for all rows that start with them."""
        columns = mask[row].bool()
        layers = [(layer.keys[row][:, columns], layer.values[row][:, columns]) for layer in plain(cache)]
        if start.base is not None:
            layers = [
                (torch.cat([k[:, : start.shared], keys], 1), torch.cat([v[:, : start.shared], values], 1))
                for (k, v), (keys, values) in zip(start.base.layers, layers, strict=True)
            ]
        return Start(self.pasts.add_base(ids, layers), len(ids), None, len(ids))

    def _enter(self, prompts: list[list[int]], starts: list[Start], groups: list[list[Request]]) -> None:
        """Prefill one chunk, sample the first token of every request, and join the rows to the running batch."""
        cache, mask, logits = self._prefill(prompts, starts)
        if self.sharing:
            for row, (prompt, start, group) in enumerate(zip(prompts, starts, groups, strict=True)):
                if len(group) > 1 and len(prompt) - start.shared >= MIN_BASE:
                    starts[row] = self._make_base(prompt, start, cache, mask, row)
                    mask[row] = 0
        for start, group in zip(starts, groups, strict=True):
            for request in group:
                request.start = start
        source = [row for row, group in enumerate(groups) for _ in group]
        requests = [request for group in groups for request in group]
        if len(source) > len(groups):
            index = torch.tensor(source, device=self.device)
            mask, logits = mask[index], logits[index]
            if self.layers:
                # Columns that stand in bases now.
                first = int(mask.any(0).int().argmax()) if mask.any() else mask.shape[1]
                mask = mask[:, first:]
                for layer in plain(cache):
                    layer.replace(layer.keys[:, :, first:][index], layer.values[:, :, first:][index])
            else:
                cache.reorder_cache(index)
        self._choose(logits, requests)
        if self.cache is None:
            self.cache, self.mask = cache, mask
        else:
            for mine, other in zip(plain(self.cache), plain(cache), strict=True):
                mine.replace(stack(mine.keys, other.keys), stack(mine.values, other.values))
            self.mask = stack(self.mask[..., None], mask[..., None])[..., 0]
        self.rows.extend(requests)

    def _prefill(self, prompts: list[list[int]], starts: list[Start]) -> tuple[Cache, torch.Tensor, torch.Tensor]:
        """Columns are [copied tokens, left-padded][new tokens, left-padded]; returns cache, mask, last logits."""
        rows = len(prompts)
        before = max(start.copied for start in starts)
        width = max(len(prompt) - start.length for prompt, start in zip(prompts, starts, strict=True))
        ids = torch.zeros((rows, width), dtype=torch.long)
        mask = torch.zeros((rows, before + width), dtype=torch.long)
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            new = prompt[start.length :]
            ids[row, width - len(new) :] = torch.tensor(new)
            mask[row, before - start.copied : before] = 1
            mask[row, before + width - len(new) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        cache: Cache
        if self.layers:
            cache = Cache(layers=[GrowingLayer() for _ in range(self.layers)])
        else:
            cache = DynamicCache(config=self.model.config)
        if before:
            for number, layer in enumerate(plain(cache)):
                layer.replace(*(gather(starts, number, part, before) for part in (0, 1)))
        return cache, mask, self._forward(ids, mask, cache, starts)
