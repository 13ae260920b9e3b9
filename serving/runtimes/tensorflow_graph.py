"""The graph of a SavedModel of version 2 without what no request can reach: it loads twice as fast.

What is exported holds more than its signatures: functions that save it, first values, every variable two or
three times. A Session takes all of that through its optimiser each time it is asked for something new, and
restoring would fill variables that nothing reads. What is left computes what it did before, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# A restoring function made of these does nothing but read values and assign them.
_RESTORING = frozenset({"AssignVariableOp", "Const", "Identity", "NoOp", "RestoreV2"})
_INIT = "__saved_model_init_op"
# A variable under this name is another one at each mention.
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_PREFIX = "pilotlight_restore"

Resource = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a variable's value is in the checkpoint, and the op that assigned it."""

    variable: Resource
    key: bytes
    part: bytes
    assign: Any


def trim(meta_graph: Any, signatures: Iterable[Any]) -> None:
    """Take out of a meta graph, in place, what these signatures, loading and initialising do not need.

    Where it is not certain what is needed, more is left.
    """
    if any(each.WhichOneof("kind") != "node_list" for each in meta_graph.collection_def.values()):
        return  # they may name anything; version 1 kept its variables there
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    wanted = {_node(name) for name in _tensors(meta_graph, signatures)} | {_node(saver.filename_tensor_name)}
    values = _values(meta_graph)
    if values is None:
        wanted.add(_node(saver.restore_op_name))
    _keep(graph, wanted)
    if values is not None:
        handles = {_resource(node): node.name for node in graph.node if node.op == "VarHandleOp"}
        read = [value for value in values if value.variable in handles]
        saver.restore_op_name = _add_restoring(graph, read, handles, saver.filename_tensor_name)


def _tensors(meta_graph: Any, signatures: Iterable[Any]) -> Iterator[str]:
    """The names of all tensors that somebody may ask for by name."""
    for signature in signatures:
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            yield from _names(info)
    for info in meta_graph.signature_def[_INIT].outputs.values() if _INIT in meta_graph.signature_def else ():
        yield info.name
    for asset in meta_graph.asset_file_def:
        yield asset.tensor_info.name
    for collection in meta_graph.collection_def.values():
        yield from collection.node_list.value


def _names(info: Any) -> Iterator[str]:
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
                yield from _names(component)


def _node(name: str) -> str:
    """The node that a tensor comes from, or a control input names."""
    return name.removeprefix("^").partition(":")[0]


# ---- what is needed


def _keep(graph: Any, wanted: Collection[str]) -> None:
    """Take out the nodes that the wanted ones do not need, and the functions that are not called any more."""
    kept = _reached(wanted, {node.name: node for node in graph.node}, _needs)
    library = graph.library
    # Functions that stand for each other are chosen from by the optimiser.
    if not any("api_implements" in function.attr for function in library.function):
        functions = {function.signature.name: function for function in library.function}
        gradients = {one.function_name: one.gradient_func for one in library.gradient}
        called = _reached(
            _called(kept.values()),
            functions,
            lambda function: _called(function.node_def) | {gradients.get(function.signature.name, "")},
        )
        _delete(library.gradient, [one.function_name in called for one in library.gradient])
        _delete(library.function, [one.signature.name in called for one in library.function])
    _delete(graph.node, [node.name in kept for node in graph.node])


def _reached(
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


def _needs(node: Any) -> set[str]:
    """The nodes a node takes its inputs from, or has to be on one device with."""
    beside = node.attr["_class"].list.s if "_class" in node.attr else ()
    return {_node(name) for name in node.input} | {
        name.decode().removeprefix("loc:@") for name in beside if name.startswith(b"loc:@")
    }


def _called(nodes: Iterable[Any]) -> set[str]:
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


def _delete(items: Any, kept: list[bool]) -> None:
    """Delete the items that are not kept; copying the others would take longer."""
    for index in reversed(range(len(kept))):
        if not kept[index]:
            del items[index]


# ---- restoring


def _values(meta_graph: Any) -> list[_Value] | None:
    """How each variable is restored; None where restoring may be more than that."""
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    nodes = {node.name: node for node in graph.node}
    functions = {function.signature.name: function for function in graph.library.function}
    call = nodes.get(_node(saver.restore_op_name))
    function = functions.get(call.attr["f"].func.name) if call is not None and call.op in _CALLS else None
    if call is None or function is None:
        return None
    inner = {node.name: node for node in function.node_def}
    restore = [node for node in inner.values() if node.op == "RestoreV2"]
    plain = all(node.op in _RESTORING for node in inner.values()) and len(restore) == 1
    if not plain or any(node.op == "VarHandleOp" for each in functions.values() for node in each.node_def):
        return None
    given = dict(zip((one.name for one in function.signature.input_arg), call.input, strict=False))
    if _node(given.get(restore[0].input[0], "")) != _node(saver.filename_tensor_name):
        return None
    keys, parts = (
        tf.make_ndarray(inner[_node(name)].attr["value"].tensor).tolist() for name in restore[0].input[1:3]
    )
    values = []
    for assign in (node for node in inner.values() if node.op == "AssignVariableOp"):
        handle = nodes.get(_node(given.get(assign.input[0], "")))
        place = _place(assign, inner, restore[0].name)
        if handle is None or not _is_known(handle) or place is None:
            return None
        values.append(_Value(_resource(handle), keys[place], parts[place], assign))
    return values if len({value.variable for value in values}) == len(values) else None


def _place(assign: Any, inner: dict[str, Any], restore: str) -> int | None:
    """Which of the restored tensors an op assigns."""
    if len(assign.input) != 2:
        return None
    source = assign.input[1]
    node = inner.get(_node(source))
    if node is not None and node.op == "Identity" and len(node.input) == 1:
        source = node.input[0]
    name, _, place = source.rpartition(":tensors:")
    return int(place) if name == restore else None


def _is_known(handle: Any) -> bool:
    """Whether it is a variable that can be told from others by its name."""
    return handle.op == "VarHandleOp" and handle.attr["shared_name"].s not in (b"", _ANONYMOUS)


def _resource(handle: Any) -> Resource:
    return (handle.attr["container"].s, handle.attr["shared_name"].s)


def _add_restoring(graph: Any, values: list[_Value], handles: dict[Resource, str], checkpoint: str) -> str:
    """Add ops that restore these variables; returns the name of the one that waits for all."""
    done = graph.node.add(name=f"{_PREFIX}/done", op="NoOp")
    if not values:
        return str(done.name)
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
    return str(done.name)
