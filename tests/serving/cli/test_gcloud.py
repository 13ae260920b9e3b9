"""What the README promises: groups, verbs, flags and values of `gcloud ai-platform`, as in gcloud.yaml."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.cli.app import build, build_command_tree
from serving.cli.commands import versions
from serving.cli.console import Verbosity
from serving.cli.flags.argument_order import reorder_arguments
from serving.cli.formats.projection import FORMATS
from serving.errors import InvalidArgument
from tests.server import Server
from tests.serving.cli.conftest import Run
from tests.serving.cli.test_main import COMMANDS

GCLOUD: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "gcloud.yaml").read_text())
# What is left out, and why.
WITHOUT_FLAGS = {
    ("jobs submit prediction", "accelerator-count"): "alpha; the API's version 1 has no such field",
    ("jobs submit prediction", "accelerator-type"): "alpha; the API's version 1 has no such field",
}
WITHOUT_FORMATS = {
    "diff": "compares with a file of gcloud's own",
    "get": "value does the same",
    "multi": "several tables in one",
    "object": "Python's own representation",
}
# What commands with choices need besides.
REQUIRED = {
    "jobs submit prediction": ["job", "--input-paths", "in", "--output-path", "out", "--region", "here"],
    "jobs submit training": ["job"],
    "local predict": ["--model-dir", "folder"],
    "versions create": ["v1", "--model", "m"],
}
# Flags of all commands that some other place answers.
ELSEWHERE = {"flags-file", "help"}
OF_COMMANDS = list(GCLOUD["commands"])


def flags_of(command: Any) -> dict[str, Any]:
    """The options of a command by their names without the hyphens."""
    return {opt.lstrip("-"): one for one in command.params for opt in (*one.opts, *one.secondary_opts)}


def test_every_command_is_there() -> None:
    """Groups and verbs."""
    assert set(GCLOUD["commands"]) <= {" ".join(path) for path in COMMANDS}


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_flag_is_there(name: str) -> None:
    """Those that take a value take one, switches take none, and what gcloud lets choose can be chosen."""
    theirs, command = GCLOUD["commands"][name], COMMANDS[tuple(name.split())]
    ours = flags_of(command)
    choices = {
        key.removeprefix("choices of "): value for key, value in theirs.items() if key.startswith("choices")
    }
    valued = {*theirs.get("flags", ()), *choices} - {flag for of, flag in WITHOUT_FLAGS if of == name}
    arguments = [one for one in command.params if one.param_type_name == "argument"]

    assert valued <= ours.keys()
    assert not [flag for flag in valued if ours[flag].is_flag]
    assert all(ours[flag].is_flag for flag in theirs.get("switches", ()))
    assert len(arguments) == len(theirs.get("arguments", ()))
    for flag in choices.keys() & valued:
        for value in (*choices[flag], *(value.upper().replace("-", "_") for value in choices[flag])):
            command.make_context(name, [*REQUIRED[name], f"--{flag}", value])


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_flags_of_all_commands(name: str) -> None:
    """They are at every command that calls a server."""
    ours = flags_of(COMMANDS[tuple(name.split())])
    missing = {"format", "flatten", "quiet", "user-output-enabled", "verbosity"}
    if not name.startswith("local"):
        missing |= set(GCLOUD["everywhere"]) - ELSEWHERE

    assert missing <= ours.keys()


def test_values_of_flags_of_all_commands() -> None:
    """Formats and verbosities, but for formats with a reason."""
    assert set(GCLOUD["formats"]) - set(FORMATS) == WITHOUT_FORMATS.keys()
    assert set(GCLOUD["verbosity"]) == set(Verbosity)


@pytest.mark.parametrize(
    ("typed", "arranged"),
    [
        ("--project p models list", "models list --project p"),
        (
            "--project=p models --format json list --limit 1",
            "models list --project=p --format json --limit 1",
        ),
        ("-q --no-user-output-enabled models delete m", "models delete -q --no-user-output-enabled m"),
        ("--project p predict --model m", "predict --project p --model m"),
        ("jobs --verbosity debug submit prediction j", "jobs submit prediction --verbosity debug j"),
        # A later one counts, wherever it stands.
        ("--project p models list --project q", "models list --project p --project q"),
        ("models list --filter -labels.a:b", "models list --filter -labels.a:b"),
        ("--unknown models list", "--unknown models list"),
        ("--help", "--help"),
        ("--project", "--project"),
        ("", ""),
    ],
)
def test_flags_before_the_command(typed: str, arranged: str) -> None:
    """gcloud's flags for all commands may stand before it, and between its words."""
    assert reorder_arguments(shlex.split(typed), build_command_tree()) == shlex.split(arranged)


def test_flags_file(tmp_path: Path) -> None:
    """A file of flags stands for what it holds; one that names itself ends."""
    file = tmp_path / "flags.yaml"
    file.write_text("--project: p\n--quiet: true\n--labels: {a: b, c: d}\n--user-output-enabled: false\n")
    words = reorder_arguments(["models", "create", "m", "--flags-file", str(file)], build_command_tree())
    endless = tmp_path / "endless.yaml"
    endless.write_text(f"--flags-file: {endless}\n")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("project: p\n")

    assert words == [
        "models",
        "create",
        "m",
        "--project=p",
        "--quiet",
        "--labels=a=b,c=d",
        "--no-user-output-enabled",
    ]
    with pytest.raises(InvalidArgument, match="do they name each other"):
        reorder_arguments(["models", f"--flags-file={endless}"], build_command_tree())
    with pytest.raises(InvalidArgument, match="must map flags to values"):
        reorder_arguments(["models", f"--flags-file={wrong}"], build_command_tree())


def test_the_tree_is_that_of_the_commands() -> None:
    """What is arranged by is what there is."""
    command: Any = build()
    groups = {name for name, one in command.commands.items() if hasattr(one, "commands")}

    assert build_command_tree().keys() == groups


def test_repeated_flags(pilotlight: Run) -> None:
    """Mappings are merged; a key that is there twice is wrong usage, as with gcloud."""
    labels = pilotlight("models create repeated --labels a=1 --labels b=2,c=3 --format json")
    changed = pilotlight(
        "models update repeated --update-labels a=x --update-labels d=4 --remove-labels b --remove-labels c "
        "--format json"
    )
    twice = pilotlight("models create other --labels a=1 --labels a=2")
    metrics = "--metric-targets cpu-usage=60 --metric-targets"
    version = "versions create v1 --model repeated --origin /nowhere --async --format json"
    created = pilotlight(f"{version} {metrics} gpu-duty-cycle=70")

    assert labels.json["labels"] == {"a": "1", "b": "2", "c": "3"}
    assert changed.json["labels"] == {"a": "x", "d": "4"}
    assert twice.code == 2
    assert "'a' is given several times" in twice.err
    assert created.json["metadata"]["version"]["autoScaling"]["metrics"] == [
        {"name": "CPU_USAGE", "target": 60},
        {"name": "GPU_DUTY_CYCLE", "target": 70},
    ]
    assert pilotlight(f"{version} {metrics} cpu-usage=70").code == 2
    assert pilotlight(f"{version} --metric-targets cpu-usage=101").code == 2


def test_lists_are_sorted_filtered_limited_and_formatted(pilotlight: Run, server: Server) -> None:
    """As gcloud has it; the flags of all commands before the command."""
    for name, team in (("one", "x"), ("three", "y"), ("two", "x")):
        pilotlight(f"--project shown models create {name} --labels team={team}")

    def models(flags: str) -> list[str]:
        return pilotlight(f"--project shown models list {flags}").out.splitlines()

    assert models("--sort-by ~name --format 'value(name.basename())'") == ["two", "three", "one"]
    assert models("--sort-by labels.team,~name --format 'value(name.basename())'") == ["two", "one", "three"]
    assert models("--filter labels.team=x --limit 1 --format 'value(name.basename(),labels.team)'") == [
        "one\tx"
    ]
    assert models("--filter 'name=one' --uri") == [f"{server.url}/v1/projects/shown/models/one"]
    assert models("--filter -labels.team=x --format 'csv(name.basename():label=id)'") == ["id", "three"]
    assert models("--filter name=one --page-size 1 --format 'table(name.basename(), labels.list())'") == [
        "NAME  LABELS",
        "one   team=x",
    ]
    assert models("--sort-by name --format json --no-user-output-enabled") == []
    assert models("--flatten regions[] --limit 1 --format 'value(regions)'") == ["us-central1"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--format nonsense", "unknown format 'nonsense'; known are config, csv"),
        ("--format 'value(name.nonsense())'", "Unknown transform nonsense(); known are always, basename"),
        ("--format value", "value needs to be told what to show"),
        ("--filter 'state='", "a value is expected"),
        ("--filter 'a=1 AND b=2 OR c=3'", "parentheses are needed where AND and OR are combined"),
        ("--limit 0", "is not a number from 1 on"),
        ("--verbosity loud", "none of debug, info"),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(offline: Run, flags: str, problem: str) -> None:
    """With the place and what there is instead."""
    refused = offline(f"models list {flags}")

    assert refused.code == 2
    assert problem in " ".join(refused.err.split())


def test_what_is_told(pilotlight: Run) -> None:
    """By --verbosity and --log-http; flags that say nothing here are told to say nothing."""
    called = pilotlight("models list --log-http")
    debug = pilotlight("--verbosity=debug models list")
    silent = pilotlight("models describe nowhere --verbosity none")
    unused = pilotlight("models list --account ada@example.com")

    assert "GET http://127.0.0.1" in called.err
    assert "DEBUG: GET http://127.0.0.1" in debug.err
    assert (silent.code, silent.err) == (1, "")
    assert unused.code == 0
    assert "WARNING: --account is not used" in unused.err
    assert pilotlight("models list --account ada@example.com --verbosity error").err == ""


def test_a_token_from_a_file(pilotlight: Run, tmp_path: Path) -> None:
    """It is what --token would be; one that is no token is refused before it is sent."""
    (tmp_path / "token").write_text("plt_no token\n")
    wrong = pilotlight("models list --access-token-file token")
    both = pilotlight("models list --access-token-file token --token t")

    assert wrong.code == 1
    assert "is no token" in wrong.err
    assert both.code == 2


@pytest.mark.parametrize("group", ["models", "jobs", "projects"])
def test_policies(pilotlight: Run, forest: str, tmp_path: Path, group: str) -> None:
    """Read, add to, take from, and replace the policy of a resource."""
    name = {"models": "guarded", "jobs": "guarded_job", "projects": "guarded-project"}[group]
    if group == "models":
        pilotlight(f"models create {name}")
    elif group == "jobs":
        (tmp_path / "rows.jsonl").write_text("[1, 2, 3, 4]\n")
        flags = f"--model {forest} --input-paths rows.jsonl --output-path out --data-format text"
        pilotlight(f"jobs submit prediction {name} {flags}")
        pilotlight(f"jobs cancel {name}")
    added = pilotlight(
        f"{group} add-iam-policy-binding {name} --member user:ada@example.com --role roles/ml.viewer"
    )
    more = f"{group} add-iam-policy-binding {name} --member user:bob@example.com --role roles/ml.viewer"
    pilotlight(f"{more} --condition None")
    flat = "--flatten bindings[].members --format 'value(bindings.members, bindings.role)'"
    members = pilotlight(f"{group} get-iam-policy {name} {flat} --filter bindings.members:ada")
    shown = pilotlight(f"{group} get-iam-policy {name} --format json")
    removed = pilotlight(
        f"{group} remove-iam-policy-binding {name} --member user:ada@example.com --role roles/ml.viewer"
    )
    again = pilotlight(
        f"{group} remove-iam-policy-binding {name} --member user:ada@example.com --role roles/ml.viewer"
    )
    (tmp_path / "policy.json").write_text(shown.out)
    stale = pilotlight(f"{group} set-iam-policy {name} policy.json")
    (tmp_path / "policy.yaml").write_text(
        "bindings: [{role: roles/ml.viewer, members: ['user:eve@example.com']}]"
    )
    replaced = pilotlight(f"{group} set-iam-policy {name} policy.yaml --format json")

    assert added.code == 0, added.err
    assert "Updated IAM policy" in added.err
    assert yaml.safe_load(added.out)["bindings"] == [
        {"role": "roles/ml.viewer", "members": ["user:ada@example.com"]}
    ]
    assert members.out == "user:ada@example.com\troles/ml.viewer\n"
    assert shown.json["bindings"][0]["members"] == ["user:ada@example.com", "user:bob@example.com"]
    assert removed.code == 0
    assert again.code == 1
    assert "has no binding of user:ada@example.com" in again.err
    assert stale.code == 1
    assert "concurrent policy changes" in stale.err
    assert replaced.json["bindings"] == [{"role": "roles/ml.viewer", "members": ["user:eve@example.com"]}]


def test_explanations_are_refused(pilotlight: Run, forest: str) -> None:
    """With a sentence that says that there are none."""
    refused = pilotlight(f"explain --model {forest} --json-instances -", "[1, 2, 3, 4]\n")

    assert refused.code == 1
    assert "xplain" in refused.err


def test_locations(pilotlight: Run, server: Server) -> None:
    """They are listed with what they can do, and shown one by one."""
    table = pilotlight("locations list --sort-by name")
    names = pilotlight("locations list --format 'value(name.basename())'").out.split()
    shown = pilotlight("locations describe us-central1 --format json")

    assert table.code == 0, table.err
    assert table.out.splitlines()[0].split() == ["NAME", "TYPE", "AVAILABLE_ACCELERATORS"]
    assert "us-central1" in names
    assert shown.json["name"] == "projects/local/locations/us-central1"
    assert f"{server.url}/v1/projects/local/locations/us-central1" in pilotlight("locations list --uri").out


def test_container_flags(pilotlight: Run) -> None:
    """They are the container and the routes of the version; without an engine a server says what it lacks."""
    pilotlight("models create contained")
    flags = (
        "--image i --command serve,--fast --args a --args ^:^b,c:d --env-vars A=1 --env-vars B=2 "
        "--ports 80,81 --predict-route /p --health-route /h"
        " --explanation-method sampled-shapley --num-paths 7"
    )
    refused = pilotlight(f"versions create v1 --model contained {flags}")
    wrong = pilotlight("versions create v1 --model contained --image i --ports 70000")

    assert refused.code == 1
    assert "container_engine" in refused.err
    assert wrong.code == 2
    assert "'70000' is not a port" in wrong.err
    fields = versions.ContainerFlags(
        image="i", command=["serve,--fast"], args=["a", "^:^b,c:d"], env_vars=["A=1", "B=2"], ports=["80,81"],
        predict_route="/p", health_route="/h",
    ).build_fields()  # fmt: skip
    assert fields == {
        "container": {
            "image": "i",
            "command": ["serve", "--fast"],
            "args": ["a", "b,c", "d"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 80}, {"containerPort": 81}],
        },
        "routes": {"predict": "/p", "health": "/h"},
    }


def test_capitals(pilotlight: Run, models_dir: Path) -> None:
    """The API's names of choices are as good as gcloud's."""
    pilotlight("models create capitals")
    origin = f"--origin {models_dir / 'forest'}"
    created = pilotlight(
        f"versions create v1 --model capitals {origin} --framework SCIKIT_LEARN --staging-bucket gs://b "
        "--async --format 'value(metadata.version.framework)'"
    )
    wrong = pilotlight(f"versions create v2 --model capitals {origin} --framework PYTORCH")

    assert created.out == "SCIKIT_LEARN\n"
    assert "--staging-bucket is not needed" in created.err
    assert wrong.code == 2
    assert "tensorflow, scikit-learn, xgboost" in wrong.err
