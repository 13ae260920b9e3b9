"""The predictor process: loads a model with another Python's libraries and answers over a socket.

One file, standard library only, for Python 3.6 to 3.14: the interpreters that run it have nothing of ours.

    PYTHON program.py serve FD [LIFELINE]   a predictor on a connected socket
    PYTHON program.py check                 prints which Python and libraries these are, as JSON
    PYTHON program.py pilot JSON            imports libraries, and forks a predictor for each connection

A message is 16 bytes with the lengths of its two parts, little endian, then JSON, then the bytes of an array.
Arrays cross as bytes, everything else as JSON; nothing is unpickled but the model. A predictor begins with
{"pid": ...}. The first message to it is {"load": ..., "process": ...} and is answered with {"loaded": ...};
each further one asks for predictions. What went wrong is answered as {"error": TEXT, "kind": KIND}.

The descriptors of a connection to a pilot come with its first byte: what the predictor prints goes to the
first, it is killed when the writing end of the second is gone, and how it ended is written to the third.
"""

import base64
import collections
import fcntl
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import operator
import os
import re
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

LENGTHS = struct.Struct("<QQ")
BYTES, ARRAY = "\u0000bytes", "\u0000array"

# A message that claims more is damaged.
_MAX_MESSAGE_BYTES = 1 << 32
# An array begins at a multiple of this, as compiled code may want it.
_ALIGNMENT = 16
_MAX_COPIED_BYTES = 65536
_F_SETSIG = 10
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 1, 15, 38
_DESCRIPTORS = 3
# Connections to a pilot that have sent nothing yet; of more, the oldest is closed.
_MAX_PENDING = 64
_EXHAUSTED_PAUSE = 0.05
_KINDS_AS_BYTES = "biufcUS"
_WARNINGS_KEPT = 5

_LIBRARY_NAMES = (
    ("sklearn", "scikit-learn"), ("xgboost", "xgboost"), ("numpy", "numpy"), ("pandas", "pandas"),
    ("scipy", "scipy"), ("joblib", "joblib"), ("tensorflow", "tensorflow"),
)  # fmt: skip

Message = Tuple[Dict[str, Any], memoryview]


class PredictorError(Exception):
    """What the node tells its client or the owner of the model; `kind` says which of them is to blame.

    `raised` is the exception behind it, as `describe_raised` has it.
    """

    def __init__(self, kind: str, text: str, raised: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.raised = raised


# ---- messages ----


def send_message(connection: socket.socket, head: Dict[str, Any], body: Any = b"") -> None:
    """Send a message; `body` is anything with a buffer of bytes."""
    send_parts(connection, *encode_message(head, body))


def encode_message(head: Dict[str, Any], body: Any = b"") -> Tuple[bytes, memoryview]:
    """The two parts that are written. Raises PredictorError for what has no form in JSON."""
    text = json.dumps(head, default=pack_value).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    view = memoryview(body).cast("B") if len(body) else memoryview(b"")
    return LENGTHS.pack(len(text), len(view)) + text, view


def send_parts(connection: socket.socket, front: bytes, view: memoryview) -> None:
    """Send the two parts from `encode_message`."""
    if len(view) < _MAX_COPIED_BYTES:
        connection.sendall(front + bytes(view))
    else:
        connection.sendall(front)
        connection.sendall(view)


def receive_message(connection: socket.socket) -> Optional[Message]:
    """The next message, None when the other side is gone. Raises ValueError for one that is damaged."""
    parts = receive_parts(connection)
    return None if parts is None else (decode_head(parts[0]), parts[1])


def receive_parts(connection: socket.socket) -> Optional[Tuple[memoryview, memoryview]]:
    """The two parts of the next message, None when the other side is gone or does not speak this protocol."""
    start = _read_exactly(connection, LENGTHS.size)
    if start is None:
        return None
    text_size, body_size = LENGTHS.unpack(start)
    if text_size + body_size > _MAX_MESSAGE_BYTES:
        return None
    data = _read_exactly(connection, text_size + body_size)
    return None if data is None else (data[:text_size], data[text_size:])


def decode_head(text: memoryview) -> Dict[str, Any]:
    """The JSON of a message."""
    given = bytes(text)
    # The marks are looked for by their escaped form: most messages have none, and no hook is called for them.
    head: Dict[str, Any] = json.loads(
        given.decode(), object_hook=unpack_value if b'"\\u0000' in given else None
    )
    return head


def _read_exactly(connection: socket.socket, size: int) -> Optional[memoryview]:
    buffer = memoryview(bytearray(size))
    got = 0
    while got < size:
        try:
            count = connection.recv_into(buffer[got:])
        except OSError:
            return None
        if not count:
            return None
        got += count
    return buffer


def pack_value(value: Any) -> Any:
    """What JSON has no form for, for `json.dumps`."""
    if isinstance(value, (bytes, bytearray)):
        return {BYTES: base64.b64encode(value).decode()}
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):  # an array or a scalar of numpy
        if value.dtype.kind in _KINDS_AS_BYTES:
            return {ARRAY: [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise PredictorError(
        "outputs", "predict returned a %s, which has no form in JSON." % type(value).__name__
    )


def unpack_value(value: Dict[str, Any]) -> Any:
    """The inverse of `pack_value`, for `json.loads`. Look-alikes from clients stay as they are."""
    if len(value) != 1 or not (BYTES in value or ARRAY in value):
        return value
    try:
        if BYTES in value:
            return base64.b64decode(value[BYTES])
        dtype, shape, data = value[ARRAY]
        array = make_array(dtype, shape, bytearray(base64.b64decode(data)))
        return array if shape else array[()]
    except (TypeError, ValueError):
        return value


def make_array(dtype: str, shape: List[int], data: Any) -> Any:
    """An array of numpy in the memory of `data`, which models may write to."""
    import numpy

    return numpy.frombuffer(data, numpy.dtype(dtype)).reshape(shape)


def decode_batch(head: Dict[str, Any], body: memoryview) -> Any:
    """The instances or predictions of a message: rows, or one array."""
    if "array" in head:
        dtype, shape = head["array"]
        return make_array(dtype, shape, body)
    return head["rows"]


def encode_batch(batch: Any) -> Tuple[Dict[str, Any], Any]:
    """The parts of a message with instances or predictions."""
    if hasattr(batch, "dtype") and batch.dtype.kind in _KINDS_AS_BYTES:
        import numpy

        return {"array": [batch.dtype.str, list(batch.shape)]}, numpy.ascontiguousarray(batch).reshape(
            -1
        ).view("u1")
    return {"rows": batch.tolist() if hasattr(batch, "tolist") else list(batch)}, b""


# ---- one predictor ----


def serve_predictions(connection: socket.socket) -> int:
    """Load what the first message says, then answer until the other side is gone; returns the exit code.

    Raises OSError when the other side goes while it is answered.
    """
    send_message(connection, {"pid": os.getpid()})
    first = receive_message(connection)
    if first is None:
        return 0
    try:
        apply_process_settings(first[0]["process"])
        model = load_model(first[0]["load"])
    except BaseException as error:
        send_message(connection, _error_head(error, "load"))
        return 1
    send_message(connection, {"loaded": model.about})
    while True:
        parts = receive_parts(connection)
        if parts is None:
            return 0
        try:
            answer = encode_message(*_answer_request(model, decode_head(parts[0]), parts[1]))
        except BaseException as error:  # sys.exit, and panics of libraries written in Rust
            answer = encode_message(_error_head(error, "model"))
        send_parts(connection, *answer)


def _answer_request(
    model: "PredictorModel", head: Dict[str, Any], body: memoryview
) -> Tuple[Dict[str, Any], Any]:
    instances = decode_batch(head, body)
    if head.get("frame"):
        instances = _to_data_frame(instances, model.about["names"])
    return encode_batch(model.predict(instances, **head.get("parameters", {})))


def apply_process_settings(process: Dict[str, Any]) -> None:
    """Have the environment and limits of the node, also when a pilot that has others has forked this."""
    os.environ.clear()
    os.environ.update(process["environment"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(process["open_files"]))
    missing = process["nice"] - os.getpriority(os.PRIO_PROCESS, 0)
    if missing > 0:
        os.nice(missing)


def _error_head(error: BaseException, kind: str) -> Dict[str, Any]:
    if isinstance(error, PredictorError):
        told: Dict[str, Any] = {"error": str(error), "kind": error.kind}
        return told if error.raised is None else {**told, "raised": error.raised}
    return {"error": describe_error(error), "kind": kind}


def describe_error(error: BaseException) -> str:
    """An error with its type, as far as it says anything: its text may itself be code that fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


class PredictorModel:
    """A loaded model and what the node has to know `about` it."""

    def __init__(self, predict: Callable[..., Any], about: Dict[str, Any]) -> None:
        self.predict = predict
        self.about = about


def load_model(wanted: Dict[str, Any]) -> PredictorModel:
    """Load a model with the libraries that are here. Raises PredictorError with the reason."""
    install_old_joblib()
    sys.path[:0] = wanted.get("packages", [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LOADERS[wanted["framework"]](wanted)
    said = [
        " ".join(str(one.message).split())
        for one in caught
        if not issubclass(one.category, DeprecationWarning)
    ]
    versions = dict(_imported_versions())
    model.about.update(
        python="%d.%d.%d" % sys.version_info[:3],
        versions=versions,
        warnings=list(dict.fromkeys(said))[:_WARNINGS_KEPT],
    )
    return model


def _imported_versions() -> Iterator[Tuple[str, str]]:
    for module, name in _LIBRARY_NAMES:
        if module in sys.modules:
            yield name, str(getattr(sys.modules[module], "__version__", ""))


def print_interpreter_info() -> int:
    """Print the versions of Python and of the libraries that work, and what is wrong with others."""
    broken = {}
    for module, name in _LIBRARY_NAMES:
        if module == "tensorflow":  # pilots do not import it: it starts threads
            continue
        try:
            importlib.import_module(module)
        except ImportError as error:
            if importlib.util.find_spec(module) is not None:
                broken[name] = describe_error(error)
        except Exception as error:
            broken[name] = describe_error(error)
    found = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "versions": {name: version for name, version in _imported_versions() if name not in broken},
        "broken": broken,
        "threads": count_threads(),
    }
    print("\n" + json.dumps(found))  # a library may have left half a line
    sys.stdout.flush()
    return 0


def list_arguments(predict: Callable[..., Any]) -> Optional[List[str]]:
    """The keyword arguments that a bound `predict` takes besides the instances; None: any."""
    others = list(inspect.signature(predict).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in others):
        return None
    return [one.name for one in others if one.kind is not one.VAR_POSITIONAL]


# ---- custom prediction routines ----


def load_custom(wanted: Dict[str, Any]) -> PredictorModel:
    """A class with `from_path` and `predict`."""
    name = wanted["prediction_class"]
    module, _, attribute = name.rpartition(".")
    try:
        routine = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise PredictorError(
            "code", "%s cannot be found: the module %s has no %s." % (name, module, attribute)
        )
    except BaseException as error:
        raise PredictorError(
            "code", "%s cannot be imported: %s%s" % (name, describe_error(error), _error_location(error))
        )
    for method in ("from_path", "predict"):
        if not callable(getattr(routine, method, None)):
            raise PredictorError(
                "code",
                "%s has no method %s. A custom prediction routine has a class method "
                "from_path(cls, model_dir) and def predict(self, instances, **kwargs)." % (name, method),
            )
    try:
        predictor = routine.from_path(wanted["model_dir"])
    except BaseException as error:
        raise PredictorError(
            "code", "%s.from_path failed: %s%s" % (name, describe_error(error), _error_location(error))
        )

    def predict(instances: Any, **parameters: Any) -> Any:
        try:
            return _check_predictions(predictor.predict(instances, **parameters), len(instances))
        except PredictorError:
            raise
        except BaseException as error:
            raise PredictorError("model", "Exception during custom prediction: %s" % describe_error(error))

    return PredictorModel(predict, {"owner": name, "parameters": list_arguments(predictor.predict)})


def _check_predictions(result: Any, count: int) -> Any:
    if isinstance(result, tuple):
        result = list(result)
    if not isinstance(result, list) and not getattr(result, "shape", None):
        kind = type(result).__name__
        raise PredictorError("outputs", "The custom predict must return a list or an array, not %s." % kind)
    if len(result) < count:
        text = "The custom predict returned %d predictions for %d instances." % (len(result), count)
        raise PredictorError("outputs", text)
    return result


def _error_location(error: BaseException) -> str:
    """Where in the user's code it happened, without the folders of this machine."""
    found = traceback.extract_tb(error.__traceback__)
    return " (%s, line %s)" % (os.path.basename(found[-1][0]), found[-1][1]) if found else ""


# ---- pickled estimators, and boosters ----

# What an estimator may be asked, row by row.
METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples",
)  # fmt: skip
_PROBABILITIES = ("predict_proba", "predict_log_proba")

# Code of these does with its input what its documentation says; everything else is the user's.
_LIBRARIES = {
    "sklearn",
    "numpy",
    "scipy",
    "pandas",
    "joblib",
    "xgboost",
    "builtins",
    "functools",
    "collections",
}
_DEPENDENT_ROWS = {
    "NMF", "MiniBatchNMF", "IterativeImputer", "LocalOutlierFactor", "FunctionTransformer", "DummyClassifier",
}  # fmt: skip
_NOT_NUMERIC = {"ColumnTransformer", "FunctionTransformer", "KBinsDiscretizer", "SimpleImputer"}
_LABELS_OR_TREES = ("sklearn.mixture", "sklearn.tree", "sklearn.ensemble")
_JSON_TYPES = (type(None), bool, int, float, str, list, dict)


def load_estimator(wanted: Dict[str, Any]) -> PredictorModel:
    """A scikit-learn or XGBoost object in a joblib or pickle file."""
    file = os.path.join(wanted["model_dir"], wanted["file"])
    try:
        model = _load_pickle(file)
    except BaseException as error:
        raise PredictorError("load", "%s: %s" % (wanted["file"], describe_error(error)))
    if _root_package(model) == "xgboost" and not hasattr(model, "get_booster"):
        return _wrap_booster(model)
    usual = wanted.get("method") or METHODS[0]
    methods = list_methods(model)
    if usual not in methods:
        raise PredictorError("load", missing_method_text(wanted["file"], model, usual, methods))
    parts = list(_walk_parts(model))
    for part in parts:
        if getattr(part, "__dict__", {}).get("n_jobs"):
            part.n_jobs = 1  # workers cost more than a prediction
    about = describe_model(model, parts)
    last = _last_step(model)
    about["methods"] = methods
    about["arguments"] = {
        name: list_arguments(getattr(last, name, None) or getattr(model, name)) for name in methods
    }
    if usual != METHODS[0] and about["independent"]:
        about["exact"] = False  # numbers, whatever labels predict would have given

    def predict(instances: Any, **parameters: Any) -> Any:
        method = parameters.pop("method", usual)
        try:
            result = getattr(model, method)(instances, **parameters)
        except Exception as error:
            raise _classify_error(error, instances)
        return normalize_rows(result, len(instances), method)

    warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
    return PredictorModel(predict, about)


def list_methods(model: Any) -> List[str]:
    """Those of METHODS that a model has."""
    return [name for name in METHODS if callable(_read_attribute(model, name))]


def missing_method_text(file: str, model: Any, method: str, methods: List[str]) -> str:
    """The text for a model that cannot be asked what it is to be asked."""
    text = "%s holds a %s, which has no %s method." % (file, type(model).__name__, method)
    if methods:
        text += " It has %s: set predictionMethod to one of them." % ", ".join(methods)
    return text


def normalize_rows(result: Any, count: int, method: str) -> Any:
    """What a method answered, with a row for each of so many instances. Raises PredictorError.

    Several arrays, such as means and deviations or the probabilities of several outputs, become one value of
    each in every row.
    """
    several = isinstance(result, tuple) or (
        isinstance(result, list) and method in _PROBABILITIES and all(hasattr(one, "dtype") for one in result)
    )
    if several:
        return _join_outputs([normalize_rows(one, count, "") for one in result])
    if hasattr(result, "toarray"):  # a sparse matrix
        result = result.toarray()
    elif hasattr(result, "to_numpy"):  # a table or a column of pandas
        result = result.to_numpy()
    method = method or "predict"
    if not isinstance(result, list) and not hasattr(result, "dtype"):
        kind = type(result).__name__
        raise PredictorError("outputs", "%s must return an array or a list, not %s." % (method, kind))
    found = len(result) if isinstance(result, list) or result.shape else 0
    if found != count:
        text = "%s returned %d predictions for %d instances." % (method, found, count)
        raise PredictorError("outputs", text)
    return result


def _join_outputs(parts: List[Any]) -> Any:
    import numpy

    numbers = all(hasattr(one, "dtype") and one.dtype.kind in "biuf" for one in parts)
    if numbers and len({one.shape for one in parts}) == 1:
        return numpy.stack(parts, axis=1)
    columns = [one.tolist() if hasattr(one, "tolist") else one for one in parts]
    return [[column[place] for column in columns] for place in range(len(columns[0]))]


def load_booster(wanted: Dict[str, Any]) -> PredictorModel:
    """A file that `Booster.save_model` has written."""
    import xgboost

    file = os.path.join(wanted["model_dir"], wanted["file"])
    with open(file, "rb") as opened:
        written = read_xgboost_version(opened.read())
    if written > tuple(int(part) for part in re.findall(r"\d+", xgboost.__version__)[:2]):
        version = "%d.%d" % written
        text = (
            "%s was written by XGBoost %s; this interpreter has %s, which may read it wrongly. Name a "
            "runtimeVersion with XGBoost %s or later, leave it out to have the server's own XGBoost, or save "
            "the model with XGBoost %s."
        )
        said = wanted["file"], version, xgboost.__version__, version, xgboost.__version__
        raise PredictorError("load", text % said)
    booster = xgboost.Booster({"nthread": 1})
    try:
        booster.load_model(file)
    except Exception as error:
        raise PredictorError("load", "%s: %s" % (wanted["file"], str(error).splitlines()[0]))
    return _wrap_booster(booster)


def read_xgboost_version(data: bytes) -> Tuple[int, int]:
    """The version of XGBoost that wrote a file; 0.0 where it does not say, as before 1.0."""
    if data[:1] == b"{":
        text = re.search(rb'"version"\s*:\s*\[(\d+),\s*(\d+)', data[-64:])
        if text:
            return int(text.group(1)), int(text.group(2))
        binary = re.search(rb"version\[#L\x00{7}\x03i(.)i(.)", data[-64:], re.DOTALL)
        return (ord(binary.group(1)), ord(binary.group(2))) if binary else (0, 0)
    place = (4 if data[:4] == b"binf" else 0) + 20
    if len(data) < place + 8:
        return 0, 0
    major, minor = struct.unpack("<II", data[place : place + 8])
    return major, minor


def _wrap_booster(booster: Any) -> PredictorModel:
    import numpy
    import xgboost

    booster.set_param({"nthread": 1})
    names = list(booster.feature_names or [])
    count = getattr(booster, "num_features", None)
    width = count() if count is not None else len(names)
    generic = names == ["f%d" % place for place in range(len(names))]

    def predict(instances: Any, **parameters: Any) -> Any:
        rows = numpy.asarray(instances, dtype=float)
        try:
            matrix = xgboost.DMatrix(rows, feature_names=names or None, nthread=1)
            result = booster.predict(matrix, **parameters)
        except Exception as error:
            raise PredictorError("inputs", str(error).splitlines()[0])
        return normalize_rows(result, len(rows), "predict")

    about = {
        "owner": "Booster",
        "parameters": [one for one in list_arguments(booster.predict) or () if one != "data"],
        "width": width or None, "names": [] if generic else names, "classes": [], "numeric": True,
        "nullable": True, "text": False, "by_name": False, "independent": True, "exact": True,
        "methods": ["predict"],
    }  # fmt: skip
    return PredictorModel(predict, about)


def _load_pickle(file: str) -> Any:
    import pickle

    first, *others = _find_joblibs(file)
    try:
        return first.load(file)
    except Exception as error:
        for other in others:  # compressed, a file does not show which one wrote it
            try:
                return other.load(file)
            except Exception:
                continue
        if not isinstance(error, (KeyError, ValueError, EOFError, UnicodeDecodeError)):
            raise
        with open(file, "rb") as stream:
            if stream.read(1) != b"\x80":
                raise
            stream.seek(0)
            return pickle.load(stream)


def _find_joblibs(file: str) -> List[Any]:
    """All that there are, the one that wrote a file first, as far as its beginning shows that.

    Until 0.20 scikit-learn had a copy, and neither of the two takes the other's arrays for its own.
    """
    found = []  # type: List[Any]
    for name in ("joblib", "sklearn.externals.joblib"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if module not in found:
            found.append(module)
    with open(file, "rb") as stream:
        if b"sklearn.externals.joblib" in stream.read(1 << 20):
            found.reverse()
    return found


class _OldJoblibFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds joblib where scikit-learn had a copy of it before 0.23, which files and code of then name."""

    _PLACE = "sklearn.externals.joblib"

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname == self._PLACE or fullname.startswith(self._PLACE + "."):
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def create_module(self, spec: Any) -> Any:
        return importlib.import_module("joblib" + spec.name[len(self._PLACE) :])

    def exec_module(self, module: Any) -> None:
        """It is the one that joblib has imported."""


def install_old_joblib() -> None:
    """Have `sklearn.externals.joblib` be joblib where scikit-learn does not have its own any more."""
    if not any(isinstance(finder, _OldJoblibFinder) for finder in sys.meta_path):
        sys.meta_path.append(_OldJoblibFinder())


def describe_model(model: Any, parts: List[Any]) -> Dict[str, Any]:
    """What follows for requests from what an estimator is made of."""
    last, first = _last_step(model), _first_step(model)
    builtin = all(_root_package(part) in _LIBRARIES for part in parts)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    width = count_features(model)
    tags = [one for one in map(_input_tags, parts) if one is not None]
    first_tags = _input_tags(first)
    text = _root_package(first) == "sklearn" and first_tags is not None and first_tags[1]
    by_name = bool(names) and (_root_package(first) == "xgboost" or any(map(_picks_by_name, parts)))
    numeric = (
        builtin
        and width is not None
        and not by_name
        and not any(type(part).__name__ in _NOT_NUMERIC for part in parts)
        and all(numbers for numbers, _, _ in tags)
    )
    kind = getattr(last, "_estimator_type", None)
    labels = kind in ("classifier", "clusterer", "outlier_detector") or hasattr(last, "classes_")
    trees = any(type(last).__module__.startswith(module) for module in _LABELS_OR_TREES)
    return {
        "owner": type(last).__name__,
        "parameters": None,
        "width": width,
        "names": names,
        "classes": _class_labels(getattr(last, "classes_", ())),
        "numeric": numeric,
        "nullable": any(nan for _, _, nan in tags),
        "text": text,
        "by_name": by_name,
        "independent": builtin
        and (numeric or text)
        and not any(type(part).__name__ in _DEPENDENT_ROWS for part in parts),
        "exact": not builtin or labels or trees,
    }


def count_features(model: Any) -> Optional[int]:
    """The number of features; before scikit-learn 0.24 each estimator said it in its own way, if at all."""
    first = _first_step(model)
    several = _read_attribute(first, "estimators_")
    inner = several[0] if isinstance(several, list) and several else first
    for part in (model, first, inner):
        for name in ("n_features_in_", "n_features_", "n_features", "_n_features"):
            value = _read_attribute(part, name)
            if value is not None and hasattr(value, "__index__"):
                return int(operator.index(value))
        for name in _FEATURE_ARRAYS:
            value = _read_attribute(part, name)
            shape = value if isinstance(value, tuple) else getattr(value, "shape", ())
            if shape and shape[-1]:
                return int(shape[-1])
        weights = _read_attribute(part, "coefs_")  # of layers, each a matrix from its inputs
        if isinstance(weights, list) and weights:
            return int(weights[0].shape[0])
    return None


# Arrays whose last size is the number of features.
_FEATURE_ARRAYS = (
    "coef_", "mean_", "scale_", "min_", "statistics_", "theta_", "means_", "cluster_centers_", "_fit_X",
    "shape_fit_", "support_vectors_", "X_train_", "feature_log_prob_", "components_", "n_bins_",
)  # fmt: skip


def _read_attribute(part: Any, name: str) -> Any:
    """An attribute, None if there is none; objects of other versions raise what they like."""
    try:
        return getattr(part, name, None)
    except Exception:
        return None


def _class_labels(values: Any) -> List[Any]:
    try:
        found = values.tolist()
    except AttributeError:
        return []
    return found if all(isinstance(one, (str, int, float, bool)) for one in found) else []


def _input_tags(part: Any) -> Optional[Tuple[bool, bool, bool]]:
    """Whether an estimator takes numbers, text and missing values; None for what is no estimator."""
    try:
        if hasattr(part, "__sklearn_tags__"):
            given = part.__sklearn_tags__().input_tags
            odd = any(getattr(given, one) for one in ("string", "categorical", "dict", "three_d_array"))
            return not odd, given.string and not given.two_d_array, given.allow_nan
        if hasattr(part, "_get_tags"):
            tags = part._get_tags()
            kinds = set(tags["X_types"])
            return (
                not kinds & {"string", "categorical", "dict", "3darray"},
                kinds == {"string"},
                tags["allow_nan"],
            )
    except Exception:
        return False, False, False
    if hasattr(part, "get_params") and _root_package(part) == "sklearn":  # before 0.21 nothing tells
        text = "Vectorizer" in type(part).__name__ and "Dict" not in type(part).__name__
        odd = (
            type(part).__module__.startswith("sklearn.feature_extraction") or "Encoder" in type(part).__name__
        )
        return not odd, text, False
    return None


def _first_step(model: Any) -> Any:
    inner = [step for _, step in _pipeline_steps(model) if step is not None and step != "passthrough"]
    first = inner[0] if inner else getattr(model, "best_estimator_", None)
    return model if first is None else _first_step(first)


def _last_step(model: Any) -> Any:
    steps = _pipeline_steps(model)
    return _last_step(steps[-1][1]) if steps else model


def _pipeline_steps(model: Any) -> List[Any]:
    steps = getattr(model, "steps", None)
    return (
        steps
        if isinstance(steps, list) and any(one.__name__ == "Pipeline" for one in type(model).__mro__)
        else []
    )


def _picks_by_name(part: Any) -> bool:
    if type(part).__name__ != "ColumnTransformer":
        return False
    for _, _, columns in getattr(part, "transformers_", ()):
        if isinstance(columns, str) or (
            isinstance(columns, list) and any(isinstance(one, str) for one in columns)
        ):
            return True
    return False


def _root_package(part: Any) -> str:
    owner = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    return str(getattr(owner, "__module__", None) or "builtins").partition(".")[0]


def _walk_parts(model: Any) -> Iterator[Any]:
    """A model and every object and function that is part of it, each once."""
    seen: Set[int] = set()
    waiting = [model]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, type(None), type)):
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            waiting += list(part.values())
        elif isinstance(part, (list, tuple, set)):
            waiting += (
                list(part)[:1000] if len(part) > 1000 and isinstance(next(iter(part)), float) else list(part)
            )
        elif getattr(getattr(part, "dtype", None), "kind", "") == "O":
            waiting += part.ravel().tolist()
        elif callable(part) and hasattr(part, "__qualname__"):
            yield part
        elif isinstance(getattr(part, "__dict__", None), dict):
            yield part
            if _root_package(part) not in ("numpy", "scipy", "pandas"):
                waiting += list(vars(part).values())


def _to_data_frame(rows: List[List[Any]], names: List[str]) -> Any:
    import pandas

    # Column by column: each gets the type that its values have.
    return pandas.DataFrame({name: [row[place] for row in rows] for place, name in enumerate(names)})


def _classify_error(error: Exception, instances: Any) -> PredictorError:
    """The client's fault if a library complains of a value, the model's in every other case."""
    not_fitted = type(error).__name__ == "NotFittedError"
    by_user = _passed_user_code(error)
    if isinstance(error, (ValueError, TypeError)) and not not_fitted and not by_user:
        return PredictorError("inputs", str(error), describe_raised(error))
    if isinstance(error, AttributeError) and not not_fitted and not by_user:
        lacking = _type_lacking_attribute(error)
        if lacking is not None and _contains_type(instances, lacking, error):
            text = "A value of the instances is a %s; the model takes another." % lacking.__name__
            return PredictorError("inputs", text, describe_raised(error))
    return PredictorError(
        "model", "Exception during sklearn prediction: %s" % describe_error(error), describe_raised(error)
    )


def describe_raised(error: BaseException) -> Dict[str, Any]:
    """The class and text of an exception, whether the code of a library raised it, and of which package the
    estimator is that lacks an attribute."""
    text = describe_error(error)[len(type(error).__name__) :]
    roots = _traceback_packages(error)
    library = (bool(roots) and roots[-1] in ("sklearn", "xgboost")) or not _passed_user_code(error)
    estimator = _lacking_estimator(error)
    package = "" if estimator is None else _root_package(estimator)
    return {"kind": type(error).__name__, "text": text[2:1000], "library": library, "package": package}


def _lacking_estimator(error: BaseException) -> Any:
    """The estimator that lacks an attribute; None where it is something else.

    Which one it was is known since Python 3.10; before that, it is looked for where the exception was raised.
    """
    if not isinstance(error, AttributeError):
        return None
    candidates = [getattr(error, "obj", None)]
    if not hasattr(error, "obj"):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        candidates = [
            one
            for frame in frames[-1:]
            for one in frame.f_locals.values()
            if str(error).startswith("'%s' object has no attribute" % type(one).__name__)
        ]
    return next((one for one in candidates if hasattr(type(one), "get_params")), None)


def _type_lacking_attribute(error: AttributeError) -> Optional[type]:
    """The type of a value from JSON that lacks an attribute; None where it is something else."""
    for kind in _JSON_TYPES:
        if str(error).startswith("'%s' object has no attribute" % kind.__name__):
            return kind
    return None


def _contains_type(value: Any, wanted: type, error: AttributeError) -> bool:
    """Whether a value of this type is among instances, at any depth, and lacks what is said to be missing.

    Which one it was is known since Python 3.10.
    """
    if type(value) is wanted and getattr(error, "obj", value) == value:
        return True
    if hasattr(value, "columns") and hasattr(value, "values"):  # a data frame
        value = value.values.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(_contains_type(element, wanted, error) for element in value)


def _passed_user_code(error: BaseException) -> bool:
    known = _LIBRARIES | {
        "__main__",
        "threading",
        "concurrent",
        "contextlib",
        "copy",
        "warnings",
        "_bootlocale",
    }
    return any(root not in known for root in _traceback_packages(error))


def _traceback_packages(error: BaseException) -> List[str]:
    """The packages whose code it passed, the one that raised it last."""
    return [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


LOADERS = {
    "CUSTOM": load_custom,
    "SCIKIT_LEARN": load_estimator,
    "XGBOOST_PICKLE": load_estimator,
    "XGBOOST": load_booster,
}


# ---- the process ----


def harden_process(lifeline: int) -> None:
    """Die with whoever holds the lifeline, and before the server when memory runs out; leave no dump."""
    if lifeline >= 0:
        _die_with_lifeline(lifeline)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass
    # One byte is less than any dump has. With 0 the kernel would still start a program that takes dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    _call_prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _die_with_lifeline(lifeline: int) -> None:
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:  # not Linux
        threading.Thread(target=_watch_lifeline, args=(lifeline,), daemon=True).start()
        return
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it was gone before
        os._exit(1)


def _watch_lifeline(lifeline: int) -> None:
    try:
        os.read(lifeline, 1)
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _call_prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
    except (ImportError, OSError, AttributeError):
        pass


def count_threads() -> int:
    """The threads of this process, those of compiled libraries among them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def run_pilot(setup: Dict[str, Any]) -> int:
    """Import what can be imported, and fork a predictor for each connection, until the server is gone."""
    _call_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["server"]:
        return 1
    link = socket.socket(fileno=setup["link"])
    listener = socket.socket(fileno=setup["listener"])
    for one in (link, listener):
        one.set_inheritable(False)
    began = time.time()
    for module in setup["preload"]:
        try:
            importlib.import_module(module)
        except Exception as error:  # not every interpreter has every library, and not every library works
            if not isinstance(error, ImportError):
                print("%s cannot be imported: %s" % (module, describe_error(error)), file=sys.stderr)
    import gc

    gc.collect()
    if hasattr(gc, "freeze"):  # since Python 3.7
        gc.freeze()
    if count_threads() > 1:  # what others do or hold would be lost in a fork
        failed = "Importing its libraries starts threads (%d in all), so it must not fork." % count_threads()
        link.send(json.dumps({"failed": failed}).encode())
        return 1
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each predictor takes one
    link.send(json.dumps({"lit": time.time() - began}).encode())
    return ForkServer(link, listener).serve_forks()


class ForkServer:
    """The predictors that a pilot has forked, and the connections that ask for more."""

    def __init__(self, link: socket.socket, listener: socket.socket) -> None:
        self._link = link
        self._listener = listener
        listener.setblocking(False)
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_reader, False)
        os.set_blocking(self._wakeup_writer, False)
        signal.set_wakeup_fd(self._wakeup_writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._status_pipes: Dict[int, int] = {}
        self._pending: Deque[socket.socket] = collections.deque()

    def serve_forks(self) -> int:
        """Fork until the server closes the link."""
        while True:
            # poll, for its set is not shared with what is forked.
            poll = selectors.PollSelector()
            poll.register(self._wakeup_reader, selectors.EVENT_READ)
            for source in (self._link, self._listener, *self._pending):
                poll.register(source, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in poll.select()}
            if self._wakeup_reader in ready:
                os.read(self._wakeup_reader, 4096)
                self._report_exits()
            if self._link in ready:
                return 0
            for connection in [one for one in self._pending if one in ready]:
                self._pending.remove(connection)
                with connection:
                    self._fork_predictor(connection)
            if self._listener in ready:
                self._accept_connection()

    def _accept_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left
            if self._pending:
                self._pending.popleft().close()
            else:
                time.sleep(_EXHAUSTED_PAUSE)
            return
        if _peer_user(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        self._pending.append(connection)
        if len(self._pending) > _MAX_PENDING:
            self._pending.popleft().close()

    def _fork_predictor(self, connection: socket.socket) -> None:
        """Fork a predictor; who asked for it and gets none sees the connection closed."""
        descriptors = _receive_descriptors(connection)
        if len(descriptors) != _DESCRIPTORS:
            for fd in descriptors:
                os.close(fd)
            return
        output, lifeline, status = descriptors
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            print("A predictor cannot be forked: %s" % error, file=sys.stderr)
            for fd in descriptors:
                os.close(fd)
            return
        if pid:
            os.close(output)
            os.close(lifeline)
            self._status_pipes[pid] = status
            return
        code = 1
        try:
            self._close_inherited(status)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            connection.setblocking(True)
            numpy = sys.modules.get("numpy.random")
            if numpy is not None:
                numpy.seed()
            code = run_predictor(connection, lifeline)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _close_inherited(self, status: int) -> None:
        """Let go of what is the pilot's, in a process that it has forked."""
        for source in (self._link, self._listener, *self._pending):
            source.close()
        for fd in (self._wakeup_reader, self._wakeup_writer, status, *self._status_pipes.values()):
            os.close(fd)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _call_prctl(_PR_SET_PDEATHSIG, 0)  # the lifeline takes its place

    def _report_exits(self) -> None:
        """Write how predictors ended to whoever asked for them: an exit code, or minus a signal."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            told = self._status_pipes.pop(pid)
            try:
                os.write(told, str(code).encode())
            except OSError:  # who asked for it is gone
                pass
            os.close(told)


def _peer_user(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def _receive_descriptors(connection: socket.socket) -> List[int]:
    """Those that came with the first byte of a connection; none if it was closed."""
    size = struct.calcsize("i")
    try:
        _, control, _, _ = connection.recvmsg(
            1, socket.CMSG_SPACE(_DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return []
    found: List[int] = []
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % size
            found += struct.unpack("%di" % (whole // size), data[:whole])
    return found


def run_predictor(connection: socket.socket, lifeline: int) -> int:
    """Be a predictor: the exit code is for `os._exit`, since libraries leave threads and destructors."""
    harden_process(lifeline)
    _set_process_name("pilot-predict")
    try:
        code = serve_predictions(connection)
    except OSError:  # the node is gone
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _set_process_name(name: str) -> None:
    try:
        import ctypes

        text = ctypes.create_string_buffer(name.encode())
        ctypes.CDLL(None).prctl(_PR_SET_NAME, text, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def main(arguments: List[str]) -> int:
    """Be what the arguments say; see the top of the file."""
    # The folder of this file must not be where modules are looked for.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder and os.path.abspath(folder) != here]
    if arguments[0] == "check":
        return print_interpreter_info()
    if arguments[0] == "pilot":
        return run_pilot(json.loads(arguments[1]))
    return run_predictor(
        socket.socket(fileno=int(arguments[1])), int(arguments[2]) if len(arguments) > 2 else -1
    )


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
