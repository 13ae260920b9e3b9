"""projects.getConfig and projects.locations.*: one machine is every project and every region."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import NotFound
from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import json_response, page_response
from serving.names import check_location, check_project

# The regions that gcloud offers; section 8 of the contract.
REGIONS = (
    "asia-east1", "asia-northeast1", "asia-southeast1", "australia-southeast1", "europe-west1",
    "europe-west2", "europe-west3", "europe-west4", "northamerica-northeast1", "us-central1",
    "us-east1", "us-east4", "us-west1",
)  # fmt: skip

# What can be done in each of them; the order is that of the API's enumeration.
_CAPABILITIES = ("BATCH_PREDICTION", "ONLINE_PREDICTION")


async def get_config(request: Request) -> Response:
    """projects.getConfig: the account that the server acts as, which only the server has."""
    project = check_project(request.path_params["project"])
    account = f"pilotlight@{project}.iam.gserviceaccount.com"
    return json_response({"serviceAccount": account, "serviceAccountProject": "0", "config": {}})


async def list_locations(request: Request) -> Response:
    """projects.locations.list."""
    project = check_project(request.path_params["project"])
    listing = PagedList(
        REGIONS,
        lambda region: _render_location(project, region),
        lambda region: f"projects/{project}/locations/{region}",
    )
    return page_response(request, "locations", listing)


async def get_location(request: Request) -> Response:
    """projects.locations.get."""
    project = check_project(request.path_params["project"])
    location = check_location(request.path_params["location"])
    if location not in REGIONS:
        raise NotFound(f"Location {location} was not found; there are {', '.join(REGIONS)}.")
    return json_response(_render_location(project, location))


def _render_location(project: str, location: str) -> dict[str, object]:
    capabilities = [{"type": kind} for kind in _CAPABILITIES]
    return {"name": f"projects/{project}/locations/{location}", "capabilities": capabilities}
