"""The receiver as processes: several on one port, drained by SIGTERM, replaced when they die."""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import Redis

from credhook.listener.admin import bind_setting
from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.commands import run
from support.process.serving import Process, children, nobody_listens, receiver, running, runs
from support.receiver.one_shot_senders import OneShotSenders
from support.receiver.refusals import request, signed
from support.receiver.repeating_sender import deliver_all
from support.receiver.signing import SECRET
from support.redis.redis_proxy import redis_proxy
from support.waiting import until


async def test_several_processes_behave_as_one(tmp_path: Path, redis_url: str, redis_client: Redis) -> None:
    admin = f"127.0.0.1:{free_port()}"
    with receiver(tmp_path, redis_url, options=("--workers", "3"), CREDHOOK_ADMIN=admin) as process:
        ids = [f"m{number}" for number in range(200)]
        await asyncio.gather(*(deliver_all(lambda: process.url, ids) for _ in range(3)))
        assert redis_client.zcard("credhook:credhook:open") == 200
        assert redis_client.llen("rq:queue:credhook") == 200

        assert plain.post(process.url, content=b"").status_code == 400
        with socket.create_connection(("127.0.0.1", process.port)) as stranger:
            stranger.sendall(b"\x16\x03\x01")  # As TLS begins.
        counted = {
            'credhook_turned_away_total{queue="credhook",reason="invalid_http"} 1.0',
            'credhook_refusals_total{queue="credhook",rule="headers",status="400"} 1.0',
            'credhook_deliveries_total{outcome="duplicate",queue="credhook"} 400.0',
            'credhook_deliveries_in_flight{queue="credhook"} 0.0',
        }
        waiting = {
            'credhook_queue_length{queue="credhook"} 200.0',
            'credhook_events{queue="credhook",state="queued"} 200.0',
        }
        accepted = 'credhook_deliveries_total{{outcome="accepted",queue="credhook"}} {}.0'.format
        duration = 'credhook_delivery_duration_seconds_count{{queue="credhook"}} {}.0'.format

        def shows(*lines: str) -> bool:
            return {*lines} <= set(plain.get(f"http://{admin}/metrics").text.splitlines())

        until(lambda: shows(*counted, *waiting, accepted(200), duration(600)), what="the metrics")

        before = set(children(process))
        assert len(before) == 3
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(set(children(process)) - before) == 1, what="another in its place")
        assert '"receiver_died"' in process.text
        await deliver_all(lambda: process.url, ["n1", "n2"])
        until(lambda: shows(*counted, accepted(202), duration(602)), what="the counts of the one that died as well")
        left = set(children(process))
        os.kill(process.process.pid, signal.SIGKILL)  # They end with it.
        until(lambda: not any(map(runs, left)), what="no child left")


@pytest.mark.parametrize(
    ("number", "options"),
    [
        pytest.param(signal.SIGTERM, ("--workers", "2"), id="two processes, SIGTERM"),
        pytest.param(signal.SIGINT, (), id="one process, SIGINT"),
    ],
)
def test_a_stop_answers_what_was_begun_and_lets_nobody_in(
    tmp_path: Path, redis_url: str, redis_client: Redis, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with (
        redis_proxy(redis_url) as proxy,
        receiver(tmp_path, proxy.url, options=options, CREDHOOK_ADMIN=f"127.0.0.1:{free_port()}") as process,
        ExitStack() as open_sockets,
    ):
        proxy.hold = True
        begun = [
            open_sockets.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=60))
            for _ in range(20)
        ]
        for place, connection in enumerate(begun):
            connection.sendall(request(*signed(f"m{place}")))
        # Answered after them, since they were sent after them: all twenty have been read and wait for Redis.
        with plain.Client(headers={"connection": "close"}) as client:  # So that each process is asked.
            for _ in range(20 if options else 1):
                assert client.get(process.url.replace("/webhooks", "/healthz")).is_success
        os.killpg(process.process.pid, signal.SIGHUP)  # There is no terminal that was closed.
        process.process.send_signal(number)
        until(lambda: nobody_listens(process.port), what="the closed port")
        proxy.hold = False
        assert {connection.recv(64)[:12] for connection in begun} == {b"HTTP/1.1 202"}
        assert process.process.wait(60) == 0
    assert redis_client.zcard("credhook:credhook:open") == 20


@pytest.mark.parametrize(("has_terminal", "expected"), [(True, "SIG_DFL"), (False, "SIG_IGN")])
def test_the_hangup_of_a_terminal_ends_it_and_that_of_an_operator_does_not(has_terminal: bool, expected: str) -> None:
    program = """
import os, pty, signal
from credhook.supervisor import ignore_hangup
os.setsid()
if {}:
    os.open(os.ttyname(pty.openpty()[1]), os.O_RDWR)  # A session's first terminal becomes its own.
ignore_hangup()
print(signal.getsignal(signal.SIGHUP).name)
"""
    assert run("-c", program.format(has_terminal)).stdout == f"{expected}\n"


def test_idle_https_connections_do_not_delay_the_stop(
    tmp_path: Path, redis_url: str, authority: trustme.CA, ca: Path
) -> None:
    certificate, trust = tmp_path / "cert.pem", ssl.create_default_context(cafile=ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    admin, tls = free_port(), str(certificate)
    with receiver(tmp_path, redis_url, CREDHOOK_ADMIN=f"127.0.0.1:{admin}", CREDHOOK_TLS_CERTFILE=tls) as process:
        raw = socket.create_connection(("127.0.0.1", process.port))
        with (
            trust.wrap_socket(raw, server_hostname="127.0.0.1") as idle,
            socket.create_connection(("127.0.0.1", admin)) as slow,
        ):
            slow.sendall(b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
            idle.sendall(request(*signed("m1")))
            assert idle.recv(12) == b"HTTP/1.1 202"
            process.process.send_signal(signal.SIGTERM)
            # It does not answer the farewell, as a peer that is gone would not.
            assert process.process.wait(60) == 0
    assert "uvicorn.error" not in process.text


#: A receiver that systemd has started, with the socket of this descriptor.
PASSED = """
import os, runpy, sys
os.dup2({}, 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="{}")
del sys.argv[1:]
runpy.run_module("credhook.receiver", run_name="__main__")
"""


def passed(log: Path, listener: socket.socket, settings: dict[str, str], *, count: int = 1) -> Process:
    program = PASSED.format(listener.fileno(), count)
    environment = {"CREDHOOK_WEBHOOK_SECRETS": SECRET} | settings
    return Process(log, "-c", program, environment=environment, pass_fds=[listener.fileno()])


@pytest.mark.parametrize(
    ("tls", "overlap"), [(False, True), (False, False), (True, True)], ids=["replaced", "restarted", "over TLS"]
)
def test_passed_socket_loses_no_delivery_between_receivers(
    tmp_path: Path, redis_url: str, authority: trustme.CA, ca: Path, tls: bool, overlap: bool
) -> None:
    certificate, trust = tmp_path / "certificate.pem", ssl.create_default_context(cafile=ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    settings = {"REDIS_URL": redis_url} | ({"CREDHOOK_TLS_CERTFILE": str(certificate)} if tls else {})
    # `ListenStream=PORT` is a socket of IPv6 that takes IPv4 as well.
    dual = socket.has_dualstack_ipv6()
    address = ("::ffff:127.0.0.1" if dual else "127.0.0.1", 0)
    bound = socket.create_server(address, family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)

    with ExitStack() as processes, bound as listener:

        def start(number: int) -> Process:
            process = processes.enter_context(passed(tmp_path / f"{number}.log", listener, settings))
            until(lambda: '"redis_safe"' in process.text, what="the receiver")
            return process

        started = [start(0)]
        with OneShotSenders(listener.getsockname()[1], trust if tls else None) as load:
            for number in range(1, 3):
                until(partial(load.has_sent, 100 * number), what="a hundred deliveries")
                if overlap:
                    started.append(start(number))
                started[number - 1].process.terminate()
                if not overlap:
                    assert started[-1].process.wait(60) == 0
                    started.append(start(number))
        started[-1].process.terminate()
        assert [process.process.wait(60) for process in started] == [0] * 3
    assert set(load.outcomes) == {"HTTP/1.1 202"}, load.outcomes


def test_a_renewed_certificate_is_shown_from_the_next_handshake_on(tmp_path: Path, redis_url: str) -> None:
    certificate, key, admin = tmp_path / "certificate.pem", tmp_path / "key.pem", free_port()
    settings = {"CREDHOOK_ADMIN": f"127.0.0.1:{admin}"}
    for name, file in (("CREDHOOK_TLS_CERTFILE", certificate), ("CREDHOOK_TLS_KEYFILE", key)):
        settings[name] = str(tmp_path / name)
        (tmp_path / name).symlink_to(file)  # As Kubernetes shows the files of a secret.
    expiry = "credhook_certificate_expiry_timestamp_seconds"

    def renew(then: Callable[[], None] = lambda: None, **options: Any) -> bytes:
        issued = trustme.CA().issue_cert("127.0.0.1", **options)
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        then()
        issued.private_key_pem.write_to_path(str(key))
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def shown() -> bytes:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=60))

    expected = renew()
    with (
        bind_setting("127.0.0.1:0", "PORT") as listener,
        passed(tmp_path / "log", listener, settings | {"REDIS_URL": redis_url}) as running,
    ):
        port = listener.getsockname()[1]
        assert shown() == expected
        rsa, ecdsa = trustme.KeyType.RSA, trustme.KeyType.ECDSA
        # OpenSSL reads the second, whose end of validity cannot be read.
        for kind, label in ((rsa, "CERTIFI"), (ecdsa, "TRUSTED CERTIFICATE"), (rsa, "")):
            certificate.write_text(certificate.read_text().replace("CERTIFICATE", label))
            before = [expected, shown(), shown()]  # Said once, not at each handshake.
            until_then = datetime.fromtimestamp(4_000_000_000, UTC)
            expected = renew(lambda: before.append(shown()), key_type=kind, not_after=until_then)  # noqa: B023
            assert before == before[:1] * 4
            assert shown() == expected
        assert (
            f'{expiry}{{part="receiver",queue="credhook"}} 4e+09' in plain.get(f"http://127.0.0.1:{admin}/metrics").text
        )
        assert running.text.count('"certificate_not_loaded"') == 6  # Also while the key does not fit yet.
        assert running.text.count('"certificate_loaded"') == 3
        assert running.stop() == 0


def test_receiver_logs_an_expired_certificate_once(tmp_path: Path, redis_url: str) -> None:
    certificate = tmp_path / "certificate.pem"

    def renew(end: datetime) -> None:
        issued = trustme.CA().issue_cert("127.0.0.1", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=end)
        issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))

    renew(datetime(2021, 1, 1, tzinfo=UTC))
    with receiver(tmp_path, redis_url, CREDHOOK_TLS_CERTFILE=str(certificate)) as process:

        def logged() -> int:
            ssl.get_server_certificate(("127.0.0.1", process.port), timeout=60)
            return process.text.count('"certificate_expired"')

        assert (logged(), logged()) == (1, 1)
        renew(datetime(2022, 1, 1, tzinfo=UTC))
        assert (logged(), logged()) == (2, 2)
        renew(datetime.fromtimestamp(4_000_000_000, UTC))
        assert logged() == 2


def test_all_end_with_the_code_of_one_that_no_successor_can_replace(tmp_path: Path, redis_url: str) -> None:
    pem = tmp_path / "certificate.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    with receiver(tmp_path, redis_url, options=("--workers", "2"), CREDHOOK_TLS_CERTFILE=str(pem)) as process:
        before = until(lambda: children(process))
        pem.write_text("half of a certi")
        os.kill(before[0], signal.SIGKILL)
        assert process.process.wait(60) == 2
    assert "CREDHOOK_TLS_CERTFILE" in process.text


@pytest.mark.parametrize(("address", "count"), [(None, 1), (("", 0), 2), ("", 1)])
def test_a_passed_socket_that_cannot_be_used_is_one_clear_line(tmp_path: Path, address: Any, count: int) -> None:
    with socket.socket(socket.AF_UNIX if address == "" else socket.AF_INET) as listener:
        if address is not None:
            listener.bind(address)
            listener.listen()
        with passed(tmp_path / "log", listener, {}, count=count) as process:
            assert process.process.wait(60) == 1
            (line,) = process.text.splitlines()
    assert "ListenStream=PORT once" in line


def test_a_socket_that_was_passed_to_the_parent_is_not_taken() -> None:
    program = "from credhook.listener.admin import socket_from_systemd; print(socket_from_systemd())"
    assert run("-c", program, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"}).stdout == "None\n"


@pytest.mark.parametrize(("admin", "named"), [("", "HOST and PORT"), ("127.0.0.1:99999", "CREDHOOK_ADMIN")])
def test_a_port_that_is_taken_or_none_is_one_clear_line(tmp_path: Path, redis_url: str, admin: str, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        settings = {"PORT": "0" if admin else port, "CREDHOOK_ADMIN": admin, "CREDHOOK_INSECURE": "1"}
        with running(tmp_path / "taken.log", "receiver", environment={"REDIS_URL": redis_url} | settings) as process:
            assert process.process.wait(60) == 1
            warning, line = process.text.splitlines()
    assert "without any check" in warning
    assert (admin or port) in line
    assert f"set {named}" in line
