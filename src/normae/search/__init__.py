"""What a search takes over from a model: templates with correlated uncertainties, tables, and p-values."""

from normae.search.templates import Sample, Templates, hepdata_tables, workspace

__all__ = ["Sample", "Templates", "hepdata_tables", "workspace"]
