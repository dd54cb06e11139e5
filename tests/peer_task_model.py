"""Run by a Python with AllenNLP: the state dict of a task model with an ELMo, and what this ELMo gives.

Usage: peer_task_model.py FOLDER, with options.json, weights.hdf5 and request.json; writes state.th and outputs.npz.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    sys.path[:0] = request["paths"]
    import allennlp_stub  # noqa: F401  (in the place of what AllenNLP imports and ELMo does not need)
    from allennlp.modules.elmo import Elmo, batch_to_ids

    files = str(folder / "options.json"), str(folder / "weights.hdf5")
    elmo = Elmo(*files, request["representations"], do_layer_norm=request["do_layer_norm"], dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in elmo.named_parameters():
            if "scalar_mix" in name:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    embedder = torch.nn.Module()
    embedder._elmo = elmo
    field = torch.nn.Module()
    field.token_embedder_elmo = embedder
    task = torch.nn.Module()
    task._text_field_embedder = field
    task._classifier = torch.nn.Linear(3, 2)
    torch.save(task.state_dict(), folder / "state.th")
    with torch.no_grad():
        output = task.eval()._text_field_embedder.token_embedder_elmo._elmo(batch_to_ids(request["sentences"]))
    np.savez(folder / "outputs.npz", *[vectors.numpy() for vectors in output["elmo_representations"]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
