"""Parts of scores made by the workers of a dask cluster: of this machine, of Slurm or HTCondor, or of a scheduler
that runs already.

One future is a range of rows of one file. A worker loads the model once and does what a process without a cluster
does, `normae.scoring.score.here`. What goes over the wire are names, numbers and the background's scores; events and
results stay in files, which all workers must see. A part is done when its file is there: a worker that dies or hangs
costs the range that it was at, and a command that dies nothing that was written.

dask runs whatever it is sent. So the clusters that are opened here talk over TLS, with a key that is made for the one
command and that no other user can read, and no port of theirs speaks HTTP.
"""

import logging
import os
import queue
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normae.config import read_toml, structure_as
from normae.errors import ClusterFailed, InputError, refuse, require, require_that
from normae.files import PART
from normae.inference import Model
from normae.runs.load import load_run
from normae.scoring.score import Doer, Part, Watch, consecutive, here
from normae.scoring.scorer import Scorer, weights_of

SUBMIT = {"slurm": "sbatch", "htcondor": "condor_submit"}  # the command with which each batch system takes a job
MEMORY, DISK = "2GiB", "1GiB"  # of a worker, where neither the options nor dask's own configuration say it
PATIENCE = 10.0  # seconds within which a scheduler must answer, and a file that another machine wrote must be seen here
LOOK = 5.0  # seconds between looks at whether workers were lost, or hang
HANGS = 600.0  # seconds after which a worker that has work and gets no further is given up
IN_ORDER = (".csv", ".npz")  # kinds of files that can only be read from the start


@dataclass(frozen=True)
class ClusterOptions:
    """What a worker's batch job asks for; what is None is left to dask's own configuration (jobqueue.yaml).

    Args:
        memory: of a worker, for example "4GiB".
        queue: Slurm's partition.
        account: that Slurm charges.
        walltime: of a Slurm job, for example "02:00:00".
        disk: of an HTCondor job.
        directives: further lines: "--constraint=haswell" for Slurm, "+MaxRuntime = 3600" for HTCondor.
        prologue: shell commands before the worker starts, for example "source /software/setup.sh".
        interface: network interface, for example "ib0".
        python: Python of the workers; that of the command where it is None.
        logs: folder for the logs of the jobs.
        scratch: folder for temporary files of a worker.
    """

    memory: str | None = None
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    disk: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    interface: str | None = None
    python: str | None = None
    logs: str | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "queue", "account", "walltime", "disk", "interface", "logs"):
            plain = re.fullmatch(r"[\w.,:@%+=/~ -]+", getattr(self, name) or "-") is not None
            require_that(plain, f"cluster options: {name}", "a plain word", repr(getattr(self, name)))
        broken = not all(line.isprintable() for line in (*self.directives, self.scratch or ""))
        refuse(broken, "cluster options: directives, scratch: expected lines without control characters")


# --- in a worker

_busy = threading.Lock()
_done: list[int] = []  # rows that this process has scored, piece by piece


def work(scorer: Scorer, device: str, threads: int | None, parts: Sequence[Part], folder: Path, chunk: int) -> None:
    """Score parts in this worker; one call at a time, and what is there already is not done again.

    `scorer` comes without its model, which every worker loads for itself.
    """
    with _busy:
        unseen = not folder.is_dir()
        refuse(unseen, f"{folder}: a worker does not see this folder; write the scores to where all workers see")
        missing = [part for part in parts if not (folder / part.name).is_file()]
        if missing:
            model = _model(scorer.run, device, threads, scorer.weights)
            here(replace(scorer, model=model), missing, folder, chunk, _done.append)


@lru_cache(maxsize=1)
def _model(run: str, device: str, threads: int | None, weights: str) -> Model:
    if threads is not None:
        torch.set_num_threads(threads)
    model, _, _, content = load_run(run, device)
    refuse(weights_of(content, model) != weights, f"{run}: a worker finds other weights there than the command did")
    return model


# --- in the command


def ranges(parts: Sequence[Part], workers: int) -> list[list[Part]]:
    """What one future does: a part; of a file that can only be read from its start, an equal share of its parts."""
    found = []
    for run in consecutive(parts):
        shares = min(workers, len(run)) if run[0].file.path.suffix.lower() in IN_ORDER else len(run)
        found += [run[a:b] for a, b in pairwise(np.linspace(0, len(run), shares + 1).astype(int))]
    return found


@dataclass(frozen=True)
class Workers:
    """Workers of a cluster, as what `normae.scoring.score.score` takes for `do`.

    Args:
        client: of dask.
        count: of workers that are wanted.
        threads: of torch in a worker; None leaves that to the worker.
        keep: starts workers in place of those that were lost.
    """

    client: Any
    count: int
    threads: int | None
    keep: Callable[[], None]

    def __call__(self, scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int, watch: Watch) -> None:
        """Score parts on the workers and write them into `folder`."""
        token = secrets.token_hex(8)
        bare: Any = replace(scorer, model=None)  # type: ignore[arg-type]
        bare = self.client.submit(lambda own: own, bare, key=f"scorer-{token}")
        device = scorer.model.device.type
        done: queue.Queue[Any] = queue.Queue()
        open_ranges = {}
        for number, run in enumerate(ranges(parts, self.count)):
            key = f"range-{token}-{number}"
            placed = [replace(part, file=replace(part.file, path=part.file.path.absolute())) for part in run]
            future = self.client.submit(work, bare, device, self.threads, placed, folder.absolute(), chunk, key=key)
            open_ranges[key] = (run, future)  # the future is kept: dask forgets what nobody holds
            future.add_done_callback(done.put)
        look = Look(self.client)
        while open_ranges:
            future = self._next(done, look)
            _check(future)
            run, _ = open_ranges.pop(future.key)
            for part in run:
                path, end = folder / part.name, time.monotonic() + PATIENCE
                while not path.is_file():  # another machine wrote it: it may be seen later
                    late = time.monotonic() > end
                    refuse(late, f"{path}: written by a worker, but not seen here; write scores to where all see them")
                    time.sleep(0.1)
                watch(part.stop - part.start)

    def _next(self, done: "queue.Queue[Any]", look: "Look") -> Any:
        while True:
            if self.client.status == "running" and time.monotonic() - look.last > LOOK:
                look()
            try:
                return done.get(timeout=LOOK)
            except queue.Empty:
                if self.client.status != "running":
                    raise ClusterFailed("the scheduler is gone") from None
                self.keep()


class Look:
    """A look at the workers: one that has work and gets no further for `HANGS` seconds is ended, others do its work."""

    def __init__(self, client: Any) -> None:
        self.client, self.last = client, time.monotonic()
        self.seen: dict[str, tuple[Any, float]] = {}  # by worker: how far it was, and since when

    def __call__(self) -> None:
        now = self.last = time.monotonic()
        before, self.seen = self.seen, {}
        for worker, state in self.client.run_on_scheduler(_standing).items():
            old = before.get(worker)
            self.seen[worker] = old if old is not None and old[0] == state else (state, now)
        if hung := [worker for worker, (_, since) in self.seen.items() if now - since > HANGS]:
            self.client.run_on_scheduler(_end, hung)


def _standing(dask_scheduler: Any) -> dict[str, Any]:
    """Of each worker of ours (`_plugin`) that has work: what that is, and how many rows it has scored."""
    workers = [(a, w) for a, w in dask_scheduler.workers.items() if w.processing and "normae" in w.metrics]
    return {a: (sorted(str(task.key) for task in w.processing), w.metrics["normae"]) for a, w in workers}


async def _end(workers: list[str], dask_scheduler: Any) -> None:
    """Workers are ended by their nannies; dask counts them as lost at what they were at."""
    how = {"wait_for_workers": False, "on_error": "return", "stimulus_id": "normae-hangs"}
    await dask_scheduler.restart_workers(workers, timeout=2, **how)


def _check(future: Any) -> None:
    if future.status == "finished":
        return
    if future.status != "error":
        raise ClusterFailed("the scheduler is gone or has dropped the work")
    error = future.exception()
    if isinstance(error, (InputError, OSError, MemoryError)):
        raise error
    lines = str(error).strip().splitlines()
    raise ClusterFailed(f"a worker failed with {type(error).__name__}: {lines[0][:200] if lines else 'no message'}")


def on_cluster(
    cluster: str, count: int | None = None, threads: int | None = None, options: ClusterOptions | Path | None = None,
    insecure: bool = False,
) -> Doer:  # fmt: skip
    """What `normae.scoring.score.score` takes for `do`; no cluster is opened where nothing is to be done.

    Args:
        cluster: local, slurm, htcondor, or the tcp:// or tls:// address of a scheduler.
        count: of workers; all cores of this machine for local, and needed for slurm and htcondor.
        threads: of a worker; 1 where it is None, but for a scheduler that runs already.
        options: of the batch jobs, or a TOML file with them.
        insecure: whether a scheduler without TLS may be used.
    """
    asked = structure_as(ClusterOptions, read_toml(options), str(options)) if isinstance(options, Path) else options
    address, name = cluster.startswith(("tcp://", "tls://")) and len(cluster) > 6, f"--cluster {cluster}"
    known, command = cluster in ("local", *SUBMIT) or address, SUBMIT.get(cluster)
    require_that(known, "--cluster", "local, slurm, htcondor or tls://HOST:PORT", repr(cluster))
    problem = "--insecure is for tcp:// only" if insecure else "without TLS it runs what anyone sends"
    other = insecure != cluster.startswith("tcp://")
    refuse(other, f"{name}: {problem}; expected tls://HOST:PORT, or tcp:// and --insecure with it")
    for option, value in (("--workers", count), ("--threads", threads)):
        require_that(value is None or value >= 1, option, "at least 1", value)
    given = count is not None or options is not None
    refuse(address and given, f"{name}: expected neither --workers nor options, the scheduler has its workers")
    refuse(command and count is None, f"{name}: expected --workers N, how many jobs to ask for")
    absent = command and shutil.which(command) is None
    refuse(absent, f"{name}: no command {command} here; call from where jobs are submitted")
    require("cluster", "dask_jobqueue", "distributed", "cryptography")

    def do(scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int, watch: Watch) -> None:
        if parts:
            with open_workers(cluster, count, threads, asked, folder) as workers:
                workers(scorer, parts, folder, chunk, watch)

    return do


@contextmanager
def open_workers(
    cluster: str, count: int | None = None, threads: int | None = None, options: ClusterOptions | None = None,
    shared: Path = Path(),
) -> Iterator[Workers]:  # fmt: skip
    """Workers on a cluster as `on_cluster` has them, gone when this ends; all see the folder `shared`."""
    import distributed

    with ExitStack() as stack:
        for name in ("distributed", "dask_jobqueue", "tornado.application", "asyncio"):
            logger = logging.getLogger(name)  # what matters comes as one sentence
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        if "://" in cluster:
            client = _connected(cluster, cluster, stack)
            yield Workers(client, max(len(client.scheduler_info()["workers"]), 1), threads, lambda: None)
            return
        count, threads, options = count or len(os.sched_getaffinity(0)), threads or 1, options or ClusterOptions()
        if cluster == "local":
            running = distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, processes=True, memory_limit=options.memory or 0,
                host="127.0.0.1", protocol="tls://", security=distributed.Security.temporary(),
                dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL + 1, local_directory=options.scratch,
            )  # fmt: skip
        else:
            begun = f".key.{secrets.token_hex(4)}.{PART}."  # what a killed command leaves is cleared away by that name
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=begun, dir=shared.absolute()))
            running = batch_cluster(cluster, threads, options, Path(folder))
        stack.callback(running.close, timeout=60)
        running.scheduler.http_server.stop()
        client = _connected(running, cluster, stack)
        client.register_plugin(_plugin())
        yield Workers(client, count, threads, _keeper(running, cluster, count))


def _connected(place: Any, name: str, stack: ExitStack) -> Any:
    """A client of a scheduler, closed with the stack."""
    import distributed

    try:
        client = distributed.Client(place, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # TypeError: no credentials in dask's configuration
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"--cluster {name}: no dask scheduler of this version answers there ({reason})") from None
    stack.callback(client.close, timeout=PATIENCE)
    return client


def _plugin() -> Any:
    """What every worker gets: no HTTP server, and a number that says how far it is."""
    from distributed import WorkerPlugin

    class Plugin(WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            worker.http_server.stop()
            worker.metrics["normae"] = _rows_done

    return Plugin()


def _rows_done(_: Any) -> int:
    return sum(_done)


def _credentials(folder: Path, word: Callable[[str], str]) -> Any:
    """A key for one cluster in `folder`, which only its owner reads; a job's script has its files' names by `word`."""
    from distributed import Security

    class Quoted(Security):  # type: ignore[misc]
        def get_tls_config_for_role(self, role: str) -> dict[str, Any]:
            found: dict[str, Any] = super().get_tls_config_for_role(role)
            return {key: word(str(value)) for key, value in found.items() if value} if role == "worker" else found

    made = Security.temporary()
    texts = {"cert": made.tls_client_cert, "key": made.tls_client_key}  # one pair for all roles
    for kind, text in texts.items():
        (folder / f"{kind}.pem").write_text(text)
    roles = [(f"tls_{role}_{kind}", kind) for role in ("client", "scheduler", "worker") for kind in texts]
    files = {name: str(folder / f"{kind}.pem") for name, kind in [*roles, ("tls_ca_file", "cert")]}
    return Quoted(require_encryption=True, **files)


def batch_cluster(cluster: str, threads: int, options: ClusterOptions, folder: Path) -> Any:
    """A cluster of dask_jobqueue without workers yet; a job is one worker that does one thing at a time.

    Args:
        cluster: slurm or htcondor.
        threads: cores of a job.
        folder: for the key of the cluster, where all workers see it.
    """
    import dask
    import dask_jobqueue

    def word(text: str) -> str:
        """As one word of a shell command; in HTCondor's files a dollar begins a macro."""
        return shlex.quote(text) if cluster == "slurm" else shlex.quote(text).replace("$", "$(DOLLAR)")

    settings = dask.config.get(f"jobqueue.{cluster}")
    python = options.python or settings["python"] or sys.executable
    common = {
        "cores": 1, "processes": 1, "memory": options.memory or settings["memory"] or MEMORY,
        "interface": options.interface, "python": word(python), "log_directory": options.logs,
        "local_directory": options.scratch and word(options.scratch),
        "worker_extra_args": [*settings["worker-extra-args"], "--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
        "protocol": "tls://", "security": _credentials(folder, word),
        "job_script_prologue": list(options.prologue) or None,
        "scheduler_options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"} | settings["scheduler-options"],
        "silence_logs": logging.CRITICAL + 1,
    }  # fmt: skip
    if cluster == "slurm":
        named = options.disk is not None
        refuse(named, "cluster options: disk is for htcondor; for slurm use directives, such as '--tmp=1G'")
        return dask_jobqueue.SLURMCluster(
            queue=options.queue, account=options.account, walltime=options.walltime, job_cpu=threads,
            job_extra_directives=list(options.directives) or None, **common,
        )  # fmt: skip
    for name in ("queue", "account", "walltime"):
        named = getattr(options, name) is not None
        refuse(named, f"cluster options: {name} is for slurm; htcondor has directives, such as '+Key = 1'")
    disk = options.disk or settings["disk"] or DISK
    lines = {"RequestCpus": str(threads)}
    for line in options.directives:
        key, equals, value = line.partition("=")
        refuse(not equals, f"cluster options: directives for htcondor have the form 'key = value', got {line!r}")
        lines[key.strip()] = value.strip()
    return dask_jobqueue.HTCondorCluster(disk=disk, job_extra_directives=lines, **common)


def _keeper(running: Any, cluster: str, count: int) -> Callable[[], None]:
    """What starts workers, at first all and later those that were lost; a job that is refused is one sentence."""
    from distributed import Status

    async def settle() -> None:
        running.scale(count)  # within the loop, so that what follows waits for the jobs that this submits, and raises
        await running

    def keep() -> None:
        try:
            running.sync(settle)
        except RuntimeError as error:
            for job in running.workers.values():
                job.status = job.status if job.job_id else Status.failed  # without it dask refuses to close
            text = " ".join(str(error).split())
            raise InputError(f"--cluster {cluster}: the jobs cannot be submitted ({text[:400]})") from None

    if cluster in SUBMIT:
        keep()
    return keep
