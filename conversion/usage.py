"""How to use a converted folder, in a few lines of Python."""

import json


def usage(folder: str, text: str, trust_remote_code: bool = False) -> str:
    """The Python lines that load a folder and compute vectors.

    Args:
        folder: The folder or repository.
        text: Words to compute vectors of.
        trust_remote_code: Whether to load with the folder's code instead of this package.
    """
    arguments = f"{quote(folder)}{', trust_remote_code=True' if trust_remote_code else ''}"
    return "\n".join(
        [
            *([] if trust_remote_code else ["import hf_elmo  # makes the Auto classes know ELMo"]),
            "from transformers import AutoModel, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({arguments})",
            f"model = AutoModel.from_pretrained({arguments})",
            f'vectors = model(**tokenizer({quote(text)}, return_tensors="pt")).last_hidden_state',
        ]
    )


def language_model_usage(folder: str, text: str, trust_remote_code: bool = False) -> str:
    """The Python lines that load a language model with its vocabulary and compute its loss.

    Args:
        folder: The folder or repository.
        text: Words to predict.
        trust_remote_code: Whether to load with the folder's code instead of this package.
    """
    arguments = f"{quote(folder)}{', trust_remote_code=True' if trust_remote_code else ''}"
    return "\n".join(
        [
            *([] if trust_remote_code else ["import hf_elmo  # makes the Auto classes know ELMo"]),
            "from transformers import AutoModelForPreTraining, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({arguments})",
            f"model = AutoModelForPreTraining.from_pretrained({arguments})",
            f'batch = tokenizer({quote(text)}, return_tensors="pt")',
            'loss = model(**batch, labels=batch["word_input_ids"] - 1).loss  # the mean of both directions',
        ]
    )


def quote(text: str) -> str:
    """A string as Python source in double quotes."""
    return json.dumps(text, ensure_ascii=False)
