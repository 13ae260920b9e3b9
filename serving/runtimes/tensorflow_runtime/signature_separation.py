"""Inputs of their own for signatures that share tensors, as TensorFlow 1 exports them.

The inputs of a signature are replaced by others when a graph is loaded. That would cut off a signature that
computes such a tensor itself: an autoencoder's code, which is the input of its decoder, or the features that
are parsed from examples. What such a signature computes is copied for it, variables and tables are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

# By which name each of a signature's tensors goes in the graph, where that is not its own.
TensorNames = dict[str, str]


def separate_signatures(graph: Any, signatures: Mapping[str, Any]) -> dict[str, TensorNames]:
    """Copy in a GraphDef, in place, what signatures compute that the inputs of others would cut off."""
    names: dict[str, TensorNames] = {name: {} for name in signatures}
    if len(signatures) < 2:
        return names
    nodes = {node.name: node for node in graph.node}
    inputs = {name: {info.name: info for info in one.inputs.values()} for name, one in signatures.items()}
    declared: dict[str, Any] = {}
    for number, (name, signature) in enumerate(signatures.items()):
        own = inputs[name]
        others = {tensor for other in inputs if other != name for tensor in inputs[other]} - own.keys()
        needed, read = _find_needed((info.name for info in signature.outputs.values()), own, nodes)
        differs = any(declared.setdefault(tensor, info) != info for tensor, info in own.items())
        if differs or not others.isdisjoint(read):
            fresh = needed.intersection(map(_node_name, others & read))
            copied = _find_dependents(needed, own, fresh, nodes)
            prefix = f"pilotlight_{number}/"
            _copy_nodes(graph, copied, own, prefix, nodes)
            produced = [info.name for info in signature.outputs.values() if _node_name(info.name) in copied]
            names[name] = {tensor: prefix + tensor for tensor in (*produced, *own)}
    return names


def _find_needed(
    outputs: Iterable[str], inputs: Collection[str], nodes: Mapping[str, Any]
) -> tuple[set[str], set[str]]:
    """The nodes that compute outputs from inputs, and the tensors that these nodes read."""
    needed: set[str] = set()
    read: set[str] = set()
    waiting = [_node_name(output) for output in outputs if output not in inputs]
    while waiting:
        name = waiting.pop()
        if name in needed or name not in nodes:
            continue
        needed.add(name)
        tensors = [_tensor_name(source) for source in nodes[name].input]
        read.update(tensors)
        waiting += [_node_name(tensor) for tensor in tensors if tensor not in inputs]
    return needed, read


def _find_dependents(
    needed: Collection[str], inputs: Collection[str], fresh: Iterable[str], nodes: Mapping[str, Any]
) -> set[str]:
    """Those of the needed nodes that depend on the inputs, these nodes, and what depends on them."""
    readers = defaultdict(list)
    waiting = list(fresh)
    for name in needed:
        for source in nodes[name].input:
            if _tensor_name(source) in inputs:
                waiting.append(name)
            else:
                readers[_node_name(source)].append(name)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += readers[name]
    return found


def _copy_nodes(
    graph: Any, copied: Collection[str], inputs: Collection[str], prefix: str, nodes: Mapping[str, Any]
) -> None:
    """Add copies of nodes that take copies of what they took, where there are any."""
    for name in copied:
        copy = graph.node.add()
        copy.CopyFrom(nodes[name])
        copy.name = prefix + name
        copy.input[:] = [
            _prefix_name(source, prefix)
            if _tensor_name(source) in inputs or _node_name(source) in copied
            else source
            for source in copy.input
        ]


def _prefix_name(source: str, prefix: str) -> str:
    return f"^{prefix}{source[1:]}" if source.startswith("^") else prefix + source


def _tensor_name(source: str) -> str:
    """The name of a tensor, as signatures have it, of which a node's input is the short form."""
    return source if ":" in source or source.startswith("^") else f"{source}:0"


def _node_name(name: str) -> str:
    """The node that a tensor comes from, or a control input names."""
    return name.removeprefix("^").partition(":")[0]
