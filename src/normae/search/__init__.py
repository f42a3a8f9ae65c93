"""What a search takes over from a model: templates with correlated uncertainties, tables, and p-values."""

from normae.search.hepdata import hepdata_tables
from normae.search.templates import Sample, Templates
from normae.search.workspace import workspace

__all__ = ["Sample", "Templates", "hepdata_tables", "workspace"]
