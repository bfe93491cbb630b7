"""Databases lose no committed row and have no wrong one, in the branch, after many restores, and in many forks."""

import json
from collections.abc import Callable

import pytest

from support.waiting import wait_until
from support.workload import install_workloads
from waypoint import Branch, Session

ROUNDS = 50
POSTGRES = "/usr/lib/postgresql/15/bin"


def assert_nothing_is_lost(
    session: Session, check: str, *, in_fork: Callable[[Branch, dict[str, int]], None] | None = None
) -> None:
    """Save, restore and fork the session at random moments; ``check`` prints what each writer has committed."""
    for _ in range(ROUNDS):
        known = _committed(session, check)
        saved = session.snapshot()
        _assert_not_before(_committed(session, check), known)
        (fork,) = session.fork(saved)
        counts = _committed(fork, check)
        _assert_not_before(counts, known)
        if in_fork is not None:
            in_fork(fork, counts)
        fork.destroy()
        session.restore(saved)
        _assert_not_before(_committed(session, check), known)


def _committed(branch: Branch | Session, check: str) -> dict[str, int]:
    checked = branch.exec(check, timeout_s=60)
    assert checked.exit_code == 0, checked.output
    counts: dict[str, int] = json.loads(checked.output)
    return counts


def _assert_not_before(later: dict[str, int], earlier: dict[str, int]) -> None:
    assert all(later[name] >= count for name, count in earlier.items()), (later, earlier)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_sqlite(session: Session, mode: str) -> None:
    install_workloads(session)
    session.exec(f"(python3 -m workloads.sqlite_writers {mode} &)")
    wait_until(session, "pgrep -fc 'workloads[.]sqlite_writers' | grep -q 2")
    assert_nothing_is_lost(session, "python3 -m workloads.sqlite_writers check")


def test_redis_that_writes_each_change_to_its_file(session: Session) -> None:
    install_workloads(session)
    server = (
        "redis-server --save '' --appendonly yes --appendfsync always --dir /tmp --daemonize yes >/dev/null"
    )
    session.exec(server)
    wait_until(session, "redis-cli ping >/dev/null 2>&1")
    session.exec("(python3 -m workloads.server_writers start redis &)")

    def kill_server(fork: Branch, counts: dict[str, int]) -> None:
        fork.exec(
            "pkill -9 -f workloads.server_writers; pkill -9 redis-server; while pgrep -x redis-server; do :; done"
        )
        fork.exec(server)
        wait_until(fork, "redis-cli ping 2>/dev/null | grep -q PONG")
        _assert_all_kept(fork, "redis", counts)

    assert_nothing_is_lost(session, "python3 -m workloads.server_writers check redis", in_fork=kill_server)


def test_postgresql_under_pgbench(session: Session) -> None:
    install_workloads(session)
    session.exec("mkdir -m 777 /tmp/pg; chmod 1777 /tmp; PATH=$PATH:" + POSTGRES)
    start = "runuser -u postgres -- pg_ctl -D /tmp/pg/data -w -l /tmp/pg/log -o '-k /tmp -h \"\"' start"
    session.exec("runuser -u postgres -- initdb -D /tmp/pg/data -A trust >/tmp/pg/initdb.log", timeout_s=60)
    session.exec(f"{start} >/dev/null", timeout_s=60)
    session.exec(
        "export PGHOST=/tmp PGUSER=postgres; psql -qc 'create table numbers (name text, number int)'"
    )
    session.exec(
        "pgbench -qi postgres 2>/dev/null; (pgbench -n -c 2 -T 3600 >/tmp/pg/bench.log 2>&1 &)", timeout_s=60
    )
    session.exec("(python3 -m workloads.server_writers start postgres &)")

    def kill_server(fork: Branch, counts: dict[str, int]) -> None:
        fork.exec("pkill -9 -f workloads.server_writers; pkill -9 pgbench")
        assert fork.exec(BALANCES).output == "t\n"
        fork.exec("pkill -9 postgres; while pgrep -x postgres; do :; done; rm -f /tmp/.s.PGSQL*")
        restarted = fork.exec(start, timeout_s=60)
        assert restarted.exit_code == 0, restarted.output
        assert fork.exec(BALANCES).output == "t\n"
        _assert_all_kept(fork, "postgres", counts)

    assert_nothing_is_lost(session, "python3 -m workloads.server_writers check postgres", in_fork=kill_server)
    assert session.exec("pgrep -c pgbench; grep -ci error /tmp/pg/bench.log").output == "1\n0\n"


BALANCES = """\
psql -qAtc 'select (select sum(delta) from pgbench_history) = (select sum(abalance) from pgbench_accounts)
and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
and (select sum(delta) from pgbench_history) = (select sum(bbalance) from pgbench_branches)'
"""


def _assert_all_kept(fork: Branch, kind: str, counts: dict[str, int]) -> None:
    """After the end of server and writers: at least what was confirmed is there."""
    compared = fork.exec(f"python3 -m workloads.server_writers contains {kind} '{json.dumps(counts)}'")
    assert compared.exit_code == 0, compared.output
