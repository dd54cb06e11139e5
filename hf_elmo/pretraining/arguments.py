"""What a pretraining run can be told beside the arguments of transformers' Trainer."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

from transformers import TrainingArguments

PROTOCOLS = ("stream", "sentence")


def reporting_tools() -> list[str]:
    """TensorBoard, where it is installed."""
    installed = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))
    return ["tensorboard"] if installed else []


@dataclass
class ElmoPreTrainingArguments(TrainingArguments):
    """The arguments of `ElmoPreTrainer`: those of `TrainingArguments`, and the language model's own.

    The defaults are those of the published models (bilm-tf): Adagrad at 0.2, never lowered, its accumulators starting
    at 1, 128 streams of 20 steps, 10 epochs, gradients of the loss times `unroll_steps` cut to a norm of 10.

    Args:
        protocol: `"stream"`: parallel streams of sentences, `unroll_steps` words of each in a batch, LSTM states
            carried from batch to batch. `"sentence"`: whole sentences, states starting at zero.
        unroll_steps: Words of each stream in a batch.
        max_words: With `"sentence"`: batches of at most this many words, padding included, in place of
            `per_device_train_batch_size` sentences.
        gradient_scale: Factor of the loss for the gradient (not for what is logged). Adagrad and the norm at which
            gradients are cut depend on it. By default `unroll_steps` for Adagrad on streams, as bilm-tf has it, and 1
            otherwise.
        adagrad_initial_accumulator: What Adagrad's sums of squares start at.

    Raises:
        ValueError: The protocol is unknown, a number is out of range, or an option of Trainer's cannot be honoured.
    """

    protocol: str = "stream"
    unroll_steps: int = 20
    max_words: int | None = None
    gradient_scale: float | None = None
    adagrad_initial_accumulator: float = 1.0

    optim: str = "adagrad"
    learning_rate: float = 0.2
    lr_scheduler_type: str = "constant"
    max_grad_norm: float = 10.0
    per_device_train_batch_size: int = 128
    per_device_eval_batch_size: int = 128
    num_train_epochs: float = 10.0
    logging_steps: float = 100
    logging_nan_inf_filter: bool = False  # it would show a run that diverged as a perfect one
    save_total_limit: int | None = 2
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    # HfArgumentParser reads the union in this order.
    report_to: None | str | list[str] = field(default_factory=reporting_tools)  # noqa: RUF036

    def __post_init__(self) -> None:
        """Checks the language model's own arguments."""
        super().__post_init__()
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"`protocol` must be {' or '.join(map(repr, PROTOCOLS))}, but is {self.protocol!r}.")
        for name in ("unroll_steps", "per_device_train_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {getattr(self, name)}.")
        if self.max_words is not None and self.protocol != "sentence":
            raise ValueError("`max_words` is for whole sentences: leave it out, or set `protocol` to 'sentence'.")
        if self.ignore_data_skip:
            raise ValueError("`ignore_data_skip` is not for this trainer: it goes on at the very word where it ended.")
        if self.dataloader_num_workers:
            raise ValueError("`dataloader_num_workers` must be 0: the process that trains reads the text itself.")
        if self.auto_find_batch_size:
            raise ValueError(
                "`auto_find_batch_size` would change the streams: choose a `per_device_train_batch_size`."
            )

    @property
    def gradient_factor(self) -> float:
        """The factor of the loss for the gradient."""
        if self.gradient_scale is not None:
            return self.gradient_scale
        return float(self.unroll_steps) if self.optim == "adagrad" and self.protocol == "stream" else 1.0
