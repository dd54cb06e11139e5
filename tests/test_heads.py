"""The heads: what they compute from words or from layers, their losses, what is trained, and how they are saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from hf_elmo import (
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
    heads_elmo,
    parameter_groups,
)
from tests.assertions import assert_close, assert_far, assert_identical
from tests.saved_folders import save_folder
from tests.tiny_models import SENTENCES, tiny_batch, tiny_config, tiny_model

ROUNDING = 1e-5
HEADS = [ElmoForSequenceClassification, ElmoForTokenClassification]
WORDS = 9  # of the word vocabulary
BIO = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
NOTHING_DROPPED = {"representation_dropout": 0.0, "task_dropout": 0.0}
Batch = dict[str, torch.Tensor]

# What the task network of a head can be made of.
NETWORKS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "straight to the classifier": {"task_num_layers": 0},
    "at both ends": {"elmo_at_output": True},
    "at the output, with word vectors": {"elmo_at_input": False, "elmo_at_output": True, "task_embedding_size": 5},
    "only at the output": {"elmo_at_input": False, "elmo_at_output": True, "task_num_layers": 0},
    "no ELMo": {"elmo_at_input": False, "task_embedding_size": 5},
    "word vectors alone": {"elmo_at_input": False, "task_embedding_size": 5, "task_num_layers": 0},
    "everything": {"elmo_at_output": True, "task_embedding_size": 5, "task_num_layers": 2, "mix_l2": 0.01},
    "last layer": {"mix_layers": [-1]},
    "fixed mix": {"mix_trainable": False, "mix_parameters": [0.0, 1.0, 2.0], "mix_gamma": 0.5},
    "layer norm": {"mix_layer_norm": True},
}
POOLINGS = ["mean", "max", "last", "biattentive"]


def words_batch(sentences: list[list[str]] = SENTENCES, side: str = "right") -> Batch:
    """A batch with word ids that differ from word to word."""
    batch = tiny_batch(sentences, side=side)
    numbers = batch["input_ids"].sum(dim=-1) % WORDS + 1
    return {**batch, "word_input_ids": numbers * batch["attention_mask"]}


def pairs_batch(pairs: list[tuple[list[str], list[str]]]) -> Batch:
    """`<S> a </S> <S> b </S>` in each row."""
    rows = [[*words_batch([a])["input_ids"][0], *words_batch([b])["input_ids"][0]] for a, b in pairs]
    length = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(torch.stack(row), (0, 0, 0, length - len(row))) for row in rows])
    mask = (ids != 0).any(dim=-1).long()
    types = torch.zeros_like(mask)
    for row, (a, b) in enumerate(pairs):
        types[row, len(a) + 2 : len(a) + len(b) + 4] = 1
    numbers = (ids.sum(dim=-1) % WORDS + 1) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "word_input_ids": numbers}


PAIRS = [(SENTENCES[0], SENTENCES[1]), (SENTENCES[2], SENTENCES[3]), (SENTENCES[1], SENTENCES[0])]


def head(model_class: type, **settings: Any) -> Any:
    """A tiny head whose words differ enough that a mistake shows."""
    model = tiny_model(model_class, **{"word_vocab_size": WORDS, "num_labels": 3, **settings})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolutions" in name or ("lstm" in name and "weight" in name):
                parameter.mul_(3.0)
        for name, module in model.named_children():
            if name.endswith("classifier"):
                module.weight.mul_(10.0)
        model.classifier.bias.copy_(torch.linspace(-0.5, 0.5, len(model.classifier.bias)))
    return model


def run(model: Any, batch: Batch, **arguments: Any) -> Any:
    """The head's output; with a predicate indicator every second word is a predicate."""
    if model.config.use_predicate_indicator:
        arguments["token_type_ids"] = torch.arange(batch["attention_mask"].shape[1]) % 2 * batch["attention_mask"]
    return model(**batch, **arguments)


def as_layers(model: Any, batch: Batch) -> Batch:
    """The batch with `layers` in the place of `input_ids`."""
    with torch.no_grad():
        output = model.elmo(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
    rest = {name: values for name, values in batch.items() if name != "input_ids"}
    return {**rest, "layers": model.elmo.join_layers(output.hidden_states)}


def inner_words(batch: Batch) -> torch.Tensor:
    """Where words are that are no boundaries, shape (batch, seq)."""
    mark = batch["input_ids"][..., 1]
    return (batch["attention_mask"] == 1) & (mark != 257) & (mark != 258)


class TestWordsAndLayers:
    @pytest.mark.parametrize("network", NETWORKS)
    @pytest.mark.parametrize("model_class", HEADS)
    def test_layers_give_what_the_words_give(self, model_class: type, network: str) -> None:
        model = head(model_class, **NETWORKS[network])
        batch = words_batch()
        assert_close(run(model, as_layers(model, batch)).logits, run(model, batch).logits, ROUNDING)

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_layers_of_pairs_give_what_the_words_give(self, pooling: str) -> None:
        model = head(ElmoForSequenceClassification, classifier_pooling=pooling, elmo_at_output=True)
        batch = pairs_batch(PAIRS)
        halves = [
            (batch["attention_mask"] == 1) & (batch["token_type_ids"] == side)  # the biLM reads each text alone
            for side in (0, 1)
        ]
        with torch.no_grad():
            layers = sum(
                model.elmo.join_layers(
                    model.elmo(batch["input_ids"], attention_mask=half, output_hidden_states=True).hidden_states
                )
                for half in halves
            )
        rest = {name: values for name, values in batch.items() if name != "input_ids"}
        assert_close(model(**rest, layers=layers).logits, model(**batch).logits, ROUNDING)

    def test_the_bilm_does_not_run_where_it_is_not_needed(self) -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("the biLM ran")

        model = head(ElmoForTokenClassification)
        batch, layers = words_batch(), as_layers(model, words_batch())
        model.elmo.encoder.register_forward_pre_hook(refuse)
        run(model, layers)
        with pytest.raises(AssertionError, match="the biLM ran"):
            run(model, batch)
        baseline = head(ElmoForTokenClassification, **NETWORKS["no ELMo"])
        baseline.elmo.encoder.register_forward_pre_hook(refuse)
        run(baseline, batch)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_layers_may_be_stored_in_half_precision(self, dtype: torch.dtype) -> None:
        model = head(ElmoForTokenClassification)
        batch = as_layers(model, words_batch())
        half = {**batch, "layers": batch["layers"].to(dtype)}
        expected = run(model, batch).logits
        assert_close(run(model, half).logits, expected, 0.05 * float(expected.abs().max()))

    @pytest.mark.parametrize("network", ["defaults", "everything", "at the output, with word vectors"])
    @pytest.mark.parametrize("model_class", HEADS)
    def test_neither_padding_nor_the_batch_changes_anything(self, model_class: type, network: str) -> None:
        settings = [{"classifier_pooling": pooling} for pooling in POOLINGS]
        if model_class is ElmoForTokenClassification:
            settings = [{}, {"use_crf": True}]
        for more in settings:
            model = head(model_class, **NETWORKS[network], **more)
            logits = run(model, words_batch()).logits
            left = run(model, words_batch(side="left")).logits
            for row, sentence in enumerate(SENTENCES):
                alone = run(model, words_batch([sentence])).logits[0]
                if model_class is ElmoForTokenClassification:
                    length = len(sentence) + 2
                    assert_close(logits[row, :length], alone, ROUNDING)
                    assert_close(left[row, -length:], alone, ROUNDING)
                else:
                    assert_close(logits[row], alone, ROUNDING)
                    assert_close(left[row], alone, ROUNDING)

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_a_text_without_words_is_classified_by_the_bias_alone(self, pooling: str) -> None:
        model = head(ElmoForSequenceClassification, classifier_pooling=pooling, elmo_at_output=True)
        assert_identical(model(**tiny_batch([[]])).logits[0], model.classifier.bias)
        without_boundaries = torch.zeros(1, 0, 50, dtype=torch.long)
        assert_identical(model(without_boundaries).logits[0], model.classifier.bias)
        beside = model(**tiny_batch([[], *SENTENCES])).logits
        assert_identical(beside[0], model.classifier.bias)
        assert_close(beside[1:], model(**tiny_batch()).logits, ROUNDING)

    def test_the_layers_are_returned_on_request(self) -> None:
        for model in (head(ElmoForSequenceClassification), head(ElmoForTokenClassification)):
            output = model(**tiny_batch(), output_hidden_states=True)
            expected = model.elmo(**tiny_batch(), output_hidden_states=True).hidden_states
            again = model(**as_layers(model, tiny_batch()), output_hidden_states=True).hidden_states
            for one, other, third in zip(output.hidden_states, expected, again, strict=True):
                assert_close(one, other, ROUNDING)
                assert_close(third, other, ROUNDING)
            assert model(**tiny_batch()).hidden_states is None


class TestPairs:
    @pytest.mark.parametrize("pooling", ["mean", "max", "last"])
    def test_the_features_are_those_of_both_texts_alone(self, pooling: str) -> None:
        model = head(ElmoForSequenceClassification, classifier_pooling=pooling)
        read: list[torch.Tensor] = []
        for classifier in (model.classifier, model.pair_classifier):
            classifier.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
        logits = model(**pairs_batch(PAIRS)).logits
        for side in (0, 1):
            model(**words_batch([pair[side] for pair in PAIRS]))
        assert_close(read[0], read[2], ROUNDING)
        assert not read[3].any()
        u, v = read[2], read[4]
        features = torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
        assert_close(torch.cat(read[:2], dim=-1), features, ROUNDING)
        weights = torch.cat([model.classifier.weight, model.pair_classifier.weight], dim=1)
        assert_close(logits, features @ weights.T + model.classifier.bias, ROUNDING)

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_a_pair_is_found_by_its_second_beginning(self, pooling: str) -> None:
        model = head(ElmoForSequenceClassification, classifier_pooling=pooling)
        batch = pairs_batch(PAIRS)
        expected = model(**batch).logits
        del batch["token_type_ids"]
        assert_identical(model(**batch).logits, expected)

    def test_the_tokenizer_makes_pairs(self) -> None:
        tokenizer = ElmoTokenizer()
        model = head(ElmoForSequenceClassification)
        texts = [" ".join(words) for words in SENTENCES]
        batch = tokenizer(texts[:2], texts[2:], padding=True, return_tensors="pt", return_token_type_ids=True)
        expected = pairs_batch([(SENTENCES[0], SENTENCES[2]), (SENTENCES[1], SENTENCES[3])])
        assert_identical(batch["token_type_ids"], expected["token_type_ids"])
        assert_identical(model(**batch).logits, model(**expected).logits)

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_texts_alone_and_pairs_stand_in_one_batch(self, pooling: str) -> None:
        model = head(ElmoForSequenceClassification, classifier_pooling=pooling)
        pair, alone = pairs_batch(PAIRS[:1]), words_batch(SENTENCES[:1])
        length = pair["input_ids"].shape[1]
        padded = torch.nn.functional.pad(alone["input_ids"], (0, 0, 0, length - alone["input_ids"].shape[1]))
        logits = model(torch.cat([pair["input_ids"], padded])).logits
        assert_close(logits[:1], model(**pair).logits, ROUNDING)
        assert_close(logits[1:], model(**alone).logits, ROUNDING)

    def test_the_order_of_the_texts_matters_and_each_has_its_words(self) -> None:
        model = head(ElmoForSequenceClassification)
        turned = pairs_batch([(b, a) for a, b in PAIRS])
        assert_far(model(**turned).logits, model(**pairs_batch(PAIRS)).logits, 1e-3)

    def test_layers_of_a_pair_are_returned_in_their_places(self) -> None:
        model = head(ElmoForSequenceClassification)
        batch = pairs_batch(PAIRS)
        layers = model(**batch, output_hidden_states=True).hidden_states
        assert layers[0].shape == (*batch["attention_mask"].shape, 12)
        alone = model.elmo(**tiny_batch([PAIRS[0][1]]), output_hidden_states=True).hidden_states
        at = len(PAIRS[0][0]) + 2
        for layer, expected in zip(layers, alone, strict=True):
            assert_close(layer[0, at : at + expected.shape[1]], expected[0], ROUNDING)


class TestLosses:
    @pytest.mark.parametrize(
        ("settings", "labels"),
        [
            ({"num_labels": 3}, torch.tensor([0, 2, 1, 0])),
            ({"num_labels": 1}, torch.rand(4)),
            ({"num_labels": 1}, torch.tensor([1, 0, 3, 2])),
            ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.ones(4, 3)),
            ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.ones(4, 3, dtype=torch.long)),
            ({"num_labels": 2, "problem_type": "regression"}, torch.rand(4, 2)),
        ],
    )
    def test_a_sequence_classifier_has_the_losses_of_transformers(self, settings: Any, labels: torch.Tensor) -> None:
        model = tiny_model(ElmoForSequenceClassification, **settings)
        output = model(**tiny_batch(), labels=labels)
        if model.config.problem_type == "single_label_classification":
            expected = torch.nn.functional.cross_entropy(output.logits, labels)
        elif model.config.problem_type == "multi_label_classification":
            expected = torch.nn.functional.binary_cross_entropy_with_logits(output.logits, labels.float())
        else:
            expected = torch.nn.functional.mse_loss(output.logits.squeeze(), labels.float())
        assert_close(output.loss, expected, ROUNDING)

    @pytest.mark.parametrize("use_crf", [False, True])
    def test_boundaries_padding_and_what_is_labelled_minus_100_do_not_count(self, use_crf: bool) -> None:
        model = head(ElmoForTokenClassification, use_crf=use_crf, num_labels=5)
        batch = tiny_batch()
        labels = torch.arange(44).reshape(4, 11) % 5
        labels[2, 4] = -100
        counted = inner_words(batch)
        counted[2, 4] = False
        loss = model(**batch, labels=labels).loss
        assert_identical(model(**batch, labels=labels.masked_fill(~counted, -100)).loss, loss)
        emissions = model.train()(**batch).logits if not use_crf else None
        if emissions is not None:
            with torch.no_grad():
                logits = model.eval()(**batch).logits
            assert_close(loss, torch.nn.functional.cross_entropy(logits[counted], labels[counted]), ROUNDING)

    @pytest.mark.parametrize("use_crf", [False, True])
    def test_a_batch_without_labels_has_the_loss_zero(self, use_crf: bool) -> None:
        model = head(ElmoForTokenClassification, use_crf=use_crf).train()
        for batch in (tiny_batch(), tiny_batch([[], []])):
            labels = torch.full_like(batch["attention_mask"], -100)
            loss = model(**batch, labels=labels).loss
            loss.backward()
            assert loss.item() == 0.0
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    @pytest.mark.parametrize(
        ("model_class", "labels"),
        [
            (ElmoForSequenceClassification, torch.tensor([0, 2, 1, 0])),
            (ElmoForSequenceClassification, torch.rand(4, 3)),
            (ElmoForTokenClassification, torch.arange(44).reshape(4, 11) % 3),
        ],
    )
    def test_parts_of_a_batch_add_up_to_its_loss(self, model_class: type, labels: torch.Tensor) -> None:
        model = head(model_class, mix_l2=0.5, mix_parameters=[1.0, 0.0, -1.0], **NOTHING_DROPPED).train()
        batch = tiny_batch()
        if model_class is ElmoForTokenClassification:
            labels = labels.masked_fill(~inner_words(batch), -100)
        count = (labels != -100).sum()
        expected = model(**batch, labels=labels).loss
        parts = [
            model(**{name: values[rows] for name, values in batch.items()}, labels=labels[rows], num_items_in_batch=n)
            for rows, n in ((slice(0, 1), count), (slice(1, 4), int(count)))
        ]
        assert_close(parts[0].loss + parts[1].loss, expected, ROUNDING)

    def test_the_mixes_are_held_together_by_lambda(self) -> None:
        scalars = [0.5, -1.0, 2.0]
        settings = {"mix_parameters": scalars, "elmo_at_output": True, **NOTHING_DROPPED}
        labels = torch.tensor([0, 2, 1, 0])
        plain = head(ElmoForSequenceClassification, **settings)
        penalised = head(ElmoForSequenceClassification, mix_l2=0.1, **settings)
        assert_identical(penalised(**tiny_batch(), labels=labels).loss, plain(**tiny_batch(), labels=labels).loss)
        loss = penalised.train()(**tiny_batch(), labels=labels).loss
        expected = plain.train()(**tiny_batch(), labels=labels).loss + 2 * 0.1 * sum(s * s for s in scalars)
        assert_close(loss, expected, ROUNDING)
        last = head(ElmoForSequenceClassification, mix_l2=0.1, mix_layers=[-1, 0], **settings).train()
        free = head(ElmoForSequenceClassification, mix_layers=[-1, 0], **settings).train()
        difference = last(**tiny_batch(), labels=labels).loss - free(**tiny_batch(), labels=labels).loss
        assert_close(difference, 2 * 0.1 * (0.25 + 4.0), ROUNDING)


class TestCrf:
    def test_the_largest_logit_is_the_best_path_and_their_softmax_a_confidence(self) -> None:
        model = head(ElmoForTokenClassification, use_crf=True, label_scheme="BIO", **BIO)
        with torch.no_grad():
            model.crf.transitions.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
        batch = tiny_batch()
        words = inner_words(batch)
        emissions = model.train()(**batch).logits if not model.config.representation_dropout else None
        assert emissions is None
        model.eval()
        read: list[torch.Tensor] = []
        model.classifier.register_forward_hook(lambda *_: read.append(_[2]))
        logits = model(**batch).logits
        assert logits.shape == (4, 11, 3)
        decoded = model.crf.decode(read[0], words)
        assert_identical(logits.argmax(dim=-1)[words], decoded[words])
        assert_close(logits.softmax(dim=-1).sum(dim=-1)[words], torch.ones(int(words.sum())), 1e-5)
        assert not logits[~words].any()
        chosen = logits[words].softmax(dim=-1).sort(dim=-1).values
        expected = model.crf.marginals(read[0], words)[words].exp().sort(dim=-1).values
        assert_close(chosen, expected, 1e-5)

    def test_in_training_the_logits_are_the_emissions(self) -> None:
        model = head(ElmoForTokenClassification, use_crf=True, **NOTHING_DROPPED).train()
        read: list[torch.Tensor] = []
        model.classifier.register_forward_hook(lambda *_: read.append(_[2]))
        assert_identical(model(**tiny_batch()).logits, read[0])

    def test_the_loss_is_that_of_whole_sentences(self) -> None:
        model = head(ElmoForTokenClassification, use_crf=True, **NOTHING_DROPPED)
        batch = tiny_batch()
        labels = (torch.arange(44).reshape(4, 11) % 3).masked_fill(~inner_words(batch), -100)
        losses = [
            model(**{name: values[row : row + 1] for name, values in batch.items()}, labels=labels[row : row + 1]).loss
            for row in range(4)
        ]
        assert_close(model(**batch, labels=labels).loss, sum(losses) / 4, 1e-5)

    @pytest.mark.parametrize("model_kwargs", [{}, {"num_labels": 3}])
    def test_names_that_are_not_of_the_scheme(self, model_kwargs: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="`id2label` has the label 'LABEL_0', which is not of the scheme BIO"):
            tiny_model(ElmoForTokenClassification, use_crf=True, label_scheme="BIO", **model_kwargs)

    def test_labels_that_the_scheme_forbids(self) -> None:
        model = head(ElmoForTokenClassification, use_crf=True, label_scheme="BIO", **BIO)
        labels = torch.full((4, 11), -100)
        labels[1, 1] = 2
        with pytest.raises(ValueError, match=r"`labels` has I-X as the first label in row 1 .*forbids"):
            model(**tiny_batch(), labels=labels)


class TestLearning:
    def learn(self, model: Any, batch: Batch, labels: torch.Tensor, steps: int = 120) -> float:
        torch.manual_seed(0)
        model.train()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = run(model, batch, labels=labels).loss
            loss.backward()
            optimizer.step()
            if loss.item() < 0.005:
                break
        model.eval()
        return run(model, batch, labels=labels).loss.item()

    @pytest.mark.parametrize("network", [name for name in NETWORKS if name != "layer norm"])
    def test_words_are_learned_by_heart(self, network: str) -> None:
        settings = {**NETWORKS[network], **NOTHING_DROPPED, "mix_l2": 0.0, "cell_size": 16, "projection_size": 10}
        model = head(ElmoForTokenClassification, **settings)
        batch = words_batch()
        by_number = network == "word vectors alone"  # nothing else is known of a word then
        labels = batch["word_input_ids"] % 3 if by_number else torch.arange(44).reshape(4, 11) % 3
        assert self.learn(model, as_layers(model, batch), labels, 300) < 0.02

    @pytest.mark.parametrize("scheme", [None, "BIO"])
    @pytest.mark.parametrize("predicates", [False, True])
    def test_chains_are_learned_by_heart(self, scheme: str | None, predicates: bool) -> None:
        settings = {"use_crf": True, "label_scheme": scheme, "use_predicate_indicator": predicates}
        model = head(ElmoForTokenClassification, **settings, **NOTHING_DROPPED, **BIO)
        labels = torch.tensor([[1, 2, 0, 1, 2, 2, 0, 1, 1, 0, 0]]).repeat(4, 1).roll(1, 1)
        labels = labels.masked_fill(~inner_words(words_batch()), -100)
        labels[3, 1] = 0
        labels[3, 2] = 1
        batch = words_batch()
        assert self.learn(model, batch, labels) < 0.02
        counted = labels != -100
        assert_identical(run(model, batch).logits.argmax(dim=-1)[counted], labels[counted])

    @pytest.mark.parametrize("pooling", POOLINGS)
    @pytest.mark.parametrize("network", ["defaults", "at both ends", "no ELMo"])
    def test_texts_are_learned_by_heart(self, pooling: str, network: str) -> None:
        settings = {**NETWORKS[network], "classifier_pooling": pooling, **NOTHING_DROPPED}
        model = head(ElmoForSequenceClassification, **settings)
        assert self.learn(model, words_batch(), torch.tensor([0, 1, 2, 0])) < 0.02

    @pytest.mark.parametrize(
        ("settings", "labels"),
        [
            *[({"num_labels": 3, "classifier_pooling": pooling}, torch.tensor([0, 2, 1])) for pooling in POOLINGS],
            ({"num_labels": 1}, torch.tensor([1.0, 0.5, -0.5])),
            (
                {"num_labels": 3, "problem_type": "multi_label_classification"},
                torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]),
            ),
        ],
    )
    def test_pairs_are_learned_by_heart(self, settings: Any, labels: torch.Tensor) -> None:
        model = head(ElmoForSequenceClassification, **settings, **NOTHING_DROPPED)
        assert self.learn(model, pairs_batch(PAIRS), labels) < 0.02

    def test_the_predicate_decides(self) -> None:
        """One sentence, once for each of its predicates."""
        model = head(ElmoForTokenClassification, use_predicate_indicator=True, **NOTHING_DROPPED).train()
        batch = tiny_batch([SENTENCES[2]] * 2)
        predicates = torch.zeros(2, 11, dtype=torch.long)
        predicates[0, 3] = predicates[1, 5] = 1
        labels = torch.full((2, 11), -100)
        labels[0, 1:10], labels[1, 1:10] = 1, 2
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
        for _ in range(250):
            optimizer.zero_grad()
            loss = model(**batch, token_type_ids=predicates, labels=labels).loss
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.02


class TestFreezing:
    @pytest.mark.parametrize("model_class", HEADS)
    def test_a_frozen_bilm_has_no_gradient_no_optimizer_state_and_no_dropout(self, model_class: type) -> None:
        model = head(model_class, elmo_at_output=True).train()
        assert model.training
        assert model.elmo.dropout.training
        assert not model.elmo.embeddings.training
        assert not any(module.training for module in model.elmo.encoder.modules())
        recorded: list[torch.Tensor] = []
        model.elmo.encoder.layers[0].register_forward_hook(lambda *_: recorded.append(_[2][0]))
        labels = (
            torch.tensor([0, 1, 2, 0]) if model_class is ElmoForSequenceClassification else torch.zeros(4, 11).long()
        )
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.01))
        losses = []
        for _ in range(2):
            loss = model(**tiny_batch(), labels=labels).loss
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        assert losses[0] != losses[1]  # the dropout of the representations
        assert not recorded[0].requires_grad
        assert_identical(recorded[0], recorded[1])
        bilm = {name for name, _ in model.named_parameters() if name.startswith(("elmo.embeddings", "elmo.encoder"))}
        for name, parameter in model.named_parameters():
            assert (parameter.grad is None) == (name in bilm), name
            assert (parameter in optimizer.state) == (name not in bilm), name

    def test_mixes_that_are_not_read_are_not_trained(self) -> None:
        model = head(ElmoForTokenClassification, num_output_representations=3, elmo_at_output=True)
        trained = [mix.gamma.requires_grad for mix in model.elmo.representations]
        assert trained == [True, True, False]
        baseline = head(ElmoForTokenClassification, **NETWORKS["no ELMo"])
        assert not any(parameter.requires_grad for parameter in baseline.elmo.parameters())

    def test_a_bilm_that_is_not_frozen_learns(self) -> None:
        model = head(ElmoForTokenClassification, freeze_bilm=False).train()
        assert all(module.training for module in model.modules())
        model(**tiny_batch(), labels=torch.zeros(4, 11).long()).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    def test_states_with_a_gradient_still_give_it(self) -> None:
        model = tiny_model()
        states = tuple(state.detach().requires_grad_() for state in model(**tiny_batch()).states)
        model(**tiny_batch(), states=states).last_hidden_state.sum().backward()
        assert states[0].grad.abs().max() > 0

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_a_frozen_bilm_runs_in_less_precision_and_is_saved_as_it_was(self, dtype: str, tmp_path: Path) -> None:
        plain = head(ElmoForTokenClassification)
        model = head(ElmoForTokenClassification, frozen_bilm_dtype=dtype)
        recorded: list[torch.Tensor] = []
        model.elmo.encoder.layers[1].register_forward_hook(lambda *_: recorded.append(_[2][0]))
        output = model(**tiny_batch(), output_hidden_states=True)
        assert recorded[0].dtype == getattr(torch, dtype)
        assert output.logits.dtype == torch.float32
        expected = plain(**tiny_batch(), output_hidden_states=True)
        assert_close(output.logits, expected.logits, 0.05 * float(expected.logits.abs().max()))
        largest = float(expected.hidden_states[2].abs().max())
        assert_close(output.hidden_states[2], expected.hidden_states[2], 0.05 * largest)
        assert_far(output.logits, expected.logits, 1e-6)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        model.save_pretrained(tmp_path)
        again = ElmoForTokenClassification.from_pretrained(tmp_path)
        for name, weight in plain.state_dict().items():
            assert_identical(again.state_dict()[name], weight, name)
        assert_close(again(**tiny_batch()).logits, output.logits, ROUNDING)

    def test_the_copy_in_less_precision_follows_the_weights(self) -> None:
        model = head(ElmoForTokenClassification, frozen_bilm_dtype="bfloat16")
        before = model(**tiny_batch()).logits
        with torch.no_grad():
            model.elmo.encoder.layers[0].forward_lstm.projection.weight.mul_(2)
        assert_far(model(**tiny_batch()).logits, before, 1e-3)
        model.requires_grad_(True)
        exact = head(ElmoForTokenClassification)
        exact.load_state_dict(model.state_dict())
        assert_close(model(**tiny_batch()).logits, exact(**tiny_batch()).logits, ROUNDING)

    def test_a_frozen_bilm_in_less_precision_trains_the_head(self) -> None:
        model = head(ElmoForTokenClassification, frozen_bilm_dtype="bfloat16").train()
        model(**tiny_batch(), labels=torch.zeros(4, 11).long()).loss.backward()
        assert model.elmo.representations[0].gamma.grad.abs() > 0


class TestParameterGroups:
    def test_the_bilm_has_a_learning_rate_of_its_own(self) -> None:
        model = head(ElmoForTokenClassification, freeze_bilm=False, use_crf=True)
        groups = {
            group["name"]: group for group in parameter_groups(model, 0.01, bilm_learning_rate=0.001, weight_decay=0.1)
        }
        assert {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()} == {
            "bilm_matrices": (0.001, 0.1),
            "bilm_vectors": (0.001, 0.0),
            "task_matrices": (0.01, 0.1),
            "task_vectors": (0.01, 0.0),
        }
        inside = {id(p) for part in (model.elmo.embeddings, model.elmo.encoder) for p in part.parameters()}
        for name, group in groups.items():
            assert all((id(parameter) in inside) == name.startswith("bilm") for parameter in group["params"])
            assert all((parameter.dim() > 1) == name.endswith("matrices") for parameter in group["params"])
        assert sum(len(group["params"]) for group in groups.values()) == len(list(model.parameters()))

    def test_what_is_frozen_is_left_out(self) -> None:
        groups = parameter_groups(head(ElmoForTokenClassification), 0.01)
        assert [group["name"] for group in groups] == ["task_vectors", "task_matrices"]
        assert parameter_groups(ElmoModel(tiny_config(freeze_bilm=False)), 0.01)[0]["lr"] == 0.001

    def test_what_cannot_be_is_told_in_a_sentence(self) -> None:
        with pytest.raises(ValueError, match="`bilm_learning_rate` must be 0 or more, but is -1"):
            parameter_groups(tiny_model(), 0.01, -1)
        with pytest.raises(ValueError, match="takes a model with an ELMo in it, not Linear"):
            parameter_groups(torch.nn.Linear(2, 2), 0.01)
        with pytest.raises(ValueError, match="Nothing of this model is trained"):
            parameter_groups(tiny_model(mix_trainable=False), 0.01)


SETTINGS = [
    (ElmoForTokenClassification, {**NETWORKS["everything"], "use_crf": True, "label_scheme": "BIO", **BIO}),
    (ElmoForTokenClassification, {"use_predicate_indicator": True, "mix_layers": [-1], "mix_layer_norm": True}),
    *[
        (ElmoForSequenceClassification, {**NETWORKS["everything"], "classifier_pooling": pooling})
        for pooling in POOLINGS
    ],
    *[(ElmoForTokenClassification, NETWORKS[name]) for name in ("no ELMo", "only at the output", "fixed mix")],
]


class TestSaving:
    @pytest.mark.parametrize(("model_class", "settings"), SETTINGS)
    def test_every_setting_survives_saving(self, model_class: type, settings: Any, tmp_path: Path) -> None:
        model = head(model_class, **settings)
        model.save_pretrained(tmp_path)
        again, report = model_class.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert_close(run(again, words_batch()).logits, run(model, words_batch()).logits, ROUNDING)
        expected = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        assert [name for name, parameter in again.named_parameters() if parameter.requires_grad] == expected

    def test_a_head_is_made_of_a_folder_with_settings(self, tmp_path: Path) -> None:
        folder = save_folder(tmp_path / "elmo")
        settings: dict[str, Any] = {"elmo_at_output": True, "use_crf": True, "label_scheme": "BIO", **BIO}
        model = AutoModelForTokenClassification.from_pretrained(folder, **settings)
        assert len(model.elmo.representations) == 2
        assert model.config.num_labels == 3
        assert model.crf.allowed is not None
        with pytest.raises(Exception, match="`task_embedding_size` needs `word_vocab_size`"):
            AutoModelForSequenceClassification.from_pretrained(folder, task_embedding_size=4)

    def test_a_new_head_starts_well(self, tmp_path: Path) -> None:
        folder = save_folder(tmp_path / "elmo", word_vocab_size=WORDS)
        model = ElmoForTokenClassification.from_pretrained(folder, task_embedding_size=4, use_crf=True, num_labels=3)
        lstm = model.task_network.encoder.layers[0].backward_lstm
        assert lstm.bias_ih_l0.tolist() == [0.0] * 7 + [1.0] * 7 + [0.0] * 14
        assert not lstm.bias_hh_l0.any()
        table = model.task_network.embeddings.weight
        assert not table[0].any()
        assert 0.15 < table[1:].abs().max() <= 0.25
        assert not model.crf.transitions.any()
        assert model.elmo.layer_weights().weights.tolist() == [pytest.approx([1 / 3] * 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("shared") / "elmo")


class TestSavingTheTaskAlone:
    def head_of(self, folder: Path, **settings: Any) -> ElmoForTokenClassification:
        model = ElmoForTokenClassification.from_pretrained(folder, use_crf=True, num_labels=3, **settings)
        with torch.no_grad():
            model.classifier.bias.copy_(torch.tensor([0.5, -0.5, 0.0]))
        return model

    def test_the_bilm_stays_where_it_is(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = self.head_of(folder)
        model.save_pretrained(tmp_path / "task", task_only=True)
        whole = sum(p.numel() for p in model.elmo.encoder.parameters())
        assert (tmp_path / "task" / "model.safetensors").stat().st_size < whole * 4
        config = json.loads((tmp_path / "task" / "config.json").read_text())
        assert config["bilm_reference"] == str(folder)
        assert model.config.bilm_reference is None
        monkeypatch.chdir(tmp_path)
        for again in (
            ElmoForTokenClassification.from_pretrained("task"),
            AutoModelForTokenClassification.from_pretrained(tmp_path / "task"),
        ):
            assert_close(again(**tiny_batch()).logits, model(**tiny_batch()).logits, ROUNDING)
            assert not again.elmo.encoder.layers[0].forward_lstm.projection.weight.requires_grad
        vectors = ElmoModel.from_pretrained("task")(**tiny_batch()).last_hidden_state
        assert_close(vectors, model.elmo(**tiny_batch()).last_hidden_state, ROUNDING)

    def test_nothing_is_said_to_be_missing(self, folder: Path, tmp_path: Path) -> None:
        self.head_of(folder).save_pretrained(tmp_path, task_only=True)
        _, report = ElmoForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    def test_it_is_saved_again_whole_or_not(self, folder: Path, tmp_path: Path) -> None:
        model = self.head_of(folder)
        model.save_pretrained(tmp_path / "task", task_only=True)
        again = ElmoForTokenClassification.from_pretrained(tmp_path / "task")
        again.save_pretrained(tmp_path / "task2", task_only=True)
        again.save_pretrained(tmp_path / "whole")
        whole = json.loads((tmp_path / "whole" / "config.json").read_text())
        assert whole.get("bilm_reference") is None
        for name in ("task2", "whole"):
            loaded = ElmoForTokenClassification.from_pretrained(tmp_path / name)
            assert_close(loaded(**tiny_batch()).logits, model(**tiny_batch()).logits, ROUNDING)
        assert json.loads((tmp_path / "task2" / "config.json").read_text())["bilm_reference"] == str(folder)

    def test_a_bilm_that_moved_is_named(self, folder: Path, tmp_path: Path) -> None:
        base = save_folder(tmp_path / "base")
        model = self.head_of(base)
        model.save_pretrained(tmp_path / "task", task_only=True)
        base.rename(tmp_path / "moved")
        with pytest.raises(ValueError, match=r"The biLM that .*task shares cannot be loaded from .*base .*`bilm=`"):
            ElmoForTokenClassification.from_pretrained(tmp_path / "task")
        again = ElmoForTokenClassification.from_pretrained(tmp_path / "task", bilm=tmp_path / "moved")
        assert_close(again(**tiny_batch()).logits, model(**tiny_batch()).logits, ROUNDING)

    def test_a_bilm_that_changed_is_noticed(self, tmp_path: Path) -> None:
        base = save_folder(tmp_path / "base")
        self.head_of(base).save_pretrained(tmp_path / "task", task_only=True)
        tiny_model(seed=1).save_pretrained(base)
        with pytest.raises(ValueError, match=r"The biLM in .*base is not the one that the task in .*task was trained"):
            ElmoForTokenClassification.from_pretrained(tmp_path / "task")

    def test_a_bilm_that_was_trained_is_not_left_out(self, folder: Path, tmp_path: Path) -> None:
        model = self.head_of(folder, freeze_bilm=False)
        with torch.no_grad():
            model.elmo.encoder.layers[0].forward_lstm.projection.weight.add_(0.01)
        with pytest.raises(ValueError, match=r"is not the one in .*elmo: it was trained on.*save the whole model"):
            model.save_pretrained(tmp_path / "task", task_only=True)
        assert not (tmp_path / "task").exists()
        assert model.config.bilm_reference is None

    def test_a_model_from_nowhere_and_the_folder_of_the_bilm_itself(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"cannot be loaded from nowhere .*pass `bilm=`"):
            head(ElmoForTokenClassification).save_pretrained(tmp_path, task_only=True)
        with pytest.raises(ValueError, match="elmo holds the biLM: save the task's weights beside it"):
            self.head_of(folder).save_pretrained(folder, task_only=True)

    def test_a_model_in_half_precision_refers_to_the_whole(self, folder: Path, tmp_path: Path) -> None:
        model = self.head_of(folder, dtype=torch.bfloat16)
        model.save_pretrained(tmp_path, task_only=True)
        again = ElmoForTokenClassification.from_pretrained(tmp_path)
        assert again.dtype == torch.bfloat16
        assert_identical(
            again.elmo.encoder.layers[0].forward_lstm.projection.weight,
            model.elmo.encoder.layers[0].forward_lstm.projection.weight,
        )


class TestBadInput:
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (torch.tensor([0, 3, 1, 0]), "numbers from 0 to 2, as the model has 3 labels .*reach from 0 to 3"),
            (torch.tensor([0, -1, 1, 0]), "numbers from 0 to 2"),
            (torch.tensor([0.0, 1.0, 2.0, 0.0]), r"3 numbers a text, shape \(4, 3\), or a class each, whole numbers"),
            (torch.tensor([0, 1]), "a class for each of the 4 texts"),
        ],
    )
    def test_labels_of_texts(self, labels: torch.Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=f"`labels` must .*{message}"):
            head(ElmoForSequenceClassification)(**tiny_batch(), labels=labels)

    @pytest.mark.parametrize("use_crf", [False, True])
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (torch.full((4, 11), 3), "numbers from 0 to 2, as the model has 3 labels .*or -100; but they reach"),
            (torch.full((4, 11), -1), "numbers from 0 to 2"),
            (torch.zeros(4, 11), "whole numbers of classes, but has the type torch.float32"),
            (torch.zeros(4, 9).long(), r"the shape \(batch, words\) \(4, 11\) of the words, boundaries included"),
        ],
    )
    def test_labels_of_words(self, use_crf: bool, labels: torch.Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=f"`labels` must .*{message}"):
            head(ElmoForTokenClassification, use_crf=use_crf)(**tiny_batch(), labels=labels)

    @pytest.mark.parametrize("model_class", HEADS)
    def test_what_is_missing_or_does_not_fit(self, model_class: type) -> None:
        batch = words_batch()
        mask, layers = batch["attention_mask"], torch.zeros(4, 11, 30)
        model = head(model_class, task_embedding_size=5)
        for arguments, message in [
            ({}, "A head needs `input_ids`, or the `layers`"),
            ({"layers": layers[..., :-1]}, r"`layers` must have the shape \(batch, words, 30\).*another model"),
            ({"layers": layers.long()}, "`layers` must have .*type torch.int64"),
            ({"layers": layers, "attention_mask": mask[:, :-1]}, r"`attention_mask` .*\(4, 11\) of `layers`"),
            ({"layers": layers}, "This head has word vectors .*but is missing"),
            ({"layers": layers, "word_input_ids": mask[:, :-1]}, r"`word_input_ids` .*of the shape \(4, 10\)"),
            ({"layers": layers, "word_input_ids": mask * 10}, "has the id 10, but the head has vectors of 9 words"),
        ]:
            with pytest.raises(ValueError, match=message):
                model(**arguments)

    def test_predicates_and_second_texts(self) -> None:
        model = head(ElmoForTokenClassification, use_predicate_indicator=True)
        with pytest.raises(ValueError, match=r"which word is the predicate .*`token_type_ids`"):
            model(**tiny_batch())
        for one in (model, head(ElmoForSequenceClassification)):
            with pytest.raises(
                ValueError, match=r"`token_type_ids` must have the shape .*\(4, 11\), but has \(4, 3\)"
            ):
                one(**tiny_batch(), token_type_ids=torch.zeros(4, 3))

    def test_single_words_and_words_over_the_limit(self) -> None:
        long = ["п" * 40, "x" * 100]
        for model in (head(ElmoForSequenceClassification, elmo_at_output=True), head(ElmoForTokenClassification)):
            for sentences in ([["Да"]], [["Yes"], long], [long]):
                assert model(**tiny_batch(sentences)).logits.isfinite().all()
            same = [["п" * 24, "x" * 48]]
            assert_identical(model(**tiny_batch([long])).logits, model(**tiny_batch(same)).logits)


class TestWhatATrainerMayDo:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_layers_of_any_precision_are_trained_on_under_autocast(self, dtype: torch.dtype) -> None:
        model = head(ElmoForTokenClassification, **NOTHING_DROPPED).train()
        batch = words_batch()
        labels = torch.zeros(batch["input_ids"].shape[:2], dtype=torch.long)
        expected = model(**batch, labels=labels).loss
        layers = as_layers(model, batch)
        layers["layers"] = layers["layers"].to(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**layers, labels=labels).loss
        loss.backward()
        assert_close(loss, expected, 0.05)

    def test_a_bilm_that_is_trained_takes_no_layers_that_would_not_change(self) -> None:
        model = head(ElmoForTokenClassification, freeze_bilm=False)
        layers = as_layers(model, words_batch())
        run(model, layers)
        with pytest.raises(ValueError, match="leave the biLM frozen"):
            model.train()(**layers)

    def test_layers_of_pairs_come_back_as_the_words_give_them(self) -> None:
        model = head(ElmoForSequenceClassification)
        batch = pairs_batch([(SENTENCES[0], SENTENCES[1]), (SENTENCES[2], SENTENCES[0])])
        expected = run(model, batch, output_hidden_states=True).hidden_states
        rest = {name: values for name, values in batch.items() if name != "input_ids"}
        rest["layers"] = model.elmo.join_layers(expected)
        found = run(model, rest, output_hidden_states=True).hidden_states
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, ROUNDING)

    def test_a_crf_that_is_given_no_labels_says_that_it_does_not_learn(self, caplog: pytest.LogCaptureFixture) -> None:
        model = head(ElmoForTokenClassification, use_crf=True).train()
        type(heads_elmo.logger).warning_once.cache_clear()  # another test may have had the warning
        with caplog.at_level("WARNING"):
            model(**words_batch())
        assert "does not learn" in caplog.text

    def test_a_batch_without_any_label_has_no_loss(self) -> None:
        model = head(ElmoForSequenceClassification, num_labels=3).train()
        loss = model(**words_batch(), labels=torch.full((len(SENTENCES),), -100)).loss
        loss.backward()
        assert float(loss) == 0.0

    def test_a_text_classifier_marks_no_predicate(self) -> None:
        model = head(ElmoForSequenceClassification, use_predicate_indicator=True)
        assert torch.isfinite(model(**words_batch()).logits).all()

    def test_predicates_go_along_with_elmo_at_the_output_alone(self) -> None:
        settings = {"elmo_at_input": False, "elmo_at_output": True, "task_num_layers": 0}
        model = head(ElmoForTokenClassification, use_predicate_indicator=True, **settings)
        batch = words_batch()
        types = torch.zeros_like(batch["attention_mask"])
        without = model(**batch, token_type_ids=types).logits
        types[:, 1] = 1
        assert_far(model(**batch, token_type_ids=types).logits[:, 1].detach(), without[:, 1].detach(), 1e-6)

    def test_only_a_frozen_bilm_has_a_precision_of_its_own(self) -> None:
        with pytest.raises(StrictDataclassError, match="needs `freeze_bilm=True`"):
            tiny_config(freeze_bilm=False, frozen_bilm_dtype="bfloat16")
