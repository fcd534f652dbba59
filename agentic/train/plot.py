"""`agentic plot`: what training runs logged, as PNG files.

Every number that a row of metrics.jsonl holds is drawn; nested objects are read as `outer/inner`. One file a group of
keys, one panel a key, runs over one another.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic import jsonl
from agentic.config import PlotConfig
from agentic.errors import MissingExtra, UserError
from agentic.run_folder import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = list[tuple[float, float]]
"""(x, value) in order of x, each x once."""

# Name of the file -> the keys that belong into it, first match wins; a key that nothing matches goes into `other`.
GROUPS: dict[str, re.Pattern[str]] = {
    "gamma": re.compile(r"gamma"),
    "parts": re.compile(r"parts?/.*"),
    "success": re.compile(r"(.*[/_])?(success|accuracy_dev)([/_].*)?|dev/.*"),
    "reward": re.compile(r"rewards?([/_].*)?|advantages?([/_].*)?"),
    "loss": re.compile(r"(.*[/_])?loss([/_].*)?|token_accuracy|kl|ratio|clip.*|grad_norm|entropy"),
    "lengths": re.compile(r"(.*[/_])?(lengths?|turns|truncated)([/_].*)?|tokens/.*"),
    "times": re.compile(r"(.*[/_])?(seconds|time)([/_].*)?|.*_per_s|.*_s"),
}
# Axes rather than measurements.
_X_KEYS = frozenset(("step", "epoch", "elapsed_s", "trained_tokens"))
_SEED = re.compile(r"[-_. ]?seed[-_. ]?\d+$", re.IGNORECASE)
# The usual font has no Chinese glyphs; one of these is taken where it is installed.
_CJK_FONTS = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
)
_COLUMNS = 3
_DPI = 110


@dataclass(frozen=True)
class Run:
    """The metrics of one run folder."""

    name: str
    series: dict[str, Series]
    """Key -> its values, in order of the keys' first occurrence."""


def run(config: PlotConfig) -> int:
    """Draw, and say which files were written. Raises UserError for a run without metrics or a broken line."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic plot", "plot") from None
    names = config.names or tuple(map(default_name, config.runs))
    runs = [read_run(folder, name, config.x) for folder, name in zip(config.runs, names, strict=True)]
    output = config.output_dir or (config.runs[0] / "plots" if len(runs) == 1 else Path("plots"))
    try:
        output.mkdir(parents=True, exist_ok=True)
        for group, keys in grouped(runs).items():
            path = output / f"{group}.png"
            draw(path, keys, runs, config.x, config.smooth)
            print(f"wrote {path}: {', '.join(keys)}", flush=True)
    except OSError as error:
        raise UserError(f"{output}: cannot write there ({error.strerror}); name another --output_dir") from None
    if re.search(r"[\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]", "".join(names)) and not chinese_fonts():
        print(f"no Chinese font is installed ({', '.join(_CJK_FONTS)}): the figures show boxes; --names gives others")
    for name in dict.fromkeys(names):
        if (count := names.count(name)) > 1:
            print(f"{name}: mean and range of {count} runs")
    return 0


# ----------------------------------------------------------------------------------------------- reading


def default_name(folder: Path) -> str:
    """The folder's name without its seed: grpo-seed0 and grpo-seed1 are two runs of grpo."""
    name = folder.resolve().name
    return _SEED.sub("", name) or name


def read_run(folder: Path, name: str, x: str = "step") -> Run:
    """The series of a run folder. Raises UserError when it has no metrics, or none with `x`."""
    path = folder / METRICS
    if not path.is_file():
        what = "no such folder" if not folder.exists() else f"has no {METRICS}"
        raise UserError(f"{folder}: {what}; name the --output_dir of a training run")
    found: dict[str, dict[float, float]] = {}
    logged: set[str] = set()
    for _, row in jsonl.iter_rows(path):
        numbers = dict(flat(row))
        logged |= numbers.keys()
        if x not in numbers:
            continue
        for key, value in numbers.items():
            if key not in _X_KEYS and key != x:
                found.setdefault(key, {})[numbers[x]] = value  # a step that was run again counts as it ended
    if not logged:
        raise UserError(f"{path}: holds no numbers yet; wait for the run's first row")
    if not found:
        known = ", ".join(sorted(logged & _X_KEYS)) or ", ".join(sorted(logged))
        raise UserError(f"{path}: nothing is logged beside {x!r}; --x may be one of: {known}")
    return Run(name, {key: sorted(points.items()) for key, points in found.items()})


def flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a row, those of nested objects as outer/inner."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield prefix + key, float(value)


def group_of(key: str) -> str:
    return next((group for group, pattern in GROUPS.items() if pattern.fullmatch(key)), "other")


def grouped(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Group -> keys of any run, in the order in which they were logged first."""
    groups: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for run in runs for key in run.series):
        groups.setdefault(group_of(key), []).append(key)
    return groups


# ------------------------------------------------------------------------------------------- arithmetic


def smoothed(series: Series, window: int) -> Series:
    """Centred mean over `window` values, fewer at the ends."""
    values = [value for _, value in series]
    left, right = (window - 1) // 2, window // 2
    means = []
    for index, (x, _) in enumerate(series):
        part = values[max(0, index - left) : index + right + 1]
        means.append((x, math.fsum(part) / len(part)))
    return means


def band(runs: Sequence[Series]) -> list[tuple[float, float, float, float]]:
    """(x, mean, lowest, highest) over runs at every x where all of them have values, interpolated in between."""
    start, end = max(series[0][0] for series in runs), min(series[-1][0] for series in runs)
    rows = []
    for x in sorted({x for series in runs for x, _ in series if start <= x <= end}):
        values = [_at(series, x) for series in runs]
        rows.append((x, math.fsum(values) / len(values), min(values), max(values)))
    return rows


def _at(series: Series, x: float) -> float:
    """The series at x, between its first and last point."""
    index = bisect.bisect_left(series, (x, -math.inf))
    right_x, right = series[index]
    if right_x == x or index == 0:
        return right
    left_x, left = series[index - 1]
    return left + (right - left) * (x - left_x) / (right_x - left_x)


# ---------------------------------------------------------------------------------------------- drawing


def chinese_fonts() -> list[str]:
    """Installed fonts with Chinese glyphs."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [font for font in _CJK_FONTS if font in installed]


def draw(path: Path, keys: Sequence[str], runs: Sequence[Run], x: str = "step", smooth: int = 1) -> None:
    """Write one PNG, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # A name is text, never a formula: parse_math off.
    with _style_of_figures(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # said once, by run()
        try:
            figure_of(keys, runs, x, smooth).savefig(temporary, format="png")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _style_of_figures() -> AbstractContextManager[None]:
    import matplotlib

    families = ["DejaVu Sans", *chinese_fonts()]
    settings: Any = {"text.parse_math": False, "font.family": families, "font.size": 10}
    return matplotlib.rc_context(settings)


def figure_of(keys: Sequence[str], runs: Sequence[Run], x: str = "step", smooth: int = 1) -> Figure:
    """A figure with a panel for each key, the runs over one another, and one legend."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(run.name for run in runs))
    columns = min(_COLUMNS, len(keys))
    rows = -(-len(keys) // columns)
    # A Figure without pyplot draws with Agg: no display is needed and no global state is left.
    figure = Figure(figsize=(1.2 + 4.6 * columns, 0.9 + 3.1 * rows), dpi=_DPI, layout="constrained")
    for index, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, index + 1)
        for number, name in enumerate(names):
            own = [run for run in runs if run.name == name and key in run.series]
            _lines(axes, own, key, smooth, **_style(number))
        axes.set_title(key)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
        if x == "step":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # A label that starts with an underscore would be left out of the legend.
    labels = [name if not name.startswith("_") else f" {name}" for name in names]
    handles = [Line2D([], [], linewidth=2, **_style(number)) for number in range(len(names))]
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(names)), frameon=False)
    return figure


def _style(number: int) -> dict[str, Any]:
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4]}


def _lines(axes: Axes, runs: Sequence[Run], key: str, smooth: int, color: str, linestyle: str) -> None:
    """The runs of one name: each as a thin line, over them the mean with its range, or the smoothed run."""
    thin: dict[str, Any] = {"color": color, "linestyle": linestyle, "linewidth": 0.8, "alpha": 0.35}
    thick: dict[str, Any] = {"color": color, "linestyle": linestyle, "linewidth": 1.8}
    lines = []
    for run in runs:
        points = run.series[key]
        # What is measured in every tenth row only is smoothed over a tenth as many points.
        window = round(smooth * len(points) / max(map(len, run.series.values())))
        lines.append(smoothed(points, window) if window > 1 else points)
        plain = len(runs) == 1 and lines[-1] is points
        marker = "o" if plain and len(points) < 40 else None
        axes.plot(*zip(*points, strict=True), **(thick if plain else thin), marker=marker, markersize=3)
        if len(runs) == 1 and not plain:
            axes.plot(*zip(*lines[-1], strict=True), **thick)
    if len(runs) > 1 and (rows := band(lines)):
        at, mean, low, high = zip(*rows, strict=True)
        axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(at, mean, **thick)
