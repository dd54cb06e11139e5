"""ELMo in sentence-transformers, which works as it stands but for `prompt=`."""

from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer


class ElmoTransformer(Transformer):
    """sentence-transformers' `Transformer`, with prompts.

    The parent takes the last token of a prompt for a single number, which a row of character ids is not. A folder
    that a `SentenceTransformer` with this module was saved to needs this package and `trust_remote_code=True`; with
    the plain `Transformer` it needs neither, and knows no prompts.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from sentence_transformers.sentence_transformer.modules import Pooling
        >>> from hf_elmo.sentence_transformer import ElmoTransformer
        >>> words = ElmoTransformer("elmo")
        >>> model = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension(), "mean")])
        >>> vectors = model.encode(["A sentence."], prompt="query: ")
    """

    def _get_prompt_length(self, prompt: str, **kwargs: Any) -> int:
        """Words of a prompt and the boundary before it, so many as a pooling without the prompt leaves out."""
        return self.preprocess([prompt])["input_ids"].shape[1] - self.tokenizer.add_eos_token  # type: ignore[union-attr]


__all__ = ["ElmoTransformer"]
