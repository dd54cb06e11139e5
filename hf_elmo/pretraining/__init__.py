"""The biLM as a language model: text, vocabulary, training, perplexity, predictions."""
