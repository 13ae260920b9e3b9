"""The flags of training jobs: the program, and the replicas that run it. As gcloud has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.flags.common_flags import RuntimeVersionOption, drop_none, make_absolute, parse_file_path
from serving.cli.flags.yaml_file import read_mapping
from serving.cli.formats.value_parsers import format_choices, make_choice_parser, parse_pairs


class ScaleTier(StrEnum):
    """Scale tiers as gcloud spells them."""

    BASIC = "basic"
    BASIC_GPU = "basic-gpu"
    BASIC_TPU = "basic-tpu"
    CUSTOM = "custom"
    PREMIUM_1 = "premium-1"
    STANDARD_1 = "standard-1"

    @property
    def wire(self) -> str:
        return self.name


def _parse_accelerator(text: str) -> Mapping[str, str]:
    """`type=nvidia-tesla-t4,count=1`, as the API has it."""
    found = parse_pairs(text)
    if found.keys() - {"type", "count"} or "type" not in found:
        raise typer.BadParameter(f"{text!r} is not like type=nvidia-tesla-t4,count=1.")
    return {"type": found["type"].upper().replace("-", "_"), "count": found.get("count", "1")}


_MachineOption = Annotated[str | None, typer.Option(metavar="TYPE", help="Echoed.", show_default=False)]
_CountOption = Annotated[
    int | None, typer.Option(min=0, help="How many replicas of this role.", show_default=False)
]
_ImageOption = Annotated[
    str | None,
    typer.Option(metavar="IMAGE", help="The image of a built-in algorithm.", show_default=False),
]
_AcceleratorOption = Annotated[
    Any,
    typer.Option(
        parser=_parse_accelerator,
        metavar="type=TYPE,count=N",
        help="GPUs of each replica.",
        show_default=False,
    ),
]
_EchoedOption = Annotated[str | None, typer.Option(help="Accepted as gcloud has it.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFlags:
    """What machines there are to be; one server is all of them."""

    scale_tier: Annotated[
        Any,
        typer.Option(
            parser=make_choice_parser(ScaleTier),
            metavar=format_choices(ScaleTier),
            help="How many replicas there are; one when left out.",
            show_default=False,
        ),
    ] = None
    master_machine_type: _MachineOption = None
    master_accelerator: _AcceleratorOption = None
    master_image_uri: _ImageOption = None
    worker_machine_type: _MachineOption = None
    worker_count: _CountOption = None
    worker_accelerator: _AcceleratorOption = None
    worker_image_uri: _ImageOption = None
    parameter_server_machine_type: _MachineOption = None
    parameter_server_count: _CountOption = None
    parameter_server_accelerator: _AcceleratorOption = None
    parameter_server_image_uri: _ImageOption = None
    use_chief_in_tf_config: Annotated[
        Any,
        typer.Option(
            parser=lambda text: text.lower() == "true",
            metavar="true|false",
            help="With an image: TF_CONFIG calls the master chief.",
            show_default=False,
        ),
    ] = None
    tpu_tf_version: _EchoedOption = None

    def build_fields(self) -> dict[str, Any]:
        """The fields of a trainingInput that are given."""
        tier = self.scale_tier.wire if self.scale_tier else None
        fields = drop_none(scaleTier=tier, useChiefInTfConfig=self.use_chief_in_tf_config)
        for role, name in (
            ("master", "master"),
            ("worker", "worker"),
            ("parameter_server", "parameterServer"),
        ):
            config = drop_none(
                acceleratorConfig=getattr(self, f"{role}_accelerator"),
                imageUri=getattr(self, f"{role}_image_uri"),
                tpuTfVersion=self.tpu_tf_version if role == "worker" else None,
            )
            count = getattr(self, f"{role}_count", None)
            fields |= drop_none(
                **{
                    f"{name}Type": getattr(self, f"{role}_machine_type"),
                    f"{name}Count": None if count is None else str(count),
                    f"{name}Config": config or None,
                }
            )
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFlags:
    """What is trained with."""

    module_name: Annotated[
        str | None, typer.Option(metavar="MODULE", help="The module that is run.", show_default=False)
    ] = None
    package_path: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the package that has the module; a wheel is built of it.",
            show_default=False,
        ),
    ] = None
    packages: Annotated[
        str | None,
        typer.Option(metavar="ARCHIVE,...", help="Archives that are installed too.", show_default=False),
    ] = None
    staging_bucket: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where archives are put for the server: gs://BUCKET or a folder; --job-dir, or a "
            "folder of this machine, when left out.",
            show_default=False,
        ),
    ] = None
    job_dir: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where the program writes: gs://BUCKET/FOLDER or a folder.",
            show_default=False,
        ),
    ] = None
    runtime_version: RuntimeVersionOption = None
    python_version: _EchoedOption = None
    service_account: _EchoedOption = None
    network: _EchoedOption = None
    kms_key: _EchoedOption = None
    kms_keyring: _EchoedOption = None
    kms_location: _EchoedOption = None
    kms_project: _EchoedOption = None
    enable_web_access: Annotated[
        bool, typer.Option("--enable-web-access", help="Accepted as gcloud has it.", show_default=False)
    ] = False
    config: Annotated[
        Path | None,
        typer.Option(
            parser=parse_file_path,
            metavar="FILE",
            help="YAML of a job: trainingInput, trainingOptions, labels. Flags go before it.",
            show_default=False,
        ),
    ] = None

    def read_job(self) -> dict[str, Any]:
        """The job that the file describes; {} without one."""
        return {} if self.config is None else read_mapping(self.config, "a job, with `trainingInput: {...}`")

    def build_fields(self) -> dict[str, Any]:
        """The fields of a trainingInput that are given, without packages."""
        return drop_none(
            pythonModule=self.module_name,
            jobDir=make_absolute(self.job_dir) if self.job_dir else None,
            runtimeVersion=self.runtime_version,
            pythonVersion=self.python_version,
            serviceAccount=self.service_account,
            network=self.network,
            enableWebAccess=self.enable_web_access or None,
            encryptionConfig={"kmsKeyName": self._key_name()} if self.kms_key else None,
        )

    def _key_name(self) -> str:
        """The full name of the key; its parts may be given by flags of their own."""
        if str(self.kms_key).startswith("projects/"):
            return str(self.kms_key)
        parts = {
            "projects": self.kms_project,
            "locations": self.kms_location,
            "keyRings": self.kms_keyring,
            "cryptoKeys": self.kms_key,
        }
        if not all(parts.values()):
            raise typer.BadParameter("--kms-key needs --kms-keyring, --kms-location and --kms-project.")
        return "/".join(f"{collection}/{name}" for collection, name in parts.items())
