"""The gRPC server: the services of TensorFlow Serving and the Open Inference Protocol, health, reflection.

The only package that imports grpc, and it is imported only where gRPC is switched on (setting `grpc_port`).
It knows neither gateway nor node: predictions go to the `PredictionHandler` that answers those over HTTP,
metadata calls to a `ModelServiceHandler` of the same application.
"""

from serving.config import set_grpc_environment

set_grpc_environment()  # before any module of this package imports it
