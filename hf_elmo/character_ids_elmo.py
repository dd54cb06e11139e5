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
    count = len(words)
    try:
        text = "".join(words)
    except TypeError as error:
        raise TypeError(f"Words must be strings: {error}.") from None
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:
        return words_to_rows([word.encode("utf-8", "ignore").decode("utf-8") for word in words], width, boundaries)
    data = np.frombuffer(encoded, dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=count))
    if len(encoded) != len(text):
        character_starts = np.flatnonzero((data & 0xC0) != 0x80)
        ends = np.append(character_starts, len(encoded))[ends]
    starts = np.concatenate(([0], ends[:-1])) if count else ends
    lengths = np.minimum(ends - starts, width - 2)
    if lengths.sum() < len(encoded):
        logger.warning_once(
            f"A word is cut after {width - 2} bytes: ELMo reads words up to max_characters_per_token - 2 bytes long in"
            " UTF-8, in which most letters outside ASCII take two or three."
        )

    rows = np.full((count, width), CHARACTER_PADDING, dtype=np.int16)
    rows[:, 0] = BEGIN_WORD
    row_starts = np.arange(count) * width
    flat = rows.reshape(-1)
    kept_ends = np.cumsum(lengths)
    order = np.arange(lengths.sum())
    if len(order) < len(encoded):
        data = data[order + np.repeat(starts - (kept_ends - lengths), lengths)]
    flat[order + np.repeat(row_starts + 1 - (kept_ends - lengths), lengths)] = data.astype(np.int16) + 1
    flat[row_starts + 1 + lengths] = END_WORD

    for word, character in boundaries.items():
        expected = np.frombuffer(word.encode("utf-8"), dtype=np.uint8).astype(np.int16) + 1
        found = np.flatnonzero(ends - starts == len(expected))
        for position, value in enumerate(expected[: width - 2], start=1):
            found = found[rows[found, position] == value]
        rows[found, 1:] = CHARACTER_PADDING
        rows[found, 1] = character
        rows[found, 2] = END_WORD
    return rows


def rows_to_words(rows: np.ndarray, special_words: Mapping[int, str]) -> list[str]:
    """Turns rows of character ids back into words; a letter that the limit cut in two is left out.

    Args:
        rows: Array of shape (n, width).
        special_words: The words for padding (0), begin and end of sentence.

    Raises:
        ValueError: A row has no end of word and is not padding.
    """
    ends = (rows == END_WORD).argmax(axis=1)
    padding = ~rows.any(axis=1)
    if not np.all((ends > 0) | padding):
        raise ValueError(
            f"Row {int(np.argmin((ends > 0) | padding))} is not a word: it has no end of word ({END_WORD})."
        )
    heads = np.where(padding, 0, rows[:, 1]).tolist()
    data = (rows - 1).astype(np.uint8)
    return [
        special_words[head] if head in special_words else data[index, 1:end].tobytes().decode("utf-8", "ignore")
        for index, (head, end) in enumerate(zip(heads, ends.tolist(), strict=True))
    ]


__all__ = ["rows_to_words", "words_to_rows"]
