"""Machines and clusters in YAML: what JSON says is said in it as well, and what is wrong is told with its line."""

import dataclasses
import json
import re

import pytest
import yaml
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import known_machines, named_cluster, price_sources, read_cluster, write_cluster
from alpa_dejavu.clusters.machine_file import FOLDER
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from guides import ROOT

EXAMPLES = ROOT / "examples" / "clusters"
OWN = EXAMPLES / "my-machine.yaml"
TWO = EXAMPLES / "two-unlike-hosts.yaml"
MEASURED = {"local-cpu"}  # its figures aren't in its file


@pytest.mark.parametrize("name", sorted({*known_machines()} - MEASURED))
def test_a_machine_is_the_same_in_json_and_in_yaml(tmp_path, name):
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    (tmp_path / "mine.json").write_text(text, encoding="utf-8")
    (tmp_path / "mine.yml").write_text(yaml.safe_dump(json.loads(text), sort_keys=False), encoding="utf-8")
    json_cluster, yaml_cluster = (named_cluster(str(tmp_path / f"mine.{end}"), 2) for end in ("json", "yml"))
    assert dataclasses.replace(yaml_cluster, machine_file=json_cluster.machine_file) == json_cluster


@pytest.mark.parametrize("dumped", [json.dumps, yaml.safe_dump], ids=["flow", "block"])
def test_a_cluster_is_the_same_in_json_and_in_yaml(tmp_path, dumped):
    write_cluster(read_cluster(TWO), tmp_path / "two.json")
    (tmp_path / "two.yaml").write_text(dumped(json.loads((tmp_path / "two.json").read_text())))
    assert named_cluster(str(tmp_path / "two.yaml")) == read_cluster(tmp_path / "two.json") == read_cluster(TWO)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (OWN, "unit: TFLOP/s, source: data", "unit: TFLOPS, source: data", "must be one of the units FLOP/s, GFLOP"),
        (OWN, "devices_per_host: 8", "devices_per_host: eight", 'devices_per_host is "eight", but must be'),
        (OWN, "devices_per_host: 8", "devices_per_host: 8\ndevices_per_host: 4", "the key 'devices_per_host' is there"),
        (OWN, "name: my-machine", "name: on", "name is true, but must be text"),
        (OWN, "name: my-machine", "name: 2026-05-01", "this is 'timestamp', but must be text, a number"),
        (OWN, "name: my-machine", "name: !!python/name:os.system", "this is 'python/name:os.system', but"),
        (OWN, "{value: 90,", "{value: .nan,", "value is NaN, but must be a number above 0"),
        (OWN, "{value: 90,", "{value: -90,", "device.flop_per_s.float32.value is -90, but must be"),
        (OWN, "  name: my-gpu", "  nam: my-gpu", "device lacks the key 'name'"),
        (OWN, "within:", "within: &anchor", None),
        (OWN, "between:", "between: *within", "isn't YAML: found undefined alias"),
        (TWO, 'from: "*"', "from: *", "isn't YAML"),
        (TWO, 'from: "*"', 'from: "ourselves"', "links[0].from names 'ourselves'"),
        (TWO, "devices: 4", "devices: 16", "the host 'theirs' has 16 devices, but a g6e.48xlarge has 8"),
        (TWO, "machine: my-machine.yaml", "machine: nobody.yaml", "there is no file 'nobody.yaml'; give the path of a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path, file, old, new, said):
    text = file.read_text(encoding="utf-8")
    assert old in text
    changed = tmp_path / "changed.yaml"
    (tmp_path / OWN.name).write_text(OWN.read_text(encoding="utf-8"), encoding="utf-8")
    changed.write_text(text.replace(old, new, 1), encoding="utf-8")
    if said is None:
        assert named_cluster(str(changed)).num_devices == 8, "an anchor that nothing names changes nothing"
        return
    told = "device:" if "lacks" in said else new.splitlines()[-1]
    line = next(n for n, now in enumerate(changed.read_text().splitlines(), 1) if told in now)
    with pytest.raises(ValueError, match=r"changed\.yaml, line") as caught:
        named_cluster(str(changed))
    assert said in str(caught.value)
    assert f"changed.yaml, line {line}:" in str(caught.value)


def test_an_alias_is_refused_before_it_grows(tmp_path):
    bomb = "a: &a [x, x]\n" + "".join(f"{n}: &{n} [*{o}, *{o}]\n" for o, n in zip("abcdefgh", "bcdefghi", strict=True))
    (tmp_path / "bomb.yaml").write_text(bomb)
    with pytest.raises(ValueError, match="line 1: this is named by an anchor, but must be written where it is meant"):
        named_cluster(str(tmp_path / "bomb.yaml"))


def test_a_machines_file_is_shown_with_its_sources():
    shown = CliRunner().invoke(main, ["machines", str(OWN)])
    assert shown.exit_code == 0
    assert re.search(r"^price +18 USD/hour +our contract, May 2026$", shown.stdout, re.MULTILINE)
    assert re.search(r"^flop rate bfloat16 +180 TFLOP/s +data sheet$", shown.stdout, re.MULTILINE)
    assert price_sources(str(OWN)) == ("our contract, May 2026",)
    assert price_sources(str(TWO)) == (*price_sources(str(OWN)), *price_sources("g6e.48xlarge"))


def test_the_examples_are_planned_with_and_priced_again():
    """The figures are those of the files, by hand, and a plan on them is estimated from its own file's path."""
    page = (ROOT / "docs" / "guides" / "describe-a-cluster.md").read_text(encoding="utf-8")
    assert all(f"```yaml\n{file.read_text(encoding='utf-8')}```" in page for file in (OWN, TWO))
    device = named_cluster(str(OWN), 2).hosts[1].device
    assert (device.memory_bytes, device.flop_per_s["bfloat16"]) == (43.2 * 2**30, 180e12)
    starts = [device.kernel_s, device.dispatch_s, device.step_s]
    assert starts == pytest.approx([5e-6, 1e-4, 5e-3]), "what no data sheet has"
    ours, theirs = read_cluster(TWO).hosts
    assert (ours.num_devices, ours.price_per_hour, theirs.num_devices) == (8, 18, 4)
    assert theirs.device == named_cluster("g6e.48xlarge").hosts[0].device
    for name in (str(OWN), str(TWO)):
        planned = plan_model("gpt-125m", name, batch=32, layers=4, micro_batches=4)
        assert planned.plan.num_devices == named_cluster(name).num_devices
        again = PlanEstimator(planned.plan, cluster=name).estimate(planned.plan)
        assert again.plan.step_s == pytest.approx(planned.plan.step_s)
