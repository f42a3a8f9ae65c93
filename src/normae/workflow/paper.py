"""The paper's figures for the toy, beside which ours are put."""

from collections.abc import Sequence
from typing import NamedTuple


class PaperValue(NamedTuple):
    """A quantity of the paper: the name of our metric, its title, the paper's value as printed, and a note."""

    metric: str
    title: str
    value: str
    note: str


TOY = (
    PaperValue("pearson_grid", "Pearson correlation of log p, grid", "0.979", "500 × 500 points on [−4, 4]²"),
    PaperValue("pearson_test", "Pearson correlation of log p, test set", "—", ""),
    PaperValue("share_within_10_percent", "share of the test set with |Δ| < 10 %", "“most”", ""),
    PaperValue("kl", "KL(true, model)", "—", "on the test set, normalized over the chain's bounds"),
    PaperValue("kl_quadrature", "KL(true, model), by quadrature", "—", "no statistical error"),
    PaperValue("auc_classifier_recipe", "classifier AUC, the paper's recipe", "0.536", "latent chain 8 times as long"),
    PaperValue("auc_classifier_long", "classifier AUC, longer feature chains", "—", "feature chain 10 times as long"),
    PaperValue("auc_classifier_generation", "classifier AUC, model.sample", "—", "the preset's own generation"),
    PaperValue("auc_classifier_exact", "classifier AUC, exact draws", "—", "drawn from the normalized grid"),
    PaperValue("auc_ideal", "AUC of the ideal classifier", "—", "log p_model − log p_true on exact draws"),
)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
