"""Lexicons in place of bytes: the characters of ELMoForManyLangs, and the words of a word vocabulary."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from .character_ids_elmo import join_words, lay_out, word_ends

# The names under which a vocabulary may hold the word that stands for all unknown ones: bilm-tf's, ELMoForManyLangs'.
UNKNOWN_WORDS = ("<UNK>", "<oov>")

# A count behind a word, and the end of some of bilm-tf's vocabularies.
COUNTED = re.compile(r"(?<=\S) +\d+$")
NO_WORD = "!!!MAXTERMID"


class CharacterLexicon:
    """Characters that are Unicode code points by number, and names for what is no character.

    Ids are the places in the list, plus 1: row id 0 is left for padding, as with bytes. The same methods as
    `ByteCharacters`.

    Args:
        characters: The characters and the six names, each once.
        begin_sentence: Name of the character of the word before a sentence.
        end_sentence: Name of the character of the word after a sentence.
        begin_word: Name of the character that begins a word.
        end_word: Name of the character that ends a word.
        unknown: Name of the character that stands for all that are not in the list.
        padding: Name of the character that fills a row.

    Raises:
        ValueError: A name is missing, or an entry is there twice.
    """

    def __init__(
        self,
        characters: Sequence[str],
        begin_sentence: str = "<bos>",
        end_sentence: str = "<eos>",
        begin_word: str = "<bow>",
        end_word: str = "<eow>",
        unknown: str = "<oov>",
        padding: str = "<pad>",
    ) -> None:
        self.characters = list(characters)
        self.names = {
            "begin_sentence": begin_sentence,
            "end_sentence": end_sentence,
            "begin_word": begin_word,
            "end_word": end_word,
            "unknown": unknown,
            "padding": padding,
        }
        if not all(isinstance(entry, str) for entry in (*self.characters, *self.names.values())):
            raise ValueError("The character lexicon must hold strings.")
        twice = sorted(entry for entry, count in Counter(self.characters).items() if count > 1)
        if twice:
            raise ValueError(f"The character lexicon holds {', '.join(map(repr, twice))} more than once.")
        ids = {character: number for number, character in enumerate(self.characters, start=1)}
        missing = [name for name in self.names.values() if name not in ids]
        if missing or len(set(self.names.values())) < len(self.names):
            raise ValueError(
                f"The character lexicon must hold six different names, {', '.join(self.names.values())}, but"
                f" {', '.join(missing) or 'some are the same'}{' is missing' if missing else ''}."
            )
        self.boundary_words = (begin_sentence, end_sentence)
        self.begin_sentence, self.end_sentence, self.begin_word, self.end_word, self.unknown, self.padding = (
            ids[name] for name in self.names.values()
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CharacterLexicon):
            return NotImplemented
        return self.characters == other.characters and self.names == other.names

    @classmethod
    def from_file(cls, path: str | Path) -> "CharacterLexicon":
        """Reads what `save` wrote.

        Raises:
            ValueError: The file holds no lexicon.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ValueError(f"The character lexicon {path} cannot be used: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the lexicon as JSON."""
        content = {"characters": self.characters, **self.names}
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @cached_property
    def _id_of_code_point(self) -> np.ndarray:
        """Character ids by code point; the last entry is that of all code points beyond."""
        known = {ord(character): number for number, character in enumerate(self.characters, 1) if len(character) == 1}
        table = np.full(max(known, default=0) + 2, self.unknown, dtype=np.int32)
        table[list(known)] = list(known.values())
        return table

    def words_to_rows(self, words: Sequence[str], width: int, boundaries: Mapping[str, int]) -> np.ndarray:
        """Turns words into rows of character ids, as ELMoForManyLangs' `create_one_batch` does.

        A row is: begin of word, the characters (the first `width - 2` of them), end of word, padding.

        Args:
            words: n words.
            width: Characters in a row.
            boundaries: Words that stand for one character of their own -> the id of that character.

        Returns:
            Array of shape (n, width), int32.

        Raises:
            TypeError: A word is not a string.
        """
        codes = code_points(join_words(words))
        table = self._id_of_code_point
        ends = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))
        frame = (self.begin_word, self.end_word, self.padding)
        marks = {character: code_points(word) for word, character in boundaries.items()}
        cut = f"A word is cut after {width - 2} characters (max_characters_per_token - 2), all that this model reads."
        return lay_out(codes, table[np.minimum(codes, len(table) - 1)], ends, width, frame, marks, cut)

    def rows_to_words(self, rows: np.ndarray, special_words: Mapping[int, str]) -> list[str]:
        """Turns rows of character ids back into words; an unknown character comes back as its name.

        Args:
            rows: Array of shape (n, width).
            special_words: The words for padding (0), begin and end of sentence.

        Raises:
            ValueError: A row has no end of word and is not padding, or holds an id that is not in the lexicon.
        """
        ends, padding = word_ends(rows, self.end_word)
        if rows.size and not 0 <= rows.min() <= rows.max() <= len(self.characters):
            raise ValueError(f"Character ids must lie between 0 and {len(self.characters)}, as the lexicon has them.")
        words = []
        for row, end, is_padding in zip(rows.tolist(), ends.tolist(), padding.tolist(), strict=True):
            head = 0 if is_padding else row[1]
            spelled = special_words.get(head)
            words.append("".join(self.characters[i - 1] for i in row[1:end]) if spelled is None else spelled)
        return words


class WordVocabulary:
    """Words by number; id 0 is padding, the ids of the words are their places in the list, plus 1.

    Args:
        words: The words.
        unknown_word: The word that stands for all that are not in the list; by default `<UNK>` or `<oov>`, the one
            that is there.

    Raises:
        ValueError: The unknown word is not in the list.
    """

    def __init__(self, words: Sequence[str], unknown_word: str | None = None) -> None:
        self.words = list(words)
        known = self._ids
        names = UNKNOWN_WORDS if unknown_word is None else (unknown_word,)
        found = [name for name in names if name in known]
        if not found:
            raise ValueError(f"The word vocabulary must hold the unknown word, {' or '.join(names)}.")
        self.unknown_word = found[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WordVocabulary):
            return NotImplemented
        return self.words == other.words and self.unknown_word == other.unknown_word

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    @classmethod
    def from_file(cls, path: str | Path, unknown_word: str | None = None) -> "WordVocabulary":
        """Reads a file with one word a line; what follows a tab, such as a count, is left out, and so is a number
        after a blank. A last line `!!!MAXTERMID`, which some of bilm-tf's vocabularies have, is no word.

        Raises:
            ValueError: The file is no text in UTF-8, or lacks the unknown word.
        """
        try:
            lines = Path(path).read_bytes().decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
            words = [COUNTED.sub("", line.partition("\t")[0]) for line in lines]
            return cls(words[:-1] if words[-1] == NO_WORD else words, unknown_word)
        except ValueError as error:
            raise ValueError(f"The word vocabulary {path} cannot be used: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes one word a line.

        Raises:
            ValueError: A word holds a line break.
        """
        broken = [word for word in self.words if "\n" in word or word.endswith("\r")]
        if broken:
            raise ValueError(f"The word {broken[0]!r} holds a line break: it cannot be a line of a vocabulary file.")
        Path(path).write_bytes("".join(f"{word}\n" for word in self.words).encode("utf-8"))

    def words_to_ids(self, words: Sequence[str]) -> np.ndarray:
        """The ids of n words, unknown ones that of the unknown word: array of shape (n,), int64."""
        ids, unknown = self._ids, self._ids[self.unknown_word]
        return np.fromiter((ids.get(word, unknown) for word in words), dtype=np.int64, count=len(words))


def code_points(text: str) -> np.ndarray:
    """The code points of a text, lone surrogates among them."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


__all__ = ["CharacterLexicon", "WordVocabulary"]
