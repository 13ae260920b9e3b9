"""What is left of a graph. That it still answers the same is tested in `test_tensorflow`.

TensorFlow is imported by the tests only, so that collecting them does not import it.
"""

from __future__ import annotations

import os
from textwrap import dedent
from typing import Any

import pytest

ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

SIGNATURE = """
signature_def { key: "serving_default" value {
    inputs { key: "x" value { name: "x:0" } }
    outputs { key: "y" value { name: "y:0" } }
} }
"""

# x -> y calls `used` with the variable w, which is restored as the second of three.
VARIABLES = """
graph_def {
    node { name: "x" op: "Placeholder" }
    node { name: "v" op: "VarHandleOp" attr { key: "shared_name" value { s: "v" } } }
    node { name: "w" op: "VarHandleOp" attr { key: "shared_name" value { s: "w" } } }
    node { name: "same/w" op: "VarHandleOp" attr { key: "shared_name" value { s: "w" } } }
    node { name: "u" op: "VarHandleOp" attr { key: "shared_name" value { s: "u" } } }
    node { name: "y" op: "StatefulPartitionedCall" input: "x" input: "w"
        attr { key: "f" value { func { name: "used" } } } }
    node { name: "file" op: "Placeholder" }
    node { name: "restore" op: "StatefulPartitionedCall" input: "file" input: "v" input: "same/w" input: "u"
        attr { key: "f" value { func { name: "restoring" } } } }
    library {
        function { signature { name: "used" } }
        function {
            signature { name: "restoring"
                input_arg { name: "prefix" } input_arg { name: "to_v" } input_arg { name: "to_w" }
                input_arg { name: "to_u" } }
            node_def { name: "keys" op: "Const" attr { key: "value" value { tensor {
                dtype: DT_STRING tensor_shape { dim { size: 3 } }
                string_val: "key of v" string_val: "key of w" string_val: "key of u" } } } }
            node_def { name: "parts" op: "Const" attr { key: "value" value { tensor {
                dtype: DT_STRING tensor_shape { dim { size: 3 } }
                string_val: "" string_val: "2 2 0,2:0,1" string_val: "" } } } }
            node_def { name: "read" op: "RestoreV2"
                input: "prefix" input: "keys:output:0" input: "parts:output:0" }
            node_def { name: "value" op: "Identity" input: "read:tensors:1" }
            node_def { name: "set_v" op: "AssignVariableOp" input: "to_v" input: "read:tensors:0"
                attr { key: "dtype" value { type: DT_FLOAT } } }
            node_def { name: "set_w" op: "AssignVariableOp" input: "to_w" input: "value:output:0"
                attr { key: "dtype" value { type: DT_INT64 } }
                attr { key: "validate_shape" value { b: true } } }
            node_def { name: "set_u" op: "AssignVariableOp" input: "to_u" input: "read:tensors:2"
                attr { key: "dtype" value { type: DT_FLOAT } } }
        }
    }
}
saver_def { filename_tensor_name: "file:0" restore_op_name: "restore" }
"""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    for name, value in {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}.items():
        os.environ.setdefault(name, value)


def trimmed(text: str) -> Any:
    """A meta graph with the one signature x -> y, written as text, after it was trimmed."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import meta_graph_pb2

    from serving.runtimes.tensorflow_runtime.graph_pruning import prune_graph

    meta_graph = text_format.Parse(SIGNATURE + dedent(text), meta_graph_pb2.MetaGraphDef())
    prune_graph(meta_graph, [meta_graph.signature_def["serving_default"]], "")
    return meta_graph


def nodes(meta_graph: Any) -> set[str]:
    return {node.name for node in meta_graph.graph_def.node}


def functions(meta_graph: Any) -> set[str]:
    return {function.signature.name for function in meta_graph.graph_def.library.function}


def graph(*lines: str) -> str:
    return " ".join(("graph_def {", *lines, "}"))


def test_what_an_answer_needs_is_kept() -> None:
    """Inputs, control inputs and what has to be on the same device; an input too that nothing uses."""
    left = trimmed(
        graph(
            'node { name: "x" op: "Placeholder" }',
            'node { name: "y" op: "Add" input: "a:1" input: "^b" }',
            'node { name: "a" op: "Split" attr { key: "_class" value { list { s: "loc:@c" } } } }',
            'node { name: "b" op: "NoOp" }',
            'node { name: "c" op: "Const" input: "d" }',
            'node { name: "d" op: "Const" }',
            'node { name: "spare" op: "Const" input: "a" }',
        )
    )

    assert nodes(left) == {"x", "y", "a", "b", "c", "d"}


def test_functions_that_may_be_called_are_kept() -> None:
    """By an attribute, from a list, as an op, from another function, as a gradient."""
    names = ("attribute", "listed", "op", "inner", "gradient", "spare")
    left = trimmed(
        graph(
            'node { name: "x" op: "Placeholder" }',
            'node { name: "y" op: "op" input: "x" attr { key: "f" value { func { name: "attribute" } } } ',
            'attr { key: "branches" value { list { func { name: "listed" } } } } }',
            "library {",
            *(f'function {{ signature {{ name: "{name}" }} }}' for name in names if name != "attribute"),
            'function { signature { name: "attribute" } node_def { name: "n" op: "If" ',
            'attr { key: "then" value { func { name: "inner" } } } } }',
            'gradient { function_name: "inner" gradient_func: "gradient" }',
            'gradient { function_name: "spare" gradient_func: "inner" }',
            "}",
        )
    )

    assert functions(left) == {"attribute", "listed", "op", "inner", "gradient"}
    assert [one.function_name for one in left.graph_def.library.gradient] == ["inner"]


def test_functions_that_stand_for_each_other_are_kept() -> None:
    """The optimiser takes the one that is made for the device."""
    implements = 'attr { key: "api_implements" value { s: "lstm" } }'
    left = trimmed(
        graph(
            'node { name: "y" op: "PartitionedCall" attr { key: "f" value { func { name: "gpu" } } } }',
            "library {",
            f'function {{ signature {{ name: "gpu" }} {implements} }}',
            f'function {{ signature {{ name: "cpu" }} {implements} }}',
            "}",
        )
    )

    assert functions(left) == {"gpu", "cpu"}


def test_what_loading_asks_for_by_name_is_kept() -> None:
    """The init op, also of a collection, the names of assets, and the parts of a sparse input."""
    left = trimmed(
        graph(*(f'node {{ name: "{name}" op: "Const" }}' for name in "y abcdefgh".replace(" ", "")))
        + """
        signature_def { key: "__saved_model_init_op" value { outputs {
            key: "__saved_model_init_op" value { name: "a" } } } }
        collection_def { key: "saved_model_main_op" value { node_list { value: "b" } } }
        asset_file_def { tensor_info { name: "c:0" } }
        signature_def { key: "serving_default" value {
            inputs { key: "sparse" value { coo_sparse { values_tensor_name: "d:0"
                indices_tensor_name: "e:0" dense_shape_tensor_name: "f:0" } } }
            inputs { key: "ragged" value { composite_tensor { components { name: "g:0" } } } }
            outputs { key: "y" value { name: "y:0" } } } }
        """
    )

    assert nodes(left) == {"y", "a", "b", "c", "d", "e", "f", "g"}


def test_only_variables_that_are_read_are_restored() -> None:
    """Each from its own place in the checkpoint, as the saved function did it."""
    from tensorflow import make_ndarray

    left = trimmed(VARIABLES)

    assert functions(left) == {"used"}
    found = {node.name.removeprefix("pilotlight_restore/"): node for node in left.graph_def.node}
    assert found.keys() == {"x", "w", "y", "file", "done", "keys", "parts", "restore", "assign_0"}
    assert left.saver_def.restore_op_name == found["done"].name
    assert list(found["done"].input) == ["^pilotlight_restore/assign_0"]
    assign = found["assign_0"]
    assert list(assign.input) == ["w", "pilotlight_restore/restore:0"]
    assert (assign.op, assign.attr["dtype"].type, assign.attr["validate_shape"].b) == (
        "AssignVariableOp",
        9,
        True,
    )
    assert list(found["restore"].input) == ["file:0", "pilotlight_restore/keys", "pilotlight_restore/parts"]
    assert list(found["restore"].attr["dtypes"].list.type) == [9]
    assert make_ndarray(found["keys"].attr["value"].tensor).tolist() == [b"key of w"]
    assert make_ndarray(found["parts"].attr["value"].tensor).tolist() == [b"2 2 0,2:0,1"]


@pytest.mark.parametrize(
    ("was", "instead"),
    [
        ('op: "Identity"', 'op: "LookupTableImportV2"'),
        ('input: "prefix" input: "keys', 'input: "to_v" input: "keys'),
        ('input: "value:output:0"', 'input: "value:output:0" input: "^set_v"'),
        ('input: "value:output:0"', 'input: "keys:output:0"'),
        ('input: "to_w"', 'input: "to_v"'),
        ('s: "w"', f's: "{ANONYMOUS}"'),
        ('s: "w"', 's: ""'),
        ('name: "u" op: "VarHandleOp"', 'name: "u" op: "HashTableV2"'),
        ('signature { name: "used" }', 'signature { name: "used" } node_def { name: "w" op: "VarHandleOp" }'),
        ('name: "restore" op: "StatefulPartitionedCall"', 'name: "restore" op: "restoring"'),
        ('name: "restoring" } } } }', 'name: "elsewhere" } } } }'),
    ],
    ids=[
        "a table", "another file", "in an order", "no value of the file", "twice", "an anonymous variable",
        "a nameless variable", "no variable", "a variable inside", "another call", "a lost function",
    ],
)  # fmt: skip
def test_restoring_that_is_not_understood_is_left_alone(was: str, instead: str) -> None:
    """Then the saved function does it, for all variables."""
    assert was in VARIABLES

    left = trimmed(VARIABLES.replace(was, instead))

    assert left.saver_def.restore_op_name == "restore"
    assert nodes(left) >= {"x", "y", "file", "restore", "v", "w", "same/w", "u"}
    assert not any(name.startswith("pilotlight_restore") for name in nodes(left))


def test_a_model_without_variables_restores_nothing() -> None:
    """And one that was saved without a saver has nothing to restore with."""
    assert not trimmed(graph('node { name: "y" op: "Const" }')).saver_def.restore_op_name
    without = VARIABLES.replace('input: "x" input: "w"', 'input: "x"')

    left = trimmed(without)

    [done] = [node for node in left.graph_def.node if node.op == "NoOp"]
    assert left.saver_def.restore_op_name == done.name
    assert nodes(left) == {"x", "y", "file", done.name}


def test_a_graph_with_collections_of_its_own_is_left_alone() -> None:
    """They may name anything."""
    left = trimmed(VARIABLES + 'collection_def { key: "variables" value { bytes_list { value: "v" } } }')

    assert nodes(left) == {"x", "y", "v", "w", "same/w", "u", "file", "restore"}
