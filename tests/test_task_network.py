"""The task network against computations that are written out by hand, word by word."""

import itertools
from typing import Any

import pytest
import torch

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification
from hf_elmo.modeling_elmo import ElmoScalarMix, words_first
from hf_elmo.task_network_elmo import ElmoBiLstm, ElmoPooling, ElmoTaskNetwork
from tests.assertions import assert_close, assert_far, assert_identical
from tests.tiny_models import SENTENCES, tiny_batch, tiny_config, tiny_model

ROUNDING = 2e-6
WORDS = 9
WORD_VECTORS: dict[str, Any] = {"task_embedding_size": 5, "word_vocab_size": WORDS}
# Padding on either side, between, none, and nothing but padding.
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
Weights = dict[str, torch.Tensor]


def weights_of(module: torch.nn.Module) -> Weights:
    """A module's weights by name, in float64."""
    return {name: weight.detach().double() for name, weight in module.state_dict().items()}


def lstm_by_hand(weights: Weights, prefix: str, words: torch.Tensor) -> torch.Tensor:
    """An LSTM over words (n, size) from left to right, gate by gate: (n, H)."""
    hidden = cell = words.new_zeros(weights[f"{prefix}.weight_hh_l0"].shape[1])
    outputs = []
    for word in words:
        gates = weights[f"{prefix}.weight_ih_l0"] @ word + weights[f"{prefix}.bias_ih_l0"]
        gates = gates + weights[f"{prefix}.weight_hh_l0"] @ hidden + weights[f"{prefix}.bias_hh_l0"]
        enter, forget, new, leave = gates.chunk(4)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        outputs.append(hidden)
    return torch.stack(outputs)


def bilstm_by_hand(weights: Weights, prefix: str, words: torch.Tensor) -> torch.Tensor:
    """A BiLSTM of any number of layers over the words (n, size) of one text: (n, 2H)."""
    for layer in itertools.count():
        name = f"{prefix}.layers.{layer}"
        if f"{name}.forward_lstm.weight_ih_l0" not in weights:
            return words
        backward = lstm_by_hand(weights, f"{name}.backward_lstm", words.flip(0)).flip(0)
        words = torch.cat([lstm_by_hand(weights, f"{name}.forward_lstm", words), backward], dim=-1)
    raise AssertionError


def mix_by_hand(layers: list[torch.Tensor], scalars: list[float], gamma: float, chosen: list[int]) -> torch.Tensor:
    """Equation 1 of the paper over some layers (n, 2P)."""
    exponentials = [torch.tensor(scalars[number]).double().exp() for number in chosen]
    weights = [value / sum(exponentials) for value in exponentials]
    return gamma * sum(weight * layers[number].double() for weight, number in zip(weights, chosen, strict=True))


def words_batch(sentences: list[list[str]] = SENTENCES) -> dict[str, torch.Tensor]:
    batch = tiny_batch(sentences)
    return {**batch, "word_input_ids": (batch["input_ids"].sum(dim=-1) % WORDS + 1) * batch["attention_mask"]}


def lively(model: Any) -> Any:
    """The model with weights large enough to tell apart what they multiply."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lstm" in name or "convolutions" in name:
                weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


SCALARS = [[0.5, -1.0, 0.25], [1.0, 0.0, -2.0]]
GAMMAS = [1.5, 0.75]


def set_mixes(model: Any) -> None:
    with torch.no_grad():
        for mix, scalars, gamma in zip(model.elmo.representations, SCALARS, GAMMAS, strict=False):
            mix.scalar_parameters.copy_(torch.tensor(scalars))
            mix.gamma.fill_(gamma)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"task_num_layers": 2},
        {"task_num_layers": 0},
        {"elmo_at_output": True},
        {"elmo_at_output": True, "mix_layers": [-1]},
        {"elmo_at_output": True, "mix_layers": [0, 2], **WORD_VECTORS},
        {"elmo_at_input": False, "elmo_at_output": True, **WORD_VECTORS},
        {"elmo_at_input": False, "elmo_at_output": True, "task_num_layers": 0},
        {"elmo_at_input": False, **WORD_VECTORS},
        {"use_predicate_indicator": True, "elmo_at_output": True, **WORD_VECTORS},
        {"use_predicate_indicator": True, "task_num_layers": 0},
    ],
)
def test_words_get_what_is_written_in_the_paper(settings: dict[str, Any]) -> None:
    """x and ELMo with the first mix, a BiLSTM over the words, ELMo with the next mix beside h, a linear classifier."""
    model = lively(tiny_model(ElmoForTokenClassification, num_labels=3, **settings))
    set_mixes(model)
    config, weights, batch = model.config, weights_of(model), words_batch()
    predicates = torch.arange(11) % 2 * batch["attention_mask"]
    inputs = {**batch, "token_type_ids": predicates} if config.use_predicate_indicator else batch
    logits = model(**inputs).logits
    chosen = list(range(3)) if config.mix_layers is None else sorted(number % 3 for number in config.mix_layers)
    for row, sentence in enumerate(SENTENCES):
        alone = model.elmo(**tiny_batch([sentence]), output_hidden_states=True).hidden_states
        layers = [layer[0, 1:-1] for layer in alone]  # the boundaries are left to the biLM
        places = slice(1, len(sentence) + 1)
        mixes = [mix_by_hand(layers, *mix, chosen) for mix in zip(SCALARS, GAMMAS, strict=True)]
        parts = []
        if config.task_embedding_size:
            parts.append(weights["task_network.embeddings.weight"][batch["word_input_ids"][row, places]])
        if config.elmo_at_input:
            parts.append(mixes.pop(0))
        if config.use_predicate_indicator:
            parts.append(predicates[row, places, None].double())
        words = [torch.cat(parts, dim=-1)] if parts else []
        if parts:
            words = [bilstm_by_hand(weights, "task_network.encoder", words[0])]
        if config.elmo_at_output:
            words.append(mixes.pop(0))
        expected = torch.cat(words, dim=-1) @ weights["classifier.weight"].T + weights["classifier.bias"]
        assert_close(logits[row, places], expected, 5e-6)
        outside = torch.ones(11, dtype=torch.bool)
        outside[places] = False
        assert_identical(logits[row, outside], model.classifier.bias.expand(int(outside.sum()), -1))


def maximum(words: torch.Tensor) -> torch.Tensor:
    return words.amax(dim=0)


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "biattentive"])
@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("elmo_at_output", [False, True])
def test_texts_get_what_is_described(pooling: str, is_pair: bool, elmo_at_output: bool) -> None:
    settings: dict[str, Any] = {"classifier_pooling": pooling, "elmo_at_output": elmo_at_output, **WORD_VECTORS}
    model = lively(tiny_model(ElmoForSequenceClassification, num_labels=3, **settings))
    set_mixes(model)
    weights, hidden = weights_of(model), 7
    texts = [SENTENCES[2], SENTENCES[0]] if is_pair else [SENTENCES[2]]
    batches = [words_batch([text]) for text in texts]
    ids = torch.cat([batch["input_ids"] for batch in batches], dim=1)
    numbers = torch.cat([batch["word_input_ids"] for batch in batches], dim=1)
    logits = model(ids, word_input_ids=numbers).logits[0]
    read, beside = [], []
    for batch in batches:
        alone = model.elmo(batch["input_ids"], output_hidden_states=True).hidden_states
        mixes = [
            mix_by_hand([layer[0, 1:-1] for layer in alone], *mix, [0, 1, 2])
            for mix in zip(SCALARS, GAMMAS, strict=True)
        ]
        x = weights["task_network.embeddings.weight"][batch["word_input_ids"][0, 1:-1]]
        read.append(bilstm_by_hand(weights, "task_network.encoder", torch.cat([x, mixes[0]], dim=-1)))
        beside.append(mixes[1])
    if pooling == "biattentive":
        integrated = []
        for number, words in enumerate(read):
            others = read[1 - number] if is_pair else words
            found = torch.stack([torch.softmax(others @ word, dim=0) @ others for word in words])
            inputs = torch.cat([words, words - found, words * found], dim=-1)
            integrated.append(bilstm_by_hand(weights, "task_network.integrator", inputs))
        read = integrated
    pooled = []
    for words, elmo in zip(read, beside, strict=True):
        parts = [words, elmo] if elmo_at_output else [words]
        whole = torch.cat(parts, dim=-1)
        if pooling == "mean":
            pooled.append(whole.mean(dim=0))
        elif pooling == "max":
            pooled.append(maximum(whole))
        elif pooling == "last":
            halves = [torch.cat([part[-1].chunk(2)[0], part[0].chunk(2)[1]]) for part in parts]
            pooled.append(torch.cat(halves))
        else:
            scores = whole @ weights["pooling.attention.weight"][0] + weights["pooling.attention.bias"]
            pools = [maximum(whole), whole.mean(dim=0), whole.amin(dim=0), torch.softmax(scores, dim=0) @ whole]
            pieces = weights["pooling.maxout.weight"] @ torch.cat(pools) + weights["pooling.maxout.bias"]
            pooled.append(maximum(pieces.view(2, 2 * hidden)))
    expected = weights["classifier.weight"] @ pooled[0] + weights["classifier.bias"]
    if is_pair:
        u, v = pooled
        expected = expected + weights["pair_classifier.weight"] @ torch.cat([v, (u - v).abs(), u * v])
    assert_close(logits, expected, 5e-6)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_bilstm_reads_the_words_wherever_they_stand(num_layers: int) -> None:
    torch.manual_seed(0)
    bilstm = ElmoBiLstm(4, 3, num_layers, 0.5).eval()
    words = torch.randn(5, 5, 4)
    output = bilstm(words, MASK)
    assert not output[~MASK].any()
    poisoned = bilstm(words.masked_fill(~MASK[..., None], 1e6), MASK)
    assert_identical(poisoned, output)
    for row in range(4):
        expected = bilstm_by_hand(
            {f"b.{k}": v for k, v in weights_of(bilstm).items()}, "b", words[row, MASK[row]].double()
        )
        assert_close(output[row, MASK[row]], expected, ROUNDING)


def test_a_bilstm_is_that_of_torch_on_whole_rows() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    ours = ElmoBiLstm(4, 3, 2, 0.0)
    with torch.no_grad():
        for number, layer in enumerate(ours.layers):
            for side, lstm in (("", layer.forward_lstm), ("_reverse", layer.backward_lstm)):
                for name, weight in lstm.named_parameters():
                    weight.copy_(getattr(theirs, name.replace("l0", f"l{number}{side}")))
    words = torch.randn(3, 5, 4)
    assert_close(ours(words, torch.ones(3, 5).bool()), theirs(words)[0], ROUNDING)


def test_gradients_pass_through_words_alone() -> None:
    torch.manual_seed(0)
    bilstm = ElmoBiLstm(4, 3, 2, 0.0)
    words = torch.randn(5, 5, 4, requires_grad=True)
    bilstm(words, MASK).sum().backward()
    assert not words.grad[~MASK].any()
    assert words.grad[MASK].abs().amin(dim=-1).gt(0).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_a_bilstm_of_nothing_gives_nothing(shape: tuple[int, int]) -> None:
    bilstm = ElmoBiLstm(4, 3, 1, 0.0)
    assert bilstm(torch.zeros(*shape, 4), torch.zeros(*shape, dtype=torch.bool)).shape == (*shape, 6)


def test_words_go_to_the_front_and_back() -> None:
    order, places = words_first(MASK)
    values = torch.arange(25).reshape(5, 5)
    front = values.gather(1, order)
    assert front.tolist()[1] == [7, 8, 9, 5, 6]
    assert front.tolist()[2] == [10, 12, 14, 11, 13]
    assert_identical(front.gather(1, places), values)


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "biattentive"])
def test_pooling_sees_words_alone(pooling: str) -> None:
    torch.manual_seed(0)
    config = tiny_config(classifier_pooling=pooling)
    pool = ElmoPooling(config, [(6, True), (3, False)]).eval()
    words = torch.randn(5, 5, 9)
    pooled = pool(words, MASK)
    assert pooled.shape == (5, pool.size)
    assert_identical(pool(words.masked_fill(~MASK[..., None], 99.0), MASK), pooled)
    assert not pooled[4].any()
    for row in range(4):
        alone = words[row, MASK[row]][None]
        assert_close(pooled[row], pool(alone, torch.ones(alone.shape[:2]).bool())[0], ROUNDING)
    assert pool(words[:, :0], MASK[:, :0]).tolist() == torch.zeros(5, pool.size).tolist()


class TestDropout:
    """Each part of what a word brings is dropped once."""

    def test_word_vectors_elmo_and_the_indicator(self) -> None:
        settings = {**WORD_VECTORS, "use_predicate_indicator": True, "task_num_layers": 0, "task_dropout": 0.5}
        network = ElmoTaskNetwork(tiny_config(**settings))
        with torch.no_grad():
            network.embeddings.weight.fill_(1.0)
        mask = torch.ones(200, 11).bool()
        elmo = torch.ones(200, 11, 12)
        words = network(mask, mask.long(), elmo, None, mask)
        assert set(words[..., :5].unique().tolist()) == {0.0, 2.0}
        assert abs((words[..., :5] == 0).double().mean() - 0.5) < 0.02
        assert (words[..., 5:] == 1.0).all()

    def test_between_layers_and_before_the_classifier(self) -> None:
        for settings, expected in [
            ({}, 0.5),
            ({"task_dropout": 0.25}, 0.25),
            ({"classifier_dropout": 0.125}, 0.125),
            ({"task_num_layers": 0}, 0.0),
            ({"task_num_layers": 0, "classifier_pooling": "biattentive"}, 0.5),
        ]:
            assert tiny_model(ElmoForSequenceClassification, **settings).dropout.p == expected
        model = tiny_model(ElmoForTokenClassification, task_num_layers=2, representation_dropout=0.0).train()
        read: dict[torch.nn.Module, list[torch.Tensor]] = {}
        modules = [*model.task_network.encoder.layers, model.classifier]
        for module in modules:
            module.register_forward_pre_hook(
                lambda this, inputs: read.setdefault(this, []).append(inputs[0].flatten(0, 1))
            )
        model(**tiny_batch(SENTENCES * 20))
        for module, expected in zip(modules, (0.0, 0.5, 0.5), strict=True):
            words = torch.cat(read[module])
            words = words[words.abs().sum(dim=-1) > 0]  # without padding
            assert (words == 0).double().mean().item() == pytest.approx(expected, abs=0.03)


class TestMixes:
    def layers(self) -> list[torch.Tensor]:
        return list(torch.randn(3, 4, 5, 12, generator=torch.Generator().manual_seed(0)))

    @pytest.mark.parametrize("chosen", [[0, 1, 2], [-1], [0], [1, -1]])
    def test_the_softmax_is_over_the_layers_that_take_part(self, chosen: list[int]) -> None:
        mix = ElmoScalarMix(tiny_config(mix_layers=chosen))
        with torch.no_grad():
            mix.scalar_parameters.copy_(torch.tensor(SCALARS[0]))
            mix.gamma.fill_(GAMMAS[0])
        layers, mask = self.layers(), torch.ones(4, 5).bool()
        expected = mix_by_hand(layers, SCALARS[0], GAMMAS[0], sorted(number % 3 for number in chosen))
        assert_close(mix(layers, mask), expected, ROUNDING)
        assert_close(GAMMAS[0] * sum(w * x for w, x in zip(mix.weights(), layers, strict=True)), expected, ROUNDING)
        mix(layers, mask).sum().backward()
        left_out = [number for number in range(3) if number not in {number % 3 for number in chosen}]
        assert not mix.scalar_parameters.grad[left_out].any()

    def test_the_last_layer_alone_is_what_allennlp_gets_from_its_parameters(self) -> None:
        """There one switches layers off with scalars of minus 9e10, as the file of a task model says."""
        layers, mask = self.layers(), torch.ones(4, 5).bool()
        settings = {"mix_parameters": [-9e10, -9e10, 1.0], "mix_trainable": False}
        switched_off = tiny_model(**settings).representations[0]
        alone = tiny_model(mix_layers=[-1]).representations[0]
        assert_close(switched_off(layers, mask), layers[2], 0)
        assert_close(alone(layers, mask), layers[2], 0)
        assert not switched_off.scalar_parameters.requires_grad
        assert alone.gamma.requires_grad

    def test_representations_have_weights_of_their_own_and_layers_are_joined_and_split(self) -> None:
        model = tiny_model(num_output_representations=2)
        set_mixes(type("Head", (), {"elmo": model}))
        output = model(**tiny_batch(), output_hidden_states=True)
        joined = model.join_layers(output.hidden_states)
        assert joined.shape == (4, 11, 6 + 2 * 12)
        layers = model.split_layers(joined)
        for one, other in zip(layers, output.hidden_states, strict=True):
            assert_identical(one, other)
        again = model.represent(layers, tiny_batch()["attention_mask"].bool())
        for number, (one, other) in enumerate(zip(again, output.representations, strict=True)):
            assert_identical(one, other)
            expected = mix_by_hand(layers, SCALARS[number], GAMMAS[number], [0, 1, 2])
            assert_close(one, expected, ROUNDING)
        assert_far(again[0], again[1], 1e-3)
