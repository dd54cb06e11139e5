"""Conversion between the original checkpoints and folders of transformers; installed as `hf_elmo.conversion`."""
