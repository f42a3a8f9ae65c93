"""Figures on disk, and the one page that tells a colleague what ran and how well."""

from normae.report.page import Check, Comparison, Picture, Report, SavedFigure, Status, render, save_figure

__all__ = ["Check", "Comparison", "Picture", "Report", "SavedFigure", "Status", "render", "save_figure"]
