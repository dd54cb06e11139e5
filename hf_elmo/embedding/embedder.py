"""`ElmoEmbedder`: sentences in, vectors out, in order, lazily, within bounds of memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ..bundled import resolve_model
from ..configuration_elmo import ElmoConfig
from ..modeling_elmo import ElmoModel, ElmoScalarMix
from ..tokenization_elmo import ElmoTokenizer
from .batching import batches_by_words, computed_in_halves, grouped, is_out_of_memory
from .errors import SettingError
from .neighbors import NearestWords, Neighbor, Occurrence, find_occurrences, unit_vectors
from .selection import Layers, Selection

Sentence = str | Sequence[str]

WINDOW_SENTENCES, WINDOW_WORDS = 1000, 32768
SPLIT_SENTENCES = 100
BATCH_WORDS = {"cpu": 4096, "cuda": 16384}


class ElmoEmbedder:
    """Turns sentences into contextual vectors.

    Sentences are read as they are needed, sorted by length within a window, run in batches of a bounded number of
    words, and come back in the order in which they went in. A batch for which memory is too small is halved and tried
    again. What a sentence gets depends on the sentence alone, up to the rounding of floating-point numbers.

    Args:
        model: The model; it is put into evaluation mode.
        tokenizer: Its tokenizer.
        batch_words: Words, padding included, that a batch may have; a longer sentence is run by itself. By default
            4,096 on a CPU and 16,384 on a GPU.

    Example:
        >>> embedder = ElmoEmbedder.from_pretrained("elmo")
        >>> for vectors in embedder.embed(["She sat on the bank .", ["New York", "is", "big"]]):
        ...     print(vectors.shape)
        (6, 1024)
        (3, 1024)
    """

    def __init__(self, model: ElmoModel, tokenizer: ElmoTokenizer, batch_words: int | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_words = batch_words or BATCH_WORDS.get(self.device.type, BATCH_WORDS["cuda"])
        if self.batch_words < 1:
            raise ValueError(f"batch_words must be 1 or more, not {batch_words}.")

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        batch_words: int | None = None,
        **options: Any,
    ) -> ElmoEmbedder:
        """Loads a model and its tokenizer.

        Args:
            name_or_path: A folder, a model that comes with the package (`elmo-tiny-english`), or a repository on the
                Hub.
            device: Where to compute; by default a GPU if there is one.
            dtype: The precision to compute in, such as `"bfloat16"`; by default that of the folder.
            batch_words: As of the class.
            **options: `revision`, `token`, `cache_dir` and the like, as of `from_pretrained` of transformers.

        Raises:
            ValueError: There is no such model, or it is none of ELMo, or no such device.
            MemoryError: The device has too little memory for it.
        """
        name = resolve_model(name_or_path)
        check_is_elmo(name, options)
        try:
            extra: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
            model = ElmoModel.from_pretrained(name, **extra, **options)
            tokenizer = ElmoTokenizer.from_pretrained(name, **options)
        except (OSError, ValueError) as error:
            raise ValueError(f"The model {name} cannot be loaded: {first_line(error)}") from error
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            model = model.to(device)
        except (RuntimeError, AssertionError) as error:
            if is_out_of_memory(error):
                raise MemoryError(f"The model {name} is too large for the memory of {device}.") from error
            raise SettingError(f"The device {device} cannot be used here: {first_line(error)}") from error
        return cls(model, tokenizer, batch_words)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.device

    @property
    def layer_count(self) -> int:
        """L + 1: the token layer and the layers of the biLM."""
        return self.model.config.num_hidden_layers + 1

    def select(self, layers: Layers = "mix", pool: str | None = None, boundaries: bool = False) -> Selection:
        """Checks a choice of vectors against the model.

        Raises:
            ValueError: There is no such layer or pooling.
        """
        return Selection.of(layers, pool, boundaries, self.layer_count)

    def embed(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "mix",
        pool: str | None = None,
        boundaries: bool = False,
        return_tensors: str = "np",
    ) -> Iterator[Any]:
        """Embeds sentences, lazily and in their order.

        Args:
            sentences: Texts, which the tokenizer splits into words, and lists of words, which stay as they are; any
                iterable, also one without end.
            layers: `"mix"` (the learned mix), `"all"`, `"top"`, `"average"` (of all layers), the number of a layer (0
                is the token layer, -1 the top), or several numbers.
            pool: One vector for a sentence: `"mean"`, `"max"`, `"sum"`, `"first"` or `"last"` of its words.
            boundaries: Whether `<S>` and `</S>` count as words, as in the model's own output.
            return_tensors: `"np"` for NumPy (float32, or float16 where the model computes in it) or `"pt"` for tensors
                on the CPU.

        Yields:
            For each sentence (words, dim), or (dim,) with `pool`; with several layers these have an axis more, in
            front. A sentence without words has (0, dim), or zeros with `pool`.

        Raises:
            ValueError: There is no such layer or pooling, or `sentences` is a single text.
            MemoryError: One sentence alone is too long for the memory.
        """
        if isinstance(sentences, (str, bytes)):
            raise ValueError("embed takes several sentences: for one, pass [sentence], or call embed_sentence.")
        if return_tensors not in ("np", "pt"):
            raise ValueError(f"return_tensors must be 'np' or 'pt', not {return_tensors!r}.")
        selection = self.select(layers, pool, boundaries)
        return self._embed_lazily(sentences, selection, return_tensors)

    def _embed_lazily(self, sentences: Iterable[Sentence], selection: Selection, return_tensors: str) -> Iterator[Any]:
        for _, vectors in self._words_and_vectors(sentences, selection):
            yield vectors if return_tensors == "pt" else as_numpy(vectors)

    def _words_and_vectors(
        self, sentences: Iterable[Sentence], selection: Selection
    ) -> Iterator[tuple[list[str], torch.Tensor]]:
        for window in grouped(self.split_lazily(sentences), WINDOW_SENTENCES, WINDOW_WORDS, len):
            for words, vectors in zip(window, self.embed_window(window, selection), strict=True):
                if isinstance(vectors, MemoryError):
                    raise vectors
                yield words, vectors

    def embed_sentence(self, sentence: Sentence, **options: Any) -> Any:
        """The vectors of one sentence; options as of `embed`."""
        return next(self.embed([sentence], **options))

    def split(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        """The words of each sentence: texts as the tokenizer splits them, lists as they are."""
        texts = [sentence for sentence in sentences if isinstance(sentence, str)]
        split: Iterator[list[str]] = iter(())
        if texts:
            encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            split = iter(
                [text[start:stop] for start, stop in offsets]
                for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
            )
        return [next(split) if isinstance(sentence, str) else list(sentence) for sentence in sentences]

    def split_lazily(self, sentences: Iterable[Sentence]) -> Iterator[list[str]]:
        """The words of sentences, a bounded number of sentences at a time."""
        for group in grouped(sentences, SPLIT_SENTENCES, WINDOW_WORDS, len):
            yield from self.split(group)

    def embed_window(self, sentences: Sequence[list[str]], selection: Selection) -> list[torch.Tensor | MemoryError]:
        """Embeds a bounded number of sentences.

        The batches depend on these sentences and `batch_words` alone; so after `forget_words` the same sentences give
        the same bytes on the same kind of machine.

        Args:
            sentences: Lists of words.
            selection: Which vectors.

        Returns:
            For each sentence a tensor on the CPU, as `embed` describes it, or the error of one that alone is too long.
        """
        before, after = self.boundary_counts
        lengths = [before + len(words) + after if words or selection.boundaries else 0 for words in sentences]
        results: list[torch.Tensor | MemoryError] = [self._nothing(selection) for _ in sentences]

        def compute(batch: list[int]) -> list[torch.Tensor]:
            return self._embed_batch([sentences[index] for index in batch], selection)

        for batch, computed in computed_in_halves(batches_by_words(lengths, self.batch_words), compute):
            if isinstance(computed, MemoryError):
                (index,) = batch
                words = f"{len(sentences[index]):,} words"
                results[index] = MemoryError(f"A sentence of {words} is too long for the memory here ({computed}).")
                continue
            for index, vectors in zip(batch, computed, strict=True):
                results[index] = vectors
        return results

    def forget_words(self) -> None:
        """Clears what the model keeps of words from call to call.

        A word's vector is rounded as the batch in which it came first rounds it; so without this, bytes depend on what
        was embedded before.
        """
        kept = getattr(self.model.embeddings, "word_cache", None)
        if kept is not None:
            kept.clear()

    def similarity(self, first: Any, second: Any) -> np.ndarray:
        """Cosine similarities.

        Args:
            first: Vectors (n, dim), or one vector (dim,).
            second: Vectors (m, dim), or one vector (dim,).

        Returns:
            Array of shape (n, m); 0 for a vector of zeros.
        """
        left, right = (unit_vectors(np.atleast_2d(as_numpy(vectors))) for vectors in (first, second))
        return left @ right.T

    def nearest(
        self,
        sentence: Sentence,
        word: str | int,
        others: Iterable[Sentence],
        top_k: int = 5,
        layers: Layers = "top",
        same_word: bool = False,
    ) -> list[Neighbor]:
        """Finds the words in other sentences that are nearest to a word in its sentence (table 4 of the paper).

        Args:
            sentence: The sentence of the word.
            word: The word, whose first occurrence is taken, or its place in the sentence, from 0.
            others: Sentences, as many as there are: they are read lazily, and only the best are kept. Equal ones
                count once, and those equal to `sentence` not at all.
            top_k: How many to return.
            layers: One layer or the mix, as of `embed`.
            same_word: Only other occurrences of the same word.

        Returns:
            The nearest words, nearest first.

        Raises:
            ValueError: The word is not in the sentence, or `layers` names several.
        """
        (words,) = self.split([sentence])
        place = place_of(word, words)
        self._check_one_layer(layers)
        query = self.embed_sentence(words, layers=layers)[place]
        search = NearestWords(query[None], [words], top_k)
        search.read(self.vectors_of_words(others, layers), words[place] if same_word else None)
        return search.results()[0]

    def occurrences(
        self,
        word: str,
        sentences: Callable[[], Iterable[Sentence]],
        top_k: int = 5,
        layers: Layers = "top",
        most: int | None = None,
        same_word: bool = False,
        ignore_case: bool = False,
    ) -> list[Occurrence]:
        """Finds where a word occurs in sentences, and for each occurrence the nearest words of the other sentences.

        Args:
            word: The word.
            sentences: Called twice for the sentences: once to find the word, once to compare it.
            top_k: How many neighbours of each.
            layers: One layer or the mix, as of `embed`.
            most: How many occurrences, the first ones; by default all. Equal sentences count once.
            same_word: Only other occurrences of the same word.
            ignore_case: Whether capitals make no difference.

        Raises:
            ValueError: The word does not occur, or `layers` names several.
        """
        self._check_one_layer(layers)
        found = find_occurrences(self.split_lazily(sentences()), word, most, ignore_case)
        vectors = self.embed([words for _, _, words in found], layers=layers)
        queries = np.stack([one[place] for one, (_, place, _) in zip(vectors, found, strict=True)])
        search = NearestWords(queries, [words for _, _, words in found], top_k)
        search.read(self.vectors_of_words(sentences(), layers), word if same_word else None, ignore_case)
        return [Occurrence(*place, near) for place, near in zip(found, search.results(), strict=True)]

    def vectors_of_words(
        self, sentences: Iterable[Sentence], layers: Layers = "top"
    ) -> Iterator[tuple[int, list[str], np.ndarray]]:
        """Reads sentences lazily: (number of the sentence, its words, their vectors (words, dim))."""
        self._check_one_layer(layers)
        embedded = self._words_and_vectors(sentences, self.select(layers))
        for number, (words, vectors) in enumerate(embedded):
            yield number, words, as_numpy(vectors)

    def _check_one_layer(self, layers: Layers) -> None:
        if self.select(layers).has_layer_axis:
            raise ValueError(f"Words are compared in one layer or in the mix, not in layers={layers!r}.")

    @property
    def boundary_counts(self) -> tuple[int, int]:
        """How many boundaries the tokenizer puts before and after a sentence."""
        return int(self.tokenizer.add_bos_token), int(self.tokenizer.add_eos_token)

    def _nothing(self, selection: Selection) -> torch.Tensor:
        shape = (len(selection.columns), 0, self.model.config.hidden_size)
        return selection.pooled(torch.zeros(shape[0 if selection.has_layer_axis else 1 :], dtype=self.model.dtype))

    @torch.inference_mode()
    def _embed_batch(self, sentences: list[list[str]], selection: Selection) -> list[torch.Tensor]:
        encoded = self.tokenizer(
            sentences, is_split_into_words=True, padding=True, padding_side="right", return_tensors="pt", verbose=False
        )
        names = ("input_ids", "attention_mask", "word_input_ids")
        inputs = {name: encoded[name].to(self.device) for name in names if name in encoded}
        outputs = self.model(**inputs, output_hidden_states=self._needs_layers(selection))
        before, after = self.boundary_counts
        lengths = [before + len(words) + after for words in sentences]
        chosen = self._chosen(outputs, lengths, selection)
        results = []
        for row, length in enumerate(lengths):
            start, stop = (0, length) if selection.boundaries else (before, length - after)
            words = chosen[..., row, start:stop, :]
            # A copy: a view would keep the vectors of the whole batch alive.
            results.append(selection.pooled(words).to("cpu", copy=True).contiguous())
        return results

    def _needs_layers(self, selection: Selection) -> bool:
        return selection.needs_layers or self.model.config.mix_layer_norm

    def _chosen(self, outputs: Any, lengths: list[int], selection: Selection) -> torch.Tensor:
        if selection.needs_layers:
            return selection.choose(outputs.hidden_states)
        if not self.model.config.mix_layer_norm:
            return outputs.last_hidden_state
        # The layer norm of the mix looks at all words that it is given: here at those of one sentence.
        mix = cast(ElmoScalarMix, self.model.representations[0])
        chosen = torch.zeros_like(outputs.last_hidden_state)
        for row, length in enumerate(lengths):
            layers = [layer[row : row + 1, :length] for layer in outputs.hidden_states]
            mask = torch.ones(1, length, dtype=torch.bool, device=layers[0].device)
            chosen[row, :length] = mix(layers, mask)[0]
        return chosen


def check_is_elmo(name: str, options: dict[str, Any]) -> None:
    """Refuses, before any weights are read, a folder or repository without an ELMo model.

    Raises:
        ValueError: There is no configuration, or that of another model.
    """
    path = Path(name)
    if path.exists() and not (path / "config.json").is_file():
        raise ValueError(
            f"{name} is no folder with a model: there is no config.json in it. `hf-elmo convert` makes one."
        )
    try:
        content, _ = ElmoConfig.get_config_dict(name, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"There is no model {name}: it is no folder here, and the Hub did not give it: {first_line(error)}"
        ) from error
    if content.get("model_type") != ElmoConfig.model_type:
        raise ValueError(f"The model in {name} is of the type {content.get('model_type')!r}, not ELMo.")


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def place_of(word: str | int, words: Sequence[str]) -> int:
    """The place of a word among the words of a sentence.

    Raises:
        ValueError: It is not there.
    """
    if isinstance(word, str):
        if word not in words:
            raise ValueError(f"The word {word!r} is not in the sentence, whose words are: {' '.join(words)}")
        return list(words).index(word)
    if not -len(words) <= word < len(words):
        raise ValueError(f"There is no word {word} in a sentence of {len(words)} words.")
    return word % len(words)


def as_numpy(vectors: Any) -> np.ndarray:
    """Vectors as an array; NumPy has no bfloat16, which becomes float32."""
    if isinstance(vectors, torch.Tensor):
        vectors = vectors.detach().cpu()
        return (vectors.float() if vectors.dtype == torch.bfloat16 else vectors).numpy()
    return np.asarray(vectors)


__all__ = ["ElmoEmbedder"]
