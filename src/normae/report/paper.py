"""The paper's figures for the toy and for jets, beside which ours are put."""

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

BAYES = (
    PaperValue("pearson_grid", "Pearson correlation of log p, grid", "—", "of the mean density"),
    PaperValue("pearson_test", "Pearson correlation of log p, test set", "—", "of the mean density"),
    PaperValue("share_within_10_percent", "share of the test set with |Δ| < 10 %", "—", ""),
    PaperValue("kl", "KL(true, mean density)", "—", "on the test set"),
    PaperValue("auc_classifier_recipe", "classifier AUC, the paper's recipe", "0.522", "one draw for each chain"),
    PaperValue("auc_classifier_exact", "classifier AUC, exact draws", "—", "one weight draw for each point"),
    PaperValue("auc_ideal", "AUC of the ideal classifier", "—", "log of the mean density − log p_true"),
    PaperValue("pull_width", "width of the pulls of log p", "“approximately Gaussian”", "test set, one training"),
    *(PaperValue(f"coverage_quantile_{k}", f"coverage of {k} % intervals", "“small under-coverage”", "quantiles, log p")
      for k in (50, 68, 90, 95)),
    PaperValue("relative_density_ratio", "σ(p)/⟨p⟩ over σ(E/T)", "“behave the same”", "median over the test set"),
)  # fmt: skip

DUAL = (
    PaperValue("pearson_true_c0", "Pearson correlation with the true log r, C = 0", "0.987", "section 4.2 states it"),
    PaperValue("slope_true_c0", "slope m", "—", "least squares of the truth on the model"),
    PaperValue("constant_true_c0", "constant, C = 0", "—", ""),
    PaperValue("constant_true_log_z", "constant, C from log Z", "—", ""),
    PaperValue("outside_true_c0", "share with |Δ log r| ≥ 1, C = 0", "—", ""),
    PaperValue("slope_classifier_c0", "slope m against the classifier", "—", ""),
)

TAGGING = {
    ("top-tagging", "AE"): ("0.8947", "106.9", "54.2"), ("top-tagging", "NAE"): ("0.9036", "74.5", "39.8"),
    ("QCD-tagging", "AE"): ("0.3912", "3.4", "2.3"), ("QCD-tagging", "NAE"): ("0.8071", "36.5", "20.1"),
    ("top-tagging", "BAE"): ("0.8959 ± 0.0008", "94.1 ± 0.8", "46.8 ± 0.4"),
    ("top-tagging", "BNAE"): ("0.9126 ± 0.0020", "69.0 ± 1.4", "39.7 ± 0.6"),
    ("QCD-tagging", "BAE"): ("0.4319 ± 0.0368", "3.8 ± 0.5", "2.7 ± 0.4"),
    ("QCD-tagging", "BNAE"): ("0.7292 ± 0.0536", "17.7 ± 7.0", "10.7 ± 4.0"),
    ("supervised", "classifier"): ("0.9728", "584.8", "294.6"),
}  # fmt: skip
"""The table of section 4.1 by task and network: AUC, background rejection at signal efficiency 0.2 and 0.3."""
TAGGING_METRICS = {
    "auc": "AUC",
    "rejection_20": "background rejection at signal efficiency 0.2",
    "rejection_30": "background rejection at signal efficiency 0.3",
}
RATIO = {
    "AE": {"pearson": "—", "slope": "—", "constant": "—"},
    "NAE": {"pearson": "0.851", "slope": "≈ 1, by choice of T", "constant": "−1.9109"},
    "BNAE": {"pearson": "0.878", "slope": "≈ 1, by choice of T", "constant": "−3.0292"},
}
"""Section 4.2: correlation, slope m and constant C of the dual test against the classifier."""
