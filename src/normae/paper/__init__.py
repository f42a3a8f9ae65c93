"""The paper's numbers, figures and tables, beside ours."""
