"""The token layer of ELMo: the characters of a word to a vector that knows no context."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from transformers.activations import ACT2FN

from .buffers_elmo import buffers
from .configuration_elmo import ElmoConfig
from .fast_paths_elmo import (
    autocast_type,
    is_batched,
    is_enabled,
    is_hooked,
    is_plain,
    why_not_direct,
    why_not_opaque,
    without_autocast,
)
from .packed_weights_elmo import PackedWeight, WeightWatch
from .word_cache_elmo import WordCache, words_of_rows

# Groups of words of like lengths on a CPU, from so many words on.
LENGTH_GROUPS, MIN_GROUPED_WORDS = 4, 64


class ElmoHighway(nn.Module):
    """One highway layer (Srivastava et al. 2015) with bilm-tf's names: the carry gate multiplies the transform."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps (words, size) to (words, size)."""
        carry = self.carry(features).sigmoid()
        return carry * self.transform(features).relu() + (1 - carry) * features


class ElmoCharacterEncoder(nn.Module):
    """The token layer: character vectors, convolutions with max pooling, highway layers, projection.

    With `config.word_embedding_size` the vector of the word stands before the features of its characters, ahead of
    the projection.

    Source: section 2.1 of Jozefowicz et al. 2016; `_build_word_char_embeddings` of bilm-tf's `training.py`;
    `ConvTokenEmbedder` of ELMoForManyLangs.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.output_size = config.projection_size
        self.widest_filter = max(width for width, _ in config.filters or [])
        self.character_embeddings = nn.Embedding(config.vocab_size, config.character_embedding_size, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_embedding_size, count, width) for width, count in config.filters or []
        )
        self.activation = ACT2FN[config.hidden_act]
        self.highways = nn.ModuleList(ElmoHighway(config.num_filters) for _ in range(config.num_highway_layers))
        self.word_embeddings = None
        if config.word_embedding_size is not None:
            rows = cast(int, config.word_vocab_size) + 1
            self.word_embeddings = nn.Embedding(rows, config.word_embedding_size, padding_idx=0)
        features = config.num_filters + (config.word_embedding_size or 0)
        self.projection = nn.Linear(features, config.projection_size) if config.use_token_projection else None
        self.word_cache = WordCache()
        self.watch = WeightWatch()
        self.packed: defaultdict[str, PackedWeight] = defaultdict(PackedWeight)

    def forward(self, character_ids: torch.Tensor, word_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Maps character ids (words, characters) and, where words have vectors, word ids (words,) to (words, P)."""
        convolutions = cast(list[nn.Conv1d], list(self.convolutions))
        pooled = self._pool(character_ids, lambda index, characters: self._convolve(convolutions[index], characters))
        features = self.activation(pooled)
        for highway in self.highways:
            features = highway(features)
        if self.word_embeddings is not None:
            features = torch.cat([self.word_embeddings(word_ids), features], dim=-1)
        return features if self.projection is None else self.projection(features)

    def _pool(
        self, character_ids: torch.Tensor, convolve: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """The largest value of each filter for each word, shape (words, filters).

        Args:
            character_ids: Shape (words, characters).
            convolve: Maps the number of a convolution and characters (words, n, size) to (words, its filters).
        """
        pooled, groups = [], words_of_like_length(character_ids)
        for words, length in groups:
            characters = self.character_embeddings(character_ids[words, : length + self.widest_filter])
            parts = [
                convolve(index, characters[:, : length + cast(nn.Conv1d, convolution).kernel_size[0]])
                for index, convolution in enumerate(self.convolutions)
            ]
            pooled.append(torch.cat(parts, dim=-1))
        if len(groups) == 1:
            return pooled[0]
        return torch.cat(pooled).index_select(0, torch.cat([words for words, _ in groups]).argsort())

    @staticmethod
    def _convolve(convolution: nn.Conv1d, characters: torch.Tensor) -> torch.Tensor:
        """The largest value of each filter (words, filters) over the characters (words, characters, size)."""
        if (
            torch.compiler.is_exporting()
            or not is_enabled("convolutions_as_products")
            or not is_plain(convolution, nn.Conv1d)
        ):
            return convolution(characters.transpose(1, 2)).amax(dim=-1)
        seen, weight, bias = windows(characters, convolution), convolution.weight.flatten(1), convolution.bias
        if not torch.is_grad_enabled() or why_not_opaque() is not None:
            return nn.functional.linear(seen, weight, bias).amax(dim=1)
        dtype = autocast_type(seen.device) or weight.dtype
        with without_autocast(seen.device):
            largest: torch.Tensor = LargestProduct.apply(seen.to(dtype), weight.to(dtype))
            return largest if bias is None else largest + bias.to(dtype)

    def _forward_without_gradients(self, character_ids: torch.Tensor, word_ids: torch.Tensor | None) -> torch.Tensor:
        """`forward` over packed weights, in fewer passes over the memory."""

        def product(name: str, inputs: torch.Tensor) -> torch.Tensor:
            module = self.get_submodule(name)
            weight, bias = cast(torch.Tensor, module.weight), cast(torch.Tensor, module.bias)
            return self.packed[name].product(inputs, weight.flatten(1), bias)

        def convolve(index: int, characters: torch.Tensor) -> torch.Tensor:
            places = windows(characters, cast(nn.Conv1d, self.convolutions[index]))
            values = product(f"convolutions.{index}", places.flatten(0, 1))
            return values.view(*places.shape[:2], -1).amax(dim=1)

        features = self.activation(self._pool(character_ids, convolve))
        for index in range(len(self.highways)):
            carry = product(f"highways.{index}.carry", features).sigmoid_()
            features = torch.lerp(features, product(f"highways.{index}.transform", features).relu_(), carry)
        if self.word_embeddings is not None:
            features = torch.cat([self.word_embeddings(word_ids), features], dim=-1)
        return features if self.projection is None else product("projection", features)

    def encode_words(self, character_ids: torch.Tensor, word_ids: torch.Tensor | None = None) -> torch.Tensor:
        """`forward`, computing each distinct word once and no more padding characters than it takes."""
        vectors, occurrences = self.encode_distinct_words(character_ids, word_ids)
        return vectors[occurrences]

    def encode_distinct_words(
        self, character_ids: torch.Tensor, word_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors of the distinct words, and which of them each word is.

        Exact, for gradients too: equal words have equal vectors, and all windows that lie wholly in the padding have
        the same value, so that the maximum needs only one of them.

        Args:
            character_ids: Shape (words, characters).
            word_ids: Shape (words,), where words have vectors.

        Returns:
            Vectors (distinct, P), and numbers of them, shape (words,).
        """
        if not len(character_ids):
            empty = character_ids.new_zeros(0, self.output_size, dtype=self.character_embeddings.weight.dtype)
            return empty, character_ids.new_zeros(0)
        rows = character_ids if word_ids is None else torch.cat([character_ids, word_ids[:, None]], dim=-1)
        rows, occurrences = distinct_rows(rows)
        if self.why_not_direct() is not None:
            return self._encode(rows, character_ids.shape[1], self), occurrences
        generation = self._refresh()
        if self.why_not_cached() is not None:
            return self._encode(rows, character_ids.shape[1], self._forward_without_gradients), occurrences
        words = words_of_rows(rows, int(rows.max()))
        vectors = self.character_embeddings.weight.new_empty(len(rows), self.output_size)
        new = self.word_cache.find(words, vectors)
        if new:
            vectors[new] = found = self._encode(rows[new], character_ids.shape[1], self._forward_without_gradients)
            self.word_cache.keep([words[number] for number in new], found, generation)
        return vectors, occurrences

    def _encode(
        self, rows: torch.Tensor, characters: int, encode: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    ) -> torch.Tensor:
        """Vectors (distinct, P) of rows of so many characters, with a word id behind them where words have vectors."""
        words, word_ids = rows[:, :characters], None if rows.shape[1] == characters else rows[:, characters]
        varying = (words != words[:, -1:]).any(dim=0).nonzero()
        longest = int(varying[-1]) + 1 if len(varying) else 0
        return encode(words[:, : longest + self.widest_filter], word_ids)

    def _refresh(self) -> int:
        """Makes packed weights and kept vectors those of the weights as they are now; the cache's generation."""
        # An accelerator would have to wait, and has neither packed weights nor a cache.
        is_on_cpu = self.character_embeddings.weight.device.type == "cpu"
        with self.watch.changes(*(self.parameters() if is_on_cpu else ())) as has_changed:
            if has_changed or self.why_not_cached() is not None:
                self.word_cache.clear()
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear | nn.Conv1d):
                    self.packed[name].renew(module.weight.flatten(1), has_changed)
            return self.word_cache.generation

    def why_not_cached(self) -> str | None:
        """Why vectors of words are not kept from call to call, or None where they are."""
        if not is_enabled("word_cache"):
            return "the cache of words is switched off"
        if self.character_embeddings.weight.device.type != "cpu":
            return "the cache of words is for the CPU"
        return self.why_not_direct()

    def why_not_direct(self) -> str | None:
        """Why the token layer goes through its modules one after the other, or None where it need not."""
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters()):
            return "the token layer takes gradients"
        leaves = [module for module in self.modules() if hasattr(module, "weight")]
        if any(map(is_hooked, self.modules())) or not all(
            is_plain(leaf, nn.Conv1d) or is_plain(leaf, nn.Linear) or is_plain(leaf, nn.Embedding) for leaf in leaves
        ):
            return "the token layer is not made of plain modules (an adapter, a hook, an offloaded layer)"
        return why_not_direct(self.character_embeddings.weight.device)


class LargestProduct(torch.autograd.Function):
    """The largest product of each filter (filters, size) over the windows (words, places, size): (words, filters).

    The gradient goes to the first place that has it, as AllenNLP's does. `amax` would divide it among all that have
    it, which takes several passes over the products. Where windows are equal both give the parameters the same.
    """

    @staticmethod
    def forward(ctx: Any, seen: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Finds the values, and the places for the backward pass."""
        words, places, _ = seen.shape
        products = buffers.empty((words, places, len(weight)), seen)
        torch.mm(seen.flatten(0, 1), weight.T, out=products.flatten(0, 1))
        largest = products.amax(dim=1, keepdim=True)
        # The index that `max` would give takes three times as long.
        descending = torch.arange(places, 0, -1, device=seen.device)
        descending = descending.to(torch.uint8 if places < 256 else torch.int32)[:, None]
        highest = ((products == largest) * descending).amax(dim=1, keepdim=True)
        first = (places - highest.long()).clamp_(max=places - 1)  # none is the largest where one is no number
        ctx.save_for_backward(seen, weight, first)
        return largest.squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Brings the gradient to the places, by operations that have gradients themselves."""
        seen, weight, first = ctx.saved_tensors
        shape = (*seen.shape[:2], len(weight))
        gradient = gradients[0].unsqueeze(1)
        if torch.is_grad_enabled() or is_batched(gradient):
            of_products = seen.new_zeros(shape).scatter(1, first, gradient)
        else:
            of_products = buffers.empty(shape, seen).zero_().scatter_(1, first, gradient)
        of_products = of_products.view(-1, len(weight))
        return (of_products @ weight).view(seen.shape), of_products.t() @ seen.flatten(0, 1)


def distinct_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct ones of rows of ids (n, columns), and for each row its place among them, shape (n,)."""
    if rows.device.type != "cpu":
        return torch.unique(rows, dim=0, return_inverse=True)
    words, first = words_of_rows(rows, int(rows.max())), dict[bytes, int]()
    for number, word in enumerate(words):
        first.setdefault(word, number)
    places = {word: place for place, word in enumerate(first)}
    return rows[list(first.values())], torch.tensor([places[word] for word in words])


def lengths_of_words(character_ids: torch.Tensor) -> torch.Tensor:
    """Where the row of equal characters at the end of each word (words, characters) begins, shape (words,)."""
    varying = character_ids != character_ids[:, -1:]
    return (varying * torch.arange(1, character_ids.shape[1] + 1, device=character_ids.device)).amax(dim=1)


def words_of_like_length(character_ids: torch.Tensor) -> list[tuple[Any, int]]:
    """Groups of words (words, characters) that their convolutions take together: which words, and the longest of them.

    All that stands behind a word is the same character, so that of the windows over that alone one is enough.
    """
    words, characters = character_ids.shape
    if torch.compiler.is_compiling() or why_not_opaque() is not None or not is_enabled("words_of_like_length"):
        return [(slice(None), characters)]
    lengths = lengths_of_words(character_ids)
    if words < MIN_GROUPED_WORDS or character_ids.device.type != "cpu":
        return [(slice(None), int(lengths.amax()) if words else characters)]
    groups = lengths.argsort(stable=True).chunk(LENGTH_GROUPS)
    return [(group, int(lengths[group[-1]])) for group in groups]


def windows(characters: torch.Tensor, convolution: nn.Conv1d) -> torch.Tensor:
    """What a convolution sees at each place: characters (words, n, size) to (words, n - width + 1, size * width)."""
    return characters.unfold(1, convolution.kernel_size[0], 1).flatten(2)


__all__ = ["ElmoCharacterEncoder", "ElmoHighway"]
