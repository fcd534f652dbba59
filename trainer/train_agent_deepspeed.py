"""Reinforcement learning of SearchLM: `agentic train` under its documented name, in trainer/ of a checkout (installed or not)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentic.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
