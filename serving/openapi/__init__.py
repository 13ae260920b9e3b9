"""The HTTP API of gateway and node as OpenAPI 3.1 tells it, and the page on which people try it.

Gateway and node say which routes they have; what is on them stands here.
"""
