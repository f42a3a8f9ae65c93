"""Scores of files of any size: scorer, parts, join, cluster."""
