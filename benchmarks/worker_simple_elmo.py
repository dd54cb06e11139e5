"""simple_elmo, which is bilm-tf on TensorFlow 2, as one side of a comparison."""

import logging
import os
from importlib.metadata import version

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from sentences import Sentence
from simple_elmo import ElmoModel
from simple_elmo.elmo import weight_layers
from worker import Side, serve

MAX_BATCH_SIZE = 32


class SimpleElmo(Side):
    """The graph is built and the variables are read once, as simple_elmo's README shows with `session=`."""

    def __init__(self, folder: str, threads: int) -> None:
        self.versions = {"simple_elmo": version("simple_elmo"), "tensorflow": tf.__version__}
        self.graph = tf.Graph()
        settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        with self.graph.as_default():
            self.model = ElmoModel()
            logging.getLogger().setLevel(logging.WARNING)
            self.model.load(folder, max_batch_size=MAX_BATCH_SIZE)
            vectors = self.model.sentence_embeddings_op
            self.outputs = {
                layers: weight_layers("input", vectors, use_layers=layers) for layers in ("average", "all")
            }
            # Its states go on from batch to batch; layers are compared from zero.
            states = [variable for variable in tf.compat.v1.global_variables() if is_state(variable)]
            self.reset = tf.compat.v1.variables_initializer(states)
            self.session = tf.compat.v1.Session(graph=self.graph, config=settings)
            self.session.run(tf.compat.v1.global_variables_initializer())

    def _vectors(self, sentences: list[Sentence], layers: str) -> np.ndarray:
        self.model.elmo_sentence_input = self.outputs[layers]
        with self.graph.as_default():
            return self.model.get_elmo_vectors(sentences, warmup=False, layers=layers, session=self.session)

    def embed(self, sentences: list[Sentence]) -> None:
        """Embeds one batch, from words to vectors."""
        self._vectors(sentences, "average")

    def layers(self, sentences: list[Sentence]) -> list[np.ndarray]:
        """All layers of each sentence's words, of at most 32 sentences."""
        self.session.run(self.reset)
        vectors = self._vectors(sentences, "all").astype(np.float32)
        return [vectors[row, :, : len(words)] for row, words in enumerate(sentences)]


def is_state(variable: tf.Variable) -> bool:
    """Whether a variable is a state of an LSTM: the only ones that bilm-tf gives no name."""
    return variable.op.name.split("/")[-1].split("_")[0] == "Variable"


if __name__ == "__main__":
    serve(SimpleElmo)
