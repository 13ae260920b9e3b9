"""A program for old interpreters: what users of Google's Python client do, told as JSON.

google_client.py ROOT MODEL_DIR
"""

import inspect
import json
import sys

from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

PARENT = "projects/old"


def main(root, folder):
    found = {}
    options = {"discoveryServiceUrl": root + "/$discovery/rest?version=v1", "cache_discovery": False}
    static = inspect.signature(build).parameters.get("static_discovery")
    if static is not None and static.default is True:  # 2.0 takes its own document unless it is told not to
        options["static_discovery"] = False
    ml = build("ml", "v1", **options)
    models = ml.projects().models()
    models.create(parent=PARENT, body={"name": "m", "description": "made"}).execute()
    name = PARENT + "/models/m"
    version = {"name": "v", "deploymentUri": folder, "framework": "SCIKIT_LEARN", "runtimeVersion": "2.11"}
    operation = models.versions().create(parent=name, body=version).execute()
    while not operation.get("done"):
        operation = ml.projects().operations().get(name=operation["name"]).execute()
    found["error"] = operation.get("error")
    models.patch(name=name, body={"description": "changed"}, updateMask="description").execute()
    found["description"] = models.get(name=name, fields="description").execute()
    body = {"instances": [[1.0, 1.0], [2.0, 3.0]]}
    found["predictions"] = ml.projects().predict(name=name, body=body).execute()["predictions"]
    long = "name:m" + "".join(" OR name:" + "absent" * 10 + str(number) for number in range(50))
    found["listed"] = len(models.list(parent=PARENT, filter=long).execute()["models"])
    etag = models.getIamPolicy(resource=name).execute()["etag"]
    policy = {"etag": etag.replace("+", "-").replace("/", "_"), "bindings": []}
    found["policy"] = sorted(models.setIamPolicy(resource=name, body={"policy": policy}).execute())
    answers = {}

    def note(number, answer, error):
        answers[number] = answer["name"] if error is None else error.resp.status

    batch = ml.new_batch_http_request(callback=note)
    batch.add(models.get(name=name))
    batch.add(models.get(name=PARENT + "/models/absent"))
    batch.execute()
    found["batch"] = answers
    try:
        ml.projects().explain(name=PARENT + "/models/m", body={}).execute()
    except HttpError as error:
        found["not offered"] = error.resp.status
    print(json.dumps(found))


main(*sys.argv[1:])
