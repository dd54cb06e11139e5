"""The conditional random field is what the definition says, counted over all sequences of labels."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from hf_elmo.crf_elmo import LEAST_LOG_MARGINAL, Constraints, LinearChainCrf, constraints
from tests.assertions import assert_close, assert_identical

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", "B-X", "I-X", "E-X", "S-X", "S-Y"]
NAMES = {"BIO": BIO, "BIOES": BIOES}
EXACT = 1e-10  # of float64

# Words at the front, at the end, between holes, one, and none; the longest has four.
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 1, 0, 0, 1, 0],
        [1, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def numbered(names: list[str]) -> dict[int, str]:
    return dict(enumerate(names))


def random_crf(
    num_labels: int, allowed: Constraints | None = None, names: list[str] | None = None, seed: int = 0
) -> LinearChainCrf:
    """In float64, with scores that no two sequences share."""
    crf = LinearChainCrf(num_labels, allowed, names).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return crf


def random_emissions(num_labels: int, mask: torch.Tensor = MASK, scale: float = 1.5, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*mask.shape, num_labels, generator=generator, dtype=torch.float64)


def is_allowed(names: list[str] | None, scheme: str | None, path: tuple[int, ...]) -> bool:
    """Reads the entities of a sequence one after the other, as a person does."""
    if scheme is None or names is None:
        return True
    inside = None
    for label in path:
        tag, _, kind = names[label].partition("-")
        if scheme == "BIO":
            if tag == "I" and inside != kind:
                return False
            inside = kind if tag in "BI" else None
        else:
            if (tag in "IE") != (inside is not None) or (inside is not None and kind != inside):
                return False
            inside = kind if tag in "BI" else None
    return scheme == "BIO" or inside is None


class BruteForce:
    """Every sequence of labels of one row with its score."""

    def __init__(self, crf: LinearChainCrf, emissions: torch.Tensor, mask: torch.Tensor, scheme: str | None) -> None:
        words = emissions[mask]
        self.paths = [
            path
            for path in itertools.product(range(emissions.shape[-1]), repeat=len(words))
            if is_allowed(crf.label_names, scheme, path)
        ]
        self.scores = torch.stack([self.score(crf, words, path) for path in self.paths])

    @staticmethod
    def score(crf: LinearChainCrf, words: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
        if not path:
            return words.sum()
        total = crf.start[path[0]] + crf.end[path[-1]]
        for place, label in enumerate(path):
            total = total + words[place, label]
        for before, after in itertools.pairwise(path):
            total = total + crf.transitions[before, after]
        return total

    def log_likelihoods(self) -> torch.Tensor:
        return self.scores.log_softmax(dim=0)

    def best(self) -> list[int]:
        return list(self.paths[int(self.scores.argmax())])

    def marginals(self, num_labels: int) -> torch.Tensor:
        """Probabilities (words, labels)."""
        found = torch.zeros(len(self.paths[0]), num_labels, dtype=torch.float64)
        for path, probability in zip(self.paths, self.log_likelihoods().exp(), strict=True):
            for place, label in enumerate(path):
                found[place, label] += probability.detach()
        return found


SETTINGS: dict[str, tuple[int, str | None]] = {
    "one label": (1, None),
    "two labels": (2, None),
    "everything allowed": (5, None),
    "BIO": (5, "BIO"),
    "BIOES": (6, "BIOES"),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> tuple[LinearChainCrf, torch.Tensor, list[BruteForce]]:
    """A field, emissions for `MASK`, and all sequences of each row."""
    num_labels, scheme = SETTINGS[request.param]
    names = NAMES[scheme] if scheme else None
    crf = random_crf(num_labels, constraints(numbered(names), scheme) if scheme and names else None, names)
    emissions = random_emissions(num_labels).requires_grad_()
    return crf, emissions, [BruteForce(crf, *row, scheme) for row in zip(emissions, MASK, strict=True)]


def labellings(rows: list[BruteForce]) -> Iterator[tuple[torch.Tensor, list[int]]]:
    """Labels for the batch, -100 where there is no word, until every sequence of every row has come; and which."""
    for number in range(max(len(row.paths) for row in rows)):
        chosen = [number % len(row.paths) for row in rows]
        labels = torch.full(MASK.shape, -100)
        for place, (row, choice) in enumerate(zip(rows, chosen, strict=True)):
            labels[place, MASK[place]] = torch.tensor(row.paths[choice], dtype=torch.long)
        yield labels, chosen


def test_the_likelihood_of_every_sequence_is_its_part_of_all(setting):
    crf, emissions, rows = setting
    expected = [row.log_likelihoods() for row in rows]
    for labels, chosen in labellings(rows):
        ours = crf.log_likelihood(emissions, labels, MASK)
        theirs = torch.stack([values[choice] for values, choice in zip(expected, chosen, strict=True)])
        assert_close(ours, theirs, EXACT)


def test_gradients_are_those_of_the_sum_over_all_sequences(setting):
    crf, emissions, rows = setting
    inputs = [emissions, *crf.parameters()]
    weights = torch.linspace(0.5, 2.0, len(rows), dtype=torch.float64)
    expected = [row.log_likelihoods() for row in rows]
    for labels, chosen in itertools.islice(labellings(rows), 0, 30, 7):
        ours = torch.autograd.grad(weights @ crf.log_likelihood(emissions, labels, MASK), inputs)
        total = weights @ torch.stack([values[choice] for values, choice in zip(expected, chosen, strict=True)])
        theirs = torch.autograd.grad(total, inputs, retain_graph=True)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, EXACT)
        assert not ours[0][~MASK].any()


def test_the_decoded_sequence_is_the_best_of_all(setting):
    crf, emissions, rows = setting
    decoded = crf.decode(emissions, MASK)
    assert decoded.dtype == torch.int64
    for labels, row, mask in zip(decoded, rows, MASK, strict=True):
        assert labels[mask].tolist() == row.best()
        assert not labels[~mask].any()


def test_marginals_are_sums_over_the_sequences(setting):
    crf, emissions, rows = setting
    marginals = crf.marginals(emissions, MASK)
    assert not marginals[~MASK].any()
    for values, row, mask in zip(marginals, rows, MASK, strict=True):
        expected = row.marginals(crf.start.shape[0])
        assert_close(values[mask].exp(), expected, EXACT)
        assert (values[mask][expected == 0] == LEAST_LOG_MARGINAL).all()


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_largest_score_is_the_decoded_label_and_the_values_are_the_marginals(setting, scale):
    crf, emissions, _ = setting
    emissions = scale * emissions
    if not scale:  # with equal scores everywhere every sequence is the best
        torch.nn.init.zeros_(crf.start)
        torch.nn.init.zeros_(crf.end)
        torch.nn.init.zeros_(crf.transitions)
    scores, marginals = crf.scores(emissions, MASK), crf.marginals(emissions, MASK)
    assert_identical(scores.argmax(dim=-1)[MASK], crf.decode(emissions, MASK)[MASK])
    assert_close(scores.sort(dim=-1).values, marginals.sort(dim=-1).values, 2e-6)
    assert_close(scores.softmax(dim=-1).sum(dim=-1), torch.ones(MASK.shape), 1e-5)
    assert not scores[~MASK].any()


def test_scores_differ_from_marginals_where_the_likeliest_label_is_not_on_the_best_path():
    """So that the statement above is not empty: forbidden ways make such places."""
    crf, mask = random_crf(5, constraints(numbered(BIO), "BIO"), BIO), torch.ones(200, 4, dtype=torch.bool)
    emissions = random_emissions(5, mask)
    likeliest, decoded = crf.marginals(emissions, mask).argmax(dim=-1), crf.decode(emissions, mask)
    assert 0 < (likeliest != decoded).sum() < mask.sum() / 2
    assert_identical(crf.scores(emissions, mask).argmax(dim=-1), decoded)


@pytest.mark.parametrize("scheme", [None, "BIO"])
def test_gradients_are_those_of_finite_differences(scheme):
    allowed = constraints(numbered(BIO), scheme) if scheme else None
    crf, emissions = random_crf(5, allowed), random_emissions(5).requires_grad_()
    labels = torch.zeros(MASK.shape, dtype=torch.long)

    def likelihoods(emissions: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(dict(crf.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(crf, named, (emissions, MASK, labels))

    assert torch.autograd.gradcheck(likelihoods, (emissions, *crf.parameters()))
    assert torch.autograd.gradcheck(lambda emissions: crf.marginals(emissions, MASK).exp(), (emissions,))


def test_a_row_does_not_depend_on_the_others_or_on_its_padding(setting):
    crf, emissions, rows = setting
    labels, _ = next(labellings(rows))
    together = crf.log_likelihood(emissions, labels, MASK), crf.scores(emissions, MASK)
    for row, mask in enumerate(MASK):
        alone = emissions[row, mask][None], torch.ones(1, int(mask.sum()), dtype=torch.bool)
        assert_close(crf.log_likelihood(alone[0], labels[row, mask][None], alone[1])[0], together[0][row], EXACT)
        assert_close(crf.scores(*alone)[0], together[1][row, mask], EXACT)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (3, 2)], ids=str)
def test_nothing_is_fine(shape):
    crf, mask = random_crf(5), torch.zeros(shape, dtype=torch.bool)
    emissions = random_emissions(5, mask).requires_grad_()
    likelihoods = crf.log_likelihood(emissions, torch.full(shape, -100), mask)
    assert_identical(likelihoods, torch.zeros(shape[0]))
    likelihoods.sum().backward()
    assert not any(parameter.grad.any() for parameter in crf.parameters())
    assert_identical(crf.decode(emissions, mask), torch.zeros(shape))
    assert_identical(crf.marginals(emissions, mask), torch.zeros(*shape, 5))
    assert_identical(crf.scores(emissions, mask), torch.zeros(*shape, 5))


@pytest.mark.parametrize("scheme", [None, "BIO"])
def test_scores_far_apart_give_no_infinity(scheme):
    crf = random_crf(5, constraints(numbered(BIO), scheme) if scheme else None).float()
    emissions = random_emissions(5, scale=3000.0).float().requires_grad_()
    likelihoods = crf.log_likelihood(emissions, torch.zeros(MASK.shape), MASK)
    likelihoods.sum().backward()
    assert likelihoods.isfinite().all()
    assert likelihoods.min() < -1000
    for gradient in (emissions.grad, *(parameter.grad for parameter in crf.parameters())):
        assert gradient is not None
        assert gradient.isfinite().all()
    scores = crf.scores(emissions, MASK)
    assert scores.isfinite().all()
    assert scores.half().isfinite().all()


def test_half_precision_is_computed_in_float32():
    crf = random_crf(5).float()
    emissions = random_emissions(5).bfloat16()
    labels = torch.ones(MASK.shape, dtype=torch.long)
    expected = crf.log_likelihood(emissions.float(), labels, MASK), crf.scores(emissions.float(), MASK)
    with torch.autocast("cpu", torch.bfloat16):
        found = crf.log_likelihood(emissions, labels, MASK), crf.scores(emissions, MASK)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert_identical(ours, theirs)
    assert crf.to(torch.bfloat16).scores(emissions, MASK).dtype == torch.float32


def test_an_attention_mask_will_do():
    crf, emissions = random_crf(5), random_emissions(5)
    assert_identical(crf.scores(emissions, MASK.long()), crf.scores(emissions, MASK))
    labels = torch.ones(MASK.shape, dtype=torch.long)
    assert_identical(crf(emissions, MASK.long(), labels), crf.log_likelihood(emissions, labels, MASK))


def test_it_learns_what_follows_what():
    """Emissions say nothing; the labels alternate, and stay as they are after the third."""
    crf, mask = LinearChainCrf(3), torch.ones(8, 6, dtype=torch.bool)
    labels = torch.tensor([[0, 1, 0, 1, 2, 2]]).expand(8, 6)
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.3)
    emissions = torch.zeros(8, 6, 3)
    emissions[:, 4, 2] = 1.0
    for _ in range(60):
        optimizer.zero_grad()
        loss = -crf.log_likelihood(emissions, labels, mask).mean()
        loss.backward()
        optimizer.step()
    assert_identical(crf.decode(emissions, mask), labels)
    assert loss < 1.5


class TestConstraints:
    @pytest.mark.parametrize("scheme", NAMES)
    def test_exactly_the_sequences_of_the_scheme_are_allowed(self, scheme: str) -> None:
        names = NAMES[scheme]
        transitions, start, end = constraints(numbered(names), scheme)
        for length in (1, 2, 3, 4):
            for path in itertools.product(range(len(names)), repeat=length):
                ours = bool(start[path[0]] and end[path[-1]])
                ours = ours and all(bool(transitions[pair]) for pair in itertools.pairwise(path))
                assert ours == is_allowed(names, scheme, path), [names[label] for label in path]

    def test_an_inside_follows_only_its_own_type(self) -> None:
        transitions, start, end = constraints(numbered(BIO), "BIO")
        before_inside = {
            name: [BIO[row] for row in range(5) if transitions[row, BIO.index(name)]] for name in BIO[2::2]
        }
        assert before_inside == {"I-PER": ["B-PER", "I-PER"], "I-LOC": ["B-LOC", "I-LOC"]}
        assert start.tolist() == [True, True, False, True, False]
        assert end.all()

    def test_an_entity_that_began_ends(self) -> None:
        transitions, start, end = constraints(numbered(BIOES), "BIOES")
        after = {
            name: [BIOES[column] for column in range(6) if transitions[row, column]] for row, name in enumerate(BIOES)
        }
        free = ["O", "B-X", "S-X", "S-Y"]
        inside = ["I-X", "E-X"]
        assert after == {"O": free, "B-X": inside, "I-X": inside, "E-X": free, "S-X": free, "S-Y": free}
        assert [BIOES[label] for label in range(6) if start[label]] == free
        assert [BIOES[label] for label in range(6) if end[label]] == ["O", "E-X", "S-X", "S-Y"]

    def test_types_may_have_hyphens_or_be_absent(self) -> None:
        transitions, _, _ = constraints(numbered(["O", "B-R-A0", "I-R-A0", "B-A0", "B", "I"]), "BIO")
        assert transitions[:, 2].nonzero().flatten().tolist() == [1, 2]
        assert transitions[:, 5].nonzero().flatten().tolist() == [4, 5]

    @pytest.mark.parametrize(
        ("scheme", "name"),
        [
            ("BIO", "LABEL_0"),
            ("BIO", "PER"),
            ("BIO", "E-PER"),
            ("BIO", "B-"),
            ("BIO", "B_PER"),
            ("BIO", "O-PER"),
            ("BIO", "b-PER"),
            ("BIO", ""),
            ("BIOES", "L-PER"),
            ("BIOES", "BI-PER"),
        ],
    )
    def test_a_name_that_is_not_of_the_scheme_is_named(self, scheme: str, name: str) -> None:
        with pytest.raises(
            ValueError, match=f"`id2label` has the label '{name}', which is not of the scheme {scheme}"
        ):
            constraints(numbered(["O", name]), scheme)

    def test_a_scheme_that_is_not_known_is_named(self) -> None:
        with pytest.raises(ValueError, match="must be one of BIO, BIOES, but is 'BILOU'"):
            constraints(numbered(BIO), "BILOU")

    @pytest.mark.parametrize(("scheme", "names"), [("BIO", ["I-X"]), ("BIOES", ["B-X", "E-X"])])
    def test_labels_that_leave_a_single_word_without_any_are_refused(self, scheme: str, names: list[str]) -> None:
        with pytest.raises(ValueError, match=f"needs a label for a single word, like O, but .* {names[0]}"):
            constraints(numbered(names), scheme)


class TestBadLabels:
    @pytest.mark.parametrize(
        ("scheme", "labels", "what"),
        [
            ("BIO", ["O", "I-PER"], "I-PER after O"),
            ("BIO", ["B-PER", "I-LOC"], "I-LOC after B-PER"),
            ("BIO", ["I-LOC", "O"], "I-LOC as the first label"),
            ("BIOES", ["O", "B-X"], "B-X as the last label"),
            ("BIOES", ["B-X", "O"], "O after B-X"),
        ],
    )
    def test_what_the_scheme_forbids_is_named_with_its_row(self, scheme: str, labels: list[str], what: str) -> None:
        names = NAMES[scheme]
        crf = random_crf(len(names), constraints(numbered(names), scheme), names)
        mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
        numbers = torch.tensor([[0, 0, 0, -100], [-100, names.index(labels[0]), -100, names.index(labels[1])]])
        with pytest.raises(ValueError, match=f"`labels` has {what} in row 1 of the batch, which the scheme"):
            crf.log_likelihood(random_emissions(len(names), mask), numbers, mask)

    def test_without_constraints_everything_has_a_likelihood(self) -> None:
        crf, emissions = random_crf(5, None, BIO), random_emissions(5)
        assert crf.log_likelihood(emissions, torch.full(MASK.shape, 2), MASK).isfinite().all()

    @pytest.mark.parametrize("label", [5, -1, -100])
    def test_a_label_beyond_the_labels_is_refused(self, label: int) -> None:
        labels = torch.zeros(MASK.shape, dtype=torch.long)
        labels[3, 2] = label
        low, high = min(label, 0), max(label, 0)
        with pytest.raises(ValueError, match=rf"0 to 4, .*\(`num_labels`\), but they reach from {low} to {high}"):
            random_crf(5).log_likelihood(random_emissions(5), labels, MASK)

    def test_a_label_beyond_the_labels_where_there_is_no_word_does_not_matter(self) -> None:
        crf, emissions = random_crf(5), random_emissions(5)
        labels = torch.ones(MASK.shape, dtype=torch.long)
        expected = crf.log_likelihood(emissions, labels, MASK)
        assert_identical(crf.log_likelihood(emissions, labels.masked_fill(~MASK, 77), MASK), expected)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [None, "BIO"])
@pytest.mark.parametrize("strict", [False, True])
def test_decoding_is_exported_for_any_number_of_rows_and_words(scheme, strict):
    crf = random_crf(5, constraints(numbered(BIO), scheme) if scheme else None).float()
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(
            crf, (random_emissions(5).float(), MASK), dynamic_shapes=(dynamic, dynamic), strict=strict
        )
    for mask in (MASK[:2, :3], MASK[:1, 3:5], MASK.repeat(2, 3), MASK[1:2]):
        emissions = random_emissions(5, mask).float()
        assert_close(program.module()(emissions, mask), crf.scores(emissions, mask), 1e-5)
