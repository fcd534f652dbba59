"""A command's terminal shows the command's own lines: what the libraries below it print is switched off here."""

from __future__ import annotations

import warnings


def quiet_libraries() -> None:
    """No progress bars and no hints of transformers and the Hugging Face hub; their errors stay. Needs the extra train."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # the hub's bars as well
    # peft asks for the old name on every model.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
