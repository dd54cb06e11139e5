"""`ElmoForPreTraining`: what each direction predicts, in sentences and in streams, and how it is trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoModelForTokenClassification

from hf_elmo import ElmoForPreTraining, ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel
from hf_elmo.fast_paths_elmo import without_fast_paths
from hf_elmo.modeling_elmo import ElmoLayer, turn_words
from hf_elmo.softmax_elmo import draw_words, draws_for
from tests.assertions import assert_close, assert_far, assert_identical
from tests.noted_warnings import noted_warnings
from tests.reference import Architecture, Array, ReferenceBiLm, characters_of, random_weights
from tests.reference_models import config_of, state_dict_of
from tests.saved_folders import convert_folder, save_folder
from tests.tiny_models import SENTENCES, tiny_batch, tiny_config, tiny_model

WORDS = 23
ROUNDING = 5e-5  # of float32; a mistake shows at 0.01 and more
NONE = -100
Batch = dict[str, torch.Tensor]


def language_model(seed: int = 0, **overrides: Any) -> ElmoForPreTraining:
    """A tiny language model in evaluation mode, whose words differ enough that a mistake shows."""
    model = tiny_model(ElmoForPreTraining, seed, **{"word_vocab_size": WORDS, **overrides})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolutions" in name or "lstm" in name:
                parameter.mul_(3.0)
        model.softmax.bias.copy_(torch.linspace(-1, 1, len(model.softmax.bias)))
    return model


def labelled(batch: Batch | None = None, seed: int = 0) -> Batch:
    """A batch of whole sentences with word numbers as labels: 0 and 1 at the boundaries."""
    batch = dict(batch or tiny_batch())
    mask = batch["attention_mask"].bool()
    labels = torch.randint(2, WORDS, mask.shape, generator=torch.Generator().manual_seed(seed))
    marks = batch["input_ids"][..., 1]
    labels = labels.masked_fill(marks == 257, 0).masked_fill(marks == 258, 1).masked_fill(~mask, NONE)
    return {**batch, "labels": labels}


def as_streams(batch: Batch) -> Batch:
    """The same sentences as streams, padded on the right: what each direction reads and what comes next."""
    mask = batch["attention_mask"].bool()
    turned = turn_words(mask)
    backward_ids = batch["input_ids"].gather(1, turned[..., None].expand_as(batch["input_ids"]))
    backward_words = batch["labels"].gather(1, turned)
    forward_labels, backward_labels = (
        torch.nn.functional.pad(words[:, 1:], (0, 1), value=NONE) for words in (batch["labels"], backward_words)
    )
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "backward_input_ids": backward_ids,
        "forward_labels": forward_labels,
        "backward_labels": backward_labels,
    }


def streams(steps: int, rows: int = 3, seed: int = 0) -> Batch:
    """Random words in parallel streams, other ones for each direction, without padding."""
    generator = torch.Generator().manual_seed(seed)
    words = [np.stack([characters_of(f"w{number}") for number in range(WORDS)])] * 2
    batch = {}
    for name, characters in zip(("input_ids", "backward_input_ids"), words, strict=True):
        numbers = torch.randint(WORDS, (rows, steps), generator=generator)
        batch[name] = torch.as_tensor(characters)[numbers]
    for name in ("forward_labels", "backward_labels"):
        batch[name] = torch.randint(WORDS, (rows, steps), generator=generator)
    return batch


def slice_steps(batch: Batch, start: int, stop: int) -> Batch:
    return {name: value[:, start:stop] for name, value in batch.items()}


def run(model: ElmoForPreTraining, batch: Batch, **arguments: Any) -> Any:
    with torch.no_grad():
        return model(**batch, **arguments)


def negative_log_likelihood(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def words_of(batch: Batch) -> list[slice]:
    """Where the words of each row are."""
    return [slice(int(row.nonzero()[0]), int(row.nonzero()[-1]) + 1) for row in batch["attention_mask"]]


class TestSentences:
    @pytest.mark.parametrize("side", ["right", "left"])
    def test_each_word_is_predicted_from_the_word_beside_it(self, side: str) -> None:
        batch = labelled(tiny_batch(side=side))
        output = run(language_model(), batch, output_logits=True, reduction="none")
        for row, words in enumerate(words_of(batch)):
            labels = batch["labels"][row, words].tolist()
            forward = output.forward_logits[row, words].log_softmax(dim=-1)
            backward = output.backward_logits[row, words].log_softmax(dim=-1)
            last = len(labels) - 1
            expected_forward = [-forward[t, labels[t + 1]].item() for t in range(last)] + [0.0]
            expected_backward = [0.0] + [-backward[t, labels[t - 1]].item() for t in range(1, last + 1)]
            assert_close(output.forward_loss[row, words], expected_forward, ROUNDING)
            assert_close(output.backward_loss[row, words], expected_backward, ROUNDING)
        assert not output.forward_loss[batch["attention_mask"] == 0].any()
        assert not output.backward_loss[batch["attention_mask"] == 0].any()

    def test_a_loss_is_the_mean_over_words_and_directions(self) -> None:
        model, batch = language_model(), labelled()
        mean, each = run(model, batch), run(model, batch, reduction="none")
        count = sum(len(sentence) + 1 for sentence in SENTENCES)
        assert_close(mean.forward_loss, each.forward_loss.sum() / count, ROUNDING)
        assert_close(mean.backward_loss, each.backward_loss.sum() / count, ROUNDING)
        assert_close(mean.loss, (mean.forward_loss + mean.backward_loss) / 2, ROUNDING)
        assert_far(mean.forward_loss, mean.backward_loss, 1e-3)
        assert_close(each.loss, (each.forward_loss + each.backward_loss) / 2, ROUNDING)

    def test_words_without_label_are_no_targets_but_are_read(self) -> None:
        model, batch = language_model(), labelled()
        whole = run(model, batch, reduction="none")
        batch["labels"][2, 4] = NONE
        output = run(model, batch, reduction="none")
        expected_forward, expected_backward = whole.forward_loss.clone(), whole.backward_loss.clone()
        expected_forward[2, 3] = expected_backward[2, 5] = 0
        assert_identical(output.forward_loss, expected_forward)
        assert_identical(output.backward_loss, expected_backward)

    def test_padding_and_other_sentences_change_nothing(self) -> None:
        model, batch = language_model(), labelled()
        together = run(model, batch, reduction="none")
        for row, words in enumerate(words_of(batch)):
            alone = run(model, {name: value[row : row + 1, words] for name, value in batch.items()}, reduction="none")
            assert_close(together.forward_loss[row, words], alone.forward_loss[0], ROUNDING)
            assert_close(together.backward_loss[row, words], alone.backward_loss[0], ROUNDING)

    def test_labels_at_padding_may_be_anything(self) -> None:
        model, batch = language_model(), labelled()
        expected = run(model, batch).loss
        batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -1)
        assert_identical(run(model, batch).loss, expected)
        del batch["attention_mask"]
        assert_identical(run(model, batch).loss, expected)

    def test_hidden_states_and_states_are_those_of_the_model(self) -> None:
        model, batch = language_model(), tiny_batch()
        output = run(model, batch, output_hidden_states=True)
        with torch.no_grad():
            expected = model.elmo(**batch, output_hidden_states=True)
        for ours, theirs in zip(output.hidden_states, expected.hidden_states, strict=True):
            assert_identical(ours, theirs)
        for ours, theirs in zip(output.states, expected.states, strict=True):
            assert_identical(ours, theirs)
        again = run(model, batch, output_hidden_states=True, states=output.states)
        assert_far(again.hidden_states[1], output.hidden_states[1], 1e-3)

    def test_what_was_not_asked_for_is_not_there(self) -> None:
        model, batch = language_model(), labelled()
        output = run(model, batch)
        assert set(output) == {"loss", "forward_loss", "backward_loss", "states"}
        assert set(run(model, tiny_batch())) == {"states"}
        assert isinstance(run(model, batch, return_dict=False), tuple)

    def test_logits_come_from_one_softmax_for_both_directions(self) -> None:
        model, batch = language_model(), tiny_batch()
        output = run(model, batch, output_logits=True, output_hidden_states=True)
        for logits, hidden in zip(
            (output.forward_logits, output.backward_logits), output.hidden_states[-1].chunk(2, dim=-1), strict=True
        ):
            assert_close(logits, hidden @ model.softmax.weight.T + model.softmax.bias, ROUNDING)

    def test_no_label_at_all_is_a_loss_of_zero(self) -> None:
        batch = labelled()
        batch["labels"] = torch.full_like(batch["labels"], NONE)
        model = language_model()
        output = model(**batch)
        assert output.loss == 0
        output.loss.backward()
        assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


class TestStreams:
    def test_a_sentence_read_as_two_streams_has_the_same_losses(self) -> None:
        model, batch = language_model(), labelled()
        wanted = {"reduction": "none", "output_logits": True, "output_hidden_states": True}
        sentences, both = run(model, batch, **wanted), run(model, as_streams(batch), **wanted)
        turned = turn_words(batch["attention_mask"].bool())
        assert_close(both.forward_loss, sentences.forward_loss, ROUNDING)
        assert_close(both.backward_loss, sentences.backward_loss.gather(1, turned), ROUNDING)
        assert_close(both.loss, (both.forward_loss + both.backward_loss) / 2, ROUNDING)
        words = batch["attention_mask"].bool()
        assert_close(both.forward_logits[words], sentences.forward_logits[words], ROUNDING)
        backward = sentences.backward_logits.gather(1, turned[..., None].expand(-1, -1, WORDS))
        assert_close(both.backward_logits[words], backward[words], ROUNDING)
        for ours, theirs in zip(both.hidden_states, sentences.hidden_states, strict=True):
            forward_half, backward_half = theirs.chunk(2, dim=-1)
            backward_half = backward_half.gather(1, turned[..., None].expand_as(backward_half))
            assert_close(ours, torch.cat([forward_half, backward_half], dim=-1), ROUNDING)
        for ours, theirs in zip(both.states, sentences.states, strict=True):
            assert_close(ours, theirs, ROUNDING)

    @pytest.mark.parametrize("unroll", [1, 2, 3, 7])
    def test_unrolled_steps_are_the_steps_one_by_one(self, unroll: int) -> None:
        model, batch = language_model(), streams(12)
        whole = run(model, batch, reduction="none", output_logits=True)
        states, parts = None, []
        for start in range(0, 12, unroll):
            output = run(
                model, slice_steps(batch, start, start + unroll), reduction="none", output_logits=True, states=states
            )
            states = output.states
            parts.append(output)
        for name in ("forward_loss", "backward_loss", "forward_logits", "backward_logits"):
            assert_close(torch.cat([part[name] for part in parts], dim=1), whole[name], ROUNDING, name)
        for ours, theirs in zip(states, whole.states, strict=True):
            assert_close(ours, theirs, ROUNDING)

    def test_labels_are_those_of_the_next_word_in_reading_order(self) -> None:
        batch = streams(5)
        output = run(language_model(), batch, reduction="none", output_logits=True)
        for direction in ("forward", "backward"):
            expected = negative_log_likelihood(output[f"{direction}_logits"], batch[f"{direction}_labels"])
            assert_close(output[f"{direction}_loss"], expected, ROUNDING)

    def test_streams_that_end_leave_the_states_of_their_last_word(self) -> None:
        model, batch = language_model(), streams(6)
        batch["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
        start = run(model, streams(4, seed=1)).states
        output = run(model, batch, states=start, reduction="none")
        assert not output.forward_loss[batch["attention_mask"] == 0].any()
        for row, steps in enumerate((6, 3)):
            part = {name: value[row : row + 1, :steps] for name, value in batch.items()}
            alone = run(model, part, states=[state[:, row : row + 1] for state in start], reduction="none")
            assert_close(output.forward_loss[row, :steps], alone.forward_loss[0], ROUNDING)
            assert_close(output.backward_loss[row, :steps], alone.backward_loss[0], ROUNDING)
            for ours, theirs in zip(output.states, alone.states, strict=True):
                assert_close(ours[:, row], theirs[:, 0], ROUNDING)
        for ours, theirs in zip(output.states, start, strict=True):
            assert_identical(ours[:, 2], theirs[:, 2])

    def test_rows_may_come_and_go(self) -> None:
        model = language_model()
        states = run(model, streams(3, rows=3)).states
        fewer = run(model, streams(3, rows=2, seed=1), states=states).states
        for ours, theirs in zip(fewer, states, strict=True):
            assert_identical(ours[:, 2], theirs[:, 2])
        more = run(model, streams(3, rows=4, seed=2), states=states).states
        alone = run(model, {name: value[3:] for name, value in streams(3, rows=4, seed=2).items()}).states
        for ours, theirs in zip(more, alone, strict=True):
            assert_close(ours[:, 3], theirs[:, 0], ROUNDING)

    @pytest.mark.parametrize(
        "mask", [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]]
    )
    def test_turning_words_round_leaves_the_padding(self, mask: list[int]) -> None:
        places = [place for place, is_word in enumerate(mask) if is_word]
        swap = dict(zip(places, reversed(places), strict=True))
        expected = [swap.get(place, place) for place in range(len(mask))]
        assert turn_words(torch.tensor([mask], dtype=torch.bool)).tolist() == [expected]


class TestWhatADirectionSees:
    """Another word at one place may change only what has read it."""

    @staticmethod
    def assert_seen_from(changed: torch.Tensor, original: torch.Tensor, seen: slice, length: int) -> None:
        """Asserts that logits (length, V) differ in every row of a slice and nowhere else."""
        differs = ((changed - original).abs().amax(dim=-1) > 1e-5).tolist()
        expected = [False] * length
        expected[seen] = [True] * len(expected[seen])
        assert differs == expected

    @pytest.mark.parametrize("place", range(1, 10))
    def test_sentences(self, place: int) -> None:
        model, batch = language_model(), tiny_batch([SENTENCES[2]])
        original = run(model, batch, output_logits=True)
        batch["input_ids"][0, place] = torch.as_tensor(characters_of("другое"))
        changed = run(model, batch, output_logits=True)
        self.assert_seen_from(changed.forward_logits[0], original.forward_logits[0], slice(place, None), 11)
        self.assert_seen_from(changed.backward_logits[0], original.backward_logits[0], slice(place + 1), 11)

    @pytest.mark.parametrize("place", [0, 3, 6])
    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_streams(self, place: int, direction: str) -> None:
        model, batch = language_model(), streams(7, rows=1)
        original = run(model, batch, output_logits=True)
        name = "input_ids" if direction == "forward" else "backward_input_ids"
        batch[name][0, place] = torch.as_tensor(characters_of("другое"))
        changed = run(model, batch, output_logits=True)
        for each in ("forward", "backward"):
            seen = slice(place, None) if each == direction else slice(0)
            self.assert_seen_from(changed[f"{each}_logits"][0], original[f"{each}_logits"][0], seen, 7)

    def test_a_label_is_no_input(self) -> None:
        model, batch = language_model(), labelled()
        expected = run(model, batch, output_logits=True)
        output = run(model, {**batch, "labels": labelled(seed=1)["labels"]}, output_logits=True)
        assert_identical(output.forward_logits, expected.forward_logits)
        assert_identical(output.backward_logits, expected.backward_logits)


ARCHITECTURE = Architecture(char_dim=3, filters=((1, 4), (2, 3)), projection=5, cell=7, highways=1)


def reference_model(architecture: Architecture = ARCHITECTURE, **overrides: Any) -> tuple[Any, dict[str, Array]]:
    """A language model in double precision and its biLM's arrays under their original names."""
    weights = random_weights(architecture, seed=0)
    model = ElmoForPreTraining(config_of(architecture, word_vocab_size=WORDS, **overrides)).double()
    model.elmo.load_state_dict(state_dict_of(architecture, weights), strict=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.softmax.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).double())
    return model, weights


@contextmanager
def recorded_dropout(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, Array]]]:
    """Notes the probability and the factors of every dropout in training."""
    seen: list[tuple[float, Array]] = []
    generator = torch.Generator().manual_seed(7)

    def dropout(inputs: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not p:
            return inputs
        factors = (torch.rand(inputs.shape, generator=generator) >= p).to(inputs) / (1 - p)
        seen.append((p, factors.numpy()))
        return inputs * factors

    with monkeypatch.context() as patch, without_fast_paths("dropout_from_bits"):
        patch.setattr(torch.nn.functional, "dropout", dropout)
        yield seen


class TestTraining:
    @pytest.mark.parametrize("skip", [True, False])
    @pytest.mark.parametrize("num_sampled", [None, 6])
    def test_the_loss_of_a_step_is_that_of_the_equations_by_hand(
        self, skip: bool, num_sampled: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Dropout at the input of each LSTM, the skip connection behind it, and at the top, as in bilm-tf."""
        architecture = ARCHITECTURE.but(skip=skip, layers=3)
        model, weights = reference_model(architecture, num_sampled_words=num_sampled, bilm_dropout=0.3)
        batch = labelled(tiny_batch(SENTENCES[:2]))
        model.train()
        with recorded_dropout(monkeypatch) as seen:
            torch.manual_seed(3)
            output = model(**batch)
        assert [p for p, _ in seen] == [0.3] * 4
        factors = [mask for _, mask in seen]

        torch.manual_seed(3)
        reference = ReferenceBiLm(architecture, weights)
        softmax = {name: value.detach().numpy() for name, value in model.softmax.named_parameters()}
        for direction, found in enumerate((output.forward_loss, output.backward_loss)):
            candidates = np.arange(WORDS)
            correction = np.zeros(WORDS)
            if num_sampled is not None:
                draws = draws_for(num_sampled, WORDS)
                candidates = draw_words(draws, WORDS, torch.device("cpu")).numpy()
                chance = np.log1p(1 / (np.arange(WORDS) + 1.0)) / np.log(WORDS + 1.0)
                correction = np.log(1 - (1 - chance) ** draws)
            losses = []
            for row, sentence in enumerate(SENTENCES[:2]):
                length = len(sentence) + 2
                walk = slice(None) if direction == 0 else slice(None, None, -1)
                half = slice(direction * 5, direction * 5 + 5)
                masks = [mask[row, :length, half][walk] for mask in factors]
                x = reference.token_layer(batch["input_ids"][row, :length].numpy())[walk]
                for layer in range(3):
                    x = x * masks[layer]
                    y, _, _ = reference.lstm(x, direction, layer, np.zeros(5), np.zeros(7))
                    x = x + y if skip and layer > 0 else y
                x = x * masks[3]
                labels = batch["labels"][row, :length].numpy()[walk]
                logits = x @ softmax["weight"].T + softmax["bias"] - correction
                for vector, target in zip(logits[:-1], labels[1:], strict=True):
                    others = [word for word in candidates if word != target]
                    losses.append(np.log(np.exp(vector[[target, *others]]).sum()) - vector[target])
            assert_close(found, np.mean(losses), 1e-6, f"direction {direction}")
        assert_close(output.loss, (output.forward_loss + output.backward_loss) / 2, 1e-12)

    @pytest.mark.parametrize("num_sampled", [None, 6])
    @pytest.mark.parametrize("mode", ["sentences", "streams"])
    def test_gradients_are_those_of_finite_differences(self, mode: str, num_sampled: int | None) -> None:
        """Along two random directions for each of the parameters, with clips, dropout and drawn words."""
        model, _ = reference_model(num_sampled_words=num_sampled, bilm_dropout=0.3)
        batch = labelled(tiny_batch(SENTENCES[:2]))
        batch = batch if mode == "sentences" else as_streams(batch)
        model.train()

        def loss() -> torch.Tensor:
            torch.manual_seed(0)
            return model(**batch).loss

        loss().backward()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            for _ in range(2):
                direction = torch.randn(parameter.shape, generator=generator).double()
                values = []
                for step in (1e-6, -1e-6):
                    with torch.no_grad():
                        parameter.add_(step * direction)
                        values.append(loss().item())
                        parameter.sub_(step * direction)
                expected = (values[0] - values[1]) / 2e-6
                found = (parameter.grad * direction).sum().item()
                assert abs(found - expected) <= 1e-5 * max(1.0, abs(expected)), f"{name}: {found} for {expected}"

    @pytest.mark.parametrize("num_sampled", [None, 6])
    def test_everything_but_the_mixes_is_trained_whatever_is_frozen_elsewhere(self, num_sampled: int | None) -> None:
        for freeze in (True, False):
            model = language_model(freeze_bilm=freeze, num_sampled_words=num_sampled).train()
            frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
            assert frozen == {"elmo.representations.0.scalar_parameters", "elmo.representations.0.gamma"}
            model(**labelled()).loss.backward()
            for name, parameter in model.named_parameters():
                if name not in frozen:
                    assert parameter.grad.isfinite().all()
                    assert parameter.grad.any(), name

    def test_both_directions_train_the_token_layer_and_the_softmax(self) -> None:
        model, batch = language_model(), labelled()
        for direction, other in (("forward", "backward"), ("backward", "forward")):
            model.zero_grad()
            model(**batch)[f"{direction}_loss"].backward()
            reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
            reached = {name for name in reached if model.get_parameter(name).grad.any()}
            assert {"softmax.weight", "elmo.embeddings.projection.weight"} <= reached
            assert any(f"{direction}_lstm" in name for name in reached)
            assert not any(f"{other}_lstm" in name for name in reached)

    def test_accumulated_gradients_are_those_of_one_batch(self) -> None:
        model = language_model(bilm_dropout=0.0, num_sampled_words=None).train()
        batch = labelled()
        count = sum(len(sentence) + 1 for sentence in SENTENCES)
        model(**batch).loss.backward()
        expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
        for items in (count, torch.tensor(count)):
            model.zero_grad()
            losses = []
            for rows in (slice(0, 1), slice(1, 2), slice(2, 4)):
                part = {name: value[rows] for name, value in batch.items()}
                losses.append(model(**part, num_items_in_batch=items).loss)
                losses[-1].backward()
            assert_close(sum(losses), model(**batch).loss, ROUNDING)
            for name, gradient in expected.items():
                assert_close(model.get_parameter(name).grad, gradient, ROUNDING, name)

    def test_streams_do_not_send_gradients_beyond_their_call(self) -> None:
        model = language_model().train()
        states = model(**streams(3)).states
        model(**streams(3, seed=1), states=[state.detach() for state in states]).loss.backward()
        assert all(state.grad_fn is not None for state in states)

    def test_dropout_is_only_for_language_models_in_training(self) -> None:
        dropouts = {"bilm_dropout": 0.5, "representation_dropout": 0.0, "task_dropout": 0.0}
        config = tiny_config(word_vocab_size=WORDS, **dropouts)
        batch = tiny_batch()
        for model_class in (ElmoModel, ElmoForSequenceClassification, ElmoForTokenClassification):
            model = model_class(config).train()
            assert_identical(model(**batch)[0], model(**batch)[0], model_class.__name__)
        model = ElmoForPreTraining(config)
        batch = labelled(batch)
        assert model.eval()(**batch).loss == model(**batch).loss
        assert model.train()(**batch).loss != model(**batch).loss
        model.config.bilm_dropout = 0.0
        assert model(**batch).loss == model(**batch).loss

    def test_dropout_has_the_rate_of_the_configuration(self) -> None:
        model = language_model(bilm_dropout=0.25, num_sampled_words=None).train()
        entered: list[torch.Tensor] = []
        lstm = model.elmo.encoder.layers[0]
        lstm.register_forward_pre_hook(lambda _, arguments: entered.append(arguments[-1]))
        torch.manual_seed(0)
        batch = streams(400)
        model(**batch)
        assert entered == [0.25]

    def test_evaluation_is_always_over_the_whole_vocabulary(self) -> None:
        batch = labelled()
        expected = run(language_model(num_sampled_words=None), batch).loss
        assert_identical(run(language_model(num_sampled_words=4), batch).loss, expected)

    @pytest.mark.parametrize(("drawn", "expected"), [(None, None), (1, 1), (11, 11), (12, None), (8192, None)])
    def test_half_the_vocabulary_is_not_worth_drawing(self, drawn: int | None, expected: int | None) -> None:
        model = language_model(num_sampled_words=drawn)
        assert model.num_sampled_words is None
        assert model.train().num_sampled_words == expected

    def test_each_direction_draws_words_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hf_elmo import softmax_elmo

        drawn: list[list[int]] = []

        def noted(*arguments: Any) -> torch.Tensor:
            words = draw_words(*arguments)
            drawn.append(words.tolist())
            return words

        monkeypatch.setattr(softmax_elmo, "draw_words", noted)
        torch.manual_seed(0)
        language_model(num_sampled_words=5).train()(**labelled())
        assert len(drawn) == 2
        assert drawn[0] != drawn[1]

    def test_gradient_checkpointing_changes_nothing(self) -> None:
        gradients = []
        for checkpointing in (False, True):
            model = language_model(num_sampled_words=6).train()
            if checkpointing:
                model.activation_checkpointing_enable()
            torch.manual_seed(0)
            model(**labelled()).loss.backward()
            gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
        for name, gradient in gradients[0].items():
            assert_close(gradients[1][name], gradient, ROUNDING, name)

    @pytest.mark.parametrize("num_sampled", [None, 6])
    def test_bfloat16_is_close(self, num_sampled: int | None) -> None:
        batch = labelled()
        losses = []
        for dtype in (torch.float32, torch.bfloat16):
            model = language_model(num_sampled_words=num_sampled, bilm_dropout=0.0).train().to(dtype)
            torch.manual_seed(0)
            output = model(**batch)
            output.loss.backward()
            assert output.loss.dtype == torch.float32
            assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
            losses.append(output.loss)
        model = language_model(num_sampled_words=num_sampled, bilm_dropout=0.0).train()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(model(**batch).loss)
        losses[-1].backward()
        for loss in losses[1:]:
            assert_close(loss, losses[0], 0.05)

    def test_a_few_sentences_are_learned_by_heart(self) -> None:
        """Each direction then needs only what the sentences leave open: their first word, of four."""
        model = language_model(bilm_dropout=0.0).train()
        batch = labelled()
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.05)
        for _ in range(120):
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
        predictions = sum(len(sentence) + 1 for sentence in SENTENCES)
        entropy = len(SENTENCES) * np.log(len(SENTENCES)) / predictions
        assert entropy - 1e-3 < loss.item() < entropy + 0.05


class TestRefusals:
    @pytest.mark.parametrize("label", [WORDS, -1, -99])
    @pytest.mark.parametrize("name", ["labels", "forward_labels", "backward_labels"])
    def test_a_label_that_is_no_word_of_the_softmax(self, name: str, label: int) -> None:
        batch = labelled() if name == "labels" else streams(4)
        batch[name][0, 1] = label
        with pytest.raises(ValueError, match=rf"`{name}` must hold numbers of words from 0 to 22.*reach from"):
            run(language_model(), batch)

    def test_labels_of_another_shape(self) -> None:
        batch = labelled()
        batch["labels"] = batch["labels"][:, 1:]
        with pytest.raises(ValueError, match=r"`labels` must have the shape \(batch, words\) \(4, 11\)"):
            run(language_model(), batch)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"labels": 0}, "With `backward_input_ids` the model takes forward_labels and backward_labels"),
            ({"forward_labels": None}, "but was given backward_labels"),
            ({"backward_input_ids": None}, "Without `backward_input_ids` the model takes labels, but was given"),
        ],
    )
    def test_the_two_ways_mixed_up(self, changes: dict[str, Any], message: str) -> None:
        batch = streams(4)
        changes = {name: batch["forward_labels"] if value == 0 else value for name, value in changes.items()}
        with pytest.raises(ValueError, match=message):
            run(language_model(), {**batch, **changes})

    def test_streams_that_do_not_go_together(self) -> None:
        model, batch = language_model(), streams(4)
        batch["backward_input_ids"][0, 3] = 0
        with pytest.raises(ValueError, match=r"`backward_input_ids` must have .* padding in the same places"):
            run(model, batch)
        batch["backward_input_ids"] = batch["backward_input_ids"][:, 1:]
        with pytest.raises(ValueError, match=r"`backward_input_ids` must have the shape \(3, 4, 50\)"):
            run(model, batch)

    def test_another_reduction(self) -> None:
        with pytest.raises(ValueError, match='`reduction` must be "mean" or "none", but is \'sum\''):
            run(language_model(), labelled(), reduction="sum")

    def test_no_vocabulary(self) -> None:
        with pytest.raises(ValueError, match="needs `word_vocab_size`, the number of words"):
            ElmoForPreTraining(tiny_config())

    @pytest.mark.parametrize(
        ("field", "value"), [("bilm_dropout", -0.1), ("bilm_dropout", 1.5), ("num_sampled_words", 0)]
    )
    def test_settings_out_of_range(self, field: str, value: float) -> None:
        with pytest.raises(StrictDataclassError, match=f"`{field}` must"):
            tiny_config(**{field: value})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("lm") / "saved", ElmoForPreTraining, word_vocab_size=WORDS)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_folder(tmp_path_factory.mktemp("lm") / "converted")


class TestFolders:
    def test_saved_and_loaded_it_gives_the_same(self, saved: Path, tmp_path: Path) -> None:
        model = AutoModelForPreTraining.from_pretrained(saved)
        assert type(model) is ElmoForPreTraining
        assert model.config.architectures == ["ElmoForPreTraining"]
        model.save_pretrained(tmp_path)
        again = AutoModelForPreTraining.from_pretrained(tmp_path)
        assert_identical(run(again, labelled()).loss, run(model, labelled()).loss)
        assert set(again.state_dict()) == {*(f"elmo.{name}" for name in model.elmo.state_dict()), *SOFTMAX}

    def test_loading_it_warns_of_nothing(self, saved: Path, caplog: pytest.LogCaptureFixture) -> None:
        with noted_warnings(caplog):
            AutoModelForPreTraining.from_pretrained(saved)
            AutoModel.from_pretrained(saved)
        assert caplog.text == ""

    def test_the_bilm_alone_is_the_same(self, saved: Path) -> None:
        model = AutoModelForPreTraining.from_pretrained(saved)
        bilm = AutoModel.from_pretrained(saved)
        for name, value in model.elmo.state_dict().items():
            assert_identical(bilm.state_dict()[name], value, name)
        assert not any(parameter.requires_grad for parameter in bilm.encoder.parameters())
        assert all(parameter.requires_grad for parameter in model.elmo.encoder.parameters())

    def test_a_head_on_it_misses_only_its_classifier(self, saved: Path, caplog: pytest.LogCaptureFixture) -> None:
        with noted_warnings(caplog):
            AutoModelForTokenClassification.from_pretrained(saved)
        assert "classifier.weight" in caplog.text
        assert "softmax" not in caplog.text
        assert "elmo." not in caplog.text

    def test_without_softmax_one_is_initialised_and_one_warning_says_so(
        self, converted: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with noted_warnings(caplog):
            model = AutoModelForPreTraining.from_pretrained(converted, word_vocab_size=5000)
        assert len(caplog.records) == 1
        for name in SOFTMAX:
            assert name in caplog.text
        assert "MISSING" in caplog.text
        assert "elmo." not in caplog.text
        expected = AutoModel.from_pretrained(converted).state_dict()
        for name, value in model.elmo.state_dict().items():
            assert_identical(value, expected[name], name)
        weight = model.softmax.weight.detach()
        assert weight.shape == (5000, model.config.projection_size)
        # As bilm-tf: normal with the deviation 1 / sqrt(P).
        assert abs(float(weight.std()) * model.config.projection_size**0.5 - 1) < 0.03
        assert not model.softmax.bias.any()

    def test_without_softmax_the_number_of_words_must_be_said(self, converted: Path) -> None:
        with pytest.raises(ValueError, match=r"pass `word_vocab_size=`.*or to `from_pretrained`"):
            AutoModelForPreTraining.from_pretrained(converted)

    def test_another_number_of_words_is_refused_unless_a_new_softmax_is_wanted(self, saved: Path) -> None:
        with pytest.raises(ValueError, match="have other sizes than the configuration says; where it is the softmax"):
            AutoModelForPreTraining.from_pretrained(saved, word_vocab_size=WORDS + 1)
        model = AutoModelForPreTraining.from_pretrained(saved, word_vocab_size=WORDS + 1, ignore_mismatched_sizes=True)
        assert model.softmax.weight.shape == (WORDS + 1, model.config.projection_size)
        assert model.softmax.weight.any()
        assert not model.softmax.bias.any()
        expected = AutoModel.from_pretrained(saved).state_dict()
        for name, value in model.elmo.state_dict().items():
            assert_identical(value, expected[name], name)

    def test_the_configuration_keeps_the_settings_of_training(self, tmp_path: Path) -> None:
        config = tiny_config(word_vocab_size=WORDS, bilm_dropout=0.3, num_sampled_words=77)
        config.save_pretrained(tmp_path)
        again = AutoConfig.from_pretrained(tmp_path)
        assert (again.bilm_dropout, again.num_sampled_words, again.word_vocab_size) == (0.3, 77, WORDS)


SOFTMAX = ("softmax.weight", "softmax.bias")


def test_words_with_vectors_are_predicted_too() -> None:
    model = language_model(word_embedding_size=4)
    batch = labelled()
    batch["word_input_ids"] = (batch["labels"] + 1).clamp(min=0)
    output = run(model, batch, reduction="none", output_logits=True)
    expected = negative_log_likelihood(output.forward_logits[:1, :5], batch["labels"][:1, 1:6])
    assert_close(output.forward_loss[:1, :5], expected, ROUNDING)
    with pytest.raises(ValueError, match="vectors of words reads sentences, not streams"):
        run(model, {**as_streams(batch), "word_input_ids": batch["word_input_ids"]})


def test_dropout_reaches_every_layer() -> None:
    assert [type(layer) for layer in language_model().elmo.encoder.layers] == [ElmoLayer] * 2
