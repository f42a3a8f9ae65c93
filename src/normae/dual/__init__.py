"""The dual test: two models as a likelihood ratio, against truth or a calibrated classifier."""
