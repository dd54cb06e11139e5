"""ELMo for the Hugging Face ecosystem.

Importing this package makes the Auto classes and pipelines of transformers know ELMo.
"""

from ._version import __version__
from .auto import register_auto_classes
from .bundled import bundled_model
from .configuration_elmo import ElmoConfig
from .embedding.embedder import ElmoEmbedder
from .finetuning.adapters import modules_to_save
from .finetuning.layers import precompute_layers
from .finetuning.parameter_groups import parameter_groups
from .finetuning.word_vectors import load_word_vectors
from .heads_elmo import ElmoForSequenceClassification, ElmoForTokenClassification
from .language_model_elmo import ElmoForPreTraining, ElmoForPreTrainingOutput
from .modeling_elmo import ElmoModel, ElmoModelOutput, ElmoPreTrainedModel, LayerWeights
from .tokenization_elmo import ElmoTokenizer

register_auto_classes()

__all__ = [
    "ElmoConfig",
    "ElmoEmbedder",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoTokenizer",
    "LayerWeights",
    "__version__",
    "bundled_model",
    "load_word_vectors",
    "modules_to_save",
    "parameter_groups",
    "precompute_layers",
]
