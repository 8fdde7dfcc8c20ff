"""Partitioners as a registry: those of other packages, their keys, and what is checked whoever made a partition."""

from __future__ import annotations

import pytest

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.reports.run_records import FEDERATION
from florilegium.apps.settings.configuration import defaults, parse, sections
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.federation import build, contents, federate
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.registry import PARTITIONERS, file_keys, partitioner_table
from florilegium.partitions.settings import FederationSettings
from florilegium.strategies.folder.run_folder import differing_settings
from florilegium.strategies.settings.server import TABLES
from tests.partitions.foreign import HeadKeys
from tests.support import CACHE, config, settings

HERE = "tests.partitions.foreign"


def _settings(name: str, **keys) -> FederationSettings:
    return FederationSettings(**{"partitioner": f"{HERE}:{name}", "num_clients": 2, "cache_dir": str(CACHE)} | keys)


def _build(name: str, **keys):
    chosen = _settings(name, **keys)
    return build(chosen, load_dataset(chosen))


class TestOtherPackages:
    def test_a_class_gets_the_arguments_that_it_takes(self):
        federation = _build("EveryOther", num_clients=7)
        assert sorted(federation.train.rows) == list(range(1437))
        assert federation.train.sizes.tolist() == [206, 206, 205, 205, 205, 205, 205]
        assert len(_build("IID", num_clients=7)) == 7

    @pytest.mark.parametrize("name", ["HEAD", "make_head"])
    def test_an_object_or_a_function_divides_by_its_own_keys(self, name):
        assert len(_build(name, own=HeadKeys(share=0.25)).train.rows) == 1437 // 4

    def test_keys_are_part_of_the_identity(self):
        sizes = {
            share: len(federate(_settings("HEAD", own=HeadKeys(share=share)))[0].train.rows) for share in (0.25, 0.75)
        }
        assert sizes == {0.25: 359, 0.75: 1077}

    def test_its_code_is_part_of_the_identity(self):
        assert len({contents(_settings(name)) for name in ("HEAD", "EveryOther")}) == 1
        assert contents(_settings("HEAD")) != contents(FederationSettings(partitioner="iid"))

    def test_an_installed_one_has_a_name(self, monkeypatch):
        from importlib.metadata import EntryPoint

        point = EntryPoint("head", f"{HERE}:HEAD", "florilegium.partitioners")
        monkeypatch.setitem(PARTITIONERS.__dict__, "_installed", {"head": point})
        assert "head" in PARTITIONERS
        assert partitioner_table("head") == "head"
        assert (
            len(build(_settings("").model_copy(update={"partitioner": "head"}), load_dataset(_settings("HEAD")))) == 2
        )

    def test_the_table_of_a_reference_is_its_attribute(self):
        assert partitioner_table(f"{HERE}:HEAD") == "head"
        assert partitioner_table(f"{HERE}:EveryOther") == ""
        with pytest.raises(ConfigurationError, match=r"table \[shard\], which is the suite's own"):
            partitioner_table(f"{HERE}:CLASHING")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("NUMBER", "expected a Partitioning, a subclass of .* or a function .*found: 5"),
            ("Demanding", "Demanding requires the argument 'temperature'"),
            ("NOTHING", "it must have either make or split"),
            ("Nobody", "has no 'Nobody'"),
        ],
    )
    def test_what_is_no_partitioner_is_refused(self, name, message):
        with pytest.raises(ConfigurationError, match=f"partitioner: '{HERE}:{name}' .*{message}"):
            _build(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Twice", "client 0 would hold row .* more than once"),
        ("Common", "2 clients would hold row"),
        ("Few", "made 1 clients, not num-clients = 2"),
        ("GREEDY", "719 of 1437 rows would have no owner"),
        ("Bare", "partition 0 has lost the column 'row'"),
        ("raising", r"partitioner '.*:raising' failed: KeyError: 'age'"),
        ("odd", r"partitioner '.*:odd' failed: ValueError: the seed must be even$"),
        ("listing", "returned list, expected a flwr_datasets.partitioner.Partitioner"),
        ("SPLIT_OF_LISTS", "returned list, expected a SplitTable"),
        ("Empty", "num-clients: client 1 would have no training example"),
    ],
)
def test_wrong_partitions_are_refused(name, message):
    with pytest.raises(DataError, match=message):
        _build(name)


class TestKeys:
    def test_tables_of_methods_and_partitioners_do_not_clash(self):
        partitioners = [table for name in PARTITIONERS.own if (table := partitioner_table(name))]
        methods = {table_of(name) for name in METHODS.own if METHODS[name].hyper().model_fields}
        assert len(set(partitioners)) == len(partitioners) > 5
        assert not set(partitioners) & (methods | TABLES.keys())
        assert set(partitioners) < set(sections())

    def test_every_partitioner_is_listed_in_the_key(self):
        extra = FederationSettings.model_fields["partitioner"].json_schema_extra
        assert all(f"`{name}`" in extra["values"] for name in PARTITIONERS.own)

    def test_the_chosen_partitioners_keys_are_parsed_and_checked(self):
        assert settings(partitioner="shard", **{"shard.size": 20}).own.size == 20
        assert settings(partitioner="iid", **{"shard.size": 20}).own.model_dump() == {}
        with pytest.raises(ConfigurationError, match=r"continuous.strictness: .* 1 \(found: 2\)"):
            parse(config(partitioner="continuous", **{"continuous.strictness": 2}))
        with pytest.raises(ConfigurationError, match=r"size.sizes: '3,x' is not a comma-separated list"):
            parse(config(partitioner="size", **{"size.sizes": "3,x"}))

    def test_only_the_chosen_partitioners_keys_are_part_of_the_identity(self, tmp_path):
        def federations(**keys) -> int:
            federate(settings(num_clients=5, cache_dir=str(tmp_path), **keys))
            return len(list((tmp_path / "federations").glob("*.npz")))

        assert federations(partitioner="iid") == 1
        assert federations(partitioner="iid", **{"shard.size": 20}) == 1
        assert federations(partitioner="shard", **{"shard.size": 20}) == 2
        assert federations(partitioner="shard", **{"shard.size": 21}) == 3
        assert federations(partitioner="shard", **{"shard.size": 21, "size.sizes": "4"}) == 3

    def test_the_same_keys_must_be_kept_when_a_run_is_resumed(self):
        before, now = config(partitioner="shard"), config(partitioner="shard", **{"shard.size": 20, "size.sizes": "3"})
        assert differing_settings(before, now, "") == ["shard.size: was 0, is 20"]
        assert "own" not in FEDERATION

    def test_keys_that_are_files_become_absolute(self):
        assert file_keys("file") == ["file.path"]
        assert file_keys("distribution") == ["distribution.file"]
        assert file_keys("iid") == file_keys("no such") == []
        assert {"file.path", "distribution.file"} < set(defaults())
