"""`normae score --cluster`: the scores of the plain path to the last byte, whichever worker dies and whenever."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

pytest.importorskip("dask_jobqueue")
import dask
import distributed
import psutil

from command import command
from knock import knock
from normae.config import structure
from normae.errors import ClusterFailed, InputError
from normae.files import clear
from normae.runs.session import train
from normae.scoring import cluster
from normae.scoring.cluster import ClusterOptions, Workers, batch_cluster, on_cluster, open_workers, ranges
from normae.scoring.score import Scorer, here, open_file, open_scorer, parts_of, score
from tiny_run import tiny
from tiny_table import rows, write
from watched import watched

ROWS = 20_000
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    x = np.clip(np.random.default_rng(seed).normal(size=(rows, 2)), -2, 2)  # none is outside the training sample
    return pa.table({"mass": x[:, 0], "η": x[:, 1]})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    pyarrow.parquet.write_table(table(2000), folder / "train.parquet")
    content = tiny(data={"file": str(folder / "train.parquet"), "train": 1500, "test": 500})
    assert train(structure(content), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def scorer(run) -> Scorer:
    """With small parts, so that there are many futures."""
    return replace(open_scorer(run, device="cpu"), block=64, part=256)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("events")
    pyarrow.parquet.write_table(table(), folder / "a.parquet", row_group_size=3000)
    pyarrow.csv.write_csv(table(1001, seed=1), folder / "b.csv")
    return [folder / "a.parquet", folder / "b.csv"]


@pytest.fixture(scope="module")
def plain(scorer, files, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("plain") / "s.parquet"
    assert score(scorer, files, out).whole
    return out.read_bytes()


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    """Two workers on this machine, for all tests of this file."""
    with open_workers("local", 2) as workers:
        yield workers


def pids(workers: Workers) -> list[int]:
    return list(workers.client.run(os.getpid).values())


def test_the_same_bytes_as_without_a_cluster(scorer, files, plain, two, tmp_path, monkeypatch):
    """Also from another folder: files are given as they are named, and found wherever a worker is."""
    monkeypatch.chdir(files[0].parent)
    names = [path.name for path in files]
    assert score(scorer, names, tmp_path / "s.parquet", do=two).whole
    assert score(scorer, names, tmp_path / "p.parquet").whole
    assert (tmp_path / "s.parquet").read_bytes() == (tmp_path / "p.parquet").read_bytes()
    assert score(scorer, files, tmp_path / "whole.parquet", do=two).whole
    assert (tmp_path / "whole.parquet").read_bytes() == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.parquet", "s.parquet", "whole.parquet"]


def test_rows_outside_are_counted_by_workers(table_run, two, tmp_path):
    own = replace(open_scorer(table_run.path, device="cpu"), block=64, part=256)
    file = write(rows(1000, seed=1) * [1e3, 1, 1], tmp_path / "new.parquet")
    notes = [score(own, [file], tmp_path / f"{k}.parquet", do=do).notes for k, do in enumerate((here, two))]
    assert "ALL 1,000 rows" in notes[0][0]
    assert notes[0] == notes[1]
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()


def test_rows_beyond_the_bounds_are_counted_and_scored_by_workers(scorer, two, tmp_path):
    x = table(1000).to_pydict()
    x["mass"][::10] = [9.0] * 100
    file = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table(x), file)
    notes = [score(scorer, [file], tmp_path / f"{k}.parquet", do=do).notes for k, do in enumerate((here, two))]
    assert "100 of 1,000 rows have a value in `mass` that cannot occur" in notes[0][0]
    assert notes[0] == notes[1]
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()
    found = pyarrow.parquet.read_table(tmp_path / "1.parquet")["score"].to_numpy()
    assert (found > 9_000).tolist() == [k % 10 == 0 for k in range(1000)]


def test_a_worker_loads_the_model_once(two):
    """After the tests before, and with as many futures as parts."""
    kept = two.client.run(_loaded)
    assert set(kept.values()) <= {0, 1}
    assert 1 in kept.values()


def _loaded() -> int:
    from normae.scoring import cluster

    return cluster._model.cache_info().currsize


def test_workers_are_looked_at_while_they_work(scorer, files, two, tmp_path, monkeypatch):
    """How far each of them is are the rows that it has scored: one that gets no further would hang."""
    look, looks, before = cluster.Look.__call__, [], sum(two.client.run(_scored).values())
    monkeypatch.setattr(cluster, "LOOK", 1e-3)
    monkeypatch.setattr(cluster.Look, "__call__", lambda self: looks.append(look(self)))
    assert score(scorer, files[1:], tmp_path / "s.parquet", do=two).whole
    assert looks
    assert sum(two.client.run(_scored).values()) - before == 1001


def _scored() -> int:
    from normae.scoring import cluster

    return cluster._rows_done(None)


def test_a_worker_killed_in_the_middle(scorer, files, plain, two, tmp_path):
    """SIGKILL at the 10th part of about 80: no row is lost, none is there twice, and the bytes are the same."""
    victim, killed = pids(two)[0], []

    def kill(done: int, total: int) -> None:
        if done > 10 * 256 and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(done)

    with watched(kill):
        assert score(scorer, files, tmp_path / "s.parquet", do=two).whole
    assert killed
    assert not psutil.pid_exists(victim) or psutil.Process(victim).status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "s.parquet").read_bytes() == plain
    rows = pyarrow.parquet.read_table(tmp_path / "s.parquet")
    assert np.array_equal(rows["row"].to_numpy(), np.concatenate([np.arange(ROWS), np.arange(1001)]))
    two.client.wait_for_workers(2, timeout=60)
    assert victim not in pids(two)


def test_a_restart_does_only_what_is_missing(scorer, files, plain, two, tmp_path):
    out, parts = tmp_path / "s.parquet", tmp_path / "s.parquet.parts"

    def stop(done: int, total: int) -> None:
        if done > 8_000:
            raise KeyboardInterrupt

    with watched(stop), pytest.raises(KeyboardInterrupt):
        score(scorer, files, out, do=two)
    assert not out.exists()
    time.sleep(0.5)  # a worker may be at a part still
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("[!.]*.safetensors")}
    assert len(kept) >= 8_000 // 256
    seen = []

    def look(scorer_, missing, folder, chunk, watch):
        seen.extend(part.name for part in missing)
        two(scorer_, missing, folder, chunk, watch)
        assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}.items()

    assert score(scorer, files, out, do=look).whole
    assert not set(seen) & set(kept)
    assert out.read_bytes() == plain


def test_a_shard_on_a_cluster(scorer, files, plain, two, tmp_path):
    out = tmp_path / "s.parquet"
    assert not score(scorer, files, out, shard="0/3", do=two).whole
    assert score(scorer, files, out).whole
    assert out.read_bytes() == plain


def test_what_a_worker_finds_is_the_sentence_of_the_plain_path(scorer, two, tmp_path):
    x = table(4000).to_pydict()
    x["η"][3000] = float("nan")
    pyarrow.parquet.write_table(pa.table(x), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="in column 'η', the first at row 3000"):
        score(scorer, [tmp_path / "bad.parquet"], tmp_path / "s.parquet", do=two)
    assert not (tmp_path / "s.parquet").exists()


def test_other_weights_and_failures_are_named(scorer, files, two, tmp_path):
    changed = replace(scorer, weights="0", digest="1")
    with pytest.raises(InputError, match="a worker finds other weights there"):
        score(changed, files, tmp_path / "s.parquet", do=two)
    broken = replace(scorer, columns=("mass", 3), digest="2")  # type: ignore[arg-type]
    parts = parts_of(scorer, [open_file(scorer, files[0])])
    with pytest.raises(InputError, match="no column 3"):
        two(broken, parts, tmp_path, 64, lambda rows: None)
    with pytest.raises(InputError, match="does not see this folder"):
        two(scorer, parts, tmp_path / "none", 64, lambda rows: None)
    strange = replace(scorer, block="x", digest="3")  # type: ignore[arg-type]
    with pytest.raises(ClusterFailed, match="a worker failed with TypeError"):
        two(strange, parts, tmp_path, 64, lambda rows: None)


def test_ranges(scorer, files):
    """A future is a part; a CSV file, which is read from its start, is cut into as many ranges as there are workers."""
    opened = [open_file(scorer, path) for path in files]
    table_parts, csv_parts = (parts_of(scorer, [file]) for file in opened)
    found = ranges([*table_parts, *csv_parts], 3)
    assert [part for parts in found for part in parts] == [*table_parts, *csv_parts]
    assert [len(parts) for parts in found] == [1] * len(table_parts) + [1, 1, 2]
    assert ranges([], 3) == []


# --- the command


def test_an_address(run, files, tmp_path, capsys):
    """`--cluster tcp://... --insecure`; the scheduler and its workers live on."""
    out = tmp_path / "s.parquet"
    with distributed.LocalCluster(1, processes=False, protocol="tcp://", dashboard_address=None) as own:
        address = own.scheduler.address
        assert command("score", run, files[0], "-o", out, "--cluster", address, "--device", "cpu") == 2
        assert "without TLS it runs what anyone sends" in capsys.readouterr().err
        assert command("score", run, files[0], "-o", out, "--cluster", address, "--insecure", "--device", "cpu") == 0
        assert capsys.readouterr().err.strip() == f"Scores: {out}"
        assert len(own.workers) == 1
    assert score(open_scorer(run, device="cpu"), [files[0]], tmp_path / "p.parquet").whole
    assert (tmp_path / "s.parquet").read_bytes() == (tmp_path / "p.parquet").read_bytes()


def test_no_port_answers_who_has_not_the_key(two, tmp_path):
    """Scheduler, nannies and workers, asked by another user where this one may become another."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [c.laddr for process in processes for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert {address.ip for address in found} == {"127.0.0.1"}
    assert len(found) >= 5, "a scheduler, and two workers each with its nanny"
    assert set(knock({address.port for address in found}, tmp_path)) == {b""}


def test_a_client_without_the_key_runs_nothing(two):
    address = two.client.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    for place, security in (
        (address.replace("tls", "tcp"), None),
        (address, distributed.Security.temporary()),
    ):
        with pytest.raises(OSError):
            distributed.Client(place, security=security, timeout=0.5, set_as_default=False)
    with pytest.raises(TypeError, match="TLS"):
        distributed.Client(address, timeout=0.5, set_as_default=False)


def test_workers_of_others_are_left_alone(monkeypatch):
    """On a scheduler that runs already a worker may be at the work of someone else, for as long as that takes."""
    monkeypatch.setattr(cluster, "HANGS", 0.0)
    with (
        distributed.LocalCluster(1, processes=False, protocol="tcp://", dashboard_address=None) as own,
        distributed.Client(own, set_as_default=False) as client,
    ):
        work, look = client.submit(time.sleep, 1), cluster.Look(client)
        time.sleep(0.3)
        assert client.run_on_scheduler(
            lambda dask_scheduler: [len(w.processing) for w in dask_scheduler.workers.values()]
        )
        look()
        look()
        assert work.result(timeout=30) is None
        assert look.seen == {}


def test_a_worker_that_hangs_is_given_up(two, monkeypatch):
    """SIGSTOP before it can do its work: its process is ended, and the work is done by another."""
    monkeypatch.setattr(cluster, "HANGS", 1.0)
    address, victim = next(iter(two.client.run(os.getpid).items()))
    os.kill(victim, signal.SIGSTOP)
    work = two.client.submit(os.getpid, workers=[address], allow_other_workers=True, pure=False)
    look, end = cluster.Look(two.client), time.monotonic() + 60
    while not work.done() and time.monotonic() < end:
        look()
        time.sleep(0.2)
    assert work.result(timeout=1) != victim
    psutil.wait_procs([psutil.Process(victim)] if psutil.pid_exists(victim) else [], timeout=30)
    assert not psutil.pid_exists(victim) or psutil.Process(victim).status() == psutil.STATUS_ZOMBIE
    two.client.wait_for_workers(2, timeout=120)


@pytest.mark.slow
def test_a_worker_that_hangs_in_the_middle(scorer, files, plain, two, tmp_path, monkeypatch):
    """SIGSTOP in the middle: its process is ended, and its range is done by another.

    On a machine that is busy the other one may seem to hang too: only the one that was stopped is looked at.
    """
    address, victim = next(iter(two.client.run(os.getpid).items()))
    standing, stopped = cluster._standing, []
    monkeypatch.setattr(cluster, "HANGS", 1.0)
    monkeypatch.setattr(cluster, "LOOK", 0.2)
    monkeypatch.setattr(
        cluster,
        "_standing",
        lambda dask_scheduler: {a: s for a, s in standing(dask_scheduler).items() if a == address and stopped},
    )

    def stop(done: int, total: int) -> None:
        if done > 10 * 256 and not stopped:
            os.kill(victim, signal.SIGSTOP)
            stopped.append(done)

    with watched(stop):
        assert score(scorer, files, tmp_path / "s.parquet", do=two).whole
    assert stopped
    assert (tmp_path / "s.parquet").read_bytes() == plain
    assert not psutil.pid_exists(victim) or psutil.Process(victim).status() == psutil.STATUS_ZOMBIE
    two.client.wait_for_workers(2, timeout=120)


def test_local_command_with_a_worker_killed(run, tmp_path):
    """`--cluster local`: a worker is killed at the first part; exit code 0, every row once, the plain path's bytes."""
    pyarrow.parquet.write_table(table(3 << 19), tmp_path / "long.parquet")
    out, parts = tmp_path / "s.parquet", tmp_path / "s.parquet.parts"
    command = ["score", run, tmp_path / "long.parquet", "-o", out, "--cluster", "local", "--workers", "2"]
    process = start(*command)
    wait_for_part(parts, process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert error.strip() == f"Scores: {out}"
    assert score(open_scorer(run, device="cpu"), [tmp_path / "long.parquet"], tmp_path / "p.parquet").whole
    assert out.read_bytes() == (tmp_path / "p.parquet").read_bytes()
    assert not parts.exists()


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "normae", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_part(parts: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while not list(parts.glob("[!.]*.safetensors")) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


def workers_of(pid: int) -> list[int]:
    children = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in children if any("spawn_main" in word for word in child.cmdline())]


@pytest.mark.slow
def test_the_whole_command_killed(run, tmp_path):
    """kill -9 of the command: its workers end too, nothing is under the final name, the next call does the rest."""
    pyarrow.parquet.write_table(table(8 << 19), tmp_path / "long.parquet")
    out, parts = tmp_path / "s.parquet", tmp_path / "s.parquet.parts"
    command = ["score", run, tmp_path / "long.parquet", "-o", out, "--cluster", "local", "--workers", "2"]
    process = start(*command)
    wait_for_part(parts, process)
    workers = workers_of(process.pid)
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)], timeout=60)
    assert not alive
    assert not out.exists()
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("[!.]*.safetensors")}
    assert 1 <= len(kept) < 8
    seen = []

    def look(scorer_, missing, folder, chunk, watch):
        seen.extend(missing)
        on_cluster("local", 2)(scorer_, missing, folder, chunk, watch)

    assert score(open_scorer(run, device="cpu"), [tmp_path / "long.parquet"], out, do=look).whole
    assert len(seen) == 8 - len(kept)
    assert np.array_equal(pyarrow.parquet.read_table(out)["row"].to_numpy(), np.arange(8 << 19))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "pbs"], "--cluster: expected local, slurm, htcondor or tls://HOST:PORT, got 'pbs'"),
        (["--cluster", "tcp://"], "--cluster: expected local, slurm, htcondor or tls://HOST:PORT, got 'tcp://'"),
        (["--cluster", "tcp://127.0.0.1:1", "--insecure"], "no dask scheduler of this version answers there"),
        (["--cluster", "tls://127.0.0.1:1"], "no dask scheduler of this version answers there"),
        (["--cluster", "tls://127.0.0.1:1", "--workers", "2"], "the scheduler has its workers"),
        (["--cluster", "tcp://127.0.0.1:1"], "without TLS it runs what anyone sends"),
        (["--cluster", "local", "--insecure"], "--insecure is for tcp:// only"),
        (["--insecure"], "--insecure: expected --cluster with it"),
        (["--cluster", "slurm"], "--cluster slurm: expected --workers N"),
        (["--cluster", "slurm", "--workers", "2"], "no command sbatch here"),
        (["--cluster", "htcondor", "--workers", "2"], "no command condor_submit here"),
        (["--cluster", "local", "--workers", "0"], "--workers: expected at least 1, got 0"),
        (["--cluster", "local", "--threads", "-1"], "--threads: expected at least 1, got -1"),
        (["--workers", "2"], "--workers: expected --cluster with it"),
        (["--cluster", "local", "--cluster-options", "none.toml"], "none.toml: no such configuration file"),
        (["--cluster", "local", "--cluster-options", "OPTIONS"], "unknown key 'quue'; did you mean 'queue'?"),
    ],
)
def test_bad_arguments_are_one_sentence(run, files, tmp_path, capfd, monkeypatch, arguments, message):
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "o.toml").write_text('quue = "short"\n')
    given = [str(tmp_path / "o.toml") if word == "OPTIONS" else word for word in arguments]
    assert command("score", run, files[0], "-o", tmp_path / "s.parquet", *given) == 2
    error = capfd.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["o.toml"]


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"distributed is not installed; `pip install 'normae\[cluster\]'`"):
        on_cluster("local")


# --- batch systems, of which there is none here


def script(kind: str, **options: object) -> str:
    with tempfile.TemporaryDirectory(prefix="a key") as folder:
        made = batch_cluster(kind, 4, ClusterOptions(**options), Path(folder))  # type: ignore[arg-type]
        try:
            return made.job_script()
        finally:
            made.close()


def test_the_job_of_slurm():
    text = script(
        "slurm", memory="3GiB", queue="short", account="atlas", walltime="02:00:00", directives=("--constraint=cpu",),
        prologue=("source setup.sh",), python="/env/bin/python", scratch="/scratch",
    )  # fmt: skip
    for line in ("-p short", "-A atlas", "-n 1", "--cpus-per-task=4", "--mem=3G", "-t 02:00:00", "--constraint=cpu"):
        assert f"#SBATCH {line}\n" in text
    *_, prologue, worker = text.strip().splitlines()
    assert prologue == "source setup.sh"
    assert worker.startswith("/env/bin/python -m distributed.cli.dask_worker tls://")
    for words in ("--nthreads 1 ", "--memory-limit 3.00GiB", "--nanny", "--local-directory /scratch"):
        assert words in worker
    assert "--mem=2G" in script("slurm")
    with pytest.raises(InputError, match="disk is for htcondor"):
        script("slurm", disk="1GiB")


NASTY = "/x y/$(touch pwned)`id`;'\"&"


def test_the_words_of_a_job_are_quoted():
    """What bash makes of the worker's line are the words that were given; nothing in them is run."""
    words = shlex.split(script("slurm", python=NASTY, scratch=NASTY).strip().splitlines()[-1])
    assert words[0] == words[words.index("--local-directory") + 1] == NASTY
    key = Path(words[words.index("--tls-key") + 1])
    assert " " in str(key)
    assert key.parent == Path(words[words.index("--tls-ca-file") + 1]).parent
    text = script("htcondor", python=NASTY, scratch=NASTY)
    line = next(line for line in text.splitlines() if line.startswith("Arguments"))
    inner = line.removeprefix("Arguments = \"-c '").removesuffix("'\"").replace("''", "'").replace('""', '"')
    assert shlex.split(inner.replace("$(DOLLAR)", "$"))[0] == NASTY
    assert "$(touch" not in text


@pytest.mark.parametrize("name", ["queue", "account", "walltime", "memory", "disk", "interface", "logs"])
def test_options_of_a_job_are_plain_words(name):
    for value in ("a\ncmd", "$(cmd)", "`cmd`", "a;b", 'a"b', "a'b"):
        with pytest.raises(InputError, match=f"cluster options: {name}: expected a plain word"):
            ClusterOptions(**{name: value})
    for lines in ({"directives": ("--a\ncmd",)}, {"scratch": "a\ncmd"}):
        with pytest.raises(InputError, match="directives, scratch: expected lines without control characters"):
            ClusterOptions(**lines)


def test_the_job_of_htcondor():
    text = script("htcondor", memory="3GiB", disk="5GiB", directives=("+MaxRuntime = 3600",), prologue=("a b",))
    for line in ("RequestCpus = 4", "MY.DaskWorkerMemory = 3221225472", "MY.DaskWorkerDisk = 5368709120",
                 "+MaxRuntime = 3600", "Executable = /bin/sh"):  # fmt: skip
        assert f"{line}\n" in text
    assert "a b; " in text
    assert "--nthreads 1 " in text
    with pytest.raises(InputError, match="queue is for slurm; htcondor has directives"):
        script("htcondor", queue="short")
    with pytest.raises(InputError, match="have the form 'key = value', got 'x'"):
        script("htcondor", directives=("x",))


SBATCH = """#!/bin/sh
cp "$1" {folder}/job.sh
setsid bash {folder}/job.sh >/dev/null 2>&1 &
echo $! >> {folder}/jobs
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
kill -- -$1
"""


def stand_in(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text.format(folder=folder))
    path.chmod(0o755)


def test_slurm_s_path_with_a_stand_in_for_sbatch(scorer, files, plain, tmp_path, monkeypatch):
    """Commands that start and stop the job's script on this machine; a job that is lost is submitted again."""
    tools = tmp_path / "bin"
    tools.mkdir()
    stand_in(tools, "sbatch", SBATCH)
    stand_in(tools, "scancel", SCANCEL)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "LOOK", 0.5)
    killed = []

    def kill(done: int, total: int) -> None:
        if done > 10 * 256 and not killed:
            killed.append(int((tools / "jobs").read_text()))
            os.killpg(killed[0], signal.SIGKILL)

    with dask.config.set({"distributed.deploy.lost-worker-timeout": "0.1s"}):
        do = on_cluster("slurm", 1, options=ClusterOptions(interface="lo"))
        with watched(kill):
            assert score(scorer, files, tmp_path / "a b" / "s.parquet", do=do).whole
    assert (tmp_path / "a b" / "s.parquet").read_bytes() == plain
    assert [path.name for path in (tmp_path / "a b").iterdir()] == ["s.parquet"], "the key is gone"
    assert "--tls-key" in (tools / "job.sh").read_text()
    jobs = [int(line) for line in (tools / "jobs").read_text().split()]
    assert jobs[0] == killed[0]
    assert len(jobs) == 2
    assert not any(psutil.pid_exists(job) and psutil.Process(job).status() != "zombie" for job in jobs)


def test_a_key_that_a_killed_command_leaves_is_cleared_away(tmp_path, monkeypatch):
    """Its folder is among the parts, and has the mark of what was begun."""

    def refuse(kind: str, threads: int, options: ClusterOptions, folder: Path) -> None:
        assert folder.stat().st_mode & 0o777 == 0o700
        names.append(folder.name)
        raise ClusterFailed("no")

    names: list[str] = []
    monkeypatch.setattr(cluster, "batch_cluster", refuse)
    monkeypatch.setitem(cluster.SUBMIT, "slurm", "true")
    with pytest.raises(ClusterFailed), cluster.open_workers("slurm", 1, shared=tmp_path):
        pass
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[0] / "key.pem").touch()
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_job_is_one_sentence(scorer, files, tmp_path, monkeypatch):
    stand_in(tmp_path, "sbatch", "#!/bin/sh\necho 'invalid partition specified: short' >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InputError, match="cannot be submitted .*invalid partition specified: short"):
        score(scorer, files, tmp_path / "s.parquet", do=on_cluster("slurm", 1, options=ClusterOptions(interface="lo")))
    assert shutil.which("sbatch")
    assert not (tmp_path / "s.parquet").exists()
