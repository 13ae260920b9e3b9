"""Stands for an imported framework; at forks it does what uvloop does once it has been used."""

import uvloop

uvloop.new_event_loop().close()
