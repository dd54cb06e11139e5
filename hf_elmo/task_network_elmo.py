"""What stands between ELMo and the classifier of a head: [x; ELMo] -> BiLSTM -> [h; ELMo], and pooling."""

from typing import NamedTuple, cast

import torch
from torch import nn

from .configuration_elmo import ElmoConfig
from .dropout_elmo import ElmoDropout
from .modeling_elmo import gather_positions

# Groups of rows of like lengths that a CPU reads one after the other, in batches of so many rows and more.
LENGTH_GROUPS, MIN_GROUPED_ROWS = 4, 16
# Pieces of which the maxout layer of the biattentive network takes the largest.
MAXOUT_PIECES = 2


class Reading(NamedTuple):
    """In which order the two directions of a BiLSTM read the words of a padded batch.

    Rows of like lengths stand beside each other in a group, and each row begins with its first word, or with its last
    one: padding comes after all words and reaches none.

    Attributes:
        groups: Steps and rows of each group.
        words: Which position of the batch is read at each place, for each direction, shape (2, places). The places of
            a group lie one after the other, step by step.
        places: At which place each position of the batch is read, for each direction, shape (2, batch, seq).
        mask: True at words, shape (batch, seq).
    """

    groups: list[tuple[int, int]]
    words: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor


def plan_reading(mask: torch.Tensor) -> Reading:
    """Plans how the words of a batch are read, in whatever pattern they stand; mask as of `Reading`."""
    lengths = mask.sum(dim=1)
    places, groups, start = mask.new_zeros(2, *mask.shape, dtype=torch.long), [], 0
    number = mask.cumsum(dim=1) - 1
    numbers = torch.stack([number, lengths[:, None] - 1 - number])
    for rows in rows_of_like_length(mask):
        steps = mask.shape[1]
        if not torch.compiler.is_exporting():
            steps = max(int(lengths[rows].amax()), 1)  # an LSTM wants a word at least
        count = rows.shape[0]  # not len: an exported graph takes any batch
        places[:, rows] = start + numbers[:, rows] * count + torch.arange(count, device=mask.device)[:, None]
        groups.append((steps, count))
        start += steps * count
    positions = torch.arange(mask.numel(), device=mask.device).expand(2, -1)
    # What is no word goes to a place of its own behind the others; places without a word read whatever comes first.
    targets = places.masked_fill(~mask, start).flatten(1)
    words = positions.new_zeros(2, start + 1).scatter(1, targets, positions)[:, :-1]
    return Reading(groups, words, places.masked_fill(~mask, 0), mask)


class ElmoBiLstmLayer(nn.Module):
    """One layer of a BiLSTM.

    Args:
        input_size: Size of a word.
        hidden_size: Size H of each direction.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(input_size, hidden_size)
        self.backward_lstm = nn.LSTM(input_size, hidden_size)

    def forward(self, words: torch.Tensor, reading: Reading) -> torch.Tensor:
        """Runs both directions.

        Args:
            words: Shape (batch, seq, size).
            reading: How they are read.

        Returns:
            [forward; backward], shape (batch, seq, 2H), 0 at padding.
        """
        # An embedding, because its gradient is quicker than that of any other way to take rows.
        read = nn.functional.embedding(reading.words, words.flatten(0, 1))
        outputs = [
            nn.functional.embedding(places, self._run(lstm, inputs, reading.groups))
            for lstm, inputs, places in zip((self.forward_lstm, self.backward_lstm), read, reading.places, strict=True)
        ]
        return torch.cat(outputs, dim=-1) * reading.mask[..., None]

    @staticmethod
    def _run(lstm: nn.LSTM, inputs: torch.Tensor, groups: list[tuple[int, int]]) -> torch.Tensor:
        """The outputs at all places (places, H) from the inputs (places, size)."""
        if len(groups) == 1:
            return run_lstm(lstm, inputs.unflatten(0, groups[0])).flatten(0, 1)
        parts = inputs.split([steps * rows for steps, rows in groups])
        outputs = [run_lstm(lstm, part.unflatten(0, group)) for part, group in zip(parts, groups, strict=True)]
        return torch.cat([output.flatten(0, 1) for output in outputs])


class ElmoBiLstm(nn.Module):
    """A BiLSTM over the words of a padded batch; padding, in any pattern, changes nothing.

    Args:
        input_size: Size of a word.
        hidden_size: Size H of each direction.
        num_layers: Layers.
        dropout: Dropout between the layers, in training.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [input_size, *[2 * hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(ElmoBiLstmLayer(size, hidden_size) for size in sizes)
        self.dropout = ElmoDropout(dropout)
        self.hidden_size = hidden_size

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Reads words (batch, seq, size) where the mask (batch, seq) is True; gives (batch, seq, 2H), 0 elsewhere."""
        if not torch.compiler.is_exporting() and not mask.numel():
            return words.new_zeros(*mask.shape, 2 * self.hidden_size)
        reading = plan_reading(mask)
        for number, layer in enumerate(self.layers):
            words = layer(self.dropout(words) if number else words, reading)
        return words


def rows_of_like_length(mask: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a batch in groups that a CPU reads one by one, where that saves a fifth or more.

    Args:
        mask: True at words, shape (batch, seq).
    """
    rows = torch.arange(mask.shape[0], device=mask.device)
    if mask.is_cuda or torch.compiler.is_compiling() or len(mask) < MIN_GROUPED_ROWS:
        return [rows]
    lengths = mask.sum(dim=1)
    groups = lengths.argsort(descending=True, stable=True).chunk(LENGTH_GROUPS)
    read = sum(int(lengths[group[0]]) * len(group) for group in groups)
    return list(groups) if read <= 0.8 * len(mask) * int(lengths.max()) else [rows]


def run_lstm(lstm: nn.LSTM, words: torch.Tensor) -> torch.Tensor:
    """The outputs (seq, batch, H) of an LSTM of one layer that reads words (seq, batch, size)."""
    if torch.compiler.is_exporting():
        return _scanned_lstm(lstm, words)
    if words.is_cuda:
        lstm.flatten_parameters()  # weights that were loaded lie apart
    return lstm(words)[0]


# Names, because strict export cannot trace `tuple[...]` beside an inner function.
LstmState = tuple[torch.Tensor, torch.Tensor]
Stepped = tuple[LstmState, torch.Tensor]


def _scanned_lstm(lstm: nn.LSTM, words: torch.Tensor) -> torch.Tensor:
    """The same as one operator, as an exported graph would hold one step for each word of its example."""
    from torch._higher_order_ops import scan

    from_word, from_state, *biases = cast(list[torch.Tensor], list(lstm.parameters()))

    def step(state: LstmState, gates: torch.Tensor) -> Stepped:
        hidden, cell = state
        gates = gates + nn.functional.linear(hidden, from_state)
        enter, forget, new, leave = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        return (hidden, cell), hidden.clone()

    gates = nn.functional.linear(words, from_word, biases[0] + biases[1])
    start = words.new_zeros(words.shape[1], lstm.hidden_size)
    _, outputs = scan(step, (start, start.clone()), gates, dim=0)
    return outputs


class ElmoTaskNetwork(nn.Module):
    """[x; ELMo] -> BiLSTM -> [h; ELMo], each part of it as the configuration says.

    With `classifier_pooling="biattentive"` the network of a text classifier goes on between the BiLSTM and [h; ELMo]:
    each word X attends to the words of the other text of a pair, or of its own text where it stands alone, and what it
    finds, C, is read beside it, [X; X - C; X * C], by a second BiLSTM, the integrator, whose output is h.

    Source: section 3.3 of Peters et al. 2018; the biattentive classification network of McCann et al. 2017, without
    the feedforward layer ahead of its encoder.

    Args:
        config: The settings.
        is_biattentive: Whether to add the attention and the integrator.

    Attributes:
        parts: The parts of a word's vector in the output: size, and whether it is [forward; backward].
    """

    def __init__(self, config: ElmoConfig, is_biattentive: bool = False) -> None:
        super().__init__()
        self.has_predicates = config.use_predicate_indicator
        self.embeddings = None
        if config.task_embedding_size is not None and config.word_vocab_size is not None:
            self.embeddings = nn.Embedding(config.word_vocab_size + 1, config.task_embedding_size, padding_idx=0)
        self.dropout = ElmoDropout(config.task_dropout)
        self.parts = [(config.task_embedding_size, False)] if config.task_embedding_size else []
        self.parts += [(config.hidden_size, True)] * config.elmo_at_input
        self.parts += [(1, False)] * self.has_predicates
        self.encoder = self.integrator = None
        hidden = (2 * config.task_hidden_size, True)
        if config.task_num_layers:
            self.encoder = ElmoBiLstm(self.size, config.task_hidden_size, config.task_num_layers, config.task_dropout)
            self.parts = [hidden]
        if is_biattentive:
            self.integrator = ElmoBiLstm(3 * self.size, config.task_hidden_size, 1, 0.0)
            self.parts = [hidden]
        self.parts += [(config.hidden_size, True)] * config.elmo_at_output

    @property
    def size(self) -> int:
        """Size F of a word in the output."""
        return sum(size for size, _ in self.parts)

    def forward(
        self,
        mask: torch.Tensor,
        word_ids: torch.Tensor | None = None,
        at_input: torch.Tensor | None = None,
        at_output: torch.Tensor | None = None,
        predicates: torch.Tensor | None = None,
        partners: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the vectors that the classifier reads.

        ELMo's vectors come with their dropout; that of the network's own word vectors falls here.

        Args:
            mask: True at words, boundaries left out, shape (batch, seq).
            word_ids: Word ids, 0 at padding, shape (batch, seq).
            at_input: ELMo at the input, shape (batch, seq, 2P).
            at_output: ELMo at the output, shape (batch, seq, 2P).
            predicates: 1 at predicates, shape (batch, seq); by default none is marked.
            partners: With attention the row of the other text of each row's pair, or its own, shape (batch,).

        Returns:
            Shape (batch, seq, F), 0 where the mask is off.
        """
        parts = []
        if self.embeddings is not None:
            parts.append(self.dropout(self.embeddings(word_ids)))
        if at_input is not None:
            parts.append(at_input)
        if self.has_predicates:
            marks = mask.new_zeros(mask.shape) if predicates is None else predicates
            like = next((part for part in (*parts, at_output) if part is not None), None)
            parts.append(marks[..., None].to(like if like is not None else next(self.parameters())))
        if parts:
            words = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
            if self.encoder is not None:
                words = self.encoder(words, mask)
            if self.integrator is not None:
                words = self.integrator(self._attend(words, mask, partners), mask)
            parts = [words]
        if at_output is not None:
            parts.append(at_output)
        return torch.cat(parts, dim=-1) * mask[..., None]

    def _attend(self, words: torch.Tensor, mask: torch.Tensor, partners: torch.Tensor | None) -> torch.Tensor:
        """[X; X - C; X * C] with what each word finds in the text of its row's partner, shape (batch, seq, 3 size)."""
        words = self.dropout(words)
        others, other_mask = (words, mask) if partners is None else (words[partners], mask[partners])
        found = softmax_over(words @ others.transpose(1, 2), other_mask[:, None, :]) @ others
        return torch.cat([words, words - found, words * found], dim=-1)


class ElmoPooling(nn.Module):
    """One vector for each text from the vectors of its words.

    - "mean", "max": over the words.
    - "last": the last state of each direction: the forward half of the last word and the backward half of the first.
    - "biattentive": maximum, mean, minimum and a mean weighted by self-attention, through one maxout layer (McCann et
      al. 2017 have three with batch normalisation).

    Args:
        config: The settings.
        parts: `ElmoTaskNetwork.parts`.
    """

    def __init__(self, config: ElmoConfig, parts: list[tuple[int, bool]]) -> None:
        super().__init__()
        self.kind = config.classifier_pooling
        self.parts = parts
        self.size = sum(size for size, _ in parts)
        self.attention = self.maxout = None
        if self.kind == "biattentive":
            self.dropout = ElmoDropout(config.task_dropout)
            self.attention = nn.Linear(self.size, 1)
            self.maxout = nn.Linear(4 * self.size, MAXOUT_PIECES * 2 * config.task_hidden_size)
            self.size = 2 * config.task_hidden_size

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pools words (batch, seq, F) where the mask (batch, seq) is True; 0 for a text without words.

        Returns:
            Shape (batch, size).
        """
        has_words = mask.any(dim=1, keepdim=True)
        if self.kind == "mean":
            return self._mean(words, mask)
        if self.kind == "max":
            return self._largest(words, mask) * has_words
        if self.kind == "last":
            return self._last(words, mask) * has_words
        assert self.attention is not None
        assert self.maxout is not None
        weights = softmax_over(self.attention(words)[..., 0], mask)
        attended = (weights[:, None, :] @ words)[:, 0]
        pools = [self._largest(words, mask), self._mean(words, mask), -self._largest(-words, mask), attended]
        pieces = self.maxout(self.dropout(torch.cat(pools, dim=-1) * has_words))
        return pieces.unflatten(-1, (MAXOUT_PIECES, self.size)).amax(dim=1) * has_words

    @staticmethod
    def _mean(words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        return (words * mask[..., None]).sum(dim=1) / count

    @staticmethod
    def _largest(words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(words.dtype).min
        # One position more, so that a batch without any has a maximum too.
        candidates = nn.functional.pad(words.masked_fill(~mask[..., None], lowest), (0, 0, 0, 1), value=lowest)
        return candidates.amax(dim=1)

    def _last(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words, mask = nn.functional.pad(words, (0, 0, 0, 1)), nn.functional.pad(mask, (0, 1))
        positions = torch.arange(mask.shape[1], device=mask.device)
        ends = torch.stack([(positions * mask).amax(dim=1), mask.to(torch.uint8).argmax(dim=1)], dim=1)
        at_ends = gather_positions(words, ends).split([size for size, _ in self.parts], dim=-1)
        pooled = []
        for part, (size, has_directions) in zip(at_ends, self.parts, strict=True):
            last, first = part.unbind(dim=1)
            pooled.append(torch.cat([last[:, : size // 2], first[:, size // 2 :]], dim=-1) if has_directions else last)
        return torch.cat(pooled, dim=-1)


def softmax_over(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The softmax over the last axis of what the mask, which is broadcast, leaves; 0 elsewhere."""
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) * mask


__all__ = ["ElmoBiLstm", "ElmoPooling", "ElmoTaskNetwork"]
