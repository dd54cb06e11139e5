"""Training a tagger on a frozen biLM, through `Trainer` and a stock collator: with the biLM, and with its layers."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from sentences import Sentence, count_words
from torch.utils.data import DataLoader
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments

from hf_elmo import ElmoForTokenClassification, ElmoModel, ElmoTokenizer, precompute_layers

LABELS = 9
# The task network of a head: the default, and none.
HEADS: dict[str, dict[str, Any]] = {"BiLSTM": {}, "linear": {"task_num_layers": 0}}


class FineTuning:
    """Taggers with new heads on one folder.

    Args:
        folder: The folder.
        model: Its biLM, which computes the layers; the taggers have their own.
        tokenizer: Its tokenizer.
    """

    def __init__(self, folder: str, model: ElmoModel, tokenizer: ElmoTokenizer) -> None:
        disable_progress_bars()
        self.model, self.tokenizer = model, tokenizer
        self.collator = DataCollatorForTokenClassification(tokenizer)
        self.taggers = {
            name: ElmoForTokenClassification.from_pretrained(folder, num_labels=LABELS, **head)
            for name, head in HEADS.items()
        }

    def measure(self, sentences: list[Sentence], batch_size: int, epochs: int) -> dict[str, Any]:
        """Trains on some sentences in each way, with random labels.

        Args:
            sentences: The sentences, one epoch for the full forward.
            batch_size: Sentences of a batch.
            epochs: Epochs with layers that were computed before.

        Returns:
            Seconds of an epoch by head and way; seconds to compute the layers and to read them in batches, once; and
            the bytes that they take.
        """
        tokenized = self._tokenize(sentences)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            layers = precompute_layers(tokenized, self.model, output_dir=f"{folder}/layers")
            computing = time.perf_counter() - start
            start = time.perf_counter()
            for _ in DataLoader(layers.remove_columns("length"), batch_size, collate_fn=self.collator):
                pass
            reading = time.perf_counter() - start
            seconds = {
                name: {
                    "full forward": self._train(tagger, tokenized, batch_size, 1, folder),
                    "precomputed": self._train(tagger, layers, batch_size, epochs, folder) / epochs,
                }
                for name, tagger in self.taggers.items()
            }
            stored = sum(path.stat().st_size for path in Path(folder, "layers").glob("*.arrow"))
        return {"seconds": seconds, "computing": computing, "reading": reading, "bytes": stored}

    def _tokenize(self, sentences: list[Sentence]) -> Dataset:
        encoded = self.tokenizer(sentences, is_split_into_words=True)
        numbers = torch.Generator().manual_seed(count_words(sentences))
        labels = [torch.randint(LABELS, (len(ids),), generator=numbers).tolist() for ids in encoded["input_ids"]]
        return Dataset.from_dict({**encoded, "labels": labels, "length": list(map(len, labels))})

    def _train(self, tagger: Any, dataset: Dataset, batch_size: int, epochs: int, folder: str) -> float:
        """Seconds of a training, without what `Trainer` sets up before it; rows of like lengths share a batch."""
        arguments = TrainingArguments(
            output_dir=f"{folder}/run",
            per_device_train_batch_size=batch_size,
            num_train_epochs=epochs,
            learning_rate=1e-3,
            train_sampling_strategy="group_by_length",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=self.model.device.type == "cpu",
        )
        trainer = Trainer(tagger, arguments, train_dataset=dataset, data_collator=self.collator)
        return trainer.train().metrics["train_runtime"]
