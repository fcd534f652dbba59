"""The ways to roll out that benchmarks/rollout.py compares: same weights, prompts, environment, parser and budgets.

`ours` and the two `generate` methods differ only in who writes the turns: HFPolicy hands every turn to a worker, and the
workers below stand in for the engine's. TRL brings its own loop and gets the environment's tools as methods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.data_analysis_env import Environment, prompt_messages, task_tools
from agentic.policy.hf import HFPolicy
from agentic.records import Action, Task, Trajectory
from agentic.rollout import RolloutLimits, run_episodes
from agentic.sandbox import Sandbox

MAX_NEW_TOKENS = 256
"""Per turn, for all methods."""


@dataclass
class Outcome:
    """What one method did with all tasks once."""

    seconds: float
    cpu_seconds: float
    """Of this process, all threads; the sandbox's processes are not in it. Hardly moved by what else the machine does."""
    trajectories: int
    sampled_tokens: int
    success: float
    """Share of right answers: methods that sample from one model have the same, within noise."""
    tool_seconds: float = 0.0
    """Spent in tools, summed over the trajectories (they overlap where a method lets them)."""


class Clock:
    def __init__(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def spent(self) -> tuple[float, float]:
        """Seconds and processor seconds since the start."""
        return time.perf_counter() - self.started[0], time.process_time() - self.started[1]


class Setting:
    """Model, tasks and options that all methods share."""

    def __init__(self, policy: HFPolicy, tasks: Sequence[Task], base_dir: Path, samples: int, temperature: float):
        self.policy, self.tasks, self.base_dir = policy, list(tasks), base_dir
        self.samples, self.temperature = samples, temperature
        self.model: Any = policy.model
        self.end_ids = list(policy.renderer.end_ids)

    @property
    def count(self) -> int:
        return len(self.tasks) * self.samples

    def generate(self, prompts: Sequence[Sequence[int]], budget: int) -> list[list[int]]:
        """transformers' `generate` over the prompts, left-padded: it ends when the longest completion does."""
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=budget,
                do_sample=self.temperature > 0,
                temperature=self.temperature if self.temperature > 0 else None,
                top_k=0,
                top_p=1.0,
                eos_token_id=self.end_ids,
                pad_token_id=self.end_ids[0],
            )
        completions = []
        for row in output[:, width:].tolist():
            end = next((index for index, token in enumerate(row) if token in self.end_ids), len(row) - 1)
            completions.append(row[: end + 1])
        return completions


class Method:
    name = ""
    what = ""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def run(self, sandbox: Sandbox) -> Outcome:
        """Roll every task out `samples` times."""
        raise NotImplementedError


class Episodes(Method):
    """run_episodes over HFPolicy, with `worker` in the engine's place (None: the engine)."""

    concurrency = 1
    samples: int | None = None
    """Of a task, where that is not all of them."""

    def worker(self) -> Any:
        return None

    def ended(self) -> None:
        """An episode is over."""

    async def run(self, sandbox: Sandbox) -> Outcome:
        setting, policy = self.setting, self.setting.policy
        jobs = [
            (task, setting.base_dir, sample)
            for task in setting.tasks
            for sample in range(self.samples or setting.samples)
        ]
        limits = RolloutLimits(
            max_new_tokens=MAX_NEW_TOKENS, deadline_s=1e6, concurrency=self.concurrency or setting.count
        )
        policy.engine.reset()  # nothing is left from the run before
        engine_worker = policy._worker
        policy._worker = self.worker() or engine_worker
        trajectories: list[Trajectory] = []
        clock = Clock()
        try:
            async with aclosing(run_episodes(jobs, policy, sandbox, limits)) as running:
                async for trajectory in running:
                    trajectories.append(trajectory)
                    self.ended()
            spent = clock.spent()
        finally:
            policy._worker = engine_worker
        failed = [trajectory.error for trajectory in trajectories if trajectory.error]
        if failed:
            raise RuntimeError(f"{self.name}: {len(failed)} trajectories failed: {failed[0]}")
        observations = [o for t in trajectories for turn in t.turns for o in turn.observations]
        return Outcome(
            *spent,
            len(trajectories),
            sum(sum(trajectory.mask) for trajectory in trajectories),
            sum(trajectory.parts["task_success"] for trajectory in trajectories) / len(trajectories),
            sum(observation.wall_ms for observation in observations) / 1000,
        )


class Ours(Episodes):
    name = "ours"
    what = "run_episodes and the continuous batching engine"
    concurrency = 0


@dataclass
class Completed:
    """What HFPolicy reads of an engine's Generation; `generate` gives no logprobs."""

    ids: list[int]

    @property
    def logprobs(self) -> list[float]:
        return [0.0] * len(self.ids)

    stop_reason: str = "stop"


class OneByOne(Episodes):
    name = "one by one"
    what = "a loop over samples, generate on one sequence, tool call, next turn"
    samples = 1  # its time per token is the same for one sample of each task as for all

    def worker(self) -> Any:
        return self

    def submit(self, prompt: list[int], budget: int, key: str) -> Future[Completed]:
        # Nothing else is running: the loop may as well wait here.
        future: Future[Completed] = Future()
        future.set_result(self.completed(self.setting.generate([prompt], budget)[0]))
        return future

    def completed(self, ids: list[int]) -> Completed:
        return Completed(ids, "stop" if ids[-1] in self.setting.end_ids else "length")


class Lockstep(OneByOne):
    name = "batched generate"
    what = "all samples' turns in one left-padded generate that waits for the longest; tools run concurrently"
    concurrency = 0
    samples = None

    def worker(self) -> Any:
        self.live = self.setting.count
        self.waiting: list[tuple[list[int], int, Future[Completed]]] = []
        self.pool = ThreadPoolExecutor(1)
        return self

    def submit(self, prompt: list[int], budget: int, key: str) -> Future[Completed]:
        future: Future[Completed] = Future()
        self.waiting.append((prompt, budget, future))
        self._start()
        return future

    def ended(self) -> None:
        self.live -= 1
        self._start()

    def _start(self) -> None:
        """Once every episode that goes on waits for its turn."""
        if self.waiting and len(self.waiting) == self.live:
            batch, self.waiting = self.waiting, []
            self.pool.submit(self._generate, batch)

    def _generate(self, batch: list[tuple[list[int], int, Future[Completed]]]) -> None:
        try:
            completions = self.setting.generate([prompt for prompt, _, _ in batch], batch[0][1])
        except Exception as error:
            for _, _, future in batch:
                future.set_exception(RuntimeError(str(error)))
            return
        for (_, _, future), ids in zip(batch, completions, strict=True):
            future.set_result(self.completed(ids))


class Trl(Method):
    """GRPOTrainer's generation with tools: `_generate_and_score_completions`, which ends before any loss.

    The tools are the environment's; each call is waited for before the next one starts, as TRL does it.
    """

    name = "TRL"
    what = "GRPOTrainer's own tool loop (environment_factory)"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import tempfile
        import warnings

        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.chat_template_utils import qwen3_template

        tokenizer = setting.policy.renderer.tokenizer
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(setting.end_ids[0])
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.response_template = qwen3_template  # the shipped template writes calls as Qwen's does
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.environments: list[Any] = []
        self.sandbox: Sandbox | None = None
        self.tool_seconds = 0.0
        self.rows = [
            {
                "prompt": [m.model_dump(include={"role", "content"}) for m in prompt_messages(task, setting.base_dir)],
                "index": index,
            }
            for index, task in enumerate(setting.tasks)
        ]
        self.folder = tempfile.TemporaryDirectory()
        turns = {task.max_turns for task in setting.tasks}
        arguments = GRPOConfig(
            output_dir=self.folder.name,
            use_cpu=setting.model.device.type == "cpu",
            bf16=str(setting.model.dtype) == "torch.bfloat16",
            per_device_train_batch_size=setting.count,
            num_generations=setting.samples,
            steps_per_generation=1,
            max_completion_length=4096,
            generation_kwargs={"max_new_tokens": MAX_NEW_TOKENS},
            max_tool_calling_iterations=max(turns) - 1,
            temperature=setting.temperature,
            activation_checkpointing=False,
            report_to=[],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer = GRPOTrainer(
                model=setting.model,
                reward_funcs=self._score,
                args=arguments,
                train_dataset=Dataset.from_list(self.rows),
                processing_class=tokenizer,
                environment_factory=lambda: self._environment(),
            )
        setting.model.eval()
        # TRL shows the methods in alphabetical order.
        names = [spec.name for spec in task_tools(setting.tasks[0])]
        for tools in (self.trainer.tools, *self.trainer._env_tools.values()):
            tools.sort(key=lambda tool: names.index(tool.__name__))
        self._check_prompts()

    def _check_prompts(self) -> None:
        """TRL renders the tools from Python methods: the ids must be those of our renderer all the same."""
        setting = self.setting
        theirs = setting.policy.renderer.tokenizer.apply_chat_template(
            self.rows[0]["prompt"],
            tools=self.trainer.tools,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        task = setting.tasks[0]
        ours = setting.policy.renderer.prompt_ids(prompt_messages(task, setting.base_dir), task_tools(task))
        if list(theirs) != ours:
            raise RuntimeError("TRL's prompt is not ours: the comparison would be of different work")

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def _environment(self) -> Any:
        """An object with `reset` and one method for each tool of the tasks, in their order."""
        method = self

        class Tools:
            environment: Environment | None = None

            def reset(self, **row: Any) -> None:
                self.task = method.setting.tasks[row["index"]]
                self.environment = Environment(method.sandbox)
                method.wait(self.environment.reset(self.task, method.setting.base_dir))
                return None

            def _step(self, name: str, arguments: dict[str, Any]) -> str:
                if self.environment is None:
                    raise RuntimeError("reset() comes first")
                started = time.perf_counter()
                action = Action(kind="tool", name=name, arguments=arguments)
                observation = method.wait(self.environment.step(action))
                method.tool_seconds += time.perf_counter() - started
                return observation.text

        for spec in task_tools(self.setting.tasks[0]):
            setattr(Tools, spec.name, _tool_method(spec))
        tools = Tools()
        self.environments.append(tools)
        return tools

    def _score(self, completions: list[Any], environments: list[Any], **columns: Any) -> list[float]:
        rewards = []
        for messages, tools in zip(completions, environments, strict=True):
            last = messages[-1]
            answer = None if last.get("tool_calls") or last["role"] != "assistant" else str(last.get("content") or "")
            trajectory = Trajectory(task_id=tools.task.id, answer=answer)
            tools.environment.score(trajectory)
            rewards.append(trajectory.parts["task_success"])
        self.success = sum(rewards) / len(rewards)
        return rewards

    async def run(self, sandbox: Sandbox) -> Outcome:
        return await asyncio.to_thread(self._run)

    def _run(self) -> Outcome:
        # A sandbox belongs to one event loop: this one.
        self.sandbox = Sandbox()
        self.tool_seconds = 0.0
        inputs = [dict(row) for row in self.rows for _ in range(self.setting.samples)]
        self.trainer.model.train()  # in eval mode TRL generates num_generations_eval samples; SmolLM2 has no dropout
        clock = Clock()
        output = self.trainer._generate_and_score_completions(inputs)
        spent = clock.spent()
        self.trainer.model.eval()
        tokens = int((output["completion_mask"] * output["tool_mask"]).sum())
        for tools in self.environments:
            if tools.environment is not None:
                self.wait(tools.environment.close())
        self.wait(self.sandbox.close())
        return Outcome(*spent, len(inputs), tokens, self.success, self.tool_seconds)


def _tool_method(spec: Any) -> Any:
    """A method with the signature and docstring that transformers turns back into the tool's schema."""
    types = {"string": "str", "integer": "int"}
    parameters, documented = [], []
    for name, schema in spec.parameters["properties"].items():
        default = "" if name in spec.required else " = 1" if schema["type"] == "integer" else ' = ""'
        parameters.append(f"{name}: {types[schema['type']]}{default}")
        documented.append(f"        {name}: {schema.get('description', name)}")
    arguments = ", ".join(f"{name!r}: {name}" for name in spec.parameters["properties"])
    scope: dict[str, Any] = {}
    exec(  # a signature cannot be made in another way that inspect and get_type_hints both read
        f"def {spec.name}(self, {', '.join(parameters)}) -> str:\n    return self._step({spec.name!r}, {{{arguments}}})",
        scope,
    )
    function = scope[spec.name]
    function.__doc__ = "\n".join([spec.description, "", "    Args:", *documented])
    return function


METHODS: dict[str, type[Method]] = {
    "ours": Ours,
    "one": OneByOne,
    "batched": Lockstep,
    "trl": Trl,
}
