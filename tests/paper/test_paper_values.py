"""The paper's results, as they stand beside ours: the table of section 4.1 and what the text states."""

from normae.report.paper import BAYES, DUAL, RATIO, TAGGING, TOY

TAGGING_TABLE = """
supervised  & classifier & 0.9728         & 584.8     & 294.6
top-tagging & AE   & 0.8947         & 106.9     & 54.2
top-tagging & NAE  & 0.9036         & 74.5      & 39.8
QCD-tagging & AE   & 0.3912         & 3.4       & 2.3
QCD-tagging & NAE  & 0.8071         & 36.5      & 20.1
top-tagging & BAE  & 0.8959(0.0008) & 94.1(0.8) & 46.8(0.4)
top-tagging & BNAE & 0.9126(0.0020) & 69.0(1.4) & 39.7(0.6)
QCD-tagging & BAE  & 0.4319(0.0368) & 3.8(0.5)  & 2.7(0.4)
QCD-tagging & BNAE & 0.7292(0.0536) & 17.7(7.0) & 10.7(4.0)
"""


def test_the_table_of_tagging():
    rows = [[cell.strip() for cell in line.split("&")] for line in TAGGING_TABLE.strip().splitlines()]
    assert len(rows) == len(TAGGING)
    for task, network, *values in rows:
        assert TAGGING[task, network] == tuple(value.replace("(", " ± ").rstrip(")") for value in values)


def test_what_the_text_states():
    """The abstract's numbers of the toy are the NAE's; "most" of the phase space is said of it, not of the BNAE."""
    toy, bayes, dual = ({value.metric: value.value for value in part} for part in (TOY, BAYES, DUAL))
    assert (toy["pearson_grid"], toy["auc_classifier_recipe"], toy["share_within_10_percent"]) == (
        "0.979", "0.536", "“most”",
    )  # fmt: skip
    assert (bayes["auc_classifier_recipe"], bayes["share_within_10_percent"]) == ("0.522", "—")
    assert dual["pearson_true_c0"] == "0.987"
    assert (RATIO["NAE"]["pearson"], RATIO["BNAE"]["pearson"]) == ("0.851", "0.878")
    assert (RATIO["NAE"]["constant"], RATIO["BNAE"]["constant"]) == ("−1.9109", "−3.0292")
