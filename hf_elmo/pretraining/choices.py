"""What a person chooses for a training run, with defaults that belong together, as arguments of the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .arguments import PROTOCOLS, ElmoPreTrainingArguments

# Learning rate, schedule, warm-up (share of the steps) and norm at which gradients are cut, where nothing is said.
# Adagrad: the published models' (bilm-tf). AdamW: what trained the model in `hf_elmo/models`.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"optim": "adagrad", "learning_rate": 0.2, "schedule": "constant", "warmup": 0.0, "clip": 10.0},
    "adamw": {"optim": "adamw_torch", "learning_rate": 2e-3, "schedule": "linear", "warmup": 0.02, "clip": 1.0},
}
SCHEDULES = ("constant", "linear", "cosine")
PRECISIONS = ("float32", "bf16", "fp16")

# Choices that leave the numbers of a run as they are.
FREE = ("save_every", "evaluate_every", "log_every", "keep")


@dataclass(frozen=True)
class TrainingChoices:
    """How to train.

    Args:
        protocol: `"stream"` or `"sentence"`.
        epochs: How often to read the text.
        steps: Steps, in the place of epochs.
        batch_size: Streams or sentences of a batch, in all processes together.
        unroll_steps: Words of each stream in a batch.
        max_words: With `"sentence"`: batches of at most this many words in the place of `batch_size` sentences.
        accumulate: Batches whose gradients are added up for a step.
        optimizer: `"adagrad"` as published, or `"adamw"`.
        learning_rate: By default 0.2 with Adagrad, 0.002 with AdamW.
        schedule: `"constant"`, `"linear"` or `"cosine"` (both down to zero); by default constant with Adagrad, linear
            with AdamW.
        warmup: Share of the steps in which the learning rate rises; by default 0 with Adagrad, 0.02 with AdamW.
        clip: Norm at which gradients are cut; by default 10 with Adagrad (of the loss times `unroll_steps`, as
            bilm-tf does it), 1 with AdamW.
        weight_decay: Of AdamW.
        precision: `"float32"`, `"bf16"` or `"fp16"`.
        seed: Of weights, dropout and the order of sentences.
        save_every: Steps between checkpoints.
        evaluate_every: Steps between evaluations; by default as often as a checkpoint is written.
        log_every: Steps between lines of the log.
        keep: How many checkpoints to keep.

    Raises:
        ValueError: A choice is unknown or out of range.
    """

    protocol: str = "stream"
    epochs: float = 10.0
    steps: int | None = None
    batch_size: int = 128
    unroll_steps: int = 20
    max_words: int | None = None
    accumulate: int = 1
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    schedule: str | None = None
    warmup: float | None = None
    clip: float | None = None
    weight_decay: float = 0.0
    precision: str = "float32"
    seed: int = 0
    save_every: int = 1000
    evaluate_every: int | None = None
    log_every: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        """Checks every choice."""
        for name, allowed in (
            ("protocol", PROTOCOLS),
            ("optimizer", tuple(OPTIMIZERS)),
            ("schedule", (None, *SCHEDULES)),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in allowed:
                names = ", ".join(str(choice) for choice in allowed if choice)
                raise ValueError(f"{option(name)} must be one of {names}, but is {getattr(self, name)}.")
        for name in ("batch_size", "unroll_steps", "accumulate", "save_every", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{option(name)} must be at least 1, but is {getattr(self, name)}.")
        for name in ("epochs", "steps", "max_words", "learning_rate", "clip", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{option(name)} must be above 0, but is {value}.")
        if self.warmup is not None and not 0 <= self.warmup < 1:
            raise ValueError(f"{option('warmup')} is a share of the steps, from 0 to below 1, but is {self.warmup}.")
        if self.max_words is not None and self.protocol != "sentence":
            raise ValueError("--max-words is for whole sentences: add --protocol sentence, or leave it out.")

    def decided(self, name: str) -> Any:
        """A choice, or the default that belongs to the optimizer."""
        value = getattr(self, name)
        return OPTIMIZERS[self.optimizer][name] if value is None else value

    def identity(self) -> dict[str, Any]:
        """All choices that the numbers of a run depend on."""
        names = [name for name in self.__dataclass_fields__ if name not in FREE]
        return {
            name: self.decided(name) if name in OPTIMIZERS[self.optimizer] else getattr(self, name) for name in names
        }

    def arguments(self, output: Path, evaluate: bool) -> ElmoPreTrainingArguments:
        """The arguments of the trainer.

        Args:
            output: The folder of the run.
            evaluate: Whether there is a text to evaluate on.

        Raises:
            ValueError: `batch_size` cannot be shared out among the processes.
        """
        warmup = self.decided("warmup")
        arguments = ElmoPreTrainingArguments(
            output_dir=str(output),
            protocol=self.protocol,
            unroll_steps=self.unroll_steps,
            max_words=self.max_words,
            num_train_epochs=self.epochs,
            max_steps=self.steps or -1,
            gradient_accumulation_steps=self.accumulate,
            optim=OPTIMIZERS[self.optimizer]["optim"],
            learning_rate=self.decided("learning_rate"),
            lr_scheduler_type="constant_with_warmup" if self._is_constant and warmup else self.decided("schedule"),
            warmup_steps=warmup,
            max_grad_norm=self.decided("clip"),
            weight_decay=self.weight_decay,
            use_cpu=not torch.accelerator.is_available(),
            bf16=self.precision == "bf16",
            fp16=self.precision == "fp16",
            seed=self.seed,
            save_strategy="steps",
            save_steps=self.save_every,
            eval_strategy="steps" if evaluate else "no",
            eval_steps=self.evaluate_every or self.save_every,
            logging_steps=self.log_every,
            save_total_limit=self.keep,
        )
        processes = arguments.world_size
        if self.batch_size % processes:
            raise ValueError(
                f"--batch-size {self.batch_size} cannot be shared out among {processes} processes; choose a multiple."
            )
        arguments.per_device_train_batch_size = self.batch_size // processes
        return arguments

    @property
    def _is_constant(self) -> bool:
        return self.decided("schedule") == "constant"


def option(name: str) -> str:
    """How a choice is called on the command line."""
    return "--" + name.replace("_", "-")
