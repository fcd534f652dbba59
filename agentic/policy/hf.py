"""The local policy: a transformers model that writes many episodes' turns in one batch.

`act` renders on the event loop and queues ids; one worker thread gathers what waits, decodes, and hands results back
through futures. Episodes join and leave the batch turn by turn, and the loop never waits for torch.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic.errors import MissingExtra, UserError
from agentic.model import fetch
from agentic.model.chat import Renderer
from agentic.model.quiet import quiet_libraries
from agentic.model.searchlm import register as register_searchlm
from agentic.policy.tokens import TokenPolicy, first_line

if TYPE_CHECKING:
    import torch

    from agentic.policy.generate import Generation, Request

log = logging.getLogger(__name__)

GATHER_S = 0.01
"""How long an idle worker waits for further requests after the last one came."""


class HFPolicy(TokenPolicy):
    """A Policy over a local model folder, adapter folder, `smollm2`, `default`, or a Hugging Face id.

    `version` names the weights and the chat template. Raises UserError when the model cannot be loaded.
    """

    def __init__(
        self,
        model_name_or_path: str,
        *,
        adapter: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        batch_size: int = 16,
        dtype: str = "auto",
        threads: int | None = None,
    ) -> None:
        """`adapter`: a peft folder put on `model_name_or_path`; not needed when that is an adapter folder itself."""
        try:
            import torch  # noqa: F401
            import transformers

            from agentic.policy.generate import Engine
        except ImportError:
            raise MissingExtra("a local model", "train") from None
        quiet_libraries()
        set_threads(threads)
        folder = Path(fetch.resolve(model_name_or_path))
        if adapter is None and not (folder / "config.json").is_file():
            adapter = str(folder)
            folder = Path(fetch.base_of_adapter(adapter))
        adapter_folder = Path(fetch.resolve(adapter)) if adapter else None
        folders = [folder, adapter_folder] if adapter_folder else [folder]
        with_tokenizer = next((f for f in reversed(folders) if (f / "tokenizer_config.json").is_file()), folder)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(with_tokenizer))
        except (OSError, ValueError) as error:
            raise UserError(f"{with_tokenizer}: the tokenizer cannot be loaded ({first_line(error)})") from None
        self.renderer = Renderer(tokenizer)
        self.model = load_model(folder, adapter_folder, dtype)
        self.name = model_name_or_path if adapter is None else str(adapter_folder)
        self.version = f"{_fingerprint(folders)}-{self.renderer.template_hash[:8]}"
        _check_template(folders[-1], self.renderer.template_hash)
        self.engine = Engine(
            self.model, self.renderer.end_ids, temperature=temperature, seed=seed, batch_size=batch_size
        )
        self.max_context = self.engine.max_context
        self._worker = _Worker(self.engine)

    async def generate(self, prompt: list[int], budget: int, key: str) -> Generation:
        return await asyncio.wrap_future(self._worker.submit(prompt, budget, key))

    async def close(self) -> None:
        """Stop the worker; waiting calls end with an error reply."""
        await asyncio.to_thread(self._worker.close)


class _Worker:
    """The thread that owns the engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[tuple[list[int], int, str, Future[Generation]] | None] = queue.SimpleQueue()
        self._running: dict[Request, Future[Generation]] = {}
        self._lock = threading.Lock()
        self._closed = False
        # A daemon: a policy that nobody closed must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="agentic-hf", daemon=True)
        self._thread.start()

    def submit(self, prompt: list[int], budget: int, key: str) -> Future[Generation]:
        future: Future[Generation] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the policy is closed")
            self._queue.put((prompt, budget, key, future))
        return future

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._gather():
            for request, future in self._running.items():
                request.cancelled = future.cancelled()
            try:
                ended = self._engine.step()
            except Exception as error:  # whatever torch raises belongs to the callers, and the thread must live on
                log.warning("generation failed: %s", error)
                self._fail(error)
                self._engine.reset()
                continue
            for request in ended:
                future = self._running.pop(request)
                if future.set_running_or_notify_cancel():
                    future.set_result(request.result())
        self._fail(RuntimeError("the policy was closed"))

    def _gather(self) -> bool:
        """Take what waits; an idle engine blocks for the first request and a moment for those that come with it."""
        idle = self._engine.idle
        last = time.monotonic()
        while True:
            try:
                if idle and self._engine.idle:
                    item = self._queue.get()
                elif idle and len(self._engine.waiting) < self._engine.batch_size:
                    item = self._queue.get(timeout=max(0.0, last + GATHER_S - time.monotonic()))
                else:
                    item = self._queue.get_nowait()
            except queue.Empty:
                return True
            if item is None:
                return False
            last = time.monotonic()
            prompt, budget, key, future = item
            self._running[self._engine.submit(prompt, budget, key)] = future

    def _fail(self, error: Exception) -> None:
        wrapped = error if isinstance(error, RuntimeError) else RuntimeError(f"{type(error).__name__}: {error}")
        for future in self._running.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(wrapped)
        self._running.clear()


# ---------------------------------------------------------------------------------------------- loading


def load_model(folder: Path, adapter: Path | None = None, dtype: str = "auto") -> torch.nn.Module:
    """The causal LM of `folder` for sampling, an adapter merged into it, on the GPU where there is one.

    Raises UserError when the folder's weights or the adapter do not load.
    """
    import torch
    import transformers
    from safetensors import SafetensorError

    register_searchlm()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number_type = sampling_dtype(dtype, device)
    # An adapter is merged in float32 and rounded once.
    load_type = torch.float32 if adapter else number_type
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=load_type)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: the model cannot be loaded ({first_line(error)})") from None
    if adapter is not None:
        try:
            import peft
        except ImportError:
            raise MissingExtra("an adapter", "train") from None
        try:
            model = peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{adapter}: the adapter does not fit {folder} ({first_line(error)})") from None
    loaded: torch.nn.Module = model.to(device=device, dtype=number_type).eval()
    return loaded


def sampling_dtype(dtype: str, device: str) -> torch.dtype:
    """auto: bfloat16 where the hardware multiplies it (about 1.7 times as fast on such a CPU), else float32."""
    import torch

    if dtype == "auto":
        if device == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        able = torch.cpu.get_capabilities()
        return torch.bfloat16 if any(able.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16")) else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise UserError(f"dtype {dtype!r} is unknown; use auto, {', '.join(named)}")
    return named[dtype]


def set_threads(threads: int | None = None) -> None:
    """Threads of torch: as asked, else OMP_NUM_THREADS (torch reads it), else the physical cores we may use."""
    import torch

    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        physical = torch.cpu.get_capabilities().get("num_physical_cores") or allowed
        threads = min(allowed, int(physical), _cpu_quota() or allowed)
    if threads is not None:
        torch.set_num_threads(max(1, threads))


def _cpu_quota() -> int | None:
    """Cores that a container's quota allows: more threads than that are stopped in mid-step."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no such control group, or "max"
        return None


# ---------------------------------------------------------------------------------------------- details


def _fingerprint(folders: list[Path]) -> str:
    """Short hash of the weight files: sizes and up to 64 evenly spaced blocks of 1 MiB (small files: everything)."""
    block = 1 << 20
    digest = hashlib.sha256()
    for path in _weights(folders):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(block, size // 64)):
                file.seek(start)
                digest.update(file.read(block))
    return digest.hexdigest()[:12]


def _weights(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin"))


def _check_template(folder: Path, current: str) -> None:
    """Weights trained under another chat template answer worse; the folder's agentic.json says which one it was."""
    path = folder / fetch.MANIFEST
    if not path.is_file():
        return
    trained = json.loads(path.read_text(encoding="utf-8")).get("template_hash")
    if trained and trained != current:
        log.warning(
            "%s was trained with chat template %s, this one is %s: expect worse turns", folder, trained, current
        )
