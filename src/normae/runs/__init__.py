"""The run folder: made by a training, read by everything else."""
