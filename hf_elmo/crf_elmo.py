"""A linear-chain conditional random field over the labels of words, and what BIO and BIOES label names forbid."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from .modeling_elmo import words_first

# The score of what is forbidden: finite, so that no gradient becomes NaN, and far below every sum of real scores.
FORBIDDEN = -1e30
# The least log-marginal that is returned: no chance at all in any type, and a number in float16 too.
LEAST_LOG_MARGINAL = -1e4

# For each scheme the tags that begin an entity or are outside, those that end one or are outside, and what each tag
# that goes on with an entity may follow.
SCHEMES: dict[str, tuple[str, str, dict[str, str]]] = {
    "BIO": ("OB", "OBI", {"I": "BI"}),
    "BIOES": ("OBS", "OES", {"I": "BI", "E": "BI"}),
}


class Constraints(NamedTuple):
    """Which sequences of labels are allowed.

    Attributes:
        transitions: Whether a label (first index) may stand before another (second index), bool (labels, labels).
        start: Whether a sequence may start with a label, bool (labels,).
        end: Whether a sequence may end with a label, bool (labels,).
    """

    transitions: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor


def constraints(id2label: Mapping[int, str], scheme: str) -> Constraints:
    """What a scheme of label names allows.

    A name is a tag of the scheme (B begin, I inside, E end, S single, O outside), and behind a hyphen the type of the
    entity; B, I, E and S may stand without a type.

    Args:
        id2label: The names of the labels 0 to labels - 1.
        scheme: "BIO" or "BIOES".

    Raises:
        ValueError: When the scheme is unknown, when a name is not of the scheme, or when no label can stand alone.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"`label_scheme` must be one of {', '.join(SCHEMES)}, but is {scheme!r}.")
    starting, ending, continuing = SCHEMES[scheme]
    labels = [_split_name(str(id2label[number]), scheme) for number in range(len(id2label))]
    start = torch.tensor([tag in starting for tag, _ in labels], device="cpu")
    end = torch.tensor([tag in ending for tag, _ in labels], device="cpu")
    transitions = torch.zeros(len(labels), len(labels), dtype=torch.bool, device="cpu")
    for row, (tag, kind) in enumerate(labels):
        for column, (next_tag, next_kind) in enumerate(labels):
            if next_tag in continuing:
                transitions[row, column] = tag in continuing[next_tag] and kind == next_kind
            else:
                transitions[row, column] = tag in ending
    if not (start & end).any():
        names = ", ".join(map(str, id2label.values()))
        raise ValueError(f"The scheme {scheme} needs a label for a single word, like O, but `id2label` has {names}.")
    return Constraints(transitions, start, end)


def _split_name(name: str, scheme: str) -> tuple[str, str]:
    """The tag and the type of a label name."""
    tag, hyphen, kind = name.partition("-")
    if tag not in list(scheme) or bool(hyphen) != bool(kind) or (tag == "O" and hyphen):
        tags = ", ".join(f"{tag}-TYPE" for tag in scheme if tag != "O")
        raise ValueError(
            f"`id2label` has the label {name!r}, which is not of the scheme {scheme} (O, {tags}): name the labels "
            "after the scheme, or leave `label_scheme` out."
        )
    return tag, kind


class LinearChainCrf(nn.Module):
    """Scores sequences of labels by what speaks for each label (emissions) and for each pair of neighbours.

    score(y) = start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_t, y_(t+1)] + end[y_n], and the probability
    of y is exp(score(y)) over the sum of that over all allowed sequences. A sequence holds the words where the mask
    is on, in their order, wherever they stand in their row; its first word may have padding or a boundary before it,
    and words between may be left out. Everything is computed in float32 at least, under autocast too.

    Source: Lafferty et al. 2001; with all sequences allowed the numbers are those of AllenNLP's
    `ConditionalRandomField`, which constrains decoding only, while here the likelihood is constrained too.

    Args:
        num_labels: Labels n.
        allowed: What `constraints` returns; None to allow everything.
        label_names: Names of the labels, for messages.
    """

    def __init__(
        self, num_labels: int, allowed: Constraints | None = None, label_names: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.start = nn.Parameter(torch.zeros(num_labels))
        self.end = nn.Parameter(torch.zeros(num_labels))
        # No buffers: they are neither saved nor lost where a model is loaded without memory for its weights.
        self.allowed = allowed
        self.label_names = None if label_names is None else list(label_names)

    def forward(self, emissions: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """`log_likelihood` with labels, `scores` without."""
        if labels is None:
            return self.scores(emissions, mask)
        return self.log_likelihood(emissions, labels, mask)

    def log_likelihood(self, emissions: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The logarithm of the probability of a sequence of labels in each row.

        Args:
            emissions: Scores of the labels of each word, shape (batch, seq, n).
            labels: Labels, shape (batch, seq); anything where the mask is off.
            mask: True at the words of the sequence, in any pattern, shape (batch, seq).

        Returns:
            Shape (batch,), in float32 at least; 0 for a row without words.

        Raises:
            ValueError: When a label is none of the n, or when the labels of a row are not allowed.
        """
        with _full_precision(emissions):
            chain = self._chain(emissions, mask)
            labels = labels.to(chain.order.device).long().gather(1, chain.order)
            labels = nn.functional.pad(labels, (0, chain.mask.shape[1] - labels.shape[1])).masked_fill(~chain.mask, 0)
            self._check(labels, chain)
            return self._score(chain, labels) - self._log_partition(chain)

    @torch.no_grad()
    def decode(self, emissions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The best allowed sequence of labels of each row (Viterbi).

        Args:
            emissions: Scores of the labels of each word, shape (batch, seq, n).
            mask: True at the words of the sequence, in any pattern, shape (batch, seq).

        Returns:
            Labels, shape (batch, seq), int64; 0 where the mask is off.
        """
        with _full_precision(emissions):
            chain = self._chain(emissions, mask)
            into = chain.transitions.T
            stay = torch.arange(into.shape[0], device=into.device)

            def advance(best: torch.Tensor, word: Word) -> Stepped:
                emission, is_word = word
                reached, pointers = (best[:, None, :] + into).max(dim=-1)
                return torch.where(is_word, reached + emission, best), torch.where(is_word, pointers, stay)

            def follow(label: torch.Tensor, word: Word) -> Stepped:
                label = word[0].gather(1, label)
                return label, label.clone()

            best, pointers = _walk(advance, chain.first(), chain.words())
            last = (best + chain.end).argmax(dim=-1, keepdim=True)
            _, before = _walk(follow, last, (pointers, pointers), reverse=True)
            return chain.put_back(torch.cat([before[..., 0], last.T])[..., None])[..., 0]

    def marginals(self, emissions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The logarithm of the probability of each label at each word, whatever the labels of the other words.

        Args:
            emissions: Scores of the labels of each word, shape (batch, seq, n).
            mask: True at the words of the sequence, in any pattern, shape (batch, seq).

        Returns:
            Shape (batch, seq, n), in float32 at least, not below `LEAST_LOG_MARGINAL`; 0 where the mask is off.
        """
        with _full_precision(emissions):
            chain = self._chain(emissions, mask)
            transitions = chain.transitions

            def retreat(after: torch.Tensor, word: Word) -> Stepped:
                emission, is_word = word
                reached = (transitions + (emission + after)[:, None, :]).logsumexp(dim=-1)
                after = torch.where(is_word, reached, after)
                return after, after.clone()

            _, before = _walk(self._advance(chain), chain.first(), chain.words())
            last = chain.end.expand_as(chain.first()).contiguous()
            _, after = _walk(retreat, last, chain.words(), reverse=True)
            before = torch.cat([chain.first()[None], before])
            after = torch.cat([after, last[None]])
            return chain.put_back((before + after).log_softmax(dim=-1).clamp(min=LEAST_LOG_MARGINAL))

    def scores(self, emissions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`marginals` whose largest value stands at the label that `decode` gives.

        Where the best sequence has another label than the likeliest for itself, the two change their values. So the
        largest score is the decoded label, and the softmax of the scores still says how sure it is.

        Args:
            emissions: Scores of the labels of each word, shape (batch, seq, n).
            mask: True at the words of the sequence, in any pattern, shape (batch, seq).

        Returns:
            Shape (batch, seq, n), in float32 at least; 0 where the mask is off.
        """
        marginals = self.marginals(emissions, mask)
        decoded = self.decode(emissions, mask)[..., None]
        likeliest = marginals.argmax(dim=-1, keepdim=True)
        largest, own = marginals.gather(-1, likeliest), marginals.gather(-1, decoded)
        # A hair more, as two labels may be equally likely.
        largest = largest + 1e-6 * ((decoded != likeliest) & mask[..., None].bool())
        return marginals.scatter(-1, likeliest, own).scatter(-1, decoded, largest)

    def _chain(self, emissions: torch.Tensor, mask: torch.Tensor) -> "Chain":
        """The words of each row moved to its front, and the scores with what is forbidden."""
        precise = torch.promote_types(emissions.dtype, torch.float32)
        device = emissions.device
        parameters = [part.to(device, precise) for part in (self.transitions, self.start, self.end)]
        if self.allowed is not None:
            parameters = [
                part.masked_fill(~allowed.to(device), FORBIDDEN)
                for part, allowed in zip(parameters, self.allowed, strict=True)
            ]
        mask = mask.to(device, torch.bool)
        order, _ = words_first(mask)
        emissions = emissions.to(precise).gather(1, order[..., None].expand_as(emissions))
        mask = mask.gather(1, order)
        # Positions more without a word: there is a first one then, and an exported graph needs two for a walk.
        more = 2 if torch.compiler.is_exporting() else int(emissions.shape[1] == 0)
        if torch.compiler.is_exporting():  # the operator of `_walk` is not made for training
            emissions, *parameters = (part.detach() for part in (emissions, *parameters))
        if more:
            emissions, mask = nn.functional.pad(emissions, (0, 0, 0, more)), nn.functional.pad(mask, (0, more))
        return Chain(emissions, mask, order, *parameters)

    @staticmethod
    def _advance(chain: "Chain") -> "Step":
        into = chain.transitions.T

        def advance(before: torch.Tensor, word: Word) -> Stepped:
            emission, is_word = word
            reached = (before[:, None, :] + into).logsumexp(dim=-1) + emission
            before = torch.where(is_word, reached, before)
            return before, before.clone()

        return advance

    def _log_partition(self, chain: "Chain") -> torch.Tensor:
        """The logarithm of the sum of exp(score) over all allowed sequences, shape (batch,); 0 without words."""
        before, _ = _walk(self._advance(chain), chain.first(), chain.words())
        return (before + chain.end).logsumexp(dim=-1) * chain.mask[:, 0]

    def _score(self, chain: "Chain", labels: torch.Tensor) -> torch.Tensor:
        """The score of the labels (batch, seq) of each row, shape (batch,); 0 without words."""
        emitted = chain.emissions.gather(-1, labels[..., None])[..., 0] * chain.mask
        passed = chain.transitions[labels[:, :-1], labels[:, 1:]] * chain.mask[:, 1:]
        ends = chain.start[labels[:, 0]] + chain.end[chain.last(labels)]
        return emitted.sum(dim=1) + passed.sum(dim=1) + ends * chain.mask[:, 0]

    def _check(self, labels: torch.Tensor, chain: "Chain") -> None:
        """Refuses labels (batch, seq), 0 beyond the words, that have no number or no chance."""
        count = len(self.start)
        if not ((labels >= 0) & (labels < count)).all():
            raise ValueError(
                f"`labels` must be numbers from 0 to {count - 1}, as the model has {count} labels (`num_labels`), but "
                f"they reach from {int(labels.min())} to {int(labels.max())}."
            )
        if self.allowed is None:
            return
        transitions, start, end = (allowed.to(labels.device) for allowed in self.allowed)
        wrong_pairs = ~transitions[labels[:, :-1], labels[:, 1:]] & chain.mask[:, 1:]
        wrong_starts = ~start[labels[:, 0]] & chain.mask[:, 0]
        wrong_ends = ~end[chain.last(labels)] & chain.mask[:, 0]
        if not (wrong_pairs.any() | wrong_starts.any() | wrong_ends.any()):
            return
        names = self.label_names or [str(number) for number in range(count)]
        if wrong_pairs.any():
            row, place = wrong_pairs.nonzero()[0].tolist()
            what = f"{names[labels[row, place + 1]]} after {names[labels[row, place]]}"
        elif wrong_starts.any():
            row = int(wrong_starts.nonzero()[0])
            what = f"{names[labels[row, 0]]} as the first label"
        else:
            row = int(wrong_ends.nonzero()[0])
            what = f"{names[chain.last(labels)[row]]} as the last label"
        raise ValueError(
            f"`labels` has {what} in row {row} of the batch, which the scheme of the labels forbids (`label_scheme`): "
            "correct the labels, or leave the scheme out; a text that was cut may have lost a part of an entity."
        )


class Chain(NamedTuple):
    """The words of a batch at the front of their rows, and the scores of labels beside each other.

    Attributes:
        emissions: Shape (batch, seq, n).
        mask: True at words, shape (batch, seq).
        order: Where each word was, shape (batch, seq).
        transitions: Shape (n, n), `FORBIDDEN` where there is no way.
        start: Shape (n,).
        end: Shape (n,).
    """

    emissions: torch.Tensor
    mask: torch.Tensor
    order: torch.Tensor
    transitions: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor

    def first(self) -> torch.Tensor:
        """The scores (batch, n) of the labels of the first words."""
        return self.start + self.emissions[:, 0]

    def words(self) -> "Word":
        """Emissions (seq - 1, batch, n) of the other words, and whether they are words (seq - 1, batch, 1)."""
        return self.emissions[:, 1:].transpose(0, 1), self.mask[:, 1:, None].transpose(0, 1)

    def last(self, labels: torch.Tensor) -> torch.Tensor:
        """Of labels (batch, seq) those of the last words, shape (batch,)."""
        place = (self.mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
        return labels.gather(1, place)[:, 0]

    def put_back(self, values: torch.Tensor) -> torch.Tensor:
        """Values (seq, batch, size) of the words to where they were, shape (batch, seq, size), and 0 elsewhere."""
        values = (values.transpose(0, 1) * self.mask[..., None])[:, : self.order.shape[1]]
        places = self.order[..., None].expand(*self.order.shape, values.shape[-1])
        return torch.zeros_like(places, dtype=values.dtype).scatter(1, places, values)


# One step of a walk: from what is carried and the word (emissions or pointers, and whether it is one) to what is
# carried on and what is noted. Names, because strict export cannot trace `tuple[...]` beside an inner function.
Word = tuple[torch.Tensor, torch.Tensor]
Stepped = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[torch.Tensor, Word], Stepped]


def _walk(step: Step, carried: torch.Tensor, words: Word, reverse: bool = False) -> Stepped:
    """Walks over the first axis of `words`; returns what is carried at the end and all that was noted, in order."""
    if torch.compiler.is_exporting():  # one operator, so that an exported graph takes any number of words
        from torch._higher_order_ops import scan

        return scan(step, carried.contiguous(), words, dim=0, reverse=reverse)
    noted = []
    for place in sorted(range(len(words[0])), reverse=reverse):
        carried, note = step(carried, (words[0][place], words[1][place]))
        noted.append(note)
    if not noted:
        return carried, carried[None][:0]
    return carried, torch.stack(noted[::-1] if reverse else noted)


def _full_precision(tensor: torch.Tensor) -> AbstractContextManager:
    """Switches autocast off, which would compute sums of many scores in half precision."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


__all__ = ["Constraints", "LinearChainCrf", "constraints"]
