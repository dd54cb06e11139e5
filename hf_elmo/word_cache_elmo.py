"""Vectors of words kept from call to call, as long as the weights that they came from stay as they are."""

import torch

from .locks_elmo import ProcessLock

# Memory of the vectors. When it is full, the cache begins anew.
LARGEST_BYTES = 64 << 20


class WordCache:
    """A bounded store of one vector a word. It is neither copied nor pickled with the module that keeps it.

    Attributes:
        generation: How often it was cleared. Vectors of weights of an earlier generation are not kept.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._places: dict[bytes, int] = {}
        self._table: torch.Tensor | None = None
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[type["WordCache"], tuple[()]]:
        return WordCache, ()

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """Forgets every word."""
        with self._lock.of_this_process():
            self._places, self._table = {}, None
            self.generation += 1

    def find(self, words: list[bytes], vectors: torch.Tensor) -> list[int]:
        """Fills in the vectors of known words.

        Args:
            words: What tells the words apart, n of them.
            vectors: Memory to write to, shape (n, size).

        Returns:
            The numbers of the words that are not known, whose vectors are left as they are.
        """
        with self._lock.of_this_process():
            places = [self._places.get(word, -1) for word in words]
            known = [number for number, place in enumerate(places) if place >= 0]
            if known and self._table is not None:
                vectors[known] = self._table[[places[number] for number in known]]
        return [number for number, place in enumerate(places) if place < 0]

    def keep(self, words: list[bytes], vectors: torch.Tensor, generation: int) -> None:
        """Keeps the vectors (n, size) of n words, unless the cache was cleared since it had this generation."""
        capacity = LARGEST_BYTES // (vectors.shape[1] * vectors.element_size())
        with self._lock.of_this_process():
            if generation != self.generation:
                return
            if len(self._places) + len(words) > capacity:
                self._places = {}
            if self._table is None:
                with torch.inference_mode(False):  # so that calls outside of it may write too
                    self._table = vectors.new_empty(capacity, vectors.shape[1])
            first = len(self._places)
            # Another thread may have met some of them meanwhile.
            new = [number for number, word in enumerate(words) if word not in self._places][: capacity - first]
            self._table[first : first + len(new)] = vectors[new]
            self._places.update(zip((words[number] for number in new), range(first, capacity), strict=False))


def words_of_rows(rows: torch.Tensor, largest_id: int) -> list[bytes]:
    """What tells words apart: their rows of ids (n, columns) as bytes, n of them."""
    array = rows.to(torch.int16 if largest_id < 1 << 15 else torch.int32).cpu().numpy()
    data, width = array.tobytes(), array.shape[1] * array.itemsize
    return [data[start : start + width] for start in range(0, len(data), width)]


__all__ = ["WordCache", "words_of_rows"]
