"""Task models of AllenNLP, written without any code of the package or of AllenNLP."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

EMBEDDER = "_text_field_embedder.token_embedder_elmo._elmo."


def task_model_state(
    tensors: Mapping[str, np.ndarray], mixes: list[tuple[list[float], float]], prefix: str = EMBEDDER
) -> dict[str, torch.Tensor]:
    """The state dict of a task model whose ELMo has the weights of an HDF5 file.

    Args:
        tensors: Arrays under TensorFlow's names.
        mixes: Scalars and gamma of each mix.
        prefix: What the names of the ELMo begin with.
    """
    state: dict[str, np.ndarray] = {}
    embedder, lstm = "_elmo_lstm._token_embedder", "_elmo_lstm._elmo_lstm"
    table = tensors["char_embed"]
    state[f"{embedder}._char_embedding_weights"] = np.concatenate([np.zeros_like(table[:1]), table])
    for name, array in tensors.items():
        if name.startswith("CNN/W_cnn_"):
            number = name.rsplit("_", 1)[1]
            state[f"{embedder}.char_conv_{number}.weight"] = array[0].transpose(2, 1, 0)
            state[f"{embedder}.char_conv_{number}.bias"] = tensors[f"CNN/b_cnn_{number}"]
        elif name.endswith("/W_carry"):
            highway = name.removesuffix("/W_carry")
            number = highway.rsplit("_", 1)[1]
            weights = [tensors[f"{highway}/W_transform"].T, -array.T]
            biases = [tensors[f"{highway}/b_transform"], -tensors[f"{highway}/b_carry"]]
            state[f"{embedder}._highways._layers.{number}.weight"] = np.concatenate(weights)
            state[f"{embedder}._highways._layers.{number}.bias"] = np.concatenate(biases)
        elif name.endswith("/W_0"):
            cell = name.removesuffix("/W_0")
            side = ("forward", "backward")[int(cell[4])]
            ours = f"{lstm}.{side}_layer_{cell.split('Cell')[2].split('/')[0]}"
            i, j, f, o = np.split(array.T, 4)
            gates = np.concatenate([i, f, j, o])
            state[f"{ours}.input_linearity.weight"], state[f"{ours}.state_linearity.weight"] = np.split(
                gates, 2, axis=1
            )
            i, j, f, o = np.split(tensors[f"{cell}/B"], 4)
            state[f"{ours}.state_linearity.bias"] = np.concatenate([i, f + np.float32(1), j, o])
            state[f"{ours}.state_projection.weight"] = tensors[f"{cell}/W_P_0"].T
    state[f"{embedder}._projection.weight"] = tensors["CNN_proj/W_proj"].T
    state[f"{embedder}._projection.bias"] = tensors["CNN_proj/b_proj"]
    for index, (scalars, gamma) in enumerate(mixes):
        for layer, scalar in enumerate(scalars):
            state[f"scalar_mix_{index}.scalar_parameters.{layer}"] = np.array([scalar], np.float32)
        state[f"scalar_mix_{index}.gamma"] = np.array([gamma], np.float32)
    ours = {f"{prefix}{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()}
    others = {"_encoder.weight_ih_l0": torch.ones(4, 3), "_labels.num_batches_tracked": torch.tensor(7)}
    return {**others, **ours}


def task_model_config(**embedder: Any) -> dict[str, Any]:
    """The configuration in an archive, with settings of the ELMo."""
    settings = {"type": "elmo_token_embedder", "options_file": "https://example.org/elmo_options.json", **embedder}
    embedders = {"elmo": settings, "tokens": {"type": "embedding", "embedding_dim": 8}}
    return {
        "dataset_reader": {"token_indexers": {"elmo": {"type": "elmo_characters"}}},
        "model": {"type": "crf_tagger", "text_field_embedder": {"token_embedders": embedders}},
    }


def write_task_model(
    folder: Path, state: Mapping[str, Any], config: Mapping[str, Any] | None = None, **saving: Any
) -> Path:
    """Writes the files of an archive into a folder and returns the folder."""
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "vocabulary" / "labels.txt").write_text("O\nB-PER\n")
    torch.save(dict(state), folder / "weights.th", **saving)
    (folder / "config.json").write_text(json.dumps(task_model_config() if config is None else config))
    return folder


def pack(folder: Path, archive: Path, prefix: str = "") -> Path:
    """Packs the content of a folder into a .tar.gz, as AllenNLP does, with a prefix before every name."""
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(prefix + path.relative_to(folder).as_posix())
                content = path.read_bytes()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return archive
