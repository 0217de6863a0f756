"""A training script as a worker of a run: Worker, batches, Trainer callback, launch, join."""
