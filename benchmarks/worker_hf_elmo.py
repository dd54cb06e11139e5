"""This package as one side of a comparison, and the same model with PyTorch's own LSTM as another."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from products import Product, ProductTimer, fastest, lstm_products, token_products
from sentences import Sentence, batches
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_side import TorchSide
from worker import Side, serve

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.character_encoder_elmo import lengths_of_words
from hf_elmo.character_ids_elmo import words_to_rows
from hf_elmo.embedding.job import run_job
from hf_elmo.embedding.settings import JobSettings
from hf_elmo.quantization import quantize_dynamic
from hf_elmo.word_splitters_elmo import WORD_PATTERNS


def load_in(dtype: torch.dtype) -> Callable[..., ElmoModel]:
    """Loads a folder in a type of numbers."""
    return lambda folder, **options: ElmoModel.from_pretrained(folder, dtype=dtype, **options)


def load_int8(folder: str, **options: Any) -> ElmoModel:
    """Loads a folder with matrices of 8 bits."""
    return quantize_dynamic(ElmoModel.from_pretrained(folder, dtype=torch.float32, **options))


# How a model of each precision is loaded: (folder, **options) -> model.
PRECISIONS: dict[str, Callable[..., ElmoModel]] = {
    "float32": load_in(torch.float32),
    "bfloat16": load_in(torch.bfloat16),
    "int8": load_int8,
}


class HfElmo(TorchSide):
    """ElmoTokenizer and ElmoModel on a converted folder."""

    def __init__(
        self,
        folder: str,
        threads: int,
        device: str = "cpu",
        training: bool = False,
        precision: str = "float32",
    ) -> None:
        torch.set_num_threads(threads)
        options = {"freeze_bilm": False} if training else {}
        super().__init__(PRECISIONS[precision](folder, **options), device, training)
        self.tokenizer = ElmoTokenizer.from_pretrained(folder)
        self.timer = ProductTimer(self.model.dtype)
        self.folder = folder
        self.fine_tuning: Any = None
        self.versions["hf_elmo"] = version("hf_elmo")

    def tokenize(self, sentences: list[Sentence]) -> Any:
        """Words of one batch to the inputs of the model."""
        inputs = self.tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
        return inputs.to(self.device)

    def run(self, sentences: list[Sentence]) -> list[torch.Tensor]:
        """All layers of one batch."""
        return list(self.model(**self.tokenize(sentences), output_hidden_states=True).hidden_states)

    @torch.inference_mode()
    def embed(self, sentences: list[Sentence]) -> None:
        """Embeds one batch, from words to vectors."""
        self.model(**self.tokenize(sentences))

    def do_file(self, sentences: list[Sentence], batch_size: int, path: str) -> dict[str, Any]:
        """Seconds of what `hf-elmo embed` does, from the moment that its model is loaded; it makes its own batches."""
        started: list[float] = []
        source = Path(path).with_suffix(".txt")
        source.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
        settings = JobSettings(
            str(source),
            path,
            self.model.name_or_path,
            layers="all",
            pretokenized=True,
            device=str(self.device),
            precision=str(self.model.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
        )
        run_job(settings, lambda progress: started or started.append(time.perf_counter()))
        return {"seconds": time.perf_counter() - started[0]}

    def do_forget(self) -> dict[str, Any]:
        """Empties the cache of words."""
        self.model.embeddings.word_cache.clear()
        return {}

    def do_precisions(self) -> dict[str, Any]:
        """The precisions that models can be loaded in."""
        return {"precisions": list(PRECISIONS)}

    def do_parameters(self) -> dict[str, Any]:
        """Numbers of the model and the bytes that they take."""
        parameters = list(self.model.parameters())
        return {
            "parameters": sum(parameter.numel() for parameter in parameters),
            "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        }

    def do_corpus(self, sentences: list[Sentence], batch_size: int) -> dict[str, Any]:
        """A whole corpus in batches of similar lengths, then the matrix products of the same batches alone.

        Returns:
            `seconds` of the whole, and of the products for each kernel and kind and the fastest of each kind.
        """
        in_order = batches(sorted(sentences, key=len), batch_size)
        with recorded_words(self.model.embeddings) as shapes:
            start = time.perf_counter()
            for batch in in_order:
                self.embed(batch)
            self.synchronize()
            seconds = time.perf_counter() - start
        products = self.timer.seconds(self._products(in_order, shapes))
        return {"seconds": seconds, "products": products, "fastest": fastest(products)}

    def _products(self, in_order: list[list[Sentence]], shapes: list[tuple[int, int]]) -> list[Product]:
        """The products of batches whose token layer got so many (words, places) at a time."""
        config = self.model.config
        products = []
        for words, places in shapes:
            products += token_products(config, words, places)
        for batch in in_order:
            distinct = len({word for sentence in batch for word in sentence}) + 2
            products += lstm_products(config, [len(sentence) + 2 for sentence in batch], distinct)
        return products

    def do_fine_tuning(self, sentences: list[Sentence], batch_size: int, epochs: int) -> dict[str, Any]:
        """As of `FineTuning.measure`; the taggers stay from call to call."""
        from fine_tuning import FineTuning

        if self.fine_tuning is None:
            self.fine_tuning = FineTuning(self.folder, self.model, self.tokenizer)
        return self.fine_tuning.measure(sentences, batch_size, epochs)

    def do_tokenizer(self, lines: list[Sentence], repeats: int, batch_size: int) -> dict[str, Any]:
        """Words a second from words or text to character ids: the median of several runs of each way."""
        texts = [" ".join(line) for line in lines]
        words = [word for line in lines for word in line]
        ordered = sorted(lines, key=len)
        boundaries = self.tokenizer.boundaries
        lists: dict[str, Any] = {"is_split_into_words": True}
        ways: dict[str, tuple[int, Callable[[], Any]]] = {
            "words to rows": (len(words), lambda: words_to_rows(words, 50, boundaries)),
            "lists of words": (len(words), lambda: in_batches(self.tokenizer, lines, batch_size, **lists)),
            "lists of words, padded tensors": (
                len(words),
                lambda: in_batches(self.tokenizer, ordered, batch_size, padding=True, return_tensors="pt", **lists),
            ),
            "lists of words, one a call": (len(words), lambda: in_batches(self.tokenizer, lines, 1, **lists)),
        }
        for name in WORD_PATTERNS:
            tokenizer = ElmoTokenizer(name)
            found = sum(len(tokenizer.tokenize(text)) for text in texts)
            ways[f"text, {name}"] = (found, partial(in_batches, tokenizer, texts, batch_size))
        return {
            "words_per_second": {name: count / median_seconds(way, repeats) for name, (count, way) in ways.items()}
        }


@contextmanager
def recorded_words(encoder: Any) -> Iterator[list[tuple[int, int]]]:
    """The words that the token layer computes under `with`, by whatever path it does, and the places in them."""
    shapes: list[tuple[int, int]] = []
    original = encoder._encode

    def record(rows: torch.Tensor, characters: int, encode: Callable[..., torch.Tensor]) -> torch.Tensor:
        def recorded(words: torch.Tensor, *others: Any) -> torch.Tensor:
            shapes.append((words.shape[0], int((lengths_of_words(words) + 1).sum())))
            return encode(words, *others)

        return original(rows, characters, recorded)

    encoder._encode = record  # not a hook, which would keep the fast path from running
    try:
        yield shapes
    finally:
        del encoder._encode


def in_batches(tokenizer: ElmoTokenizer, inputs: list[Any], batch_size: int, **options: Any) -> None:
    """Tokenizes everything, so many texts a call."""
    for batch in batches(inputs, batch_size):
        tokenizer(batch, **options)


def median_seconds(action: Callable[[], Any], repeats: int) -> float:
    """The median of several runs, after one that is not timed."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


class TorchLstm(HfElmo):
    """The same weights with every recurrence run by `torch.nn.LSTM(proj_size=...)`, on a GPU cuDNN's.

    It cannot clip, so its numbers are ELMo's only where nothing is clipped.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.model.config
        self.lstms = nn.ModuleList(
            nn.LSTM(config.projection_size, config.cell_size, proj_size=config.projection_size, batch_first=True)
            for _ in range(2 * config.num_hidden_layers)
        ).to(device=self.device, dtype=self.model.dtype)
        self.model.add_module("torch_lstms", self.lstms)  # so that its gradients are dropped with the others
        ours = [lstm for layer in self.model.encoder.layers for lstm in (layer.forward_lstm, layer.backward_lstm)]
        with torch.no_grad():
            for source, target in zip(ours, list[Any](self.lstms), strict=True):
                target.weight_ih_l0.copy_(source.input_gates.weight)
                target.weight_hh_l0.copy_(source.recurrent_gates.weight)
                target.weight_hr_l0.copy_(source.projection.weight)
                target.bias_ih_l0.copy_(source.input_gates.bias)
                target.bias_hh_l0.zero_()

    def run(self, sentences: list[Sentence]) -> list[torch.Tensor]:
        """All layers of one batch."""
        inputs = self.tokenize(sentences)
        mask = inputs["attention_mask"].bool()
        lengths = mask.sum(dim=1)
        steps = torch.arange(mask.shape[1], device=self.device)
        # Each row from its last word to its first; the rest, which is not a word, goes anywhere.
        reverse = (lengths[:, None] - 1 - steps).clamp(min=0)[..., None]
        vectors = self.model.embeddings.encode_words(inputs["input_ids"][mask])
        words = vectors.new_zeros(*mask.shape, vectors.shape[-1]).masked_scatter(mask[..., None], vectors)
        directions = [words, words]
        layers = [torch.cat(directions, dim=-1)]
        on_host = lengths.cpu()
        for index in range(len(self.lstms) // 2):
            outputs = []
            for direction, given in enumerate(directions):
                gather = reverse.expand_as(given)
                packed = pack_padded_sequence(
                    given.gather(1, gather) if direction else given, on_host, batch_first=True, enforce_sorted=False
                )
                output, _ = pad_packed_sequence(self.lstms[2 * index + direction](packed)[0], batch_first=True)
                output = output.gather(1, gather) if direction else output
                outputs.append((output + given if index else output) * mask[..., None])
            directions = outputs
            layers.append(torch.cat(directions, dim=-1))
        return layers

    @torch.inference_mode()
    def embed(self, sentences: list[Sentence]) -> None:
        """Embeds one batch, from words to vectors."""
        self.run(sentences)


def make(lstm: str = "hf_elmo", **settings: Any) -> Side:
    """The side with the recurrences of this package or, with `lstm="torch"`, of PyTorch."""
    return TorchLstm(**settings) if lstm == "torch" else HfElmo(**settings)


if __name__ == "__main__":
    serve(make)
