"""Search spaces of all kinds for tests."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from tuning.space import Parameter, ParameterKind, Scale, SearchSpace

RATE = Parameter(name="rate", kind=ParameterKind.DOUBLE, scale=Scale.LOG, minimum=1e-4, maximum=1.0)
MOMENTUM = Parameter(
    name="momentum", kind=ParameterKind.DOUBLE, scale=Scale.REVERSE_LOG, minimum=0.1, maximum=0.999
)
LAYERS = Parameter(name="layers", kind=ParameterKind.INTEGER, minimum=1, maximum=3)
WIDTH = Parameter(name="width", kind=ParameterKind.INTEGER, scale=Scale.LOG, minimum=1, maximum=1000)
SIZE = Parameter(name="size", kind=ParameterKind.DISCRETE, values=(16.0, 32.0, 64.5))
DECAY = Parameter(name="decay", kind=ParameterKind.DISCRETE, scale=Scale.LOG, values=(0.001, 0.01, 0.5))
TREES = Parameter(
    name="trees", kind=ParameterKind.INTEGER, minimum=10, maximum=12, parent_values=("forest", "boosted")
)
DEPTH = Parameter(name="depth", kind=ParameterKind.INTEGER, minimum=1, maximum=2, parent_values=("boosted",))
KIND = Parameter(
    name="kind",
    kind=ParameterKind.CATEGORICAL,
    values=("linear", "forest", "boosted"),
    children=(TREES, DEPTH),
)
# A grandchild, and children of one name.
_LOW = msgspec.structs.replace(RATE, name="speed", parent_values=(1, 2))
_HIGH = msgspec.structs.replace(SIZE, name="speed", parent_values=(3,))
_INNER = msgspec.structs.replace(LAYERS, children=(_LOW, _HIGH), parent_values=(16.0, 64.5))
NESTED = msgspec.structs.replace(SIZE, children=(_INNER,))

EVERYTHING = SearchSpace((RATE, MOMENTUM, WIDTH, DECAY, KIND, NESTED))
FINITE = SearchSpace((LAYERS, KIND))

_PARAMETERS = (RATE, MOMENTUM, LAYERS, WIDTH, SIZE, DECAY, KIND)
spaces = st.lists(st.sampled_from(_PARAMETERS), min_size=1, max_size=4, unique_by=lambda one: one.name).map(
    lambda parameters: SearchSpace(tuple(parameters))
)
