"""Every option of every command, declared once.

The docstring under a field is its help text. tyro turns `--train_size` and `--train-size` into the same field.
This package imports nothing heavy: it is read for `--help`.
"""

from __future__ import annotations

from agentic.config.data import BuildConfig, CardConfig, DataCheckConfig, DatasetConfig, QuestionsConfig, ValidateConfig
from agentic.config.evaluate import EvalConfig, PlotConfig
from agentic.config.start import (
    DoctorConfig,
    ModelsCreateConfig,
    ModelsExportConfig,
    ModelsFetchConfig,
    QuickstartConfig,
    SandboxBenchConfig,
    SandboxDoctorConfig,
    TokenizerConfig,
)
from agentic.config.train import SftConfig, TrainConfig
from agentic.config.use import AskConfig

__all__ = [
    "AskConfig",
    "BuildConfig",
    "CardConfig",
    "DataCheckConfig",
    "DatasetConfig",
    "DoctorConfig",
    "EvalConfig",
    "ModelsCreateConfig",
    "ModelsExportConfig",
    "ModelsFetchConfig",
    "PlotConfig",
    "QuestionsConfig",
    "QuickstartConfig",
    "SandboxBenchConfig",
    "SandboxDoctorConfig",
    "SftConfig",
    "TokenizerConfig",
    "TrainConfig",
    "ValidateConfig",
]
