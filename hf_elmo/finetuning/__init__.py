"""Fine-tuning: what the heads are trained with."""
