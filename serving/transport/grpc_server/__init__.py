"""gRPC beside HTTP: the services of TensorFlow Serving and the Open Inference Protocol, health, reflection.

The one package that imports grpc, and it is imported only where gRPC is switched on (setting `grpc_port`).
It knows neither gateway nor node: predictions go to the `Handler` that answers those over HTTP, and questions
about models to the same application.
"""

from serving.config import set_grpc_environment

set_grpc_environment()  # before any module of this package imports it
