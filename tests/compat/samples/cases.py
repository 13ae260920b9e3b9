"""How each sample of Google is run: what it leaves to its user, the lines that change, what stands for the cloud.

In all texts @URL@, @BUCKET@ and @PROJECT@ stand for those of the run, @DATA@ for the folder of made-up data,
@CHECKOUT@ for that of the repositories, @PYTHON@ for the interpreter of this server, @ENGINE@ for the folder of what
stands for docker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.compat.environments import Environment
from tests.compat.samples.environment import CONTAINER, FIRST, SECOND, TORCH

Edits = tuple[tuple[str, str], ...]
_CLIENT = "client_options={'api_endpoint': '@URL@'}"


@dataclass(frozen=True)
class Sample:
    """A notebook, a script, or the commands of a README.

    `cells` are those that are run, `own` is what runs in the place of one of them, `checks` what runs after one.
    `before` is a shell script that makes the model, `after` one that looks at the outcome with the files that are
    `also` of the sample. With `lines` only the commands that deploy and predict are run, one after another. `fill` are values that
    the sample asks its user for, `changes` the lines that docs/samples.md names. `refused` is what the deployment is
    refused with, where that is the end of it.
    """

    path: str
    environment: Environment | None = None
    cells: tuple[int, ...] = ()
    fill: Edits = ()
    changes: Edits = ()
    own: Mapping[int, str] = field(default_factory=dict)
    checks: Mapping[int, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    lines: bool = False
    refused: str = ""


_BUILD = (
    "googleapiclient.discovery.build('ml', 'v1')",
    f"googleapiclient.discovery.build('ml', 'v1', {_CLIENT})",
)
_SHORT_BUILD = ("discovery.build('ml', 'v1'", f"discovery.build('ml', 'v1', {_CLIENT}")
_DOCUMENT = (
    "discoveryServiceUrl='https://storage.googleapis.com/cloud-ml/discovery/ml_v1_discovery.json'",
    _CLIENT,
)
NAMES: Edits = (
    ("<your-project-id>", "@PROJECT@"),
    ("<your-bucket-name>", "@BUCKET@"),
    ("[your-project-id]", "@PROJECT@"),
    ("[your-bucket-name]", "@BUCKET@"),
    ("[your-project-Id]", "@PROJECT@"),
)
_SAME = "assert response['predictions'] == {}, (response['predictions'], {})"
_ROUTINE = "MyPredictor.from_path('.').predict(instances{})"
_IRIS_ROUTINE_CHECKS = (
    "from predictor import MyPredictor\n" + _SAME.format(_ROUTINE.format(""), _ROUTINE.format("")),
    "import numpy\n"
    f"own = {_ROUTINE.format(', probabilities=True')}\n"
    "assert numpy.allclose(response['predictions'], own, rtol=1e-6), (response, own)",
)


_TEMPLATE = "cloudml-samples/sklearn/sklearn-template/template/scripts/"


def _beside(folder: str) -> tuple[str, ...]:
    return f"{folder}/prediction/predict.py", f"{folder}/scripts/cleanup.sh"


def _aihub(name: str, kind: str, output: str) -> Sample:
    """The three whose models are SavedModels of four named numbers, trained by a container of Google's."""
    notebook = f"ai-platform-samples/notebooks/samples/aihub/{name}/{name}.ipynb"
    predict = 35 if kind == "fm" else 34
    return Sample(
        notebook,
        cells=(18, 30, 32, predict, 39 if kind == "fm" else 38),
        own={
            18: _AIHUB
            + ("" if kind == "fm" else "validation = validation.drop(columns='target')\n")
            + f"! cp -r @MODELS@/{kind} @DATA@/{kind}-@BUCKET@\n"
            + _MODEL_URI.format(f"@DATA@/{kind}-@BUCKET@")
        },
        changes=(_SHORT_BUILD,),
        checks={
            predict: f"own = tf.saved_model.load('@MODELS@/{kind}').signatures['serving_default']("
            "**{name: tf.constant([one[name] for one in instances], tf.float32) for name in names})\n"
            f"said = [one['{output}'] for one in response['predictions']]\n"
            f"assert np.allclose(said, own['{output}'].numpy(), rtol=1e-5), said"
        },
    )


_AIHUB = """
import os, numpy as np, pandas as pd, tensorflow as tf
from googleapiclient import discovery
from sklearn import datasets
PROJECT_ID, BUCKET_NAME, REGION, job_name = '@PROJECT@', '@BUCKET@', 'us-central1', 'none'
iris = datasets.load_iris()
names = ['sepal_length', 'sepal_width', 'petal_length', 'petal_width']
validation = pd.DataFrame(iris.data, columns=names).iloc[::3].copy()
validation['target'] = iris.target[::3]
output_location = os.path.abspath('output')
os.makedirs(output_location, exist_ok=True)
"""
_MODEL_URI = "open(os.path.join(output_location, 'model_uri.txt'), 'w').write('{}')"
_BOOSTED = """
import xgboost
features = validation.drop(columns='target')
features.columns = ['f%d' % n for n in range(4)]
bst = xgboost.train({{'objective': '{}', 'num_class': {}}}, xgboost.DMatrix(features, label=validation['target'] + {}), 5)
os.makedirs('@DATA@/{}-@BUCKET@', exist_ok=True)
bst.save_model('@DATA@/{}-@BUCKET@/model.bst')
from sklearn.metrics import r2_score
"""


def _boosted(name: str, objective: str, classes: int, shift: int) -> Sample:
    notebook = f"ai-platform-samples/notebooks/samples/aihub/{name}/{name}.ipynb"
    trained = _BOOSTED.format(objective, classes, shift, name, name)
    return Sample(
        notebook,
        environment=FIRST,
        cells=(18, 28, 30, 32, 36),
        own={18: _AIHUB + trained + _MODEL_URI.format(f"@DATA@/{name}-@BUCKET@/model.bst")},
        changes=(_SHORT_BUILD,),
        checks={
            32: "assert np.allclose(response['predictions'], bst.predict(xgboost.DMatrix(features)), rtol=1e-5)"
        },
    )


_TORCH_WHEEL: Edits = ((",gs://cloud-ai-pytorch/torch-1.3.1+cpu-cp37-cp37m-linux_x86_64.whl", ""),)
_PYTORCH_IRIS: Edits = (
    ("NUM_EPOCHS = 10000", "NUM_EPOCHS = 200"),
    (
        'urlretrieve("https://archive.ics.uci.edu/ml/machine-learning-databases/iris/iris.data", LOCAL_DATA_DIR)',
        "import shutil; shutil.copy('@DATA@/iris.data', LOCAL_DATA_DIR)",
    ),
)
_KERAS_EXPORT = "gsutil cp -r @MODELS@/census-trained/keras_export gs://@BUCKET@/keras-job-dir/keras_export"
_KERAS_START = f"""
import os, sys
PROJECT_ID, BUCKET_NAME, REGION = '@PROJECT@', '@BUCKET@', 'us-central1'
JOB_DIR = 'gs://' + BUCKET_NAME + '/keras-job-dir'
! {_KERAS_EXPORT}
! mkdir $TMPDIR/census_data; cp @DATA@/adult.data.csv @DATA@/adult.test.csv $TMPDIR/census_data
sys.path.insert(0, '@CHECKOUT@/cloudml-samples/census/tf-keras')
"""
_ESTIMATOR = (
    "cd @CHECKOUT@/cloudml-samples/census/estimator && $SAMPLES_TRAINER -m trainer.task --train-files @DATA@/adult.data "
    "--eval-files @DATA@/adult.eval --train-steps 20 --eval-steps 2 --job-dir $TMPDIR/census {} >&2 && "
    "gsutil cp -r $TMPDIR/census/export/census/* gs://@BUCKET@/census && cd -"
)
_LOCAL_CENSUS: Mapping[str, str] = {
    "CENSUS_TRAIN": "@DATA@/adult.data",
    "CENSUS_EVAL": "@DATA@/adult.eval",
    "CENSUS_PREDICTION_JSON": "@CHECKOUT@/cloudml-samples/census/test.json",
}
_STEPS: Edits = (("TRAIN_STEPS=1000", "TRAIN_STEPS=20"), ("EVAL_STEPS=100", "EVAL_STEPS=2"))
_TAXI_MODEL = """
$SAMPLES_TRAINER - <<'END'
import joblib, numpy, pathlib
rows = numpy.random.RandomState(0).rand(200, 6) * [2, 1000, 1500, 10, 24, 7]
{}
END
gsutil cp -r model gs://@BUCKET@/taxi/model
"""
_REGION = (("https://{}.googleapis.com", "@URL@"),)
_CONTAINER_NOTEBOOK = "ai-platform-samples/ai-platform/notebooks/unofficial/AI_Platform_Custom_Container_Prediction_sklearn.ipynb"
# What its Dockerfile makes and its base image does, as a folder and a command.
_IMAGE = """
import json, shutil, sys
shutil.copytree("app", "image")
start = "cd %s && . ./prestart.sh && exec %s -m uvicorn main:app --port $PORT"
json.dump(
    {
        "name": f"{REGION}-docker.pkg.dev/{PROJECT_ID}/{REPOSITORY}/{IMAGE}",
        "id": "sha256:1",
        "entrypoint": ["bash", "-c", start % (os.path.abspath("image"), sys.executable)],
        "command": [],
    },
    open("@ENGINE@/registry/iris.json", "w"),
)
"""
_FETCH = """with open("preprocessor.pkl", 'wb') as preprocessor_f, open("model.joblib", 'wb') as model_f:
    gcs_client.download_blob_to_file(
        f"{os.environ['AIP_STORAGE_URI']}/preprocessor.pkl", preprocessor_f
    )
    gcs_client.download_blob_to_file(
        f"{os.environ['AIP_STORAGE_URI']}/model.joblib", model_f
    )
"""


SAMPLES = (
    # ---- cloudml-samples ----
    Sample(
        "cloudml-samples/census/README.md",
        lines=True,
        environment=FIRST,
        before=_ESTIMATOR.format("")
        + "; gsutil cp @CHECKOUT@/cloudml-samples/census/test.json gs://@BUCKET@/in/census.json",
        fill=(
            (
                "gs://cloud-samples-data/ml-engine/testdata/prediction/census.json",
                "gs://@BUCKET@/in/census.json",
            ),
            # The other form of instances, which is for a model that was exported to take it.
            ("gcloud ai-platform predict --model census --version v1 --text-instances test.csv", "true"),
        ),
        variables={
            "MODEL_BINARIES": "gs://@BUCKET@/census",
            "JOB_NAME": "census_prediction",
            "REGION": "us-central1",
            "GCS_JOB_DIR": "gs://@BUCKET@/job",
        },
    ),
    *(
        Sample(
            f"cloudml-samples/census/{kind}/scripts/train-local.sh",
            environment=FIRST,
            fill=(*_STEPS, ("/tmp/trained_models", "$TMPDIR/trained_models")),
            variables=_LOCAL_CENSUS,
        )
        for kind in ("estimator", "customestimator", "tensorflowcore")
    ),
    Sample(
        "cloudml-samples/census/keras/README.md",
        lines=True,
        before="mkdir $TMPDIR/job; cp -r @MODELS@/keras-census $TMPDIR/job/export && gsutil cp -r $TMPDIR/job/export gs://@BUCKET@/export && "
        "@PYTHON@ -c 'import json; print(json.dumps([0.5] * 14))' > sample.json",
        variables={"JOB_DIR": "$TMPDIR/job", "MODEL_BINARIES": "gs://@BUCKET@/export"},
    ),
    Sample(
        "cloudml-samples/census/tftransformestimator/README.md",
        lines=True,
        before="cp @CHECKOUT@/cloudml-samples/census/test.json ..; cp -r @MODELS@/census $TMPDIR/m && gsutil cp -r $TMPDIR/m gs://@BUCKET@/m",
        variables={"MODEL_BINARIES": "gs://@BUCKET@/m", "REGION": "us-central1"},
    ),
    Sample(
        "cloudml-samples/cloudml-template/scripts/cloudml-deploy-model.sh",
        before="mkdir data; cp @CHECKOUT@/cloudml-samples/census/test.json data/new-data.json; cp -r @MODELS@/census $TMPDIR/m "
        "&& gsutil cp -r $TMPDIR/m gs://@BUCKET@/models/estimator/export/estimate/1500000000",
        fill=(
            ("choose-gcp-region", "us-central1"),
            ("your-bucket-name", "@BUCKET@"),
            ("you_model_name", "estimator"),
            ("your_model_version", "v1"),
        ),
    ),
    Sample(
        "cloudml-samples/cloudml-template/scripts/local-train.sh",
        before="mkdir -p data trained_models/estimator/export/estimate trainer; cp -r @MODELS@/census "
        "trained_models/estimator/export/estimate/1500000000; "
        "cp @CHECKOUT@/cloudml-samples/census/test.json data/new-data.json; "
        "touch trainer/__init__.py; echo 'print(\"trained\")' > trainer/task.py",
        fill=(("your_model_name", "estimator"),),
    ),
    Sample(
        "cloudml-samples/cloudml-template/template/inference.py",
        environment=FIRST,
        before="cp -r @MODELS@/census $TMPDIR/m && gcloud ai-platform models create census && "
        "gcloud ai-platform versions create v1 --model census --origin $TMPDIR/m",
        fill=(
            ("GCP_PROJECT = ''", "GCP_PROJECT = '@PROJECT@'"),
            ("CMLE_MODEL_NAME = ''", "CMLE_MODEL_NAME = 'census'"),
        ),
        changes=(_SHORT_BUILD,),
        after='PYTHONPATH=.:$PYTHONPATH $SAMPLES_TRAINER -c "import inference, json; '
        "print(inference.predict_cmle([json.load(open('@CHECKOUT@/cloudml-samples/census/test.json'))])['predictions'])\"",
    ),
    Sample(
        "cloudml-samples/molecules/README.md",
        lines=True,
        before="cp -r @MODELS@/molecules $TMPDIR/m && gsutil cp -r $TMPDIR/m gs://@BUCKET@/m; cp -r $TMPDIR/m local",
        # A folder on this machine for the first, a bucket for the others: the page says so in words.
        fill=(("local predict  --model-dir $MODEL_DIR", "local predict  --model-dir $TMPDIR/m"),),
        variables={
            "MODEL": "Molecules",
            "VERSION": "VERSION_1",
            "REGION": "us-central1",
            "MODEL_DIR": "gs://@BUCKET@/m",
        },
    ),
    Sample(
        "cloudml-samples/notebooks/keras/TextClassificationUsingKerasAndCMLE.ipynb",
        environment=FIRST,
        cells=(6, 7, 8, 9, 11, 15, 17, 20, 22, 24, 26, 28, 31, 33, 35, 36, 38, 39, 41, 42, 43, 44, 46),
        fill=(("PROJECT=''", "PROJECT='@PROJECT@'"), ("BUCKET=''", "BUCKET='@BUCKET@'")),
        changes=(_DOCUMENT,),
        checks={46: "assert response['predictions'] == results, (response, results)"},
    ),
    Sample(
        "cloudml-samples/notebooks/scikit-learn/OnlinePredictionWithScikitLearnInCMLE.ipynb",
        environment=FIRST,
        cells=(6, 9, 11, 13, 15, 17, 20, 22, 24, 27, 29, 31, 33, 35, 37),
        own={9: "! mkdir census_data; cp @DATA@/adult.data census_data; cp @DATA@/adult.test census_data"},
        fill=(
            ("%env PROJECT_ID PROJECT_ID", "%env PROJECT_ID @PROJECT@"),
            ("%env BUCKET_NAME BUCKET_NAME", "%env BUCKET_NAME @BUCKET@"),
            ("gs://BUCKET_NAME/", "gs://@BUCKET@/"),
        ),
        changes=(_BUILD,),
        checks={37: "assert (identical, different) == (len(test_features), 0)"},
    ),
    Sample(
        "cloudml-samples/notebooks/scikit-learn/custom-pipeline.ipynb",
        environment=FIRST,
        cells=(11, 12, 17, 19, 21, 24, 26, 30, 33, 35, 38, 40, 42, 45, 47, 49, 53, 56),
        fill=NAMES,
        own={
            35: "! python -m census_package.train --gcs_data_path "
            "gs://cloud-samples-data/ai-platform/census/data/adult.data.csv --gcs_model_path "
            "gs://$BUCKET_NAME/custom_pipeline_tutorial/model/model.joblib"
        },
        changes=(_BUILD,),
        checks={
            53: "! gsutil cp gs://$BUCKET_NAME/custom_pipeline_tutorial/model/model.joblib model.joblib\n"
            "from sklearn.externals import joblib\nown = joblib.load('model.joblib').predict(instances).tolist()\n"
            "assert response['predictions'] == own, (response, own)"
        },
    ),
    Sample(
        "cloudml-samples/notebooks/scikit-learn/custom-prediction-routine-scikit-learn.ipynb",
        environment=FIRST,
        cells=(11, 16, 18, 20, 27, 30, 33, 36, 38, 40, 42, 44, 46, 51, 54, 56),
        fill=NAMES,
        changes=(_BUILD,),
        checks={51: _IRIS_ROUTINE_CHECKS[0], 54: _IRIS_ROUTINE_CHECKS[1]},
    ),
    Sample(
        "cloudml-samples/notebooks/tensorflow/custom-prediction-routine-keras.ipynb",
        environment=FIRST,
        cells=(11, 16, 18, 20, 27, 30, 34, 37, 39, 41, 43, 45, 47, 52, 55, 57),
        fill=NAMES,
        changes=(_BUILD,),
        checks={52: _IRIS_ROUTINE_CHECKS[0], 55: _IRIS_ROUTINE_CHECKS[1]},
    ),
    Sample(
        "cloudml-samples/notebooks/tensorflow/getting-started-keras.ipynb",
        environment=FIRST,
        cells=(30, 36, 38, 40, 44, 48, 50, 99),
        own={30: _KERAS_START},
        # The name is one that the notebook never gives a value.
        changes=(("SAVED_MODEL_PATH = keras_export", "SAVED_MODEL_PATH = JOB_DIR + '/keras_export'"),),
    ),
    Sample(
        "cloudml-samples/notebooks/xgboost/OnlinePredictionWithXGBoostInCMLE.ipynb",
        environment=FIRST,
        cells=(4, 7, 9, 10, 12, 14, 16, 18, 20, 22, 23, 25, 27, 30, 32, 34, 36),
        own={7: "! mkdir census_data; cp @DATA@/adult.data census_data; cp @DATA@/adult.test census_data"},
        fill=(
            ("<YOUR_PROJECT_ID>", "@PROJECT@"),
            ("<YOUR_BUCKET_ID>", "@BUCKET@"),
            ("<YOUR_MODEL_NAME>", "census"),
            ("<YOUR_VERSION>", "v1"),
            ("<ML_ENGINE_REGION>", "us-central1"),
        ),
        changes=(
            _BUILD,
            ("https://ml.googleapis.com", "@URL@"),
            # It was written for Python 2.
            ("print 'data loading complete'", "print('data loading complete')"),
            ("print 'model trained and saved'", "print('model trained and saved')"),
            (
                "print 'identical: {}, different: {}'.format(identical,different)",
                "print(identical, different)",
            ),
            ("xrange", "range"),
        ),
        # "until the version is ready", says the text between these cells.
        checks={
            18: "! until gcloud ml-engine versions list --model $MODEL_NAME | grep READY; do sleep 1; done",
            34: "import numpy\nassert numpy.array_equal(numpy.array(online_results, 'f4'), local_results)",
        },
    ),
    Sample(
        "cloudml-samples/notebooks/pytorch/TextClassificationUsingPyTorchAndCMLE.ipynb",
        environment=TORCH,
        cells=(6, 8, 9, 10, 11, 13, 17, 22, 24, 26, 28, 30, 33, 35, 37, 38, 40, 41, 43, 44, 45, 47, 49),
        fill=(("PROJECT=''", "PROJECT='@PROJECT@'"), ("BUCKET = ''", "BUCKET = '@BUCKET@'")),
        changes=(*_TORCH_WHEEL, _DOCUMENT),
        checks={
            49: "assert response['predictions'] == CustomModelPrediction.from_path('.').predict(requests)"
        },
    ),
    Sample(
        "cloudml-samples/pytorch/notebooks/Serving PyTorch Models with CMLE  Custom Prediction Code.ipynb",
        environment=TORCH,
        cells=(12, 15, 16, 17, 19, 21, 23, 25, 27, 29, 31, 33, 37, 40, 42, 44, 46, 49, 50, 54, 55, 57, 58),
        own={12: "PROJECT, BUCKET = '@PROJECT@', '@BUCKET@'"},
        fill=_PYTORCH_IRIS,
        changes=(*_TORCH_WHEEL, _DOCUMENT),
        checks={58: "assert predictions == [CLASS_VOCAB[n] for n in predict_class(instances)]"},
    ),
    Sample(
        "cloudml-samples/sklearn/sklearn-template/template/scripts/deploy.sh",
        environment=FIRST,
        also=(_TEMPLATE + "predict.sh", _TEMPLATE + "predict.py"),
        variables={"PROJECT_ID": "@PROJECT@"},
        changes=(_BUILD,),
        before='mkdir model; $SAMPLES_TRAINER -c "import joblib; from sklearn import datasets, ensemble; joblib.dump('
        "ensemble.RandomForestClassifier(5).fit(*datasets.load_iris(return_X_y=True)), 'model/model.joblib')\"; "
        "gsutil cp -r model gs://@BUCKET@/model; set -- gs://@BUCKET@/model sklearn_template v1",
        after="bash $SCRIPTS/predict.sh $SCRIPTS/../sample_data/sample.txt sklearn_template v1 && "
        "@PYTHON@ $SCRIPTS/predict.py",
    ),
    Sample(
        "cloudml-samples/tensorflow/standard/iris/README.md",
        lines=True,
        environment=FIRST,
        before="echo '[6.4, 3.2, 4.5, 1.5]' > $TMPDIR/rows.json; @PYTHON@ -c \"import json; "
        "print(json.dumps({'inputs': '6.4,3.2,4.5,1.5'}))\" > test.json; gsutil cp test.csv gs://@BUCKET@/in/iris.json; "
        "$SAMPLES_TRAINER -m trainer.task --train-file @DATA@/iris.csv --eval-file @DATA@/iris.csv --train-steps 20 "
        "--eval-steps 2 --job-dir $TMPDIR/iris >&2; gsutil cp -r $TMPDIR/iris/export/*/* gs://@BUCKET@/iris",
        fill=(
            ("gs://cloud-samples-data/ml-engine/testdata/prediction/iris.json", "gs://@BUCKET@/in/iris.json"),
        ),
        variables={
            "MODEL_BINARIES": "gs://@BUCKET@/iris",
            "JOB_NAME": "iris_prediction",
            "REGION": "us-central1",
            "GCS_JOB_DIR": "gs://@BUCKET@/job",
        },
    ),
    *(
        Sample(
            f"cloudml-samples/tensorflow/standard/legacy/flowers/{file}",
            lines=True,
            before="cp -r @MODELS@/images $TMPDIR/m && gsutil cp -r $TMPDIR/m gs://@BUCKET@/training/model; "
            "@PYTHON@ -c \"import base64, json; print(json.dumps({'key': '0', 'image_bytes': "
            "{'b64': base64.b64encode(b'picture').decode()}}))\" > request.json",
            variables={"MODEL_NAME": "flowers", "VERSION_NAME": "v1", "GCS_PATH": "gs://@BUCKET@"},
        )
        for file in ("README.md", "sample.sh")
    ),
    Sample(
        "cloudml-samples/tensorflow/standard/legacy/movielens/README.md",
        lines=True,
        before='cp -r @MODELS@/examples $TMPDIR/m && gsutil cp -r $TMPDIR/m gs://@BUCKET@/m; @PYTHON@ -c "\n'
        "import base64, json, tensorflow as tf\n"
        "one = tf.train.Example(features=tf.train.Features(feature={'movie': tf.train.Feature("
        "float_list=tf.train.FloatList(value=[3.0]))})).SerializeToString()\n"
        "with tf.io.TFRecordWriter('in.tfrecord.gz', 'GZIP') as file:\n    [file.write(one) for _ in range(5)]\n"
        "json.dump({'b64': base64.b64encode(one).decode()}, open('rows.json', 'w'))\n\"; "
        "gsutil cp in.tfrecord.gz gs://@BUCKET@/in/in.tfrecord.gz",
        variables={
            "MODEL_SOURCE": "gs://@BUCKET@/m",
            "LOCAL_PREDICTION_FILE": "rows.json",
            "JOB_ID": "movielens_batch",
            "GCS_PREDICTION_FILE": "gs://@BUCKET@/in/in.tfrecord.gz",
            "GCS_PATH": "gs://@BUCKET@",
        },
    ),
    # ---- ai-platform-samples ----
    Sample(
        "ai-platform-samples/prediction/sklearn/structured/base/scripts/deploy.sh",
        environment=FIRST,
        also=_beside("ai-platform-samples/prediction/sklearn/structured/base"),
        before=_TAXI_MODEL.format(
            "from sklearn.ensemble import RandomForestClassifier\n"
            "pathlib.Path('model').mkdir()\n"
            "joblib.dump(RandomForestClassifier(20).fit(rows, rows[:, 0] > 1), 'model/model.joblib')"
        ),
        variables={
            "MODEL_NAME": "taxi",
            "MODEL_DIR": "gs://@BUCKET@/taxi",
            "MODEL_VERSION": "v1",
            "REGION": "us-central1",
            "PROJECT_ID": "@PROJECT@",
        },
        changes=_REGION,
        after="@PYTHON@ $SCRIPTS/../prediction/predict.py && bash $SCRIPTS/cleanup.sh",
    ),
    Sample(
        "ai-platform-samples/prediction/sklearn/structured/custom_routines/scripts/deploy.sh",
        also=_beside("ai-platform-samples/prediction/sklearn/structured/custom_routines"),
        environment=FIRST,
        before="""
cp -r @CHECKOUT@/ai-platform-samples/training/sklearn/structured/custom_routines/. training; cd training
python package.py sdist --formats=gztar >&2; gsutil cp dist/custom_routine-1.0.tar.gz gs://@BUCKET@/routine.tar.gz
python - <<'END'
import argparse, joblib, numpy, os
from trainer import model
rng = numpy.random.RandomState(0)
rows = [list(rng.rand(6) * 10) + [0] * 8 + [str(rng.choice(['Cash', 'Credit Card'])), 'Taxi'] for _ in range(100)]
os.makedirs('out/model')
pipeline = model.get_estimator(argparse.Namespace(n_estimators=5, max_depth=3))
joblib.dump(pipeline.fit(rows, [int(row[0] > 5) for row in rows]), 'out/model/model.joblib')
END
gsutil cp -r out/model gs://@BUCKET@/taxi/model; cd ..
""",
        variables={
            "MODEL_NAME": "taxi",
            "MODEL_DIR": "gs://@BUCKET@/taxi",
            "MODEL_VERSION": "v2",
            "REGION": "us-central1",
            "PROJECT_ID": "@PROJECT@",
            "CUSTOM_ROUTINE_PATH": "gs://@BUCKET@/routine.tar.gz",
        },
        changes=(_BUILD,),
        after="python $SCRIPTS/../prediction/predict.py && bash $SCRIPTS/cleanup.sh",
        refused="`pilotlight runtimes add 1.15 --create --python",
    ),
    Sample(
        "ai-platform-samples/prediction/xgboost/structured/base/scripts/deploy.sh",
        environment=FIRST,
        also=_beside("ai-platform-samples/prediction/xgboost/structured/base"),
        before=_TAXI_MODEL.format(
            "import xgboost\n"
            "pathlib.Path('model').mkdir()\n"
            "xgboost.XGBRegressor(n_estimators=5).fit(rows, rows[:, 0]).save_model('model/model.bst')"
        ),
        fill=(
            ('BUCKET_NAME=""', 'BUCKET_NAME="@BUCKET@"'),
            ("MODEL_BINARIES=gs://${BUCKET_NAME}/", "MODEL_BINARIES="),
        ),
        variables={
            "MODEL_NAME": "xgboost_model",
            "MODEL_DIR": "gs://@BUCKET@/taxi",
            "MODEL_VERSION": "v1",
            "REGION": "us-central1",
            "PROJECT_ID": "@PROJECT@",
        },
        changes=_REGION,
        after="@PYTHON@ $SCRIPTS/../prediction/predict.py && bash $SCRIPTS/cleanup.sh",
    ),
    *(
        Sample(
            f"ai-platform-samples/prediction/tensorflow/structured/scripts/{name}.sh",
            before=f"mkdir data; cp @CHECKOUT@/cloudml-samples/census/test.json data/new-data.json; cp -r @MODELS@/census $TMPDIR/m "
            f"&& gsutil cp -r $TMPDIR/m gs://@BUCKET@/models/you_model_name{suffix}/export/estimate/1500000000",
            fill=(('BUCKET_NAME=""', 'BUCKET_NAME="@BUCKET@"'),),
        )
        for name, suffix in (("deploy", ""), ("deploy-gpu", "_gpu"))
    ),
    Sample(
        "ai-platform-samples/quickstart/scripts/deploy.sh",
        also=_beside("ai-platform-samples/quickstart"),
        environment=FIRST,
        before="mkdir $TMPDIR/trained; $SAMPLES_TRAINER $SCRIPTS/../trainer/task.py $TMPDIR/trained >&2; "
        "gsutil cp -r $TMPDIR/trained gs://@BUCKET@/trained",
        variables={
            "MODEL_NAME": "quickstart",
            "MODEL_DIR": "gs://@BUCKET@/trained",
            "REGION": "us-central1",
            "RUNTIME_VERSION": "1.15",
            "PYTHON_VERSION": "3.7",
            "PROJECT_ID": "@PROJECT@",
            "MODEL_VERSION": "v1",
        },
        changes=(_BUILD,),
        after="@PYTHON@ $SCRIPTS/../prediction/predict.py && bash $SCRIPTS/cleanup.sh",
    ),
    Sample(
        "ai-platform-samples/training/tensorflow/census/tf-keras/scripts/deploy.sh",
        environment=FIRST,
        before=f"cp $SCRIPTS/../input.json .; {_KERAS_EXPORT}",
        fill=(('BUCKET_NAME=""', 'BUCKET_NAME="@BUCKET@"'),),
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/tensorflow/keras/getting_started_keras.ipynb",
        environment=FIRST,
        cells=(35, 36, 37, 38, 40, 41, 42, 44, 48, 52, 54, 103),
        own={35: _KERAS_START},
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/tensorflow/prediction_auto-scaling/ai_platform_prediction_auto-scaling.ipynb",
        cells=(4, 5, 9, 11, 12, 14, 15, 17, 18, 19, 21, 23),
        own={
            9: "import datetime, numpy as np, googleapiclient.discovery\n"
            "from google.api_core.client_options import ClientOptions\n"
            "! cp -r @MODELS@/encoder $TMPDIR/encoder\nmodel = os.environ['TMPDIR'] + '/encoder'",
            21: "assert np.shape(embed(['I like my phone', 'Will it snow tomorrow?'])) == (2, 512)",
        },
        fill=(("YOUR-PROJECT-ID", "@PROJECT@"), ("YOUR-BUCKET-NAME", "@BUCKET@")),
        changes=(("endpoint = f'https://{REGION}-ml.googleapis.com'", "endpoint = '@URL@'"),),
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/tensorflow/prediction_logging/covertype_training_serving_logging_bq.ipynb",
        environment=SECOND,
        cells=(
            10,
            14,
            16,
            18,
            21,
            22,
            24,
            26,
            29,
            33,
            37,
            40,
            42,
            44,
            45,
            49,
            52,
            54,
            56,
            61,
            63,
            65,
            67,
            69,
            72,
            74,
            77,
            79,
        ),
        fill=(
            *NAMES,
            ("params.epochs = 10", "params.epochs = 1"),
            # Its signature has vectors of one value: one dimension more than it asks itself, one less than its requests.
            ("tf.constant(value, dtype", "tf.constant([value], dtype"),
            ("{key: [value] for key", "{key: value for key"),
        ),
        changes=(_BUILD,),
        checks={79: "assert caip_predict(instances) == [local_predict(one) for one in instances]"},
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/tensorflow/sentiment_analysis/ai_platform_sentiment_analysis.ipynb",
        environment=FIRST,
        cells=(
            12,
            13,
            15,
            16,
            17,
            18,
            21,
            23,
            24,
            25,
            27,
            29,
            31,
            34,
            35,
            36,
            38,
            40,
            43,
            45,
            46,
            47,
            49,
            50,
            51,
            53,
            56,
            58,
            59,
            61,
            63,
            64,
            66,
            67,
            68,
            69,
            71,
            72,
            73,
            75,
            76,
            77,
        ),
        # The made-up texts have fewer words than the vocabulary may.
        fill=(*NAMES, ("NUM_EPOCH = 25", "NUM_EPOCH = 1"), ("VOCAB_SIZE = 25000", "VOCAB_SIZE = 50")),
        changes=(_SHORT_BUILD,),
        checks={
            76: "own = classifier.predict(requests)\n"
            "assert [one['label'] for one in response['predictions']] == [one['label'] for one in own]"
        },
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/tensorflow/sentiment_analysis/dataflow/PubSubToBigQueryWithAIPlatform.py",
        before="""
printf 'class Scores:\\n    def predict(self, instances, **kwargs):\\n        return [{"score": len(text)} for text in instances]\\n\\n    @classmethod\\n    def from_path(cls, model_dir):\\n        return cls()\\n' > scores.py
printf 'from setuptools import setup\\nsetup(name="scores", version="0.1", scripts=["scores.py"], py_modules=[])\\n' > setup.py
@PYTHON@ setup.py -q sdist >&2
gcloud ai-platform models create sentiment_classifier
gcloud ai-platform versions create v1 --model sentiment_classifier --package-uris dist/scores-0.1.tar.gz \\
  --prediction-class scores.Scores --runtime-version 2.11 --python-version 3.7
""",
        variables={"PROJECT_ID": "@PROJECT@"},
        # It was written for Python 2.
        changes=(_SHORT_BUILD, ("unicode)", "str)"), ("text.encode('utf-8')", "text")),
        after='@PYTHON@ -c "import json, PubSubToBigQueryWithAIPlatform as pipeline; '
        "(said,) = pipeline.prediction_helper([json.dumps({'text': 'abc'})]); assert said['sentiment'] == 3, said\"",
    ),
    Sample(
        _CONTAINER_NOTEBOOK,
        environment=CONTAINER,
        cells=(13, 15, 20, 23, 25, 29, 30, 32, 34, 36, 38, 40, 47, 59, 61, 62, 64, 66, 68, 70),
        fill=NAMES,
        own={29: "! mkdir app", 47: _IMAGE},
        # Its files are in a folder of the container, which has no credentials for the bucket.
        changes=(
            ("gcs_client = storage.Client()\n", ""),
            (_FETCH, ""),
            (
                'open("preprocessor.pkl", "rb")',
                "open(os.environ['AIP_STORAGE_URI'] + '/preprocessor.pkl', 'rb')",
            ),
            ('joblib.load("model.joblib")', "joblib.load(os.environ['AIP_STORAGE_URI'] + '/model.joblib')"),
            ("https://{REGION}-ml.googleapis.com", "@URL@"),
        ),
        checks={66: "assert response['predictions'] == ['versicolor', 'setosa'], response"},
    ),
    _aihub("kmeans", "kmeans", "output"),
    _aihub("pca", "pca", "result"),
    _aihub("factorization_machines_classification", "fm", "score"),
    _boosted("xgboost_classification", "multi:softprob", 3, 0),
    _boosted("xgboost_regression", "reg:tweedie", 1, 1),
    Sample(
        "ai-platform-samples/notebooks/samples/aihub/house_prices/training_an_xgboost_model_with_ai_hub.ipynb",
        environment=FIRST,
        cells=(12, 17, 20, 22, 23, 24, 25, 27, 28, 30, 31, 32, 33, 34, 41, 43, 44, 45, 46, 47, 49, 54),
        own={
            12: "PROJECT_ID, BUCKET_NAME, REGION, JOB_NAME = '@PROJECT@', '@BUCKET@', 'us-central1', 'none'",
            17: "import pandas as pd, os, googleapiclient.discovery",
            20: "! mkdir data; cp @DATA@/houses-train.csv data/train.csv; cp @DATA@/houses-test.csv data/test.csv",
            41: "import xgboost\nOUTPUT_LOCATION = 'gs://@BUCKET@/xgboost_output'\n"
            "bst = xgboost.train({'objective': 'reg:gamma'}, xgboost.DMatrix(train.iloc[:, 1:].values, "
            "label=train.iloc[:, 0].values.astype(float)), 5)\nbst.save_model('model.bst')\n"
            "! gsutil cp model.bst gs://@BUCKET@/xgboost_output/model.bst",
        },
        # The first column of the test set is the price that is sought, which the model was not trained with.
        changes=(_BUILD, ("test.iloc[0:10, :]", "test.iloc[0:10, 1:]")),
        checks={
            49: "import numpy as np\nassert np.allclose(online_results, "
            "bst.predict(xgboost.DMatrix(test.iloc[0:10, 1:].values.astype(float))), rtol=1e-5)"
        },
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/pytorch/iris_classification/serving_pytorch_models_in_ai_platform.ipynb",
        environment=TORCH,
        cells=(
            12,
            13,
            15,
            16,
            17,
            19,
            21,
            23,
            25,
            27,
            29,
            31,
            33,
            37,
            40,
            42,
            44,
            46,
            49,
            50,
            51,
            55,
            56,
            58,
            59,
            61,
        ),
        fill=(*NAMES, *_PYTORCH_IRIS),
        changes=(*_TORCH_WHEEL, _SHORT_BUILD),
        checks={59: "assert predictions == [CLASS_VOCAB[n] for n in predict_class(instances)]"},
    ),
    Sample(
        "ai-platform-samples/notebooks/samples/pytorch/text_classification/"
        "text_classification_using_pytorch_and_ai_platform.ipynb",
        environment=TORCH,
        cells=(11, 13, 14, 15, 17, 21, 26, 28, 30, 32, 34, 37, 39, 41, 42, 44, 45, 47, 48, 49, 51, 53, 55),
        fill=(*NAMES, ("ROOT='torch_text_classification'", "import os; ROOT='torch_text_classification'")),
        changes=(*_TORCH_WHEEL, _SHORT_BUILD),
        checks={53: "assert response['predictions'] == local_prediction.predict(requests)"},
    ),
)
