"""The README.md of a trained model folder, generated from facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentic.errors import UserError
from agentic.run_folder import write_json

FACTS = "agentic.json"
"""What is known about a model folder; the card is made from it."""


def read_facts(folder: Path) -> dict[str, Any]:
    """What is known about a model folder; empty where nothing was written yet."""
    path = folder / FACTS
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path}: broken JSON ({error}); delete it and write the card again") from None
    return facts


def write_card(folder: Path, **fields: Any) -> Path:
    """Merge `fields` into the folder's facts and write README.md from them; returns its path.

    Fields: name (title; else the folder's), trained_with (a command), base_model, method, command, data (list of files),
    data_hash, examples, trained_tokens, steps, seed, hours, machine, template_hash, end_ids, tools (OpenAI schemas), versions, git_commit ("+":
    with changes), scores (name -> text with interval). Called again later, for example with scores, it keeps the rest.
    """
    facts = read_facts(folder) | fields
    write_json(folder / FACTS, facts)
    card = folder / "README.md"
    card.write_text(_render(facts.get("name", folder.name), facts), encoding="utf-8")
    return card


def _render(name: str, facts: dict[str, Any]) -> str:
    lora = facts.get("method", "").startswith("LoRA")
    lines = ["---", f"base_model: {facts.get('base_model', '')}"]
    lines += [f"library_name: {'peft' if lora else 'transformers'}", "pipeline_tag: text-generation"]
    lines += ["tags: [agentic-data-analysis, tool-calling, sft]", "---", "", f"# {name}", ""]
    lines += [
        "Answers questions about tables by calling tools in the `agentic` environment. Trained with "
        f"`{facts.get('trained_with', 'agentic sft')}` on "
        "agent tokens only (assistant turns and their end tokens).",
        "",
        "| | |",
        "|---|---|",
    ]
    rows = {
        "Base model": facts.get("base_model"),
        "Method": facts.get("method"),
        "Command": _code(facts.get("command")),
        "Data": ", ".join(facts.get("data", [])) + f" (hash `{facts.get('data_hash')}`)",
        "Examples": facts.get("examples"),
        "Trained tokens": facts.get("trained_tokens"),
        "Steps": facts.get("steps"),
        "Seed": facts.get("seed"),
        "Hours": facts.get("hours"),
        "Machine": facts.get("machine"),
        "Chat template hash": _code(facts.get("template_hash")),
        "End token ids": facts.get("end_ids"),
        "Code": _code(facts.get("git_commit")),
        "Versions": ", ".join(f"{package} {version}" for package, version in facts.get("versions", {}).items()),
    }
    # A pipe would end the cell.
    lines += [
        f"| {key} | {str(value).replace('|', chr(92) + '|')} |" for key, value in rows.items() if value is not None
    ]
    lines += ["", "## Scores", ""]
    scores = facts.get("scores") or {}
    lines += [f"- {key}: {value}" for key, value in scores.items()] or ["Not evaluated yet: `agentic eval`."]
    lines += ["", "## Tools", "", "```json"]
    lines += [json.dumps(tool, ensure_ascii=False) for tool in facts.get("tools", [])]
    lines += ["```", "", "## Limits", ""]
    lines += [
        "It runs code that it wrote itself: use it inside the sandbox of `agentic`. Answers are as good as the code "
        "that was run; check the trace.",
        "",
    ]
    return "\n".join(lines)


def _code(value: Any) -> str | None:
    return None if value is None else f"`{value}`"
