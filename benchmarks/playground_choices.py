"""Choices made while training, next to the best one in hindsight, in the playground, at small size.

    python benchmarks/playground_choices.py [--seeds N] [--json FILE]
    python benchmarks/playground_choices.py --tune

Four networks are trained to a held-out loss by four workers, each on a host of its own, of which one takes twice as
long. Eight options are all-reduce, eight local steps, gossip on a ring, or a server with a staleness of at most four,
with 4 or 16 samples of a gradient. A gradient takes 4 ms and 0.3 ms for each sample, a message 1 ms and its bytes at
20 MB/s. All seconds are virtual; a run that doesn't reach the loss counts with all the seconds that it was given.

What is compared, with the same seeds, which decide first parameters, samples and how compute seconds vary:
- `configure_while_training`: by turns, each option for its share of the seconds; and the same with shares that have
  followed the planned seconds before the first step. What the mix takes is in.
- the option of the fewest planned seconds of a gradient, and that of the fewest of a sample;
- successive halving: the half with the least loss goes on twice as long, each in its own run on the same cluster; looks
  at the loss are free. The first round's seconds are the best of four, in hindsight;
- chance: the mean over all options;
- the best choice in hindsight: the option of the least seconds, its geometric mean over all seeds.
Ratios are geometric means over seeds, with 90 % intervals by Student's t. Exit status 1 if a figure is missed.

A learning rate is the one of three at which most options reach the loss, and then soonest on the mean. A fifth row has
a higher one, at which half of the options don't learn; it doesn't count. `--tune` shows what rates and the defaults of
turns were set by, with seeds that aren't judged.

References:
    Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
    Liu, Simonyan and Yang, DARTS: Differentiable Architecture Search, ICLR 2019.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.choices import Choice, Mixing, Option, configure_while_training, options, planned_seconds
from alpa_dejavu.playground.exchanges import AllReduce, Gossip, LocalSteps, StaleSynchronousServer
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, at_least, wrong_input_told
from harness import options as command_line

WORKERS, CONFIDENCE, LOOKS, WITHIN, NETWORKS_WITHIN = 4, 0.9, 300, 1.05, 3
HELD_OUT = 64
"""Windows of text that its loss is told by."""
TUNING_SEEDS, RATES = (100, 101, 102, 103), (0.1, 0.3, 1.0)
MIXINGS = (Mixing(rate=4.0, averaged=0.2, drop=0.15), Mixing(rate=6.0, drop=0.15), Mixing(), Mixing(known_first=True))
ROUNDS = (0.01, 0.02, 0.04, 0.08)
"""Shares of a run's seconds that each option has in the first round of successive halving."""
TRIES = {
    "by turns": Mixing(),
    "by turns, known seconds first": Mixing(known_first=True),
}
JUDGED = "by turns"
Row = dict[str, Any]
Floats = Sequence[float]


@functools.lru_cache
def _problem(name: str) -> Problem:
    """A problem, judged by so many held-out samples that looks don't take longer than training."""
    made = problem(name)
    inputs, targets = made.held_out
    return dataclasses.replace(made, held_out=(inputs[:HELD_OUT], targets[:HELD_OUT])) if name == "text-gpt" else made


@dataclasses.dataclass(frozen=True)
class Network:
    """A problem, the loss to reach, the seconds of a run, and the learning rate, that of `--tune` but where said."""

    name: str
    loss: float
    seconds: float
    rate: float
    said: str = ""

    @property
    def title(self) -> str:
        """The name, and what is said of the rate."""
        return f"{self.name}{self.said}"

    @functools.cached_property
    def job(self) -> Job:
        """What is trained, with 16 samples of a gradient."""
        return Job(_problem(self.name), optimizer=optax.sgd(self.rate), spread=0.1, **_samples(16))

    @functools.cached_property
    def options(self) -> tuple[Option, ...]:
        """What is chosen from."""
        return options(self.job, ROWS)

    def run(self, option: Option, seed: int) -> Row:
        """The losses of one option alone, at equal distances."""
        run = simulate(option.job, CLUSTER, option.exchange, until=Until(seconds=self.seconds), seed=seed, looks=LOOKS)
        return {"loss": run.loss.round(5).tolist()}

    def configured(self, mixing: Mixing, seed: int) -> Row:
        """What configuring while training takes to the loss."""
        run = configure_while_training(self.job, CLUSTER, ROWS, until=Until(seconds=self.seconds), mixing=mixing,
                                       seed=seed, looks=LOOKS)  # fmt: skip
        return {"s": min(run.seconds_to(self.loss), self.seconds), "chosen": run.chosen.name, "mix_s": run.mixing_s}

    def seconds_to(self, losses: Floats) -> float:
        """When one option alone reaches the loss, or all its seconds."""
        reached = np.flatnonzero(np.asarray(losses) <= self.loss)
        return float(reached[0] * self.seconds / LOOKS) if len(reached) else self.seconds

    def halved(self, losses: Sequence[Floats], first: float) -> float:
        """When successive halving reaches the loss: all runs have their seconds one after the other.

        Args:
            losses: of each option alone.
            first: the share of a run's seconds in the first round.
        """
        live, own, more, elapsed = list(range(len(losses))), 0, max(round(first * LOOKS), 1), 0
        ends = [round(self.seconds_to(each) * LOOKS / self.seconds) for each in losses]
        while len(live) > 1:
            for option in live:
                if ends[option] <= own + more and ends[option] < LOOKS:
                    return min((elapsed + ends[option] - own) * self.seconds / LOOKS, self.seconds)
                elapsed += more
            own += more
            live = sorted(live, key=lambda option: losses[option][min(own, LOOKS)])[: len(live) // 2]
            more *= 2
        return min((elapsed + ends[live[0]] - own) * self.seconds / LOOKS, self.seconds)


def _samples(batch: int) -> Row:
    seconds = 4e-3 + 3e-4 * batch
    return {"batch": batch, "compute_s": (seconds,) * (WORKERS - 1) + (2 * seconds,)}


def _cluster() -> Cluster:
    plain = example_cluster(WORKERS, 1)
    names = [host.name for host in plain.hosts]
    return Cluster.uniform("hosts", names, plain.hosts[0].device, 1, Link(1e-5, 1e10), Link(1e-3, 2e7))


CLUSTER = _cluster()
ROWS = (
    (Choice("all-reduce", AllReduce()), Choice("8 local steps", LocalSteps(8)), Choice("gossip", Gossip()),
     Choice("stale by 4", StaleSynchronousServer(4))),
    (Choice("4 samples", changes=_samples(4)), Choice("16 samples", changes=_samples(16))),
)  # fmt: skip
NETWORKS = (
    Network("digits-mlp", 0.1, 14.0, 0.3),
    Network("digits-cnn", 0.12, 14.0, 0.3),
    Network("sparse-least-squares", 0.006, 8.0, 1.0),
    Network("text-gpt", 3.0, 3.2, 0.3),
)
BEYOND = Network("digits-mlp", 0.1, 14.0, 1.0, " at a high rate")
"""Half of the options don't learn at this rate; it isn't one of the four."""


def row(network: Network, results: Results, seeds: Sequence[int]) -> Row:
    """What comes of all ways on a network."""
    def alone(option: Option, seed: int) -> Floats:
        name = f"{network.title}, {option.name}, seed {seed}"
        found: Floats = results.known("runs", name, partial(network.run, option, seed))["loss"]
        return found

    losses = [[alone(option, seed) for option in network.options] for seed in seeds]
    seconds = np.array([[network.seconds_to(each) for each in of_seed] for of_seed in losses])
    size = 4.0 * sum(map(np.size, _leaves(network.job.problem)))
    planned = np.array([planned_seconds(option, CLUSTER, size) for option in network.options])
    best = int(np.log(seconds).mean(axis=0).argmin())
    ways: dict[str, Any] = {
        "seconds of a gradient": seconds[:, planned.argmin()],
        "seconds of a sample": seconds[:, np.argmin(planned / [option.job.batch for option in network.options])],
        "successive halving": min(
            ([network.halved(each, first) for each in losses] for first in ROUNDS), key=lambda s: np.log(s).mean()
        ),
        "chance": seconds.mean(axis=1),
    }
    mixes = {name: [
        results.known("mixes", f"{network.title}, {name}, seed {seed}", partial(network.configured, mixing, seed))
        for seed in seeds
    ] for name, mixing in TRIES.items()}  # fmt: skip
    ways |= {name: [one["s"] for one in found] for name, found in mixes.items()}
    judged = mixes[JUDGED]
    return {
        "network": network.title, "loss": network.loss, "rate": network.rate, "best": network.options[best].name,
        "best_s": _mean(seconds[:, best]), "planned": network.options[planned.argmin()].name,
        "mix_s": float(np.mean([one["mix_s"] for one in judged])),
        "chosen": ", ".join(sorted({one["chosen"].replace(", ", " with ") for one in judged})),
        "ratios": {name: _ratio(np.asarray(way), seconds[:, best]) for name, way in ways.items()},
        "to_chance": _ratio(np.array([one["s"] for one in judged]), np.asarray(ways["chance"])),
        "seconds": dict(zip([option.name for option in network.options], np.exp(np.log(seconds).mean(axis=0)).tolist(),
                            strict=True)),
    }  # fmt: skip


def _leaves(trained: Problem | None) -> Any:
    import jax

    assert trained is not None, "networks are trained"
    return jax.tree.leaves(trained.init(jax.random.PRNGKey(0)))


def _mean(seconds: Any) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(seconds).mean()))


def _ratio(seconds: Any, others: Any) -> Row:
    found = Interval.of(np.log(np.divide(seconds, others)).tolist(), CONFIDENCE).exp()
    return {"mean": found.mean, "low": found.low, "high": found.high}


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Whether it is near the best choice on enough networks, and ahead of chance on all."""
    near = [found["ratios"][JUDGED]["mean"] for found in rows]
    chance = [found["to_chance"]["mean"] for found in rows]
    held = sum(ratio <= WITHIN for ratio in near)
    return [
        Figure(f"turns, seconds over those of the best choice, at most {WITHIN:g}", "networks",
               f"{NETWORKS_WITHIN} of {len(rows)}", f"{held}: {', '.join(f'{ratio:.2f}' for ratio in near)}",
               held >= NETWORKS_WITHIN),
        Figure("turns, seconds over those of chance, below 1", "networks", f"all {len(rows)}",
               f"{sum(ratio < 1 for ratio in chance)}: {', '.join(f'{ratio:.2f}' for ratio in chance)}",
               all(ratio < 1 for ratio in chance)),
    ]  # fmt: skip


def tables(rows: Sequence[Row]) -> list[Table]:
    """The options' seconds, and all ways' ratios."""
    every = [{"option": name, **{found["network"]: found["seconds"][name] for found in rows}}
             for name in rows[0]["seconds"]]  # fmt: skip
    alone = Table.of(every, {"option": "{option}", **{found["network"]: f"{{{found['network']}:seconds}}"
                                                      for found in rows}}, "Seconds of each option alone")  # fmt: skip
    about = Table.of(rows, {"network": "{network}", "loss": "{loss:g}", "rate": "{rate:g}", "best": "{best}",
                            "its seconds": "{best_s:seconds}", "fewest of a gradient": "{planned}",
                            "mix, seconds": "{mix_s:seconds}", "chosen by turns": "{chosen}"}, "Networks")  # fmt: skip
    names = rows[0]["ratios"]
    ratios = [{"way": name, **{found["network"]: _said(found["ratios"][name]) for found in rows}} for name in names]
    columns = {"way": "{way}", **{found["network"]: f"{{{found['network']}}}" for found in rows}}
    return [about, alone, Table.of(ratios, columns, "Seconds over those of the best choice in hindsight")]


def _said(ratio: Mapping[str, float]) -> str:
    return f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def tuned(results: Results) -> list[Table]:
    """Seconds for each learning rate, the mean of all options, and for settings of turns; with seeds not judged."""
    rates, mixes = [], []
    for network in tqdm(NETWORKS, "networks"):
        for rate in RATES:
            now = dataclasses.replace(network, rate=rate)
            runs = [
                results.known("tuning", f"{now}, {option.name}", partial(now.run, option, TUNING_SEEDS[0]))["loss"]
                for option in now.options
            ]
            seconds = [*map(now.seconds_to, runs)]
            reached = sum(one < now.seconds for one in seconds)
            rates.append({"network": now.name, "rate": rate, "reached": reached, "s": float(np.mean(seconds))})
        for mixing in MIXINGS:
            found = [
                results.known("mixes", f"{network}, {mixing}, {seed}", partial(network.configured, mixing, seed))["s"]
                for seed in TUNING_SEEDS
            ]
            mixes.append({"network": network.name, **dataclasses.asdict(mixing), "s": _mean(found)})
    settings = {"network": "{network}", **{name: f"{{{name}:g}}" for name in ("rate", "averaged", "drop")},
                "known seconds first": "{known_first}"}
    return [Table.of(rates, {"network": "{network}", "rate": "{rate:g}", "options that reach it": "{reached}",
                             "mean of options": "{s:seconds}"}),
            Table.of(mixes, {**settings, "mean of seeds": "{s:seconds}"}, "Turns")]  # fmt: skip


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=5, help="judged of each network (default: %(default)s)")
    parser.add_argument("--tune", action="store_true", help="compare learning rates instead")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"tune": given.tune})
    if given.tune:
        return results.shown(*tuned(results))
    rows = [row(network, results, range(1, given.seeds + 1)) for network in tqdm((*NETWORKS, BEYOND), "networks")]
    return results.shown(*tables(rows), figures=figures(rows[:-1]))


if __name__ == "__main__":
    raise SystemExit(main())
