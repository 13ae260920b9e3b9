"""Pilotlight: a gateway and nodes that answer the AI Platform Prediction v1 API."""
