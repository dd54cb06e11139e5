"""Train an ELMo from text with Trainer, in code: what `hf-elmo pretrain` does, to be changed at will.

    python examples/pretrain.py --train en.train.txt --valid en.dev.txt --output_dir elmo-mine --max_steps 1000
    torchrun --nproc-per-node 2 examples/pretrain.py --train en.train.txt --output_dir elmo-mine --max_steps 1000

Text has one sentence a line, its words separated by blanks (`examples/prepare_novels.py` makes such text). All
arguments of transformers' TrainingArguments can be given, and those of ElmoPreTrainingArguments beside them. Run it
again with the same arguments, and it goes on from the last checkpoint.
"""

from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser, set_seed

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.arguments import ElmoPreTrainingArguments
from hf_elmo.pretraining.checkpoints import last_checkpoint
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.pretrain import TINY
from hf_elmo.pretraining.sentences import SentenceBatches
from hf_elmo.pretraining.streams import StreamBatches
from hf_elmo.pretraining.trainer import ElmoPreTrainer
from hf_elmo.pretraining.vocabulary import build_vocabulary


@dataclass
class Text:
    """What to train on."""

    train: str = field(metadata={"help": "Training text: a file (plain, .gz, .xz), a folder or a pattern."})
    valid: str | None = field(default=None, metadata={"help": "Validation text."})
    vocabulary_size: int = field(default=5000, metadata={"help": "Words that can be predicted."})


def main() -> None:
    """Trains."""
    text, args = HfArgumentParser((Text, ElmoPreTrainingArguments)).parse_args_into_dataclasses()

    # A corpus is read as it is needed, never into memory; any dataset of the `datasets` library will do, too.
    train = Corpus([text.train])
    valid = Corpus([text.valid]) if text.valid else None

    # The words that can be predicted, most frequent first. The model reads characters: it knows no unknown words.
    words = build_vocabulary(train, size=text.vocabulary_size)
    tokenizer = ElmoTokenizer(word_vocabulary=WordVocabulary(words))

    set_seed(args.seed)
    config = ElmoConfig(**TINY, word_vocab_size=len(words), freeze_bilm=False)
    model = ElmoForPreTraining(config)

    # Each process of torchrun has its own rows of the same batches.
    mine = {"seed": args.seed, "process_index": args.process_index, "process_count": args.world_size}
    size = args.per_device_train_batch_size
    if args.protocol == "stream":
        batches = StreamBatches(train, tokenizer, size, args.unroll_steps, epochs=None, **mine)
    else:
        batches = SentenceBatches(train, tokenizer, size, epochs=None, **mine)

    trainer = ElmoPreTrainer(
        model=model,
        args=args,
        train_dataset=batches,
        steps_per_epoch=batches.count(1),
        eval_dataset=valid,
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(args.output_dir)))
    if valid is not None:
        print(f"Perplexity of the validation text: {trainer.evaluate()['eval_perplexity']:.2f}")
    trainer.save_model()


if __name__ == "__main__":
    main()
