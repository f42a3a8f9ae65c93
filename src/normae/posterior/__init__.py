"""The posterior of the weights: where weight draws come from."""
