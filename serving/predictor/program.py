"""A model in a process of another Python: loaded with that interpreter's libraries, asked over a socket.

One file, standard library only, for Python 3.6 to 3.14: the interpreters that run it have nothing of ours.

    PYTHON predictor.py serve FD [LIFELINE]   a predictor on a connected socket
    PYTHON predictor.py versions              prints which Python and libraries these are, as JSON
    PYTHON predictor.py pilot JSON            imports libraries, and forks a predictor for each connection

A message is 8 bytes with the lengths of its two parts, little endian, then JSON, then the bytes of an array.
Arrays cross as bytes, everything else as JSON; nothing is unpickled but the model. A predictor begins by telling
its {"pid": ...}. The first message to it is {"load": ...} and is answered with {"loaded": ...}; each further one asks for predictions. What went wrong is
answered as {"error": TEXT, "kind": KIND}.

The descriptors of a connection to a pilot come with its first byte: what the predictor prints goes to the
first, it is killed when the writing end of the second is gone, and the pilot writes to the third how it ended.
"""

import base64
import fcntl
import importlib
import inspect
import json
import operator
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

LENGTHS = struct.Struct("<II")
BYTES, ARRAY = "\u0000bytes", "\u0000array"

_F_SETSIG = 10
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 1, 15, 38
_DESCRIPTORS = 3
_BACKLOG = 64
_KINDS_AS_BYTES = "biufcUS"
_WARNINGS_KEPT = 5

_LIBRARY_NAMES = (
    ("sklearn", "scikit-learn"), ("xgboost", "xgboost"), ("numpy", "numpy"), ("pandas", "pandas"),
    ("scipy", "scipy"), ("joblib", "joblib"), ("tensorflow", "tensorflow"),
)  # fmt: skip

Message = Tuple[Dict[str, Any], bytes]


class Refused(Exception):
    """What the node tells its client or the owner of the model; `kind` says which of them is to blame."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


# ---- messages ----


def send(connection: socket.socket, head: Dict[str, Any], body: Any = b"") -> None:
    """Send a message; `body` is anything with a buffer of bytes."""
    text = json.dumps(head, default=pack).encode()
    view = memoryview(body).cast("B") if len(body) else b""
    front = LENGTHS.pack(len(text), len(view)) + text
    if len(view) < 65536:
        connection.sendall(front + bytes(view))
    else:
        connection.sendall(front)
        connection.sendall(view)


def receive(connection: socket.socket) -> Optional[Message]:
    """The next message, None when the other side is gone."""
    start = _read(connection, LENGTHS.size)
    if start is None:
        return None
    text_size, body_size = LENGTHS.unpack(start)
    data = _read(connection, text_size + body_size)
    if data is None:
        return None
    text = bytes(data[:text_size])
    # The marks are looked for by their escaped form: most messages have none, and no hook is called for them.
    head = json.loads(text.decode(), object_hook=unpack if b'"\\u0000' in text else None)
    return head, bytes(data[text_size:]) if text_size else bytes(data)


def _read(connection: socket.socket, size: int) -> Optional[memoryview]:
    buffer = memoryview(bytearray(size))
    got = 0
    while got < size:
        try:
            count = connection.recv_into(buffer[got:])
        except (ConnectionError, OSError):
            return None
        if not count:
            return None
        got += count
    return buffer


def pack(value: Any) -> Any:
    """What JSON has no form for, for `json.dumps`."""
    if isinstance(value, (bytes, bytearray)):
        return {BYTES: base64.b64encode(value).decode()}
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):  # an array or a scalar of numpy
        if value.dtype.kind in _KINDS_AS_BYTES:
            return {ARRAY: [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise Refused("outputs", "predict returned a %s, which has no form in JSON." % type(value).__name__)


def unpack(value: Dict[str, Any]) -> Any:
    """What `pack` has made, for `json.loads`."""
    if BYTES in value:
        return base64.b64decode(value[BYTES])
    if ARRAY in value:
        dtype, shape, data = value[ARRAY]
        array = array_of(dtype, shape, base64.b64decode(data))
        return array if shape else array[()]
    return value


def array_of(dtype: str, shape: List[int], data: bytes) -> Any:
    """An array of numpy from its parts."""
    import numpy

    # In memory of its own, which models may write to.
    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype)).reshape(shape)


def batch_of(head: Dict[str, Any], body: bytes) -> Any:
    """The instances or predictions of a message: rows, or one array."""
    if "array" in head:
        dtype, shape = head["array"]
        return array_of(dtype, shape, body)
    return head["rows"]


def message_of(batch: Any) -> Tuple[Dict[str, Any], Any]:
    """The parts of a message with instances or predictions."""
    if hasattr(batch, "dtype") and batch.dtype.kind in _KINDS_AS_BYTES:
        import numpy

        return {"array": [batch.dtype.str, list(batch.shape)]}, numpy.ascontiguousarray(batch).reshape(
            -1
        ).view("u1")
    return {"rows": batch.tolist() if hasattr(batch, "tolist") else list(batch)}, b""


# ---- one predictor ----


def serve(connection: socket.socket) -> int:
    """Load what the first message says, then answer until the other side is gone; returns the exit code."""
    send(connection, {"pid": os.getpid()})
    first = receive(connection)
    if first is None:
        return 0
    try:
        model = load(first[0]["load"])
    except BaseException as error:
        send(connection, _refusal(error, "load"))
        return 1
    send(connection, {"loaded": model.about})
    while True:
        message = receive(connection)
        if message is None:
            return 0
        head, body = message
        try:
            instances = batch_of(head, body)
            if head.get("frame"):
                instances = _frame(instances, model.about["names"])
            result = model.predict(instances, **head.get("parameters", {}))
            answer, data = message_of(result)
            send(connection, answer, data)
        except (Exception, SystemExit) as error:
            send(connection, _refusal(error, "model"))


def _refusal(error: BaseException, kind: str) -> Dict[str, Any]:
    if isinstance(error, Refused):
        return {"error": str(error), "kind": error.kind}
    return {"error": named(error), "kind": kind}


def named(error: BaseException) -> str:
    """An error with its type, as far as it says anything."""
    text = str(error)
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


class Model:
    """A loaded model and what the node has to know `about` it."""

    def __init__(self, predict: Callable[..., Any], about: Dict[str, Any]) -> None:
        self.predict = predict
        self.about = about


def load(wanted: Dict[str, Any]) -> Model:
    """Load a model with the libraries that are here. Raises Refused with the reason."""
    sys.path[:0] = wanted.get("packages", [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LOADERS[wanted["framework"]](wanted)
    said = [
        " ".join(str(one.message).split())
        for one in caught
        if not issubclass(one.category, DeprecationWarning)
    ]
    versions = dict(_versions())
    model.about.update(
        python="%d.%d.%d" % sys.version_info[:3],
        versions=versions,
        warnings=list(dict.fromkeys(said))[:_WARNINGS_KEPT],
    )
    return model


def _versions() -> Iterator[Tuple[str, str]]:
    for module, name in _LIBRARY_NAMES:
        if module in sys.modules:
            yield name, str(getattr(sys.modules[module], "__version__", ""))


def show_versions() -> int:
    """Print the versions of Python and of the libraries that can be imported."""
    for module, _ in _LIBRARY_NAMES:
        try:
            importlib.import_module(module)
        except ImportError:  # not every interpreter has every library
            pass
    print(json.dumps(dict(_versions(), python="%d.%d.%d" % sys.version_info[:3])))
    sys.stdout.flush()
    return 0


def accepted(predict: Callable[..., Any]) -> Optional[List[str]]:
    """The keyword arguments that a bound `predict` takes besides the instances; None: any."""
    others = list(inspect.signature(predict).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in others):
        return None
    return [one.name for one in others if one.kind is not one.VAR_POSITIONAL]


# ---- custom prediction routines ----


def load_custom(wanted: Dict[str, Any]) -> Model:
    """A class with `from_path` and `predict`."""
    name = wanted["prediction_class"]
    module, _, attribute = name.rpartition(".")
    try:
        routine = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise Refused("code", "%s cannot be found: the module %s has no %s." % (name, module, attribute))
    except (Exception, SystemExit) as error:
        raise Refused("code", "%s cannot be imported: %s%s" % (name, named(error), _place(error)))
    for method in ("from_path", "predict"):
        if not callable(getattr(routine, method, None)):
            raise Refused(
                "code",
                "%s has no method %s. A custom prediction routine has a class method from_path(cls, model_dir) "
                "and def predict(self, instances, **kwargs)." % (name, method),
            )
    try:
        predictor = routine.from_path(wanted["model_dir"])
    except (Exception, SystemExit) as error:
        raise Refused("code", "%s.from_path failed: %s%s" % (name, named(error), _place(error)))

    def predict(instances: Any, **parameters: Any) -> Any:
        try:
            return _list_or_array(predictor.predict(instances, **parameters))
        except Refused:
            raise
        except (Exception, SystemExit) as error:
            raise Refused("model", "Exception during custom prediction: %s" % named(error))

    return Model(predict, {"owner": name, "parameters": accepted(predictor.predict)})


def _list_or_array(result: Any) -> Any:
    if isinstance(result, tuple):
        return list(result)
    if isinstance(result, list) or getattr(result, "shape", None):
        return result
    raise Refused(
        "outputs", "The custom predict must return a list or an array, not %s." % type(result).__name__
    )


def _place(error: BaseException) -> str:
    """Where in the user's code it happened, without the folders of this machine."""
    found = traceback.extract_tb(error.__traceback__)
    return " (%s, line %s)" % (os.path.basename(found[-1][0]), found[-1][1]) if found else ""


# ---- pickled estimators, and boosters ----

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
_DEPENDENT = {
    "NMF", "MiniBatchNMF", "IterativeImputer", "LocalOutlierFactor", "FunctionTransformer", "DummyClassifier",
}  # fmt: skip
_NOT_NUMERIC = {"ColumnTransformer", "FunctionTransformer", "KBinsDiscretizer", "SimpleImputer"}
_LABELS_OR_TREES = ("sklearn.mixture", "sklearn.tree", "sklearn.ensemble")
_OF_JSON = (type(None), bool, int, float, str, list, dict)


def load_estimator(wanted: Dict[str, Any]) -> Model:
    """A scikit-learn or XGBoost object in a joblib or pickle file."""
    file = os.path.join(wanted["model_dir"], wanted["file"])
    try:
        model = _unpickled(file)
    except (Exception, SystemExit) as error:
        raise Refused("load", "%s: %s" % (wanted["file"], named(error)))
    if _root(model) == "xgboost" and not hasattr(model, "get_booster"):
        return _booster(model)
    if not callable(getattr(model, "predict", None)):
        raise Refused(
            "load", "%s holds a %s, which has no predict method." % (wanted["file"], type(model).__name__)
        )
    parts = list(_parts(model))
    for part in parts:
        if getattr(part, "__dict__", {}).get("n_jobs"):
            part.n_jobs = 1  # workers cost more than a prediction
    about = describe(model, parts)

    def predict(instances: Any, **parameters: Any) -> Any:
        try:
            result = model.predict(instances, **parameters)
        except Exception as error:
            raise _explained(error)
        count = len(result) if getattr(result, "shape", None) or isinstance(result, list) else 0
        if count != len(instances):
            raise Refused(
                "outputs", "predict returned %d predictions for %d instances." % (count, len(instances))
            )
        return result

    warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
    return Model(predict, about)


def load_booster(wanted: Dict[str, Any]) -> Model:
    """A file that `Booster.save_model` has written."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    try:
        booster.load_model(os.path.join(wanted["model_dir"], wanted["file"]))
    except Exception as error:
        raise Refused("load", "%s: %s" % (wanted["file"], str(error).splitlines()[0]))
    return _booster(booster)


def _booster(booster: Any) -> Model:
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
            return booster.predict(matrix, **parameters)
        except Exception as error:
            raise Refused("inputs", str(error).splitlines()[0])

    about = {
        "owner": "Booster", "parameters": [one for one in accepted(booster.predict) or () if one != "data"],
        "width": width or None, "names": [] if generic else names, "classes": [], "numeric": True, "nullable": True,
        "text": False, "by_name": False, "independent": True, "exact": True,
    }  # fmt: skip
    return Model(predict, about)


def _unpickled(file: str) -> Any:
    import pickle

    try:
        import joblib
    except ImportError:
        from sklearn.externals import joblib
    else:
        _offer_old_joblib(joblib)
    try:
        return joblib.load(file)
    except (KeyError, ValueError, EOFError, UnicodeDecodeError):
        with open(file, "rb") as stream:
            if stream.read(1) != b"\x80":
                raise
            stream.seek(0)
            return pickle.load(stream)


def _offer_old_joblib(joblib: Any) -> None:
    """Files of scikit-learn before 0.23 may name joblib by the place where it then was."""
    sys.modules.setdefault("sklearn.externals.joblib", joblib)
    for name in ("numpy_pickle", "func_inspect", "pool", "parallel"):
        try:
            sys.modules.setdefault(
                "sklearn.externals.joblib." + name, importlib.import_module("joblib." + name)
            )
        except ImportError:
            pass


def describe(model: Any, parts: List[Any]) -> Dict[str, Any]:
    """What follows for requests from what an estimator is made of."""
    last, first = _last_step(model), _first_step(model)
    builtin = all(_root(part) in _LIBRARIES for part in parts)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    width = _width(model)
    tags = [one for one in map(_tags, parts) if one is not None]
    first_tags = _tags(first)
    text = _root(first) == "sklearn" and first_tags is not None and first_tags[1]
    by_name = bool(names) and (_root(first) == "xgboost" or any(map(_picks_by_name, parts)))
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
        "parameters": accepted(last.predict),
        "width": width,
        "names": names,
        "classes": _labels(getattr(last, "classes_", ())),
        "numeric": numeric,
        "nullable": any(nan for _, _, nan in tags),
        "text": text,
        "by_name": by_name,
        "independent": builtin
        and (numeric or text)
        and not any(type(part).__name__ in _DEPENDENT for part in parts),
        "exact": not builtin or labels or trees,
    }


def _width(model: Any) -> Optional[int]:
    """The number of features; before scikit-learn 0.24 each estimator said it in its own way, or not at all."""
    for part in (model, _first_step(model)):
        for name in ("n_features_in_", "n_features_", "n_features"):
            value = getattr(part, name, None)
            if value is not None and hasattr(value, "__index__"):
                return int(operator.index(value))
        for name in (
            "coef_",
            "mean_",
            "scale_",
            "min_",
            "theta_",
            "means_",
            "cluster_centers_",
            "_fit_X",
            "shape_fit_",
        ):
            try:
                shape = getattr(part, name, None)
                shape = shape if isinstance(shape, tuple) else getattr(shape, "shape", ())
            except Exception:
                continue
            if shape and shape[-1]:
                return int(shape[-1])
    return None


def _labels(values: Any) -> List[Any]:
    try:
        found = values.tolist()
    except AttributeError:
        return []
    return found if all(isinstance(one, (str, int, float, bool)) for one in found) else []


def _tags(part: Any) -> Optional[Tuple[bool, bool, bool]]:
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
    if hasattr(part, "get_params") and _root(part) == "sklearn":  # before 0.21 nothing tells
        text = "Vectorizer" in type(part).__name__ and "Dict" not in type(part).__name__
        odd = (
            type(part).__module__.startswith("sklearn.feature_extraction") or "Encoder" in type(part).__name__
        )
        return not odd, text, False
    return None


def _first_step(model: Any) -> Any:
    inner = [step for _, step in _steps(model) if step is not None and step != "passthrough"]
    first = inner[0] if inner else getattr(model, "best_estimator_", None)
    return model if first is None else _first_step(first)


def _last_step(model: Any) -> Any:
    steps = _steps(model)
    return _last_step(steps[-1][1]) if steps else model


def _steps(model: Any) -> List[Any]:
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


def _root(part: Any) -> str:
    owner = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    return str(getattr(owner, "__module__", None) or "builtins").partition(".")[0]


def _parts(model: Any) -> Iterator[Any]:
    """A model and every object and function that is part of it, each once."""
    seen = set()  # type: Set[int]
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
            if _root(part) not in ("numpy", "scipy", "pandas"):
                waiting += list(vars(part).values())


def _frame(rows: List[List[Any]], names: List[str]) -> Any:
    import pandas

    # Column by column: each gets the type that its values have.
    return pandas.DataFrame({name: [row[place] for row in rows] for place, name in enumerate(names)})


def _explained(error: Exception) -> Refused:
    """The client's fault if a library complains of a value, the model's in every other case."""
    not_fitted = type(error).__name__ == "NotFittedError"
    if isinstance(error, (ValueError, TypeError)) and not not_fitted and not _passed_user_code(error):
        return Refused("inputs", str(error))
    missing = getattr(error, "obj", error)
    if isinstance(error, AttributeError) and type(missing) in _OF_JSON and not _passed_user_code(error):
        return Refused(
            "inputs", "A value of the instances is a %s; the model takes another." % type(missing).__name__
        )
    return Refused("model", "Exception during sklearn prediction: %s" % named(error))


def _passed_user_code(error: Exception) -> bool:
    known = _LIBRARIES | {
        "__main__",
        "threading",
        "concurrent",
        "contextlib",
        "copy",
        "warnings",
        "_bootlocale",
    }
    roots = [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return any(root not in known for root in roots)


LOADERS = {
    "CUSTOM": load_custom,
    "SCIKIT_LEARN": load_estimator,
    "XGBOOST_PICKLE": load_estimator,
    "XGBOOST": load_booster,
}


# ---- the process ----


def confine(lifeline: int, open_files: int = 0, nice: int = 0) -> None:
    """Die with whoever holds the lifeline, leave no dump of memory, and take no more than may be taken."""
    if lifeline >= 0:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(lifeline, 0)
        if poll.poll(0):  # it was gone before
            os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if open_files:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if nice:
        os.nice(nice)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
    except (ImportError, OSError, AttributeError):
        pass


def pilot(setup: Dict[str, Any]) -> int:
    """Import what can be imported, and fork a predictor for each connection, until the server is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["server"]:
        return 1
    link = socket.socket(fileno=setup["link"])
    listener = socket.socket(fileno=setup["listener"])
    began = time.time()
    for module in setup["preload"]:
        try:
            importlib.import_module(module)
        except ImportError:  # not every interpreter has every library
            pass
        except Exception as error:
            link.send(json.dumps({"failed": "%s: %s" % (module, named(error))}).encode())
            return 1
    import gc

    gc.collect()
    if hasattr(gc, "freeze"):  # since Python 3.7
        gc.freeze()
    waking, signalled = os.pipe()
    os.set_blocking(signalled, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    link.send(json.dumps({"lit": time.time() - began}).encode())
    running = {}  # type: Dict[int, int]
    while True:
        ready, _, _ = select.select([link.fileno(), listener.fileno(), waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            _tell_ends(running)
        if link.fileno() in ready and not link.recv(1):
            return 0
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            with connection:
                _fork(connection, running, [link.fileno(), listener.fileno(), waking, signalled])


def _fork(connection: socket.socket, running: Dict[int, int], ours: List[int]) -> None:
    descriptors = _descriptors(connection)
    if len(descriptors) != _DESCRIPTORS:
        return
    output, lifeline, status = descriptors
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(output)
        os.close(lifeline)
        running[pid] = status
        return
    code = 1
    try:
        for fd in [*ours, status, *running.values()]:
            os.close(fd)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for caught in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(caught, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, 0)  # the lifeline takes its place
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed()
        code = live(connection, lifeline)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _descriptors(connection: socket.socket) -> List[int]:
    size = struct.calcsize("i")
    connection.settimeout(5)
    try:
        _, control, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTORS * size))
    except OSError:
        return []
    connection.settimeout(None)
    found = []  # type: List[int]
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack("%di" % (len(data) // size), data)
    return found


def _tell_ends(running: Dict[int, int]) -> None:
    """Write how predictors ended to whoever asked for them: an exit code, or minus a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        try:
            os.write(running[pid], str(code).encode())
        except OSError:
            pass
        os.close(running.pop(pid))


def live(connection: socket.socket, lifeline: int) -> int:
    """Be a predictor: the exit code is for `os._exit`, since libraries leave threads and destructors."""
    confine(lifeline)
    _prctl_name("pilot-predict")
    code = serve(connection)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _prctl_name(name: str) -> None:
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
    if arguments[0] == "versions":
        return show_versions()
    if arguments[0] == "pilot":
        return pilot(json.loads(arguments[1]))
    return live(socket.socket(fileno=int(arguments[1])), int(arguments[2]) if len(arguments) > 2 else -1)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
