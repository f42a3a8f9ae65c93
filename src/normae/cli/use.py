"""The commands that use a trained model: `normae score`, `sample`, `histogram` and `export`."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated

from normae.cli.console import note, parse_columns, say, show
from normae.cli.options import Columns, Dataset, Device, Force, Run, Seed, argument, option
from normae.errors import InputError, refuse, require_that


def score(
    run: Run,
    files: Annotated[list[Path], argument("Tables, or files of jets.")],
    out: Annotated[Path, option("The .parquet, .csv or .npz file to write.", "--out", "-o", show_default=False)],
    columns: Columns = None,
    dataset: Dataset = None,
    shard: Annotated[
        str | None, option("i/n: the i-th of n shares, from 0. A last call without it joins them.")
    ] = None,
    chunk: Annotated[int, option("Rows that are read at a time.")] = 1 << 16,
    explain: Annotated[bool, option("Add columns part_NAME: what each column adds to the score.", "--explain")] = False,
    device: Device = "auto",
    cluster: Annotated[str | None, option("local, slurm, htcondor, or tls://HOST:PORT of a dask scheduler.")] = None,
    workers: Annotated[int | None, option("With --cluster: how many workers; local: one for each core.")] = None,
    threads: Annotated[int | None, option("With --cluster: CPU threads of a worker; 1 if not given.")] = None,
    cluster_options: Annotated[Path | None, option("With --cluster: a TOML file with memory, queue and so on.")] = None,
    insecure: Annotated[bool, option("Allow --cluster tcp://HOST:PORT, without TLS.", "--insecure")] = False,
    force: Force = False,
) -> None:
    """Score files of any size, in constant memory.

    After a stop the same command does only what is missing.

    Example: normae score runs/toy events.parquet -o scores.parquet
    """
    from normae.scoring.cluster import on_cluster
    from normae.scoring.score import here, open_scorer, parse_shard
    from normae.scoring.score import score as score_files

    parse_shard(shard)
    given = {"workers": workers, "threads": threads, "cluster-options": cluster_options, "insecure": insecure or None}
    for name, value in given.items():
        refuse(cluster is None and value is not None, f"--{name}: expected --cluster with it")
    do = here if cluster is None else on_cluster(cluster, workers, threads, cluster_options, insecure)
    scorer = open_scorer(run, parse_columns(columns), device, explain)
    for sentence in scorer.notes:
        note(f"Note: {sentence}")
    done = score_files(scorer, files, out, shard, chunk, dataset, do, force)
    for sentence in done.notes:
        note(f"Note: {sentence}")
    parts = f"Shard {shard} of {out} is done. When all are, the same command without --shard joins them"
    note(f"Scores: {out}" if done.whole else parts)


def sample(
    run: Run,
    out: Annotated[Path, option("The file to write: .npz, .csv or .parquet.", "--out", "-o", show_default=False)],
    n: Annotated[int, option("Number of events.", "-n")] = 10_000,
    seed: Seed = 0,
    latent_steps: Annotated[int | None, option("Length of the latent chain.")] = None,
    feature_steps: Annotated[int | None, option("Length of the feature chain.")] = None,
    condition: Annotated[str | None, option("3.5,...: the value of m, of a model p(x | m).")] = None,
    device: Device = "auto", force: Force = False,
) -> None:  # fmt: skip
    """Generate events: the array x in an .npz, or the columns of a table.

    Example: normae sample runs/toy -n 10000 -o samples.npz
    """
    require_that(out.suffix in (".npz", ".csv", ".parquet"), "--out", "a name that ends in .npz, .csv or .parquet", out)
    from normae.data import Rows
    from normae.data.tables import write_rows
    from normae.files import check_new, output
    from normae.runs.load import load

    check_new(out, force)
    try:
        given = None if condition is None else [float(number) for number in condition.split(",")]
    except ValueError:
        raise InputError(f"--condition: expected numbers such as 3.5, got {condition!r}") from None
    model = load(run, device)
    x = model.sample(n, seed, latent_steps, feature_steps, condition=given)
    with output(out, force) as temporary:
        write_rows(Rows(x, model.columns, None, model.categories), temporary)
    say(f"{n} events of shape {x.shape[1:]}: {out}")


def histogram(
    run: Run,
    files: Annotated[list[Path], argument("Background: tables, or files of jets.")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o", show_default=False)],
    signal: Annotated[list[Path] | None, option("A file of signal. Any number of times.")] = None,
    observed: Annotated[list[Path] | None, option("A file of observed events. Any number of times.")] = None,
    quantity: Annotated[str, option("score, log_prob or p_value.")] = "score",
    bins: Annotated[str, option("tail, a number of equal bins, or edges 0,1,2.5.")] = "tail",
    quantiles: Annotated[str | None, option("0.5,0.9,0.99: edges at shares of held-out background.")] = None,
    weights: Annotated[str | None, option("Column with the weight of an event.")] = None,
    expected: Annotated[float | None, option("Background events to scale to.")] = None,
    expected_signal: Annotated[float | None, option("Signal events to scale to.")] = None,
    normalization: Annotated[float, option("Relative uncertainty of the background's yield.")] = 0.0,
    draws: Annotated[int, option("Weight draws of a Bayesian run.")] = 100,
    pseudo_experiments: Annotated[int, option("Pseudo-experiments that test whether p-values are uniform.")] = 0,
    columns: Columns = None, dataset: Dataset = None, device: Device = "auto", force: Force = False,
) -> None:  # fmt: skip
    """Bin scores for a search.

    Writes a pyhf workspace, HEPData tables and a figure, with the covariance over weight draws.

    Example: normae histogram runs/toy background.parquet --signal bump.parquet -o runs/search
    """
    from normae.search.histogram import HistogramSettings
    from normae.search.histogram import histogram as histogram_of

    settings = HistogramSettings(quantity, bins, quantiles, weights, expected, expected_signal, normalization, draws)
    names = parse_columns(columns)
    found, sentences = histogram_of(
        run, files, out, settings, signal or (), observed or (), names, dataset, device, pseudo_experiments, force
    )
    signals = ["" if found.signal is None else f"{value:.4g}" for value in (found.signal or found.background).value]
    seen = [""] * len(signals) if found.data is None else [f"{value:g}" for value in found.data]
    edges = (f"{low:.4g} to {high:.4g}" for low, high in pairwise(found.edges))
    rows = zip(edges, (f"{value:.5g}" for value in found.background.value), signals, seen, strict=True)
    show((quantity, "background", "signal", "observed"), rows)
    for sentence in sentences:
        say(sentence)
    say(f"Workspace, tables and figure: {out}")


def export(
    run: Run,
    out: Annotated[Path, option("The .onnx file or folder to write.", "--out", "-o", show_default=False)],
    onnx: Annotated[bool, option("Energy, score and log p as an ONNX graph.", "--onnx")] = False,
    trigger: Annotated[bool, option("A small fixed-point network as an hls4ml project.", "--trigger")] = False,
    draws: Annotated[int, option("Weight draws of a Bayesian run.")] = 100,
    tolerance: Annotated[float, option("ONNX: largest difference of scores.")] = 1e-3,
    signal: Annotated[list[Path] | None, option("Trigger: a file of signal to compare on. Any number.")] = None,
    hidden: Annotated[str, option("Trigger: widths of the hidden layers.")] = "32,16",
    bits: Annotated[int, option("Trigger: bits of weights, inputs and results.")] = 16,
    epochs: Annotated[int, option("Trigger: epochs of the distillation.")] = 30,
    events: Annotated[int, option("Trigger: background events to distill on.")] = 50_000,
    force: Force = False,
) -> None:
    """Write a model as ONNX, or as a small network for a trigger.

    Either is compared with the run before it is kept.

    Example: normae export runs/toy --onnx -o model.onnx
    """
    refuse(onnx == trigger, "expected one of --onnx and --trigger, which says what to write")
    if onnx:
        from normae.export.onnx import export_onnx

        differences = export_onnx(run, out, draws, tolerance, force)
        largest = ", ".join(f"{name} {found.largest:.2g}" for name, found in differences.items())
        say(f"Checked on 1000 events; largest differences: {largest}")
        say(f"Model: {out}")
        return
    from normae.export.trigger import TriggerSettings, export_trigger

    try:
        widths = tuple(int(piece) for piece in hidden.split(","))
    except ValueError:
        raise InputError(f"--hidden: expected widths such as 32,16, got {hidden!r}") from None
    report = export_trigger(run, out, TriggerSettings(widths, bits, epochs, events), signal or [], force)
    rows = []
    for name in ("noise", "signal"):
        if areas := report.get(f"auc_{name}"):
            cells = (areas["original"], areas["fixed"], areas["loss"], report["pearson"][name])
            rows.append((name, *(f"{cell['value']:.4f} ± {cell['error']:.4f}" for cell in cells)))
    show(("anomalies", "AUC, original", "AUC, fixed point", "loss", "correlation of scores"), rows)
    emulation = report["emulation"]
    words = "no compiler to compare with" if emulation["outputs_that_differ"] is None else "equal in every bit"
    say(f"{emulation['events']} events by {emulation['by']}: {words}")
    say(f"Project and report: {out}")
