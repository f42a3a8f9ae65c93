"""The ports of a cluster for a batch system: TLS with its key, and nothing else."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("dask_jobqueue")
import distributed
import psutil

from knock import knock
from normae.scoring.cluster import SUBMIT, ClusterOptions, open_workers

ANSWER = {"slurm": "Submitted batch job 1", "htcondor": "1 job(s) submitted to cluster 1."}
CANCEL = {"slurm": "scancel", "htcondor": "condor_rm"}


def listening() -> set[int]:
    """Ports of this process."""
    return {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}


@pytest.fixture
def batch(tmp_path, monkeypatch) -> Path:
    """Commands of both systems that take a job and never start it."""
    for kind, answer in ANSWER.items():
        for name in (SUBMIT[kind], CANCEL[kind]):
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("kind", ["slurm", "htcondor"])
def test_the_scheduler_of_a_batch_system_speaks_tls_only(kind, batch):
    """It is for other machines, and so on all interfaces where none is named: one port, and none for HTTP."""
    before = listening()
    with open_workers(kind, 1, options=ClusterOptions(), shared=batch) as workers:
        found = listening() - before
        address = workers.client.scheduler.address
        assert found == {int(address.rpartition(":")[2])}
        assert address.startswith("tls://")
        assert workers.client.run_on_scheduler(os.getpid) == os.getpid(), "who has the key is heard"
        security = workers.client.security.get_connection_args("scheduler")
        with pytest.raises(RuntimeError, match="encryption required"):
            asyncio.run(distributed.comm.connect("tcp://127.0.0.1:1", timeout=1, **security))
        socket.create_connection(("127.0.0.1", *found), 2).close()  # what is silent is there
        assert set(knock(found, batch)) == {b""}


def test_what_an_open_port_answers(tmp_path):
    """The same knocks at a scheduler as dask makes it: it talks to anyone, and has a port for HTTP."""
    before, how = listening(), {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with distributed.LocalCluster(n_workers=0, processes=False, protocol="tcp://", **how) as own:
        found = listening() - before
        plain, http = int(own.scheduler.address.rpartition(":")[2]), own.scheduler.http_server.port
        assert found == {plain, http}
        assert all(knock({plain}, tmp_path)[:2])
        assert knock({http}, tmp_path)[1].startswith(b"HTTP/1.")
