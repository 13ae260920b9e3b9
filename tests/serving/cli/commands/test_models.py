"""`pilotlight models`."""

from __future__ import annotations

import yaml

from tests.serving.cli.conftest import Run


def test_a_model_from_its_creation_to_its_end(pilotlight: Run) -> None:
    """create, describe, list, update and delete do what they say, and say what they did on stderr."""
    created = pilotlight("models create life --description 'A model' --labels team=ads,tier=gold")
    described = pilotlight("models describe life")
    listed = pilotlight("models list --filter name=life")
    updated = pilotlight("models update life --description Changed")
    deleted = pilotlight("models delete life")

    assert created.code == described.code == listed.code == updated.code == deleted.code == 0
    assert (created.out, created.err) == ("", "Created model life.\n")
    shown = yaml.safe_load(described.out)
    assert shown["name"] == "projects/local/models/life"
    assert shown["description"] == "A model"
    assert shown["labels"] == {"team": "ads", "tier": "gold"}
    assert [line.split() for line in listed.out.splitlines()] == [["NAME", "DEFAULT_VERSION_NAME"], ["life"]]
    assert updated.err == "Updated model life.\n"
    assert deleted.err == "Deleted model life.\n"
    assert pilotlight("models describe life").code == 1


def test_json_is_what_the_server_sent(pilotlight: Run) -> None:
    """Standard output holds the resource and nothing else."""
    created = pilotlight("models create wire --enable-logging --enable-console-logging --format json")
    described = pilotlight("models describe wire --format json")

    assert created.json == described.json
    assert described.json.pop("etag")
    assert described.json["onlinePredictionLogging"] is True
    assert described.json["onlinePredictionConsoleLogging"] is True
    assert described.json["regions"] == ["us-central1"]
    assert described.err == ""


def test_regions(pilotlight: Run) -> None:
    """A region is recorded, however it is given; giving it twice is wrong usage."""
    one = pilotlight("models create region_one --region europe-west1 --format json")
    other = pilotlight("models create region_other --regions europe-west4 --format json")
    globally = pilotlight("models create region_global --region global --format json")
    both = pilotlight("models create region_both --region a --regions b")

    assert one.json["regions"] == ["europe-west1"]
    assert other.json["regions"] == ["europe-west4"]
    assert globally.json["regions"] == ["us-central1"]
    assert both.code == 2
    assert pilotlight("models list --region europe-west1").code == 0


def test_labels(pilotlight: Run) -> None:
    """Labels are added, changed, removed and cleared; the others stay."""
    pilotlight("models create labelled --labels a=1,b=2,c=3")

    def update(flags: str) -> object:
        return pilotlight(f"models update labelled {flags} --format json").json.get("labels")

    assert update("--update-labels b=two,d=4") == {"a": "1", "b": "two", "c": "3", "d": "4"}
    assert update("--remove-labels a,c,unknown") == {"b": "two", "d": "4"}
    assert update("--remove-labels b --update-labels e=5") == {"d": "4", "e": "5"}
    assert update("--clear-labels --update-labels z=9") == {"z": "9"}
    assert update("--description Other") == {"z": "9"}
    assert update("--clear-labels") is None


def test_wrong_label_flags(pilotlight: Run) -> None:
    """What cannot be meant is wrong usage, and names the flag."""
    pilotlight("models create mislabelled")

    assert "--labels" in pilotlight("models create other --labels nonsense").err
    assert pilotlight("models create other --labels nonsense").code == 2
    assert pilotlight("models update mislabelled --clear-labels --remove-labels a").code == 2
    assert pilotlight("models update mislabelled").code == 2
    assert "Nothing to update" in pilotlight("models update mislabelled").err


def test_lists_fetch_all_pages(pilotlight: Run) -> None:
    """A list is complete however small its pages, and ends at --limit."""
    for number in range(5):
        pilotlight(f"models create many{number} --project pages")

    def names(flags: str) -> list[str]:
        rows = pilotlight(f"models list --project pages --format json {flags}").json
        return [row["name"].rpartition("/")[2] for row in rows]

    assert names("--page-size 2") == ["many0", "many1", "many2", "many3", "many4"]
    assert names("--page-size 2 --limit 3") == ["many0", "many1", "many2"]
    assert names("--filter name=many4") == ["many4"]
    assert len(pilotlight("models list --project pages").out.splitlines()) == 6


def test_an_empty_list(pilotlight: Run) -> None:
    """People are told that there is nothing, programs get an empty list."""
    for_people = pilotlight("models list --project empty")

    assert (for_people.code, for_people.out, for_people.err) == (0, "", "Listed 0 items.\n")
    assert pilotlight("models list --project empty --format json").json == []


def test_full_names_are_names(pilotlight: Run) -> None:
    """A model may be given by its full name, whatever the project."""
    pilotlight("models create projects/elsewhere/models/named")

    assert pilotlight("models describe named --project elsewhere").code == 0
    assert pilotlight("models describe projects/elsewhere/models/named").code == 0
    assert pilotlight("models describe named").code == 1


def test_refusals_are_one_sentence(pilotlight: Run) -> None:
    """What the server says is printed as an error, and the exit code is 1."""
    pilotlight("models create taken")
    taken = pilotlight("models create taken")
    missing = pilotlight("models describe missing")

    assert (taken.code, missing.code) == (1, 1)
    assert taken.err == "ERROR: Field: model.name Error: A model with the same name already exists.\n"
    assert taken.out == missing.out == ""
    assert missing.err.startswith("ERROR: ")
    assert "pilotlight models create missing" in missing.err
    assert "letter" in pilotlight("models describe 1st").err
    assert pilotlight("models describe ''").code == 1
