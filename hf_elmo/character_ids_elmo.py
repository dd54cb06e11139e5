"""Words <-> rows of character ids: what ELMo reads instead of a vocabulary, in one vectorised step each way."""

from collections.abc import Mapping, Sequence

import numpy as np
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Character ids as AllenNLP's ELMoCharacterMapper and bilm-tf number them, plus 1: row id 0 is left for padding.
BEGIN_SENTENCE = 257
END_SENTENCE = 258
BEGIN_WORD = 259
END_WORD = 260
CHARACTER_PADDING = 261


def words_to_rows(words: Sequence[str], width: int, boundaries: Mapping[str, int]) -> np.ndarray:
    """Turns words into rows of character ids, as AllenNLP's `ELMoCharacterMapper.convert_word_to_char_ids` does.

    A row is: begin of word, the UTF-8 bytes + 1 (the first `width - 2` of them), end of word, padding. Lone surrogates
    have no bytes and are left out.

    Args:
        words: n words.
        width: Characters in a row.
        boundaries: Words that stand for one character of their own (`<S>`, `</S>`) -> the id of that character.

    Returns:
        Array of shape (n, width), int16.

    Raises:
        TypeError: A word is not a string.
    """
    text = join_words(words)
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:
        kept = [word.encode("utf-8", "ignore").decode("utf-8") for word in words]
        rows = words_to_rows(kept, width, boundaries)
        # What is left of a word may look like a boundary, but only the word itself means one.
        altered = [place for place, word in enumerate(words) if word != kept[place]]
        rows[altered] = words_to_rows([kept[place] for place in altered], width, {})
        return rows
    data = np.frombuffer(encoded, dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))
    if len(encoded) != len(text):
        character_starts = np.flatnonzero((data & 0xC0) != 0x80)
        ends = np.append(character_starts, len(encoded))[ends]
    marks = {character: np.frombuffer(word.encode("utf-8"), dtype=np.uint8) for word, character in boundaries.items()}
    cut = (
        f"A word is cut after {width - 2} bytes: ELMo reads words up to max_characters_per_token - 2 bytes long in"
        " UTF-8, in which most letters outside ASCII take two or three."
    )
    return lay_out(data, data.astype(np.int16) + 1, ends, width, (BEGIN_WORD, END_WORD, CHARACTER_PADDING), marks, cut)


def join_words(words: Sequence[str]) -> str:
    """The words one after the other, nothing between them.

    Raises:
        TypeError: A word is not a string.
    """
    try:
        return "".join(words)
    except TypeError:
        wrong = next(word for word in words if not isinstance(word, str))
        raise TypeError(f"Words must be strings, but {wrong!r} is among them.") from None


def lay_out(
    units: np.ndarray,
    ids: np.ndarray,
    ends: np.ndarray,
    width: int,
    frame: tuple[int, int, int],
    boundaries: Mapping[int, np.ndarray],
    cut: str,
) -> np.ndarray:
    """Lays the characters of words out in rows.

    Args:
        units: What the words are spelled in (bytes, code points), one word after the other, shape (units,).
        ids: The character id of each unit, shape (units,).
        ends: Where each of the n words ends, shape (n,).
        width: Characters in a row.
        frame: The ids of begin of word, end of word and padding.
        boundaries: The id of a character -> the units of the word that stands for it alone.
        cut: The warning when a word does not fit.

    Returns:
        Array of shape (n, width), of the type of `ids`.
    """
    count = len(ends)
    begin, end, padding = frame
    starts = np.concatenate(([0], ends[:-1])) if count else ends
    lengths = np.minimum(ends - starts, width - 2)
    if lengths.sum() < len(ids):
        logger.warning_once(cut)

    rows = np.full((count, width), padding, dtype=ids.dtype)
    rows[:, 0] = begin
    row_starts = np.arange(count) * width
    flat = rows.reshape(-1)
    kept_ends = np.cumsum(lengths)
    order = np.arange(lengths.sum())
    if len(order) < len(ids):
        ids = ids[order + np.repeat(starts - (kept_ends - lengths), lengths)]
    flat[order + np.repeat(row_starts + 1 - (kept_ends - lengths), lengths)] = ids
    flat[row_starts + 1 + lengths] = end

    for character, word in boundaries.items():
        found = np.flatnonzero(ends - starts == len(word))
        for position, unit in enumerate(word):
            found = found[units[starts[found] + position] == unit]
        rows[found, 1:] = padding
        rows[found, 1] = character
        rows[found, 2] = end
    return rows


def rows_to_words(rows: np.ndarray, special_words: Mapping[int, str]) -> list[str]:
    """Turns rows of character ids back into words; a letter that the limit cut in two is left out.

    Args:
        rows: Array of shape (n, width).
        special_words: The words for padding (0), begin and end of sentence.

    Raises:
        ValueError: A row has no end of word and is not padding.
    """
    ends, padding = word_ends(rows, END_WORD)
    heads = np.where(padding, 0, rows[:, 1]).tolist()
    data = (rows - 1).astype(np.uint8)
    return [
        special_words[head] if head in special_words else data[index, 1:end].tobytes().decode("utf-8", "ignore")
        for index, (head, end) in enumerate(zip(heads, ends.tolist(), strict=True))
    ]


def word_ends(rows: np.ndarray, end_word: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the words in rows (n, width) end, shape (n,), and which rows are padding, shape (n,).

    Raises:
        ValueError: A row has no end of word and is not padding.
    """
    ends = (rows == end_word).argmax(axis=1)
    padding = np.logical_not(rows.any(axis=1))
    if not np.all((ends > 0) | padding):
        raise ValueError(
            f"Row {int(np.argmin((ends > 0) | padding))} is not a word: it has no end of word ({end_word})."
        )
    return ends, padding


class ByteCharacters:
    """ELMo's usual characters: the bytes of UTF-8."""

    begin_sentence = BEGIN_SENTENCE
    end_sentence = END_SENTENCE
    begin_word = BEGIN_WORD
    boundary_words = ("<S>", "</S>")

    words_to_rows = staticmethod(words_to_rows)
    rows_to_words = staticmethod(rows_to_words)


__all__ = ["ByteCharacters", "join_words", "lay_out", "rows_to_words", "word_ends", "words_to_rows"]
