"""`ElmoPreTrainer`: transformers' Trainer for a biLM, with states that go from batch to batch and exact resuming."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer
from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import default_logdir
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from ..modeling_elmo import NO_LABEL
from .arguments import ElmoPreTrainingArguments
from .checkpoints import TRAINER_STATE, last_checkpoint, load_position, save_position, staged_checkpoint
from .perplexity import exponential, perplexity
from .processes import in_first_process
from .progress import TrainingProgress


class TrainingBatches(IterableDataset):
    """The batches of one epoch after another, each iteration an epoch, that knows where it stands.

    After `load_state_dict` in the middle of an epoch, the next iteration begins with as many empty batches as had been
    given out before: Trainer skips those without looking at them.

    Args:
        batches: Endless batches, with `state_dict` and `load_state_dict`.
        length: Batches of an epoch.
    """

    def __init__(self, batches: Any, length: int) -> None:
        self.batches = batches
        self.length = length
        self.given = 0
        self._start = batches.state_dict()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if self.given >= self.length:
            self.given = 0
        for _ in range(self.given):
            yield {}
        source = iter(self.batches)
        while self.given < self.length:
            self.given += 1
            yield next(source)

    def restart(self) -> None:
        """Goes back to the first batch of the first epoch."""
        self.load_state_dict({"given": 0, "batches": self._start})

    def state_dict(self) -> dict[str, Any]:
        """Where the batches stand, as plain numbers, strings, lists and tensors."""
        return {"given": self.given, "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where `state_dict` was called."""
        self.given = state["given"]
        self.batches.load_state_dict(state["batches"])


class ElmoPreTrainer(Trainer):
    """Trains an `ElmoForPreTraining` on text, in one process or, under torchrun, in several.

    What a checkpoint holds besides Trainer's own files is, for each process, the exact place in its data and its LSTM
    states: training that is interrupted and resumed gives the weights of training that is not, bit for bit on the same
    machine. A checkpoint gets its name when it is complete, never before.

    Evaluation gives perplexities (`eval_perplexity`, `eval_forward_perplexity`, `eval_backward_perplexity`) with the
    full softmax and the protocol of training, over all words of `eval_dataset`.

    Args:
        model: An `ElmoForPreTraining`.
        args: The arguments.
        train_dataset: A `StreamBatches` or `SentenceBatches` of this process, or a `TrainingBatches` around one.
        steps_per_epoch: Batches of an epoch in each process; not needed with `TrainingBatches`.
        eval_dataset: A `Corpus`, or several by name.
        processing_class: The tokenizer, with a word vocabulary.
        **kwargs: As of Trainer.

    Raises:
        ValueError: The model and the tokenizer do not fit, or several devices would be used by one process.
    """

    args: ElmoPreTrainingArguments

    def __init__(
        self,
        model: nn.Module,
        args: ElmoPreTrainingArguments,
        train_dataset: Any = None,
        steps_per_epoch: int | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        if train_dataset is not None and not isinstance(train_dataset, TrainingBatches):
            length = steps_per_epoch or max(args.max_steps, 0)
            if not length:
                raise ValueError("Give `steps_per_epoch`, the number of batches of an epoch, or `max_steps`.")
            train_dataset = TrainingBatches(train_dataset, length)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        if args.n_gpu > 1:
            raise ValueError(
                "One process trains on one device: start one for each GPU, torchrun --nproc-per-node"
                f" {args.n_gpu}, or show it a single one with CUDA_VISIBLE_DEVICES=0."
            )
        # Trainer writes it into every configuration; a biLM has no use for it.
        cast(Any, self.model).config.__dict__.pop("use_cache", None)
        for callback in (ProgressCallback, PrinterCallback):
            self.remove_callback(callback)
        if not args.disable_tqdm:
            self.add_callback(TrainingProgress)
        for callback in self.callback_handler.callbacks:
            # Trainer decides it when training begins: an evaluation before would write to the current folder.
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(Path(str(args.output_dir)) / default_logdir())
        self._states: tuple[torch.Tensor, torch.Tensor] | None = None
        self._staging: Path | None = None
        self._clock: tuple[float, int] | None = None
        self._flops_of_token = 6 * cast(Any, self.model).num_parameters(only_trainable=True)

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: The folder of a checkpoint, or True for the last one of `args.output_dir`.
            *args: As of Trainer.
            **kwargs: As of Trainer.

        Raises:
            ValueError: The checkpoint cannot be resumed by these processes.
            OSError: A checkpoint could not be written.
        """
        data = cast(TrainingBatches, self.train_dataset)
        if resume_from_checkpoint is True:
            last = last_checkpoint(Path(str(self.args.output_dir)))
            if last is None:
                raise ValueError(f"There is no checkpoint in {self.args.output_dir}.")
            resume_from_checkpoint = last
        resume_from_checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if resume_from_checkpoint is not None:
            position = load_position(Path(resume_from_checkpoint), self.args.process_index, self.args.world_size)
            data.load_state_dict(position["data"])
            self._states = position["states"]
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / TRAINER_STATE))
            *_, max_steps = self.set_initial_training_values(self.args, self.get_train_dataloader())
            if state.global_step >= max_steps:  # Trainer would do one step more
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, 0.0, {})
        else:
            data.restart()
            self._states = None
            # Processes start from the same weights, but not with the same dropout.
            torch.manual_seed(self.args.seed + self.args.process_index)
        self._clock = None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """The batches as they are: they are sharded already, and read no further than training has come."""
        return DataLoader(cast(TrainingBatches, self.train_dataset), batch_size=None, collate_fn=as_it_is)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """The batches of one step, and how many words of one direction they ask for in all processes."""
        batches = list(islice(epoch_iterator, num_batches))
        count = torch.stack([count_targets(batch) for batch in batches]).sum().to(device)
        total = cast(torch.Tensor, self.accelerator.gather(count)).sum()
        if self._clock is None:
            self._clock = (time.monotonic(), self.state.num_input_tokens_seen)
        self.state.num_input_tokens_seen += int(total)
        self.current_flos += self._flops_of_token * int(count)
        return batches, total

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The mean loss of both directions over the words of all batches of the step, in all processes.

        The states of the batch before go in, and those after it are kept.
        """
        if self.args.protocol == "stream":
            inputs = {**inputs, "states": self._states}
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        if self.args.protocol == "stream":
            hidden, cell = outputs.states
            self._states = (hidden.detach(), cell.detach())
        # Gradients are averaged over the processes, and the loss is a share of a sum.
        loss = scale_gradient(outputs.loss * self.args.world_size, self.args.gradient_factor)
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Nothing: operations are counted by word in `get_batch_samples`."""
        return 0

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, Any]:
        """As Trainer's, and Adagrad as TensorFlow has it, its accumulators starting above zero."""
        optimizer, kwargs = Trainer.get_optimizer_cls_and_kwargs(args, model)
        if optimizer is torch.optim.Adagrad:
            kwargs = {**kwargs, "initial_accumulator_value": args.adagrad_initial_accumulator}
        return optimizer, kwargs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the perplexity, the words seen, and their number a second since the last time.

        Where the softmax draws words the entry is `sampled_perplexity`: rare words cost less among those that are
        drawn, so that it is no perplexity of the text.
        """
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise ValueError(
                    f"Training has diverged: the loss is not finite at step {self.state.global_step}. Begin anew in"
                    " another folder with a lower learning rate, or from an earlier checkpoint."
                )
            is_sampled = self.accelerator.unwrap_model(self.model).num_sampled_words is not None
            logs["sampled_perplexity" if is_sampled else "perplexity"] = exponential(logs["loss"])
            now, seen = time.monotonic(), self.state.num_input_tokens_seen
            logs["tokens"] = seen
            if self._clock is not None and now > self._clock[0]:
                logs["tokens_per_second"] = (seen - self._clock[1]) / (now - self._clock[0])
            self._clock = (now, seen)
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Perplexities of a corpus, or of several by name, with the full softmax and every word counted.

        The first process measures, the others wait: so the figures do not depend on the number of processes.
        """
        corpora = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(corpora, dict):
            metrics: dict[str, float] = {}
            for name, corpus in corpora.items():
                metrics.update(self.evaluate(corpus, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics
        started = time.monotonic()
        metrics = in_first_process(self.args, lambda: self._measure(corpora, metric_key_prefix))
        metrics[f"{metric_key_prefix}_runtime"] = round(time.monotonic() - started, 4)
        self._clock = None  # what evaluation takes is not training's
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _measure(self, corpus: Any, prefix: str) -> dict[str, float]:
        """The metrics of a corpus."""
        report = perplexity(
            self.accelerator.unwrap_model(self.model),
            cast(Any, self.processing_class),
            corpus,
            protocol=self.args.protocol,
            batch_size=self.args.per_device_eval_batch_size,
            keep_incomplete=True,
        )
        return {
            f"{prefix}_loss": math.log(report.average),
            f"{prefix}_perplexity": report.average,
            f"{prefix}_forward_perplexity": report.forward,
            f"{prefix}_backward_perplexity": report.backward,
            f"{prefix}_tokens": report.tokens,
            f"{prefix}_unknown": report.unknown,
        }

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Trainer's checkpoint, and where this process stands, under the checkpoint's name once all is there."""
        output = Path(super()._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with staged_checkpoint(output, name, self.args.should_save, self.accelerator.wait_for_everyone) as folder:
            with self._writing_to(folder.parent):
                super()._save_checkpoint(model, trial)
            if not self.args.save_only_model:
                position = {"data": cast(TrainingBatches, self.train_dataset).state_dict(), "states": self._states}
                save_position(folder, self.args.process_index, self.args.world_size, position)
            best = self.state.best_global_step
            if best:
                self.state.best_model_checkpoint = str(output / f"{PREFIX_CHECKPOINT_DIR}-{best}")
                if self.args.should_save:
                    self.state.save_to_json(str(folder / TRAINER_STATE))
        if self.args.should_save:
            rotate_checkpoints(str(output), self.args.save_total_limit, self.state.best_model_checkpoint)

    @contextmanager
    def _writing_to(self, folder: Path) -> Iterator[None]:
        self._staging = folder
        try:
            yield
        finally:
            self._staging = None


def as_it_is(batch: Any) -> Any:
    """The collator of what is a batch already."""
    return batch


def count_targets(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """How many words each direction is asked for."""
    if "forward_labels" in batch:
        return (batch["forward_labels"] != NO_LABEL).sum()
    return (batch["labels"][:, 1:] != NO_LABEL).sum()


def scale_gradient(value: torch.Tensor, factor: float) -> torch.Tensor:
    """The value itself, with a gradient `factor` times as large."""
    return value if factor == 1 else value.detach() + factor * (value - value.detach())
