"""Programs that ask a server with other people's clients, each in a process of its own.

They live in an environment of their own too (`requirements.txt`): what they need does not go together with
what we need, nor all of it with itself.
"""
