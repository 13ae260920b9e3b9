"""The graph of a SavedModel of version 2 without what no request can reach: it loads twice as fast.

What is exported holds more than its signatures: functions that save it, first values, every variable two or
three times. A Session takes all of that through its optimiser each time it is asked for something new, and
restoring would fill variables that nothing reads. What is left computes what it did before, to the bit.

What Keras 3 has saved by `tf.saved_model.save` reads variables that its own restoring does not fill: Keras
exports each one twice. They are restored as `tf.saved_model.load` does it, by the object that a function
captured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.trackable.base import OBJECT_GRAPH_PROTO_KEY

_CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")
# A restoring function made of these does nothing but read values and assign them.
_RESTORE_OPS = frozenset({"AssignVariableOp", "Const", "Identity", "NoOp", "RestoreV2"})
_INIT_SIGNATURE = "__saved_model_init_op"
# A variable under this name is another one at each mention.
_ANONYMOUS_NAME = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_PREFIX = "pilotlight_restore"
_VALUE_OF_OBJECT = "VARIABLE_VALUE"

VariableKey = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _CheckpointEntry:
    """Where a variable's value is in the checkpoint, and an op that assigns it."""

    variable: VariableKey
    key: bytes
    part: bytes
    assign: Any


def prune_graph(meta_graph: Any, signatures: Iterable[Any], checkpoint: str) -> None:
    """Take out of a meta graph, in place, what these signatures, loading and initialising do not need.

    Where it is not certain what is needed, more is left. `checkpoint` is the path that its files begin with.
    """
    if any(each.WhichOneof("kind") != "node_list" for each in meta_graph.collection_def.values()):
        return  # they may name anything; version 1 kept its variables there
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    wanted = {_node_name(name) for name in _list_tensor_names(meta_graph, signatures)} | {
        _node_name(saver.filename_tensor_name)
    }
    values, filled = _find_restored_entries(meta_graph), _find_restored_variables(meta_graph)
    if values is None:
        wanted.add(_node_name(saver.restore_op_name))
    _keep_nodes(graph, wanted)
    handles = {_variable_key(node): node for node in graph.node if node.op == "VarHandleOp"}
    empty = [handle for variable, handle in handles.items() if variable not in filled]
    captured = _find_captured_entries(meta_graph, empty, checkpoint) if empty else []
    if values is None and not captured:
        return
    read = [value for value in values or () if value.variable in handles]
    names = {variable: handle.name for variable, handle in handles.items()}
    restored = _add_restore_ops(graph, [*read, *captured], names, saver.filename_tensor_name)
    if values is None:
        restored.input.append(f"^{_node_name(saver.restore_op_name)}")
    saver.restore_op_name = restored.name


def _list_tensor_names(meta_graph: Any, signatures: Iterable[Any]) -> Iterator[str]:
    """The names of all tensors that somebody may ask for by name."""
    for signature in signatures:
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            yield from _tensor_names(info)
    for info in (
        meta_graph.signature_def[_INIT_SIGNATURE].outputs.values()
        if _INIT_SIGNATURE in meta_graph.signature_def
        else ()
    ):
        yield info.name
    for asset in meta_graph.asset_file_def:
        yield asset.tensor_info.name
    for collection in meta_graph.collection_def.values():
        yield from collection.node_list.value


def _tensor_names(info: Any) -> Iterator[str]:
    match info.WhichOneof("encoding"):
        case "name":
            yield info.name
        case "coo_sparse":
            sparse = info.coo_sparse
            yield from (
                sparse.values_tensor_name,
                sparse.indices_tensor_name,
                sparse.dense_shape_tensor_name,
            )
        case "composite_tensor":
            for component in info.composite_tensor.components:
                yield from _tensor_names(component)


def _node_name(name: str) -> str:
    """The node that a tensor comes from, or a control input names."""
    return name.removeprefix("^").partition(":")[0]


# ---- what is needed


def _keep_nodes(graph: Any, wanted: Collection[str]) -> None:
    """Take out the nodes that the wanted ones do not need, and the functions that are not called any more."""
    kept = _find_reachable(wanted, {node.name: node for node in graph.node}, _list_dependencies)
    library = graph.library
    # Functions that stand for each other are chosen from by the optimiser.
    if not any("api_implements" in function.attr for function in library.function):
        functions = {function.signature.name: function for function in library.function}
        gradients = {one.function_name: one.gradient_func for one in library.gradient}
        called = _find_reachable(
            _list_called_functions(kept.values()),
            functions,
            lambda function: (
                _list_called_functions(function.node_def) | {gradients.get(function.signature.name, "")}
            ),
        )
        _delete_items(library.gradient, [one.function_name in called for one in library.gradient])
        _delete_items(library.function, [one.signature.name in called for one in library.function])
    _delete_items(graph.node, [node.name in kept for node in graph.node])


def _find_reachable(
    start: Iterable[str], things: Mapping[str, Any], leads: Callable[[Any], Iterable[str]]
) -> dict[str, Any]:
    """Those of the named things that can be reached from these names."""
    found: dict[str, Any] = {}
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in things and name not in found:
            found[name] = things[name]
            waiting += leads(things[name])
    return found


def _list_dependencies(node: Any) -> set[str]:
    """The nodes a node takes its inputs from, or has to be on one device with."""
    colocations = node.attr["_class"].list.s if "_class" in node.attr else ()
    return {_node_name(name) for name in node.input} | {
        name.decode().removeprefix("loc:@") for name in colocations if name.startswith(b"loc:@")
    }


def _list_called_functions(nodes: Iterable[Any]) -> set[str]:
    """What may be functions that the nodes call: by an attribute, or as an op of that name."""
    names = set()
    for node in nodes:
        names.add(node.op)
        for value in node.attr.values():
            if value.HasField("func"):
                names.add(value.func.name)
            elif value.HasField("list"):
                names.update(function.name for function in value.list.func)
    return names


def _delete_items(items: Any, kept: list[bool]) -> None:
    """Delete the items that are not kept; copying the others would take longer."""
    for index in reversed(range(len(kept))):
        if not kept[index]:
            del items[index]


# ---- restoring


def _find_restored_entries(meta_graph: Any) -> list[_CheckpointEntry] | None:
    """How each variable is restored; None where restoring may be more than that."""
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    nodes = {node.name: node for node in graph.node}
    functions = {function.signature.name: function for function in graph.library.function}
    call = nodes.get(_node_name(saver.restore_op_name))
    function = functions.get(call.attr["f"].func.name) if call is not None and call.op in _CALL_OPS else None
    if call is None or function is None:
        return None
    inner = {node.name: node for node in function.node_def}
    restore = [node for node in inner.values() if node.op == "RestoreV2"]
    plain = all(node.op in _RESTORE_OPS for node in inner.values()) and len(restore) == 1
    if not plain or any(node.op == "VarHandleOp" for each in functions.values() for node in each.node_def):
        return None
    given = dict(zip((one.name for one in function.signature.input_arg), call.input, strict=False))
    if _node_name(given.get(restore[0].input[0], "")) != _node_name(saver.filename_tensor_name):
        return None
    keys, parts = (
        tf.make_ndarray(inner[_node_name(name)].attr["value"].tensor).tolist()
        for name in restore[0].input[1:3]
    )
    values = []
    for assign in (node for node in inner.values() if node.op == "AssignVariableOp"):
        handle = nodes.get(_node_name(given.get(assign.input[0], "")))
        place = _find_restored_index(assign, inner, restore[0].name)
        if handle is None or not _has_unique_name(handle) or place is None:
            return None
        values.append(_CheckpointEntry(_variable_key(handle), keys[place], parts[place], assign))
    return values if len({value.variable for value in values}) == len(values) else None


def _find_restored_variables(meta_graph: Any) -> set[VariableKey]:
    """The variables that the restoring of the model itself reaches."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    reached = _find_reachable([_node_name(meta_graph.saver_def.restore_op_name)], nodes, _list_dependencies)
    return {_variable_key(node) for node in reached.values() if node.op == "VarHandleOp"}


def _find_captured_entries(
    meta_graph: Any, handles: Iterable[Any], checkpoint: str
) -> list[_CheckpointEntry]:
    """How variables that functions captured are restored, by the objects that they were of."""
    objects = _find_captured_objects(meta_graph)
    keys = _match_checkpoint_keys(meta_graph.object_graph_def, checkpoint)
    values = []
    for handle in handles:
        key = keys.get(objects.get(handle.name, -1))
        if key is not None:
            assign = node_def_pb2.NodeDef()
            assign.attr["dtype"].CopyFrom(handle.attr["dtype"])
            values.append(_CheckpointEntry(_variable_key(handle), key.encode(), b"", assign))
    return values


def _find_captured_objects(meta_graph: Any) -> dict[str, int]:
    """The number of the object that each node is which is passed to a function because that captured it."""
    functions = meta_graph.object_graph_def.concrete_functions
    objects: dict[str, int] = {}
    for node in meta_graph.graph_def.node:
        name = node.attr["f"].func.name if node.op in _CALL_OPS else ""
        if name in functions:
            bound = functions[name].bound_inputs
            given = [source for source in node.input if not source.startswith("^")]
            # What is captured comes after the arguments.
            captured = given[len(given) - len(bound) :]
            objects |= zip(map(_node_name, captured), bound, strict=True)
    return objects


def _match_checkpoint_keys(objects: Any, checkpoint: str) -> dict[int, str]:
    """Under which key the checkpoint has the value of each object; the two are matched by their paths."""
    reader = tf.train.load_checkpoint(checkpoint)
    if not reader.has_tensor(OBJECT_GRAPH_PROTO_KEY):
        return {}
    saved = TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH_PROTO_KEY))
    keys: dict[int, str] = {}
    seen: set[int] = set()
    waiting = [(0, 0)]
    while waiting:
        number, saved_number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        one = saved.nodes[saved_number]
        for attribute in one.attributes:
            if attribute.name == _VALUE_OF_OBJECT:
                keys[number] = attribute.checkpoint_key
        children = {child.local_name: child.node_id for child in one.children}
        waiting += [
            (child.node_id, children[child.local_name])
            for child in objects.nodes[number].children
            if child.local_name in children
        ]
    return keys


def _find_restored_index(assign: Any, inner: dict[str, Any], restore: str) -> int | None:
    """Which of the restored tensors an op assigns."""
    if len(assign.input) != 2:
        return None
    source = assign.input[1]
    node = inner.get(_node_name(source))
    if node is not None and node.op == "Identity" and len(node.input) == 1:
        source = node.input[0]
    name, _, place = source.rpartition(":tensors:")
    return int(place) if name == restore else None


def _has_unique_name(handle: Any) -> bool:
    """Whether it is a variable that can be told from others by its name."""
    return handle.op == "VarHandleOp" and handle.attr["shared_name"].s not in (b"", _ANONYMOUS_NAME)


def _variable_key(handle: Any) -> VariableKey:
    return (handle.attr["container"].s, handle.attr["shared_name"].s)


def _add_restore_ops(
    graph: Any, values: list[_CheckpointEntry], handles: dict[VariableKey, str], checkpoint: str
) -> Any:
    """Add ops that restore these variables; returns the one that waits for all."""
    done = graph.node.add(name=f"{_PREFIX}/done", op="NoOp")
    if not values:
        return done
    for name, strings in (("keys", [one.key for one in values]), ("parts", [one.part for one in values])):
        const = graph.node.add(name=f"{_PREFIX}/{name}", op="Const")
        const.attr["dtype"].type = types_pb2.DT_STRING
        const.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(strings, tf.string))
    restore = graph.node.add(name=f"{_PREFIX}/restore", op="RestoreV2")
    restore.input.extend([checkpoint, f"{_PREFIX}/keys", f"{_PREFIX}/parts"])
    for index, value in enumerate(values):
        restore.attr["dtypes"].list.type.append(value.assign.attr["dtype"].type)
        assign = graph.node.add(name=f"{_PREFIX}/assign_{index}", op="AssignVariableOp")
        assign.input.extend([handles[value.variable], f"{_PREFIX}/restore:{index}"])
        for name in ("dtype", "validate_shape"):
            if name in value.assign.attr:
                assign.attr[name].CopyFrom(value.assign.attr[name])
        done.input.append(f"^{assign.name}")
    return done
