"""The character ids of ELMo by the book: one word, one loop. The tests hold the tokenizer against it."""

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260


def character_ids(word: str, width: int = 50) -> list[int]:
    """The row of a word, as AllenNLP's `ELMoCharacterMapper` makes it."""
    if word == "<S>":
        characters = [BEGIN_SENTENCE]
    elif word == "</S>":
        characters = [END_SENTENCE]
    else:
        characters = list(word.encode("utf-8", "ignore"))[: width - 2]
    row = [BEGIN_WORD, *characters, END_WORD]
    while len(row) < width:
        row.append(PADDING)
    return [character + 1 for character in row]


def batch_to_ids(batch: list[list[str]], width: int = 50) -> list[list[list[int]]]:
    """The rows of a batch, filled up with rows of zeros, as AllenNLP's `batch_to_ids` gives them."""
    longest = max(len(words) for words in batch)
    rows = []
    for words in batch:
        filling = [[0] * width for _ in range(longest - len(words))]
        rows.append([character_ids(word, width) for word in words] + filling)
    return rows
