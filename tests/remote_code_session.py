"""What a user without the package does with a folder; run in a process of its own by `test_remote_code.py`.

Arguments: a base folder or repository, a head folder, a folder to save to, a file for the results.
"""

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


class NotInstalled(MetaPathFinder):
    """Makes `import hf_elmo` fail as where it is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "hf_elmo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(base: str, head: str, output: str, results: str) -> None:
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForPreTraining,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        pipeline,
    )

    trusting: dict[str, Any] = {"trust_remote_code": True}
    texts = json.loads(Path(results).read_text())["texts"]
    found: dict[str, Any] = {}

    # First of all, so that nothing but the folder's own code can have prepared the pipeline.
    tag = pipeline("token-classification", model=head, ignore_labels=[], **trusting)
    found["tags"] = [[(w["word"], w["start"], w["end"], float(w["score"])) for w in words] for words in tag(texts)]
    for strategy in ("simple", "first", "average", "max"):
        groups = pipeline("token-classification", model=head, aggregation_strategy=strategy, **trusting)(texts[0])
        found[strategy] = [(group["word"], group["start"], group["end"]) for group in groups]
    found["features"] = pipeline("feature-extraction", model=base, batch_size=2, **trusting)(texts)
    found["class"] = [entry["label"] for entry in pipeline("text-classification", model=head, **trusting)(texts)]

    config = AutoConfig.from_pretrained(base, **trusting)
    tokenizer = AutoTokenizer.from_pretrained(base, **trusting)
    found["config"] = config.to_dict()
    found["splitter"] = tokenizer.word_splitter
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    found["decoded"] = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    classes = []
    with torch.no_grad():
        for auto in (AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification):
            for folder in (base, head):
                model = auto.from_pretrained(folder, **trusting)
                classes.append(type(model).__name__)
                found.setdefault("vectors", []).append(model.base_model(**batch).last_hidden_state.tolist())
            auto.from_config(config, **trusting)
        for folder in (base, head):
            words = config.word_vocab_size or 3
            language_model = AutoModelForPreTraining.from_pretrained(folder, word_vocab_size=words, **trusting)
            classes.append(type(language_model).__name__)
            labels = batch["attention_mask"]
            found["loss"] = language_model(**batch, labels=labels).loss.item()
        model = AutoModelForTokenClassification.from_pretrained(head, **trusting)
        found["logits"] = model(**batch).logits.tolist()
    found["classes"] = classes
    model.save_pretrained(Path(output, "task"), task_only=True)
    task = AutoModelForTokenClassification.from_pretrained(Path(output, "task"), **trusting)
    found["task"] = [task(**batch).logits.tolist(), Path(output, "task", "model.safetensors").stat().st_size]
    found["modules"] = [name for name in sys.modules if name.partition(".")[0] == "hf_elmo"]
    found["code"] = sorted({type(part).__module__.partition(".")[0] for part in (config, tokenizer, model)})

    AutoModel.from_pretrained(base, **trusting).save_pretrained(Path(output, "base"))
    model.save_pretrained(Path(output, "head"))
    for name in ("base", "head"):
        tokenizer.save_pretrained(Path(output, name))
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    sys.meta_path.insert(0, NotInstalled())
    main(*sys.argv[1:])
