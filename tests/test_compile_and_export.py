"""torch.compile, torch.export and ONNX give the numbers of the model, at shapes that they have not seen before."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_elmo import ElmoForPreTraining, ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel
from tests.assertions import PARITY_TOLERANCE, assert_close, assert_zero_at_padding
from tests.saved_folders import varied_model
from tests.tiny_models import SENTENCES, tiny_batch

EXACT = 1e-9  # of float64
ROUNDING = 2e-5  # of float32, after 23 steps of two layers
MODELS = [ElmoModel, ElmoForSequenceClassification, ElmoForTokenClassification]
DYNAMIC = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
INPUTS = {"input_ids": DYNAMIC, "attention_mask": DYNAMIC}
# Shorter and longer, fewer and more rows than the batch that is traced; with padding on either side and without.
OTHER_BATCHES = {
    "longer": tiny_batch([["word"] * 23, ["fox", "!"]]),
    "left padding": tiny_batch(side="left"),
    "one word": tiny_batch([["Yes"]]),
    "no word": tiny_batch([[]]),
    "many rows": tiny_batch(SENTENCES * 3),
    "a row of padding": {name: torch.cat([part, part[:1] * 0]) for name, part in tiny_batch().items()},
}


def first_output(output: Any) -> torch.Tensor:
    return output[0].detach()


def export(model, states=None, **options) -> torch.export.ExportedProgram:
    inputs, shapes = tiny_batch(), dict(INPUTS)
    if states is not None:
        inputs["states"] = states
        shapes["states"] = ({1: torch.export.Dim.DYNAMIC},) * 2
    return torch.export.export(model, (), inputs, dynamic_shapes=shapes, **options)


def assert_same_everywhere(candidate, model, tolerance: float = ROUNDING) -> None:
    """The candidate gives what the model gives, for batches of other shapes."""
    for name, batch in OTHER_BATCHES.items():
        assert_close(first_output(candidate(**batch)), first_output(model(**batch)), tolerance, name)


def test_an_exported_model_takes_any_batch_length_and_padding_and_states():
    model = varied_model(num_output_representations=2).double()
    before = tuple(state.detach() for state in model(**tiny_batch()).states)
    exported = export(model, before).module()
    for name, batch in OTHER_BATCHES.items():
        rows = len(batch["input_ids"])
        states = tuple(state.repeat(1, 3, 1)[:, :rows] for state in before)
        ours, theirs = exported(**batch, states=states), model(**batch, states=states)
        for one, other in zip(ours.representations + ours.states, theirs.representations + theirs.states, strict=True):
            assert_close(one, other, EXACT, name)
        assert_zero_at_padding(ours.last_hidden_state, batch["attention_mask"])


@pytest.mark.slow
@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("strict", [pytest.param(False, marks=pytest.mark.long), True])
def test_models_and_heads_are_exported_in_both_modes(model_class, strict):
    model = varied_model(model_class)
    assert_same_everywhere(export(model, strict=strict).module(), model)


@pytest.mark.slow
def test_the_scores_of_a_language_model_are_exported():
    class Scores(torch.nn.Module):
        def __init__(self, model: ElmoForPreTraining) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            output = self.model(input_ids, attention_mask=attention_mask, output_logits=True)
            return torch.stack([output.forward_logits, output.backward_logits]).unsqueeze(0)

    scores = Scores(varied_model(ElmoForPreTraining, word_vocab_size=9))
    assert_same_everywhere(export(scores).module(), scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"mix_layer_norm": True, "num_hidden_layers": 3, "hidden_act": "tanh"},
        {"cell_clip": None, "projection_clip": None, "num_hidden_layers": 1, "num_highway_layers": 0},
        {"filters": [[1, 2], [2, 4]], "use_skip_connections": False},
    ],
)
def test_other_architectures_are_exported(settings):
    model = varied_model(**settings).double()
    assert_same_everywhere(export(model).module(), model, 1e-12)


@pytest.mark.slow
def test_an_exported_model_without_a_mask_takes_rows_of_zeros_for_padding():
    model = varied_model()
    exported = torch.export.export(model, (tiny_batch()["input_ids"],), dynamic_shapes={"input_ids": DYNAMIC}).module()
    for name, batch in OTHER_BATCHES.items():
        assert_close(first_output(exported(batch["input_ids"])), first_output(model(**batch)), ROUNDING, name)


@pytest.mark.slow
def test_an_exported_program_survives_saving():
    model = varied_model(ElmoForTokenClassification)
    buffer = io.BytesIO()
    torch.export.save(export(model), buffer)
    buffer.seek(0)
    assert_same_everywhere(torch.export.load(buffer).module(), model)


def onnx_session(model, path: Path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    axes = {0: "batch", 1: "words"}
    with torch.no_grad():
        torch.onnx.export(
            model,
            (),
            path,
            kwargs=tiny_batch(),
            dynamo=True,
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
            verbose=False,
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(**batch: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_numpy(np.asarray(array)) for array in session.run(None, as_arrays(batch))]

    return run


def as_arrays(batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in batch.items()}


HEAD_SETTINGS: list[tuple[type, dict[str, Any]]] = [
    (ElmoForTokenClassification, {"use_crf": True, "elmo_at_output": True, "mix_layers": [-1]}),
    (ElmoForSequenceClassification, {"classifier_pooling": "last", "task_num_layers": 2}),
    (ElmoForSequenceClassification, {"classifier_pooling": "biattentive"}),
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("model_class", "settings"), HEAD_SETTINGS)
def test_heads_with_other_settings_are_exported(model_class, settings):
    model = varied_model(model_class, num_labels=3, **settings)
    tolerance = 1e-4 if "use_crf" in settings else ROUNDING  # logarithms of small probabilities are large
    assert_same_everywhere(export(model).module(), model, tolerance)


@pytest.mark.slow
def test_pairs_are_exported_with_their_types():
    model = varied_model(ElmoForSequenceClassification)
    types = {name: (batch["attention_mask"].cumsum(dim=1) > 3).long() for name, batch in OTHER_BATCHES.items()}
    example = {**tiny_batch(), "token_type_ids": (tiny_batch()["attention_mask"].cumsum(dim=1) > 3).long()}
    shapes = {**INPUTS, "token_type_ids": DYNAMIC}
    exported = torch.export.export(model, (), example, dynamic_shapes=shapes).module()
    for name, batch in OTHER_BATCHES.items():
        ours, theirs = (run(**batch, token_type_ids=types[name]) for run in (exported, model))
        assert_close(first_output(ours), first_output(theirs), ROUNDING, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model_class", "settings"),
    [*((model, {}) for model in MODELS), *(pytest.param(*case, marks=pytest.mark.long) for case in HEAD_SETTINGS)],
)
def test_onnx_runtime_gives_the_same_numbers_for_any_batch_and_length(model_class, settings, tmp_path):
    model = varied_model(model_class, **settings)
    assert_same_everywhere(onnx_session(model, tmp_path / "elmo.onnx"), model, PARITY_TOLERANCE)


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("model_class", "dynamic"), [(ElmoModel, None), (ElmoForTokenClassification, True)])
@pytest.mark.long
def test_a_compiled_model_gives_the_same_numbers(model_class, dynamic):
    model = varied_model(model_class)
    assert_same_everywhere(torch.compile(model, dynamic=dynamic), model)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_has_the_same_gradients():
    gradients = []
    for compiled in (False, True):
        settings = {"freeze_bilm": False, "representation_dropout": 0.0, "task_dropout": 0.0}
        model = varied_model(ElmoForSequenceClassification, **settings).train()
        run = torch.compile(model) if compiled else model
        run(**tiny_batch(), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert_close(gradients[1][name], expected, ROUNDING * (1 + float(expected.abs().max())), name)
