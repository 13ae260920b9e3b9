"""gRPC reads its settings when it is imported, by whatever imports it first."""

from serving.config import prepare_grpc

prepare_grpc()
