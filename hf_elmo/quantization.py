"""Weights of 8 bits on the CPU, for speed where a small difference does not matter."""

import copy
import warnings
from typing import TypeVar

import torch
from torch import nn

from .modeling_elmo import ElmoPreTrainedModel

Model = TypeVar("Model", bound=ElmoPreTrainedModel)


def quantize_dynamic(model: Model) -> Model:
    """A copy of a model whose biLM multiplies with integers of 8 bits; what is multiplied is rounded on the way.

    The copy is for use without gradients, in this process: save and train the model that it was made of. A head keeps
    its precision, and so do the character convolutions.

    Args:
        model: A model on the CPU, in float32.

    Raises:
        ValueError: When the model is elsewhere or of another type, or when this torch cannot do it.
    """
    weight = next(model.base_model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise ValueError(
            f"Dynamic quantization takes a model on the CPU in float32, but this one is on {weight.device} in "
            f"{str(weight.dtype).removeprefix('torch.')}; load it with `dtype=torch.float32` and without a device."
        )
    quantized = copy.deepcopy(model).requires_grad_(False).eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that torchao will take its place
            from torch.ao.quantization import quantize_dynamic as quantize_modules

            quantize_modules(quantized.base_model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"torch {torch.__version__} cannot quantize here ({str(error).splitlines()[0]}); use bfloat16 instead."
        ) from error
    return quantized


__all__ = ["quantize_dynamic"]
