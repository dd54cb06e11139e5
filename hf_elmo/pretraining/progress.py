"""How training shows where it is: a bar with perplexity and words a second on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def describe(logs: dict[str, Any]) -> str:
    """One line about a step, from what the trainer logs; empty where there is nothing to tell."""
    parts = []
    if "perplexity" in logs:
        parts.append(f"perplexity {logs['perplexity']:.2f}")
    if "sampled_perplexity" in logs:
        parts.append(f"perplexity among drawn words {logs['sampled_perplexity']:.2f}")
    if "tokens_per_second" in logs:
        parts.append(f"{logs['tokens_per_second']:,.0f} tokens/s")
    if "learning_rate" in logs:
        parts.append(f"learning rate {logs['learning_rate']:.2g}")
    if "eval_perplexity" in logs:
        forward, backward = logs["eval_forward_perplexity"], logs["eval_backward_perplexity"]
        parts.append(
            f"validation perplexity {logs['eval_perplexity']:.2f} (forward {forward:.2f}, backward {backward:.2f})"
        )
    return ", ".join(parts)


class TrainingProgress(TrainerCallback):
    """Shows steps, perplexity and tokens a second on stderr; in the first process only."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the bar on a terminal."""
        if state.is_world_process_zero and sys.stderr.isatty():
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", dynamic_ncols=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Shows perplexity and speed."""
        line = describe(logs or {})
        if not line or not state.is_world_process_zero:
            return
        if self.bar is None:
            print(f"step {state.global_step:,} of {state.max_steps:,}: {line}", file=sys.stderr, flush=True)
        elif "eval_perplexity" in (logs or {}):
            self.bar.write(f"step {state.global_step:,}: {line}", file=sys.stderr)
        else:
            self.bar.set_postfix_str(line)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
