"""What a person reads after an evaluation: one table for all runs, and the cases that went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentic.evaluate.metrics import METRICS, Estimate, Summary, failure_kind
from agentic.records import Task, Trajectory
from agentic.reward.judge import Judge
from agentic.reward.trajectory import score_trajectory


def print_table(columns: Mapping[str, Summary], console: Console) -> None:
    """One column per run; names of runs are shown as they are, never read as markup."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in columns:
        table.add_column(escape(name), justify="right", no_wrap=True)
    summaries = list(columns.values())
    for metric in METRICS:
        table.add_row(metric, *(shown(summary.metrics.get(metric)) for summary in summaries))
    table.add_section()
    table.add_row("tasks x samples", *(f"{s.tasks} x {s.samples}" for s in summaries))
    for preset in dict.fromkeys(summary.reward_preset for summary in summaries if summary.reward is not None):
        rewards = (s.reward if s.reward_preset == preset else None for s in summaries)
        table.add_row(f"reward ({preset})", *("-" if reward is None else f"{reward:.3f}" for reward in rewards))
    table.add_row("tokens a trajectory", *(f"{s.tokens_per_trajectory:.0f}" for s in summaries))
    table.add_row("seconds a trajectory", *(f"{s.wall_s_per_trajectory:.2f}" for s in summaries))
    for kind in dict.fromkeys(kind for summary in summaries for kind in summary.failures):
        table.add_row(kind.replace("_", " "), *(str(summary.failures.get(kind, 0)) for summary in summaries))
    categories = list(dict.fromkeys(name for summary in summaries for name in summary.categories))
    if len(categories) > 1:
        table.add_section()
        for name in categories:
            rows = [summary.categories.get(name) for summary in summaries]
            table.add_row(escape(name), *(shown(row.task_success) if row else "-" for row in rows))
    console.print(table)
    for name, summary in columns.items():
        console.print(f"{escape(name)}: 95 % intervals over {escape(summary.clustering)}", style="dim", highlight=False)
        if summary.unjudged:
            said = f"{summary.unjudged} free-text answers are unjudged; task_success and answer_score leave them out"
            console.print(f"{escape(name)}: {said}", highlight=False)
        if summary.missing:
            ids = ", ".join(summary.missing[:5]) + (", ..." if len(summary.missing) > 5 else "")
            console.print(
                f"{escape(name)}: {len(summary.missing)} tasks without an answer count as failed: {escape(ids)}",
                highlight=False,
            )


def shown(estimate: Estimate | None) -> str:
    """0.912 [0.87, 0.94]; a Wilson interval is marked with a w."""
    if estimate is None:
        return "-"
    mark = "w" if estimate.method == "wilson" else ""
    # The opening bracket would begin rich markup.
    return escape(f"{estimate.mean:.3f} [{estimate.low:.2f}, {estimate.high:.2f}]{mark}")


def bad_cases(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], judge: Judge | None = None
) -> list[dict[str, Any]]:
    """Everything that is not right, in task order: also missing trajectories and unjudged answers, which `failure` names."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task_id, []).append(trajectory)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        gold = task.answer or [check.value for check in task.checks]
        base = {"id": task.id, "question": task.question, "gold": gold}
        if task.id not in by_task:
            rows.append({**base, "answer": None, "reason": "no trajectory", "failure": "missing", "turns": []})
        for trajectory in by_task.get(task.id, []):
            _, _, verdict = score_trajectory(task, trajectory, judge=judge)
            if verdict.correct:
                continue
            rows.append(
                {
                    **base,
                    "sample": trajectory.sample,
                    "answer": trajectory.answer,
                    "reason": trajectory.error or verdict.reason,
                    "failure": failure_kind(trajectory, verdict),
                    "stop_reason": str(trajectory.stop_reason),
                    "turns": [
                        {"text": turn.text, "observations": [o.text for o in turn.observations]}
                        for turn in trajectory.turns
                    ],
                }
            )
    return rows
