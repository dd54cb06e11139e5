"""Text -> words -> rows of character ids: the tokenizer of ELMo.

The Rust tokenizer finds the words, with their offsets, truncation, overflow, pairs and padding; its model knows no
word, so each word is one token and the token is the word itself. One vectorised step, `words_to_rows`, then turns
words into rows of character ids: `input_ids` has shape (batch, seq, characters).
"""

import copy
import json
import os
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import Unigram
from transformers import BatchEncoding, TokenizersBackend
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy, TensorType, is_torch_tensor, to_py_obj

from .character_ids_elmo import ByteCharacters
from .lexicon_elmo import CharacterLexicon, WordVocabulary
from .word_splitters_elmo import build_word_splitter, word_splitter_name

BOS_TOKEN, EOS_TOKEN = ByteCharacters.boundary_words

# Stand-ins for what Rust drops (an empty word) or refuses (a lone surrogate); they never reach the ids.
EMPTY_WORD = " "
LONE_SURROGATE = "\ue000"

_own = threading.local()


def build_backend(special_tokens: list[str]) -> Tokenizer:
    """Builds a Rust tokenizer that knows padding, unknown, begin and end, ids 0 to 3, and takes words as they are.

    The scores of the Unigram model are positive, so that many unknown letters, which it joins into one token, weigh
    more than a special token among them (`x[PAD]y`).
    """
    if len(set(special_tokens)) < len(special_tokens):
        raise ValueError(f"The special tokens {special_tokens} must differ from each other.")
    backend = Tokenizer(Unigram([(token, 100.0) for token in special_tokens], unk_id=1, byte_fallback=False))
    backend.add_special_tokens([AddedToken(token, single_word=True, normalized=False) for token in special_tokens])
    return backend


def boundary_ids(backend: Tokenizer) -> set[int]:
    """The ids that the post-processor of a saved tokenizer puts around a sentence."""
    template = json.loads(backend.to_str())["post_processor"] or {}
    return {identifier for token in template.get("special_tokens", {}).values() for identifier in token["ids"]}


def thread_backend(definition: str, whole_words: bool) -> Tokenizer:
    """A Rust tokenizer that only the calling thread uses, so that a call may set truncation and padding on it.

    Args:
        definition: The content of tokenizer.json.
        whole_words: Take words as they are: no pre-tokenizer, no tokens that a user added.
    """
    backends: dict[tuple[str, bool], Tokenizer] = _own.__dict__.setdefault("backends", {})
    key = (definition, whole_words)
    if key not in backends:
        if len(backends) >= 8:
            backends.clear()
        parts = json.loads(definition)
        parts["truncation"] = parts["padding"] = None
        if whole_words:
            parts["pre_tokenizer"] = None
            parts["added_tokens"] = [token for token in parts["added_tokens"] if token["special"]]
        backends[key] = Tokenizer.from_str(json.dumps(parts))
    return backends[key]


def has_utf8_form(text: str) -> bool:
    """Whether the text holds no lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text_for_rust(text: Any, are_words: bool) -> Any:
    """Puts the stand-ins into a text, a list of words, or lists of these; anything else is left to Rust to refuse."""
    if isinstance(text, (list, tuple)):
        return type(text)(text_for_rust(part, are_words) for part in text)
    if not isinstance(text, str):
        return text
    if not has_utf8_form(text):
        return "".join(LONE_SURROGATE if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text or EMPTY_WORD if are_words else text


def surface_words(encoding: Encoding, sequences: Sequence[Any], are_words: bool) -> list[str]:
    """The words of an encoding, without its padding, as they were given.

    Args:
        encoding: The encoding of one text or of a pair.
        sequences: The text, or both; each a string or, if `are_words`, a list of words.
        are_words: Whether the sequences are lists of words.
    """
    tokens, real = encoding.tokens, encoding.attention_mask
    if not are_words and all(has_utf8_form(text) for text in sequences):
        return [token for token, is_real in zip(tokens, real, strict=True) if is_real]
    spans: list[Any] = encoding.word_ids if are_words else [slice(*offsets) for offsets in encoding.offsets]
    return [
        token if sequence is None else sequences[sequence][span]
        for token, is_real, sequence, span in zip(tokens, real, encoding.sequence_ids, spans, strict=True)
        if is_real
    ]


def arrange(rows: np.ndarray, masks: Sequence[Sequence[int]]) -> np.ndarray | list[np.ndarray]:
    """Puts the rows where the masks are 1, rows of zeros where they are 0.

    Args:
        rows: Array of shape (ones in all masks, width).
        masks: One mask for each example.

    Returns:
        Array of shape (batch, seq, width), int64, or, where the lengths differ, a list of arrays (length, width).
    """
    lengths = np.fromiter(map(len, masks), dtype=np.int64, count=len(masks))
    width = rows.shape[1]
    if lengths.sum() == len(rows):
        arranged = rows.astype(np.int64)
    else:
        arranged = np.zeros((lengths.sum(), width), dtype=np.int64)
        arranged[np.fromiter(chain.from_iterable(masks), dtype=bool, count=len(arranged))] = rows
    if np.all(lengths == lengths[0]):
        return arranged.reshape(len(masks), lengths[0], width)
    ends = np.cumsum(lengths).tolist()
    return [arranged[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def arrange_numbers(numbers: np.ndarray, masks: Sequence[Sequence[int]]) -> np.ndarray | list[np.ndarray]:
    """As `arrange`, for one number a word, shape (ones in all masks,): array (batch, seq), or arrays (length,)."""
    arranged = arrange(numbers[:, np.newaxis], masks)
    return arranged[..., 0] if isinstance(arranged, np.ndarray) else [row[:, 0] for row in arranged]


def arrange_layers(examples: Sequence[Any], masks: Sequence[Sequence[int]]) -> Any:
    """As `arrange`, for the layers of each example, which are large: they are copied once, in their own type.

    Args:
        examples: For each an array, a tensor or lists, of shape (length, size); lists become float32.
        masks: One mask for each example, with as many ones as the example is long, side by side.

    Returns:
        An array or, of tensors, a tensor, of shape (batch, seq, size); a list of these where the lengths differ.

    Raises:
        ValueError: The examples are not of one size, or not of the lengths of the masks.
    """
    kinds = (np.ndarray, torch.Tensor)
    parts = [example if isinstance(example, kinds) else np.asarray(example, dtype=np.float32) for example in examples]
    sizes = {part.shape[1:] for part in parts if len(part)} or {(0, *part.shape[1:])[-1:] for part in parts}
    is_one_size = len(sizes) == 1 and len(next(iter(sizes))) == 1
    if not is_one_size or [len(part) for part in parts] != [sum(mask) for mask in masks]:
        raise ValueError(
            f"`layers` must have the shape (words, size), with as many words as `input_ids` and one size in all "
            f"examples, but have {', '.join(str(tuple(part.shape)) for part in parts)}."
        )
    size, like = next(iter(sizes)), parts[0]
    lengths = [len(mask) for mask in masks]
    is_even = len(set(lengths)) == 1
    shapes = [(len(masks), lengths[0], *size)] if is_even else [(length, *size) for length in lengths]
    targets: list[Any] = [
        like.new_zeros(shape) if isinstance(like, torch.Tensor) else np.zeros(shape, like.dtype) for shape in shapes
    ]
    for target, part, mask in zip(targets[0] if is_even else targets, parts, masks, strict=True):
        if len(part):
            start = mask.index(1)
            target[start : start + len(part)] = part
    return targets[0] if is_even else targets


def cut_words(
    batch: Sequence[Any], room: int | None, strategy: TruncationStrategy, side: str
) -> Sequence[Sequence[str]] | None:
    """Cuts lists of words as Rust does; None where that is not plain, or where the examples are pairs.

    Args:
        batch: Examples.
        room: How many words an example may have; None for any number.
        strategy: How pairs are cut; one way does not apply to single lists.
        side: The side on which words are dropped.
    """
    if not all(isinstance(words, (list, tuple)) for words in batch):
        return None
    if any(words and isinstance(words[0], (list, tuple)) for words in batch):
        return None
    if room is None or max(map(len, batch)) <= room:
        return batch
    if room < 1 or side != "right" or strategy == TruncationStrategy.ONLY_SECOND:
        return None
    return [words[:room] for words in batch]


def depth_of(value: Any) -> int:
    """How deep lists, arrays or tensors are nested; 0 for a number."""
    if isinstance(value, (list, tuple)):
        return 1 + max(
            map(depth_of, value[:1] if value and not isinstance(value[0], (list, tuple)) else value), default=0
        )
    return getattr(value, "ndim", 0)


def sequences_of(text: Any, pair: Any, are_words: bool) -> list[Any]:
    """The texts, or lists of words, of one example, which may come as a pair in one."""
    if pair is not None:
        return [text, pair]
    is_pair = bool(text) and isinstance(text[0], (list, tuple)) if are_words else isinstance(text, (list, tuple))
    return list(text) if is_pair else [text]


def offsets_of_words(encoding: Encoding, sequences: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """The offsets of an encoding of lists of words, where a stand-in for an empty word has no extent."""
    places: Any = zip(encoding.offsets, encoding.sequence_ids, encoding.word_ids, strict=True)
    return [
        (0, 0) if sequence is not None and not sequences[sequence][word] else offsets
        for offsets, sequence, word in places
    ]


def padded_lengths(
    lengths: list[int], strategy: PaddingStrategy, max_length: int | None, multiple_of: int | None
) -> list[int]:
    """The lengths that examples of these lengths have after padding."""
    if strategy == PaddingStrategy.DO_NOT_PAD:
        return lengths
    target = max_length if strategy == PaddingStrategy.MAX_LENGTH and max_length is not None else max(lengths)
    if multiple_of:
        target = -(-target // multiple_of) * multiple_of
    return [max(target, length) for length in lengths]


def as_rows(ids: Any, width: int) -> np.ndarray:
    """The rows of one example, lists, array or tensor, as an array of shape (seq, width).

    Raises:
        ValueError: The rows have another width.
    """
    rows = np.asarray([row.cpu() if is_torch_tensor(row) else row for row in ids], dtype=np.int64)
    if rows.size == 0:
        return rows.reshape(0, width)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(
            f"input_ids of shape {rows.shape} are no rows of {width} characters (max_characters_per_token)."
        )
    return rows


def finish_ids(ids: Any, return_tensors: Any) -> Any:
    """Arrays as the caller wants them: as a tensor, as an array, or, for None, as nested lists."""
    if return_tensors is None:
        return [rows.tolist() for rows in ids] if isinstance(ids, list) else ids.tolist()
    if isinstance(ids, np.ndarray) and TensorType(return_tensors) == TensorType.PYTORCH:
        return torch.from_numpy(ids)
    if isinstance(ids, torch.Tensor) and TensorType(return_tensors) == TensorType.NUMPY:
        return ids.cpu().numpy()
    return ids


class WordEncodings(Sequence[Encoding]):
    """The Rust encodings of lists of words, each made when it is asked for: the ids need none of them."""

    def __init__(
        self,
        definition: str,
        batch: Sequence[Sequence[str]],
        add_special_tokens: bool = True,
        padded: Sequence[int] | None = None,
        **padding: Any,
    ) -> None:
        """`definition`: the content of tokenizer.json; `padded`: the length of each encoding after padding."""
        self._definition = definition
        self._batch = batch
        self._add_special_tokens = add_special_tokens
        self._padded = padded
        self._padding = padding

    def __len__(self) -> int:
        return len(self._batch)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        backend = thread_backend(self._definition, whole_words=True)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        words = text_for_rust(self._batch[index], are_words=True)
        encoding = backend.encode(words, is_pretokenized=True, add_special_tokens=self._add_special_tokens)
        if self._padded is not None:
            encoding.pad(self._padded[index], **self._padding)
        return encoding

    def __reduce__(self) -> tuple[type, tuple[list[Encoding]]]:
        return list, (list(self),)


class ElmoTokenizer(TokenizersBackend):
    """Tokenizer of ELMo: one token a word, one row of character ids a token.

    `input_ids` has shape (batch, seq, `max_characters_per_token`), int64: NumPy arrays, one for each example, or one
    array or tensor with `return_tensors`. Everything else is as with any other tokenizer of transformers. A sentence
    is framed as `<S> a </S>`, a pair as `<S> a </S> <S> b </S>`; padding is a row of zeros.

    Lists of words (`is_split_into_words=True`) stay as they are: a word may hold blanks, or be empty. The words `<S>`
    and `</S>` mean the boundaries, as in AllenNLP; `[PAD]` and `[UNK]` in a text are words like any other. A word is
    cut after `max_characters_per_token - 2` bytes. Lone surrogates are left out of the ids, as in AllenNLP.

    With a character lexicon, as ELMoForManyLangs has, the characters are those of the lexicon instead of bytes, and a
    word is cut after `max_characters_per_token - 2` of them. With a word vocabulary there is also `word_input_ids`, of
    shape (batch, seq): the place of each word (with a lexicon: of the cut word) in the vocabulary plus 1, and 0 at
    padding.

    `decode` gives the words back, joined by one blank each.

    Args:
        word_splitter (`str`, *optional*, defaults to `"whitespace"`):
            How text becomes words: `"whitespace"` (it is tokenized already), `"treebank"` (English: punctuation,
            `n't`, `'s` apart, as in the Penn Treebank) or `"punctuation"` (other languages: punctuation apart).
        max_characters_per_token (`int`, *optional*, defaults to 50):
            Character ids in a row, those of begin and end of word included.
        bos_token (`str`, *optional*, defaults to `"<S>"`):
            The word before a sentence; `None` leaves it out.
        eos_token (`str`, *optional*, defaults to `"</S>"`):
            The word after a sentence; `None` leaves it out.
        pad_token (`str`, *optional*, defaults to `"[PAD]"`):
            The name of padding.
        unk_token (`str`, *optional*, defaults to `"[UNK]"`):
            The name under which the Rust tokenizer files every word; no word is unknown to ELMo.
        character_lexicon (`CharacterLexicon` or `str`, *optional*):
            The characters, or the file that holds them; bytes by default.
        word_vocabulary (`WordVocabulary` or `str`, *optional*):
            The words that have ids of their own, or the file that holds them, one a line; none by default.
        unknown_word (`str`, *optional*):
            The word that stands for all others in the file of the word vocabulary; `"<UNK>"` or `"<oov>"` by default.

    Raises:
        ValueError: `word_splitter` is unknown, `max_characters_per_token` leaves no room for a byte, a file holds no
            lexicon or vocabulary, or the vocabulary lacks a word that frames a sentence.
    """

    vocab_files_names = {
        "tokenizer_file": "tokenizer.json",
        "character_lexicon": "character_lexicon.json",
        "word_vocabulary": "vocab.txt",
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        word_splitter: str | None = None,
        max_characters_per_token: int = 50,
        bos_token: str | AddedToken | None = BOS_TOKEN,
        eos_token: str | AddedToken | None = EOS_TOKEN,
        pad_token: str | AddedToken = "[PAD]",
        unk_token: str | AddedToken = "[UNK]",
        character_lexicon: CharacterLexicon | str | os.PathLike[str] | None = None,
        word_vocabulary: WordVocabulary | str | os.PathLike[str] | None = None,
        unknown_word: str | None = None,
        tokenizer_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        if max_characters_per_token < 3:
            raise ValueError(
                f"max_characters_per_token is {max_characters_per_token}: it must be 3 or more, for begin of word, a"
                " byte and end of word."
            )
        framed = {2, 3}
        if tokenizer_file is None:
            names = [str(pad_token), str(unk_token), str(bos_token or BOS_TOKEN), str(eos_token or EOS_TOKEN)]
            backend = build_backend(names)
        else:
            backend = Tokenizer.from_file(tokenizer_file)
            framed = boundary_ids(backend)
        held = word_splitter_name(backend)
        self._word_splitter = word_splitter or held or "whitespace"
        if self._word_splitter != held and (held or backend.pre_tokenizer is None):
            backend.pre_tokenizer = build_word_splitter(self._word_splitter)
        self.max_characters_per_token = max_characters_per_token
        self._tokenizer = backend
        if isinstance(character_lexicon, (str, os.PathLike)):
            character_lexicon = CharacterLexicon.from_file(os.fspath(character_lexicon))
        self.character_lexicon = character_lexicon
        self._characters = character_lexicon or ByteCharacters()
        if isinstance(word_vocabulary, (str, os.PathLike)):
            word_vocabulary = WordVocabulary.from_file(os.fspath(word_vocabulary), unknown_word)
        self.word_vocabulary = word_vocabulary
        if word_vocabulary is not None:
            missing = [str(token) for token in (bos_token, eos_token) if token and str(token) not in word_vocabulary]
            if missing:
                raise ValueError(
                    f"The word vocabulary has no {' and no '.join(missing)}: bos_token and eos_token must name"
                    " the words in it that frame a sentence, or be None."
                )
            unknown_word = word_vocabulary.unknown_word
            kwargs.setdefault("model_input_names", [*self.model_input_names, "word_input_ids"])

        # A text is never searched for special tokens: what looks like one is a word.
        kwargs.setdefault("split_special_tokens", True)
        kwargs.setdefault("add_bos_token", bos_token is not None and 2 in framed)
        kwargs.setdefault("add_eos_token", eos_token is not None and 3 in framed)
        super().__init__(
            word_splitter=self._word_splitter,
            max_characters_per_token=max_characters_per_token,
            bos_token=bos_token,
            eos_token=eos_token,
            pad_token=pad_token,
            unk_token=unk_token,
            character_lexicon=character_lexicon,
            word_vocabulary=word_vocabulary,
            unknown_word=unknown_word,
            **kwargs,
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Keeps `tokenizer_file`, which the constructor reads whole: the splitter is in it."""
        return kwargs

    @property
    def word_splitter(self) -> str:
        """The name of the word splitter."""
        return self._word_splitter

    @property
    def boundaries(self) -> dict[str, int]:
        """The words that mean begin and end of sentence -> their character ids."""
        characters = self._characters
        bos_token, eos_token = (
            given or usual
            for given, usual in zip((self.bos_token, self.eos_token), characters.boundary_words, strict=True)
        )
        return {bos_token: characters.begin_sentence, eos_token: characters.end_sentence}

    def _encode_plus(  # type: ignore[override]
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        return_tensors: Any = None,
        return_overflowing_tokens: bool = False,
        return_offsets_mapping: bool = False,
        **options: Any,
    ) -> BatchEncoding:
        if is_split_into_words and isinstance(text, str):
            raise ValueError(
                "is_split_into_words=True takes lists of words: found a string; split it, or leave it out."
            )
        is_batched = isinstance(text, (list, tuple))
        if is_split_into_words:
            is_batched = is_batched and len(text) > 0 and isinstance(text[0], (list, tuple))
        if is_batched and len(text) == 0:
            return BatchEncoding({name: [] for name in self.model_input_names}, [], tensor_type=return_tensors)
        batch = text if is_batched else [text]
        pairs = text_pair if is_batched else [text_pair] if text_pair else None

        words = None
        if is_split_into_words and pairs is None and not return_overflowing_tokens and not return_offsets_mapping:
            room = None
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                room = max_length - (self.num_special_tokens_to_add() if add_special_tokens else 0)
            words = cut_words(batch, room, truncation_strategy, self.truncation_side)
        if words is not None:
            data, encodings = self._encode_words(words, add_special_tokens, max_length=max_length, **options)
        else:
            data, encodings = self._encode_with_rust(
                batch,
                pairs,
                add_special_tokens=add_special_tokens,
                truncation_strategy=truncation_strategy,
                max_length=max_length,
                is_split_into_words=is_split_into_words,
                return_overflowing_tokens=return_overflowing_tokens,
                return_offsets_mapping=return_offsets_mapping,
                **options,
            )

        for name in {"input_ids", "word_input_ids"} & data.keys():
            ids = data[name]
            data[name] = list(ids) if return_tensors is None else finish_ids(ids, return_tensors)
        if return_tensors is None and not is_batched and not return_overflowing_tokens:
            data = {k: v[0] if isinstance(v[0], (list, np.ndarray)) else v for k, v in data.items()}
        n_sequences = 1 if isinstance(encodings, WordEncodings) else None
        return BatchEncoding(data, encodings, tensor_type=return_tensors, n_sequences=n_sequences)

    def _encode_words(
        self,
        batch: Sequence[Sequence[str]],
        add_special_tokens: bool = True,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_special_tokens_mask: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        **unused: Any,
    ) -> tuple[dict[str, Any], Sequence[Encoding]]:
        """Encodes lists of words that need not be cut: nothing is left for Rust to decide, so nothing goes through it.

        Returns:
            What `_encode_with_rust` returns; the encodings are made when they are asked for.
        """
        definition = self.backend_tokenizer.to_str()
        frame = WordEncodings(definition, [["word"]], add_special_tokens)[0]
        at = frame.word_ids.index(0)
        before, after = frame.tokens[:at], frame.tokens[at + 1 :]
        lengths = [len(before) + len(words) + len(after) for words in batch]
        padded = padded_lengths(lengths, padding_strategy, max_length, pad_to_multiple_of)
        side = padding_side or self.padding_side
        for length in lengths:
            self._eventual_warn_about_too_long_sequence(range(length), max_length, verbose)  # type: ignore[arg-type]

        def columns(special_before: Any, word: Any, special_after: Any, padding: Any) -> list[list[Any]]:
            rows = []
            for words, length, target in zip(batch, lengths, padded, strict=True):
                row = [*special_before, *([word] * len(words)), *special_after]
                fill = [padding] * (target - length)
                rows.append(row + fill if side == "right" else fill + row)
            return rows

        surfaces = list(chain.from_iterable(chain(before, words, after) for words in batch))
        mask = columns([1] * len(before), 1, [1] * len(after), 0)
        data = self._ids_of_words(surfaces, mask)
        if "token_type_ids" in self.model_input_names if return_token_type_ids is None else return_token_type_ids:
            types = frame.type_ids
            data["token_type_ids"] = columns(types[:at], types[at], types[at + 1 :], self.pad_token_type_id)
        if "attention_mask" in self.model_input_names if return_attention_mask is None else return_attention_mask:
            data["attention_mask"] = mask
        if return_special_tokens_mask:
            data["special_tokens_mask"] = columns([1] * len(before), 0, [1] * len(after), 1)
        if return_length:
            data["length"] = padded
        encodings = WordEncodings(
            definition,
            batch,
            add_special_tokens,
            padded,
            direction=side,
            pad_id=self.pad_token_id,
            pad_type_id=self.pad_token_type_id,
            pad_token=self.pad_token,
        )
        return data, encodings

    def _encode_with_rust(
        self, batch: Sequence[Any], pairs: Any, is_split_into_words: bool, **options: Any
    ) -> tuple[dict[str, Any], Sequence[Encoding]]:
        """Encodes a batch with the base class, then writes rows where it wrote one id a token.

        Returns:
            The columns, `input_ids` among them as `arrange` returns it, and the Rust encodings of the batch.
        """
        private = copy.copy(self)
        private._tokenizer = thread_backend(self.backend_tokenizer.to_str(), whole_words=is_split_into_words)
        encoded = super(ElmoTokenizer, private)._encode_plus(
            text_for_rust(batch, is_split_into_words),
            None if pairs is None else text_for_rust(pairs, is_split_into_words),
            is_split_into_words=is_split_into_words,
            **options,
        )
        data, encodings = encoded.data, encoded.encodings or []
        examples = [
            sequences_of(first, second, is_split_into_words)
            for first, second in zip(batch, [None] * len(batch) if pairs is None else pairs, strict=True)
        ]
        samples = data.get("overflow_to_sample_mapping", range(len(batch)))
        surfaces = [
            surface_words(encoding, examples[sample], is_split_into_words)
            for encoding, sample in zip(encodings, samples, strict=True)
        ]
        masks = [encoding.attention_mask for encoding in encodings]
        data.update(self._ids_of_words(list(chain.from_iterable(surfaces)), masks))
        if is_split_into_words and "offset_mapping" in data:
            data["offset_mapping"] = [
                offsets_of_words(encoding, examples[sample])
                for encoding, sample in zip(encodings, samples, strict=True)
            ]
        return data, encodings

    def _ids_of_words(self, words: Sequence[str], masks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The columns of ids for the words of all examples, as `arrange` returns them: rows, and numbers of words."""
        rows = self._characters.words_to_rows(words, self.max_characters_per_token, self.boundaries)
        data: dict[str, Any] = {"input_ids": arrange(rows, masks)}
        if self.word_vocabulary is not None and "word_input_ids" in self.model_input_names:
            if self.character_lexicon is not None:
                room, boundaries = self.max_characters_per_token - 2, self.boundaries
                words = [word if word in boundaries else word[:room] for word in words]
            data["word_input_ids"] = arrange_numbers(self.word_vocabulary.words_to_ids(words), masks)
        return data

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str | PaddingStrategy = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: Any = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pads examples as the base class does, `input_ids` with rows of zeros, `word_input_ids` with zeros.

        The base class would take one example, of shape (seq, characters), for a batch. It pads a stand-in of one id a
        word; the rows then go where the stand-in says.

        Examples may hold `layers`, numbers of a float type of shape (seq, size), which `precompute_layers` stores in
        the place of `input_ids`. They are padded with zeros, in their own type. Where there are no rows of characters
        `input_ids` then has the shape (batch, seq): the id of `unk_token` at words, that of `pad_token` at padding. So
        collators and `Trainer` find in it the length of a batch and the number of its tokens; models that are given
        `layers` do not read it.

        Raises:
            ValueError: `layers` are not of one size, or not as long as `input_ids`.
        """
        if isinstance(encoded_inputs, (list, tuple)) and encoded_inputs and isinstance(encoded_inputs[0], Mapping):
            encoded_inputs = {key: [example[key] for example in encoded_inputs] for key in encoded_inputs[0]}
        name = self.model_input_names[0]
        ids: Any = encoded_inputs.get(name) if isinstance(encoded_inputs, Mapping) else None
        layers: Any = encoded_inputs.get("layers") if isinstance(encoded_inputs, Mapping) else None
        depth = depth_of(ids)
        has_rows = depth > 2 or (depth == 2 and self._is_row(ids[0]))
        options: dict[str, Any] = {
            "padding": padding,
            "max_length": max_length,
            "pad_to_multiple_of": pad_to_multiple_of,
            "padding_side": padding_side,
            "return_attention_mask": return_attention_mask,
            "verbose": verbose,
        }
        if not has_rows and layers is None:
            return super().pad(encoded_inputs, return_tensors=return_tensors, **options)

        given = ids if has_rows else layers
        is_batch = depth == 3 if has_rows else any(depth_of(example) == 2 for example in layers)
        examples: list[Any] = list(given) if is_batch else [given]
        if return_tensors is None:
            parts = [given, *given]
            is_pt, is_np = any(map(is_torch_tensor, parts)), any(isinstance(part, np.ndarray) for part in parts)
            return_tensors = "pt" if is_pt else "np" if is_np else None
        mark = -1 if has_rows else self.unk_token_id
        stand_ins = [[mark] * len(example) for example in examples]
        left_out = (name, "word_input_ids", "layers")
        others = {key: to_py_obj(value) for key, value in encoded_inputs.items() if key not in left_out}
        padded = super().pad({name: stand_ins if is_batch else stand_ins[0], **others}, **options)

        kept = padded[name] if is_batch else [padded[name]]
        masks = [[int(value == mark) for value in values] for values in kept]
        arranged: dict[str, Any] = {}
        if has_rows:
            rows = np.concatenate([as_rows(example, self.max_characters_per_token) for example in examples])
            arranged[name] = arrange(rows, masks)
        if "word_input_ids" in encoded_inputs:
            words = to_py_obj(encoded_inputs["word_input_ids"])
            numbers = np.array(list(chain.from_iterable(words)) if is_batch else words, dtype=np.int64)
            arranged["word_input_ids"] = arrange_numbers(numbers, masks)
        if layers is not None:
            arranged["layers"] = arrange_layers(list(layers) if is_batch else [layers], masks)
        for key, values in arranged.items():
            padded[key] = finish_ids(values if is_batch else values[0], return_tensors)
        return BatchEncoding(padded.data, tensor_type=return_tensors)

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """The word of one row, the words of several; ids that are no rows are those of the special tokens.

        Args:
            ids: Rows of shape (seq, characters), one row, a token id or a list of token ids.
            skip_special_tokens: Leave out padding and boundaries.
        """
        depth = depth_of(ids)
        if depth == 1 and self._is_row(ids):
            return self._words_of([ids], skip_special_tokens=False)[0]
        if depth == 2:
            return self._words_of(ids, skip_special_tokens)
        return super().convert_ids_to_tokens(to_py_obj(ids), skip_special_tokens)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The words, joined by one blank each."""
        return " ".join(tokens)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str | list[str]:
        """The text of an example, (seq, characters), or the texts of a batch, (batch, seq, characters).

        The words come back byte for byte, up to the limit at which they were cut, joined by one blank each.
        """
        depth = depth_of(token_ids)
        if depth == 3:
            return [self._decode(example, skip_special_tokens, **options) for example in token_ids]
        if depth == 2:
            return self._decode(token_ids, skip_special_tokens, **options)
        return super().decode(token_ids, skip_special_tokens, **options)

    def _decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **options: Any,
    ) -> str:
        if isinstance(token_ids, Mapping):
            token_ids = token_ids["input_ids"]
        depth = depth_of(token_ids)
        if depth < 2 and not (depth == 1 and self._is_row(token_ids)):
            return super()._decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **options)
        words = self._words_of([token_ids] if depth == 1 else token_ids, skip_special_tokens)
        text = self.convert_tokens_to_string(words)
        if clean_up_tokenization_spaces is None:
            clean_up_tokenization_spaces = self.clean_up_tokenization_spaces
        return self.clean_up_tokenization(text) if clean_up_tokenization_spaces else text

    def get_special_tokens_mask(
        self, token_ids_0: Any, token_ids_1: Any = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for padding and boundaries, 0 for words.

        Args:
            token_ids_0: Rows of shape (seq, characters).
            token_ids_1: The rows of the second text of a pair; not with `already_has_special_tokens`.
            already_has_special_tokens: Whether the boundaries are among the rows; else they are counted in.
        """
        if not already_has_special_tokens:
            before, after = [1] * self.add_bos_token, [1] * self.add_eos_token
            parts = [token_ids_0] if token_ids_1 is None else [token_ids_0, token_ids_1]
            return list(chain.from_iterable([*before, *([0] * len(part)), *after] for part in parts))
        if token_ids_1 is not None or depth_of(token_ids_0) != 2:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens)
        rows = as_rows(token_ids_0, self.max_characters_per_token)
        characters = self._characters
        return np.isin(rows[:, 1], [0, characters.begin_sentence, characters.end_sentence]).astype(int).tolist()

    def train_new_from_iterator(self, *args: Any, **options: Any) -> "ElmoTokenizer":
        """Not possible: ELMo reads bytes and has no vocabulary.

        Raises:
            ValueError: Always.
        """
        raise ValueError("ELMo reads the bytes of each word: there is no vocabulary to train.")

    def save_vocabulary(  # type: ignore[override]
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Saves the character lexicon and the word vocabulary.

        Args:
            save_directory: The folder.
            filename_prefix: What the names of the files begin with.

        Returns:
            The files; none for a tokenizer of bytes without a word vocabulary.
        """
        saved = []
        for name in ("character_lexicon", "word_vocabulary"):
            lexicon = getattr(self, name)
            if lexicon is not None:
                prefix = f"{filename_prefix}-" if filename_prefix else ""
                saved.append(os.path.join(save_directory, prefix + self.vocab_files_names[name]))
                lexicon.save(saved[-1])
        return tuple(saved)

    def _save_pretrained(
        self, save_directory: Any, file_names: Any, legacy_format: bool | None = None, filename_prefix: Any = None
    ) -> tuple[str, ...]:
        saved = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        return saved + self.save_vocabulary(str(save_directory), filename_prefix)

    def _is_row(self, ids: Any) -> bool:
        if len(ids) != self.max_characters_per_token:
            return False
        return int(ids[0]) == self._characters.begin_word or not any(map(int, ids))

    def _words_of(self, ids: Any, skip_special_tokens: bool) -> list[str]:
        rows = as_rows(ids, self.max_characters_per_token)
        special = {0: str(self.pad_token), **{character: word for word, character in self.boundaries.items()}}
        words = self._characters.rows_to_words(rows, special)
        if not skip_special_tokens:
            return words
        return [word for word, head in zip(words, rows[:, 1].tolist(), strict=True) if head not in special]


__all__ = ["ElmoTokenizer"]
