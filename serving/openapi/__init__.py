"""The HTTP API of gateway and node as OpenAPI 3.1, and the page on which people try it.

Gateway and node list their routes; the operations are described here.
"""
