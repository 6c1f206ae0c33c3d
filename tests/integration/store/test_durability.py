"""`CREDHOOK_DURABILITY` on each kind of Redis, and what readiness says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from credhook.sandbox.local.environment import local_redis
from credhook.store.health import Facts, checks, read, unanswered
from support.process.serving import receiver
from support.receiver.floods import deliver
from support.redis.redis_proxy import redis_proxy

SAFE = Facts(version=(7, 2), appendonly=True, fsync="always", eviction="noeviction", cluster=False)


@pytest.mark.parametrize(
    ("unsafe", "name", "word"),
    [
        ({"version": (6, 0)}, "version", "6.2"),
        ({"cluster": True}, "no_cluster", "Sentinel"),
        ({"eviction": "allkeys-lru"}, "noeviction", "allkeys-lru"),
        ({"appendonly": False}, "append_only_file", "appendonly yes"),
        ({"master": False}, "master", "Sentinel"),
        ({"full": True}, "memory", "maxmemory"),
        ({"writes_fail": True}, "disk", "log"),
        ({"save_fails": True}, "save", "BGSAVE"),
        ({"replicas_missing": True}, "replicas", "min-replicas-to-write"),
        ({"fsync": "everysec", "version": (7, 0)}, "fsync", "CREDHOOK_DURABILITY"),
        ({"fsync_pauses": True, "version": (7, 0)}, "fsync", "no-appendfsync-on-rewrite"),
        ({"fsync": "", "version": (7, 0)}, "fsync", "CREDHOOK_DURABILITY"),
        ({"fsync": "no"}, "fsync", "set appendfsync always"),
    ],
)
def test_each_unsafe_thing_is_named_with_its_remedy(unsafe: dict[str, Any], name: str, word: str) -> None:
    failed = {one.name: one.verdict for one in checks(replace(SAFE, **unsafe), durability="strict") if one.failed}
    assert word in failed[name]
    assert set(failed) <= {name, "fsync"}


@pytest.mark.parametrize(
    ("fsync", "pauses", "failed"),
    [("everysec", False, []), ("", False, []), ("no", False, ["fsync"]), ("everysec", True, ["fsync"])],
)
def test_standard_wants_an_fsync_each_second_if_redis_tells_of_it(fsync: str, pauses: bool, failed: list[str]) -> None:
    facts = replace(SAFE, fsync=fsync, fsync_pauses=pauses, version=(7, 0))
    assert [check.name for check in checks(facts, durability="standard") if check.failed] == failed


@pytest.mark.parametrize("facts", [SAFE, replace(SAFE, version=(6, 2)), replace(SAFE, fsync="everysec")])
def test_a_redis_that_fsyncs_or_can_say_when_it_has_is_safe(facts: Facts) -> None:
    assert all(check.passed for check in checks(facts, durability="strict"))


@pytest.mark.parametrize(
    ("facts", "durability", "said"),
    [
        ({"unbounded": True}, "strict", "maxmemory is 0"),
        ({"replicas": 3}, "replicated:2", "set CREDHOOK_DURABILITY=replicated:3"),
        ({"replicas": 1, "appendonly": False}, "replicated", "comes back empty"),
    ],
)
def test_check_that_breaks_no_promise_only_warns(facts: dict[str, Any], durability: str, said: str) -> None:
    (found,) = [check for check in checks(replace(SAFE, **facts), durability=durability) if not check.passed]
    assert not found.failed
    assert found.verdict.startswith("warning: ")
    assert said in found.verdict


def test_a_redis_that_refuses_to_answer_is_no_silent_one() -> None:
    refused = unanswered(ResponseError("BUSY Redis is busy running a script."))
    assert refused == "Redis refuses to answer (BUSY); a script has kept Redis busy for too long: see its log"
    assert "(ResponseError); Redis has no database" in unanswered(ResponseError("DB index is out of range"))
    assert "; a newer version has changed the data of queue q" in unanswered(ResponseError("WRONGSCHEMA q 3"))


def test_info_is_read_whatever_it_leaves_out() -> None:
    assert read({}, {}) == Facts((0, 0), False, "", "", False)
    assert not read({"role": "slave"}, {}).master
    (found,) = [check for check in checks(replace(SAFE, eviction=""), durability="strict") if not check.passed]
    assert found.remedy.startswith("maxmemory-policy is not known")


@pytest.mark.parametrize(
    ("text", "version"),
    [("7", (7, 0)), ("7.x", (7, 0)), ("v7.2.4-fork1", (7, 2)), ("255.255.255", (255, 255)), ("unstable", (0, 0))],
)
def test_version_is_read_from_servers_that_write_it_otherwise(text: str, version: tuple[int, int]) -> None:
    assert read({"redis_version": text}, {}).version == version


def test_figures_that_are_no_numbers_count_as_left_out() -> None:
    odd = {
        "aof_enabled": "yes",
        "maxmemory": "1.5G",
        "used_memory": "2G",
        "connected_slaves": "",
        "cluster_enabled": "no",
    }
    assert read(odd, {}) == read({}, {})


@pytest.mark.parametrize(
    ("info", "field"),
    [
        ({"aof_last_write_status": "err"}, "writes_fail"),
        ({"rdb_last_bgsave_status": "err"}, "save_fails"),
        ({"min_slaves_good_slaves": 0}, "replicas_missing"),
        ({"maxmemory": 10, "used_memory": 10}, "full"),
        ({"maxmemory": 0}, "unbounded"),
        ({"aof_enabled": 1}, "appendonly"),
        ({"cluster_enabled": 1}, "cluster"),
    ],
    ids=str,
)
def test_unsafe_facts_are_read_from_info(info: dict[str, object], field: str) -> None:
    config = {"stop-writes-on-bgsave-error": "yes"}
    assert getattr(read(info, config), field) is True
    for harmless in ({"save": ""}, {"stop-writes-on-bgsave-error": "no"}):
        assert not read(info, config | harmless).save_fails


def test_on_everysec_with_waitaof_strict_waits_for_it(tmp_path: Path) -> None:
    with local_redis(tmp_path, options=("--appendfsync", "everysec")) as url, redis_proxy(url) as proxy:
        proxy.version, proxy.waitaof = b"7.2.5", (1, 0)
        with receiver(tmp_path, proxy.url) as process:
            assert deliver(process.port, "m") == 202
            assert proxy.waited > 0
            with Redis.from_url(url) as redis:  # A group of duplicates alone would write nothing to be waited for.
                assert 0 < redis.ttl("credhook:credhook:synced") <= 60
            proxy.waitaof = (0, 0)  # It has not reached the disk in time.
            assert deliver(process.port, "n") == 503
            proxy.waitaof = (1, 0)
            assert deliver(process.port, "n") == 202
