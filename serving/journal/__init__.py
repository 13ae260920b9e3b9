"""Queues of log records on disk: the server appends, the log writer reads, neither waits for the other.

A journal is a folder with everything for one destination:

    journal.json      what it is for, and how many records the server has put in or had to drop
    position.json     how far the log writer is, and how many records it has sent or given up
    00000001.segment  blocks of records, appended to by the server; removed by the writer once it is past it

The two processes share nothing else, so each may die at any time. A block counts once it is whole: a server
that is killed loses what it had not written, a writer that is killed does its last block again.
"""

from serving.journal.append import Appender, Batch
from serving.journal.format import Kind, Record, folder_of
from serving.journal.position import Counts, Position, counts
from serving.journal.read import Chunk, Reader

__all__ = [
    "Appender", "Batch", "Chunk", "Counts", "Kind", "Position", "Reader", "Record", "counts", "folder_of",
]  # fmt: skip
