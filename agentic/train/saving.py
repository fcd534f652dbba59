"""Saving for trainers of transformers and TRL: whole checkpoints under our names, and SearchLM's light weights.

Imports transformers: import it inside functions.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer

from agentic.model.searchlm.checkpoint import save_state
from agentic.train.checkpoints import Checkpoints


class SealedSaving:
    """Mixin, in front of a Trainer: a checkpoint is written aside, sealed and renamed, so it is whole or not there.

    Set `store` before training, and `light_weights` to also write SearchLM's weight file at every save.
    """

    store: Checkpoints
    light_weights: Path | None = None
    _staging: Path | None = None

    def seal_facts(self) -> dict[str, Any]:
        """What the seal of a checkpoint records besides its files. Called on every process."""
        return {}

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        store: Checkpoints = self.store
        self._staging = store.staging
        try:
            Trainer._save_checkpoint(self, model, trial)  # not TRL's, which adds a card of its own
        finally:
            self._staging = None
        facts = self.seal_facts()
        self.write_light_weights()
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            staged = store.staging / f"checkpoint-{self.state.global_step}"
            store.publish(staged, self.state.epoch or 0.0, self.state.global_step, **facts)
            shutil.rmtree(store.staging)
            store.prune(self.args.save_total_limit or 0)

    def _get_output_dir(self: Any, trial: Any) -> str:
        return os.fspath(self._staging) if self._staging is not None else str(Trainer._get_output_dir(self, trial))

    def gathered_state(self: Any) -> dict[str, Any]:
        """The model's weights; under DeepSpeed gathered from all processes, which must all call it."""
        if self.is_deepspeed_enabled and self.model_wrapped is not self.model:
            gathered: dict[str, Any] = self.accelerator.get_state_dict(self.model_wrapped) or {}
            # DeepSpeed copies every tensor: tied ones are made one again, so that they are written once.
            tied = getattr(self.model, "_tied_weights_keys", None) if self.model.config.tie_word_embeddings else None
            for name, source in tied.items() if isinstance(tied, dict) else ():
                if name in gathered and source in gathered:
                    gathered[name] = gathered[source]
            return gathered
        state: dict[str, Any] = self.accelerator.unwrap_model(self.model).state_dict()
        return state

    def write_light_weights(self: Any) -> None:
        """Write `light_weights`, whole or not at all; nothing without it. Every process must call it."""
        if self.light_weights is not None:
            state = self.gathered_state()
            if self.args.should_save:
                save_state(state, self.light_weights)
