"""What `tensorway up` would start, without starting it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorway.commands import stack, up
from tensorway.commands.up import UpOptions
from tensorway.flags import BadFlag
from tensorway.fleet import Fleet, Service, Workers, load
from tensorway.launches import Launch, Machine, plan, share, this_machine

FOUR_CORES = Machine(cores=(0, 1, 2, 3), gpus=())
FILE = """
metrics_port = 9100

[router]
port = 6000
args = ["--policy", "round_robin"]

[rest]
port = 6001

[[workers]]
model = "/models/minilm"
count = 2
args = ["--dtype", "float32"]
env = { HF_HUB_OFFLINE = "1" }

[[workers]]
model = "bge"
"""


def fleet_file(folder: Path, text: str) -> Path:
    """A fleet file with that text."""
    file = folder / "fleet.toml"
    file.write_text(text)
    return file


def by_name(fleet: Fleet, machine: Machine = FOUR_CORES) -> dict[str, Launch]:
    """The plan of a fleet, by name of process."""
    return {launch.name: launch for launch in plan(fleet, machine)}


def test_file_becomes_processes(tmp_path: Path) -> None:
    """A fleet file names models, counts, flags and ports; each worker is a process."""
    launches = by_name(load(fleet_file(tmp_path, FILE)))
    assert list(launches) == ["router", "worker-1", "worker-2", "worker-3", "rest"]
    python = (sys.executable, "-m")
    router_flags = ("--policy", "round_robin", "--port", "6000")
    assert launches["router"].argv == (*python, "router", *router_flags)
    assert launches["worker-2"].argv == (
        *(*python, "embed_worker", "/models/minilm", "--dtype", "float32"),
        *("--router", "127.0.0.1:6000", "--endpoint", "tensorway.worker-2.embed"),
        *("--metrics-port", "9101"),
    )
    assert launches["worker-1"].env["HF_HUB_OFFLINE"] == "1"
    assert launches["worker-3"].argv[3] == "bge"
    assert launches["rest"].argv[2:] == (
        *("rest_shim", "--port", "6001", "--router", "127.0.0.1:6000"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "[router]\nprot = 1", "router: Object contains unknown field `prot`", id="key"
        ),
        pytest.param("[rest]\nport = '1'", "rest.port: Expected `int`, got `str`", id="type"),
        pytest.param("[rest]\nport = 70000", "rest.port: Expected `int` <= 65535", id="range"),
        pytest.param("[[workers]]\ncount = 2", "workers[0]: Object missing", id="missing"),
        pytest.param("[[workers]]\nmodel = 'm'\ncount = 0", "workers[0].count", id="count"),
        pytest.param("[router]\nport = 1", "nothing to serve", id="empty"),
        pytest.param("[router", "Expected ']'", id="toml"),
        pytest.param("[rest]\nport = 50051", "50051 is given to router and to rest", id="twice"),
        pytest.param(
            "metrics_port = 65535\n[[workers]]\nmodel = 'm'\ncount = 2",
            "metrics_port: metrics of worker-2 would get 65536, over 65535",
            id="metrics",
        ),
        pytest.param(
            "metrics_port = 7999\n[[workers]]\nmodel = 'm'\ncount = 2",
            "port 8000 is given to rest and to metrics of worker-2",
            id="metrics twice",
        ),
    ],
)
def test_bad_file_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    """An error in a fleet file names the file and the key."""
    with pytest.raises(BadFlag) as raised:
        load(fleet_file(tmp_path, text))
    assert "fleet.toml" in str(raised.value)
    assert message in str(raised.value)


def test_metrics_port_is_for_worker_one() -> None:
    """One metrics port setting applies to worker 1 as it is; the next ones follow (E10)."""
    workers = (Workers("m", count=3),)
    launches = by_name(Fleet(workers, metrics_port=9100))
    ports = [launches[f"worker-{n}"].argv[-1] for n in (1, 2, 3)]
    assert ports == ["9100", "9101", "9102"]
    free = by_name(Fleet(workers, metrics_port=0))
    assert [free[f"worker-{n}"].argv[-1] for n in (1, 2, 3)] == ["0", "0", "0"]
    assert "--metrics-port" not in by_name(Fleet(workers))["worker-1"].argv


@pytest.mark.parametrize(
    ("machine", "count", "bound"),
    [
        pytest.param(FOUR_CORES, 1, [None], id="one worker keeps vLLM's own choice"),
        pytest.param(FOUR_CORES, 2, ["0,1", "2,3"], id="cores are shared out"),
        pytest.param(FOUR_CORES, 3, ["0", "1", "2,3"], id="none is left over"),
        pytest.param(Machine((4, 7), ()), 2, ["4", "7"], id="only cores we may use"),
        pytest.param(Machine((0, 1), ()), 3, ["0", "0", "1"], id="more workers than cores"),
    ],
)
def test_cores_are_shared_out(machine: Machine, count: int, bound: list[str | None]) -> None:
    """Several workers on CPUs get cores of their own."""
    shares = [share(machine, index, count) for index in range(count)]
    assert [s.get("VLLM_CPU_OMP_THREADS_BIND") for s in shares] == bound


def test_gpus_are_shared_out() -> None:
    """Each worker gets one of the visible GPUs, and no binding to cores."""
    machine = Machine((0, 1), ("3", "5"))
    assert [share(machine, index, 3) for index in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("3", "5", "3")
    ]
    assert this_machine({"CUDA_VISIBLE_DEVICES": "2,GPU-ab"}).gpus == ("2", "GPU-ab")
    assert this_machine({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()


HANDOFF = """
[encoder]
backend = "my.vision:Encoder"
args = ["--backend-model", "vit"]

[generator]
model = "/models/llama"
"""


def test_encoder_and_generator_join_the_router(tmp_path: Path) -> None:
    """A file may start an encoder and a generator, which find each other by the router."""
    launches = by_name(load(fleet_file(tmp_path, HANDOFF)))
    assert list(launches) == ["router", "generator", "encoder", "rest"]
    router = "127.0.0.1:50051"
    assert launches["generator"].argv[2:] == (
        *("generator_service", "/models/llama", "--port", "50053", "--router", router),
    )
    assert launches["encoder"].argv[2:] == (
        *("encoder_service", "--backend", "my.vision:Encoder", "--generator", router),
        *("--backend-model", "vit", "--port", "50052", "--router", router),
    )


def test_front_door_stops_first(tmp_path: Path) -> None:
    """Nothing accepted is lost: shim, then encoder, then router, then what they lead to."""
    fleet = load(fleet_file(tmp_path, f"{HANDOFF}[[workers]]\nmodel = 'm'"))
    order = sorted(plan(fleet, FOUR_CORES), key=lambda launch: launch.stage)
    names = [launch.name for launch in order]
    assert names == ["rest", "encoder", "router", "worker-1", "generator"]
    # Two engines, so each has half of the cores.
    bound = [launch.env["VLLM_CPU_OMP_THREADS_BIND"] for launch in order[3:]]
    assert bound == ["0,1", "2,3"]


def test_command_line_is_the_workers_own() -> None:
    """A model and flags after `up` reach the workers as they are (E1)."""
    flags = ("--runner", "pooling", "--pooler-config", '{"pooling_type":"MEAN"}')
    fleet = up.choose(UpOptions(workers=2, port=0, rest_port=7), ("/models/m", *flags))
    assert fleet == Fleet(
        workers=(Workers("/models/m", 2, flags),), router=Service(0), rest=Service(7)
    )


def test_flags_beat_the_file(tmp_path: Path) -> None:
    """Ports on the command line replace those of the file, and nothing else of it."""
    options = UpOptions(fleet=fleet_file(tmp_path, FILE), port=7000, metrics_port=9900)
    fleet = up.choose(options, ())
    assert fleet.router == Service(7000, ("--policy", "round_robin"))
    assert (fleet.rest.port, fleet.metrics_port) == (6001, 9900)


@pytest.mark.parametrize(
    ("fleet", "args", "message"),
    [
        pytest.param(None, (), "Give a MODEL", id="nothing"),
        pytest.param(None, ("--dtype", "half", "m"), "--dtype: MODEL comes before", id="order"),
        pytest.param("[[workers]]\nmodel = 'm'", ("m",), "with --fleet", id="both"),
    ],
)
def test_what_to_serve_is_required(
    tmp_path: Path, fleet: str | None, args: tuple[str, ...], message: str
) -> None:
    """Either a model or a file, and the error says which."""
    options = UpOptions(fleet=fleet_file(tmp_path, fleet) if fleet else None)
    with pytest.raises(BadFlag, match=message):
        up.choose(options, args)


def test_taken_port_is_refused() -> None:
    """A port that somebody listens on is refused, naming the flag that changes it."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadFlag, match=f"port {port} for rest is taken.*--rest-port"):
            stack.settle(Fleet((Workers("m"),), router=Service(0), rest=Service(port)))


def test_taken_metrics_port_is_refused() -> None:
    """So is a port that a worker would need for its metrics, before anything starts."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fleet = Fleet((Workers("m"),), Service(0), Service(0), metrics_port=port)
        with pytest.raises(BadFlag, match=f"port {port} for metrics of worker-1.*--metrics-port"):
            stack.settle(fleet)


def test_port_zero_becomes_a_free_port() -> None:
    """Port 0 is settled before anything starts, so that others can be told."""
    settled = stack.settle(Fleet((Workers("m"),), router=Service(0), rest=Service(0)))
    assert settled.router.port > 0
    assert settled.rest.port not in (0, settled.router.port)
