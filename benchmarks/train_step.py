"""Compares a training step of PackedTrainer (TRL's SFTTrainer on packed batches) with a bare torch loop.

    python benchmarks/train_step.py --steps 12 --threads 2 --output train_step.json

Both train a copy of one model on the same packed batches, with the same attention, number type, logits only where a token
is trained, AdamW, gradient clipping and schedule. The bare loop has nothing else; what the trainer adds (accelerate, counts,
logging, callbacks) is what is measured. The two take turns step by step, so that noise of the machine hits both alike; the
losses are compared to show that they do the same. Target: at most 1.1 times the bare loop.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from agentic import run_folder

WARM_UP = 2
LEARNING_RATE = 1e-4


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="smollm2", help="base model: smollm2, a folder, or a Hugging Face id")
    add("--lora_rank", type=int, default=32, help="LoRA on all linear layers; 0 trains all weights")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help="autocast type")
    add("--tokens_per_batch", type=int, default=1024, help="tokens of a step")
    add("--steps", type=int, default=12, help=f"steps that count, after {WARM_UP} of warm-up")
    add("--threads", type=int, default=2, help="threads of torch")
    add("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def packed_batches(vocabulary: int, tokens_per_batch: int, count: int) -> list[Any]:
    """Random examples of about the shape of the operations data: a prompt that 4 share, a third of the tokens trained."""
    from agentic.train.packing import Tokens, make_batches

    draw = random.Random(0)

    def ids(length: int) -> list[int]:
        return [draw.randrange(10, vocabulary) for _ in range(length)]

    batches: list[Any] = []
    examples: list[Any] = []
    while len(batches) < count:
        for _ in range(4 * count):
            prompt = ids(draw.randint(120, 200))
            for _ in range(4):
                question, answer = ids(20), ids(draw.randint(40, 90))
                mask = [0] * (len(prompt) + len(question)) + [1] * len(answer)
                examples.append(Tokens.from_mask(prompt + question + answer, mask))
        batches = make_batches(examples, tokens_per_batch)
    return batches[:count]


def load(folder: str, lora_rank: int, low_precision: bool) -> Any:
    """The model as `agentic sft` sets it up."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from agentic.train import attention

    frozen = torch.bfloat16 if lora_rank and low_precision else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=frozen, attn_implementation=attention.NAME)
    model.config.use_cache = False
    if lora_rank:
        torch.manual_seed(0)
        lora = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    return model


class BareLoop:
    """forward, backward, clip, step: nothing else."""

    def __init__(self, model: Any, dtype: str, steps: int) -> None:
        import torch

        self.model = model.train()
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: max(0.0, 1 - step / steps))
        self.autocast = (
            torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
            if dtype == "bfloat16"
            else contextlib.nullcontext()
        )
        self.selected: Any = None
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        base.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0][self.selected],))

    def step(self, batch: dict[str, Any]) -> float:
        import torch
        import torch.nn.functional as F

        from agentic.train.attention import layout

        following = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        self.selected = following != -100
        features = {name: batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
        with self.autocast, layout(batch["layout"]):
            logits = self.model(**features, use_cache=False).logits
        loss = F.cross_entropy(logits.float(), following[self.selected])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import SFTConfig

    from agentic.model.fetch import resolve
    from agentic.model.quiet import quiet_libraries
    from agentic.train.sft import autocast_type
    from agentic.train.trainer import PackedTrainer, with_layout

    quiet_libraries()
    torch.set_num_threads(arguments.threads)
    folder = resolve(arguments.model)
    dtype = autocast_type(arguments.dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    pad_id = tokenizer.pad_token_id
    count = WARM_UP + arguments.steps
    batches = packed_batches(len(tokenizer), arguments.tokens_per_batch, count)
    bare = BareLoop(load(folder, arguments.lora_rank, dtype == "bfloat16"), dtype, count)
    times: dict[str, list[tuple[float, float]]] = {"trainer": [], "bare": []}
    losses: dict[str, list[float]] = {"trainer": [], "bare": []}
    order: list[int] = []

    class TakeTurns(TrainerCallback):  # type: ignore[misc]
        """After each step of the trainer a step of the bare loop on the same batch."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.left = now()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times["trainer"].append(since(self.left))
            batch = with_layout(batches[order[state.global_step - 1]], pad_id)
            started = now()
            losses["bare"].append(bare.step(batch))
            times["bare"].append(since(started))
            self.left = now()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                losses["trainer"].append(logs["loss"])

    def collate(items: list[dict[str, int]]) -> dict[str, Any]:
        order.extend(item["batch"] for item in items)
        return with_layout([row for item in items for row in batches[item["batch"]]], pad_id)

    with tempfile.TemporaryDirectory() as output:
        trainer = PackedTrainer(
            model=load(folder, arguments.lora_rank, dtype == "bfloat16"),
            args=SFTConfig(
                output_dir=output,
                per_device_train_batch_size=1,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="linear",
                max_steps=count,
                max_grad_norm=1.0,
                weight_decay=0.0,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                bf16=dtype == "bfloat16",
                use_cpu=not torch.cuda.is_available(),
                activation_checkpointing=False,
                remove_unused_columns=False,
                dataset_kwargs={"skip_prepare_dataset": True},
                max_length=None,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"batch": list(range(count))}),
            data_collator=collate,
            processing_class=tokenizer,
            callbacks=[TakeTurns()],
        )
        trainer.remove_callback(PrinterCallback)
        load_before = os.getloadavg()
        trainer.train()
    ratios = [[a[i] / b[i] for a, b in zip(times["trainer"], times["bare"], strict=True)][WARM_UP:] for i in (0, 1)]
    return {
        "options": {name: str(v) if isinstance(v, Path) else v for name, v in vars(arguments).items()},
        "dtype": dtype,
        "tokens_per_step": statistics.fmean(sum(map(len, batch)) for batch in batches),
        "seconds": {name: statistics.median(t[0] for t in spent[WARM_UP:]) for name, spent in times.items()},
        "cpu_seconds": {name: statistics.median(t[1] for t in spent[WARM_UP:]) for name, spent in times.items()},
        "ratio": statistics.median(ratios[0]),
        "ratio_cpu": statistics.median(ratios[1]),
        "ratios": ratios[0],
        "ratios_cpu": ratios[1],
        "losses": losses,
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "machine": run_folder.machine(),
        "versions": run_folder.versions(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(started: tuple[float, float]) -> tuple[float, float]:
    """Seconds and processor seconds (hardly moved by what else the machine does)."""
    return time.perf_counter() - started[0], time.process_time() - started[1]


def main() -> None:
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before torch is imported
    report = measure(arguments)
    for kind, name in (("seconds", "wall"), ("cpu_seconds", "CPU")):
        pair = report[kind]
        ratio = report["ratio" if kind == "seconds" else "ratio_cpu"]
        print(f"{name}: trainer {pair['trainer']:.3f} s a step, bare loop {pair['bare']:.3f} s, ratio {ratio:.3f}")
    worst = max(abs(a - b) for a, b in zip(report["losses"]["trainer"], report["losses"]["bare"], strict=True))
    print(f"{report['tokens_per_step']:.0f} tokens a step, {report['dtype']}; losses differ by at most {worst:.1e}")
    if report["load_average"]["before"][0] > 0.5:
        load = report["load_average"]["before"][0]
        print(f"The machine was at work before (load {load:.1f}): trust the ratios, not the times.")
    if arguments.output:
        run_folder.write_json(arguments.output, report)
        print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
