"""The layers of a frozen biLM, computed once for a data set and kept on disk: no epoch runs the biLM again.

The rows are cut into windows by their lengths alone, and the batches inside a window by the window alone. So a shard,
which holds a window, has the same bytes whenever it is written, and a job that was killed goes on with the next one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..modeling_elmo import ElmoPreTrainedModel
from ..tokenization_elmo import ElmoTokenizer
from .frozen_bilm import Bilm
from .layer_job import LayerJob

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SHARD_WORDS = 16_384
DTYPES = ("float16", "float32")


def precompute_layers(
    dataset: Dataset | DatasetDict,
    model: ElmoPreTrainedModel | str | os.PathLike[str],
    tokenizer: ElmoTokenizer | None = None,
    *,
    output_dir: str | os.PathLike[str],
    dtype: str = "float16",
    batch_words: int | None = None,
    shard_words: int = SHARD_WORDS,
    overwrite: bool = False,
) -> Any:
    """Computes the layers of a frozen biLM for every word of a data set, once.

    The heads take the result in the place of `input_ids`, with the same loss and metrics, and training runs without
    the biLM. The output is a folder that `datasets.load_from_disk` reads; it is larger than the text by far: P + 2PL
    numbers a word for L layers of 2P, 5 KB a word for the published models in float16. Memory is needed for one shard
    only.

    A run that was stopped goes on where it was: the same call computes only the shards that are missing. The folder
    appears under its name when it is whole; until then it is `OUTPUT_DIR.unfinished`. Called again for a finished
    folder, the function compares model and data and reads it back.

    Args:
        dataset: A `Dataset` or `DatasetDict` that `ElmoTokenizer` has tokenized, by `map` as usual: `input_ids`
            (words, characters) for each example, and, where the tokenizer gives them, `attention_mask`,
            `token_type_ids` and `word_input_ids`.
        model: The model: an `ElmoModel` or a head, which computes where it is and in its type of numbers, or a folder
            or a name on the Hub, which is loaded onto a GPU if there is one. Of a head only the biLM counts: the mixes
            and what is behind them may change between calls. For a tagger give the tagger or its folder: its rows are
            one text each, whatever `token_type_ids` say; for every other model they tell pairs.
        tokenizer: The tokenizer of the data set; where it is given, that it fits the model is checked before any work.
        output_dir: The folder to write.
        dtype: How the numbers are stored: `"float16"`, or `"float32"` for exactly what the full forward computes.
        batch_words: Words, padding included, that a batch may have; a longer text is run by itself. By default 4,096
            on a CPU and 16,384 on a GPU. A batch for which memory is too small is halved and tried again.
        shard_words: Words of a shard; a longer example is a shard by itself.
        overwrite: Remove what is there of this output, finished or not, and start anew.

    Returns:
        The data set, read from the folder, with its rows in their order and all its columns but `input_ids`, and with
        `layers` (words, P + 2PL): the token layer, then [forward; backward] of each layer of the biLM, zeros at
        padding; `attention_mask`, and `token_type_ids` with 1 at the second text of a pair, where they were missing;
        and `length`, the number of words, boundaries included. Each text of a pair is read by itself. `layers` comes
        as NumPy arrays, everything else as before.

    Raises:
        ValueError: The data set is not tokenized for this model, the model trains its biLM, or a number is too large
            for `dtype`.
        ChangedError: Model, data or settings are not those with which the output was begun (a ValueError).
        OutputError: The output cannot be written (an OSError).
        MemoryError: One text alone is too long for the memory.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be {' or '.join(map(repr, DTYPES))}, but is {dtype!r}.")
    for name, number in (("batch_words", batch_words), ("shard_words", shard_words)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number}.")
    bilm = Bilm(model, batch_words)
    characters = bilm.reads.characters
    if tokenizer is not None and tokenizer.max_characters_per_token != characters:
        raise ValueError(
            f"The tokenizer gives rows of {tokenizer.max_characters_per_token} characters, but the model reads "
            f"{characters}: use the tokenizer of the model."
        )
    return LayerJob(dataset, bilm, Path(output_dir), dtype, shard_words, overwrite).run()


__all__ = ["precompute_layers"]
