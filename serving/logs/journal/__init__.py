"""Queues of log records on disk: the server appends, the log writer reads, neither waits for the other.

A journal is a folder with everything for one destination:

    journal.json      its kind and address, and how many records the server has written or dropped
    position.json     how far the log writer has read, and how many records it has sent or dropped
    00000001.segment  blocks of records; appended by the server, removed by the writer once read

The two processes share nothing else, so each may die at any time. Only a complete block counts: a server that
is killed loses what it had not written, a writer that is killed repeats its last block.
"""

from serving.logs.journal.appender import BlockBuilder, JournalAppender
from serving.logs.journal.file_format import JournalRecord, LogKind, journal_folder
from serving.logs.journal.position import JournalCounts, ReadPosition, count_outcomes
from serving.logs.journal.reader import JournalReader, RecordChunk

__all__ = [
    "BlockBuilder",
    "JournalAppender",
    "JournalCounts",
    "JournalReader",
    "JournalRecord",
    "LogKind",
    "ReadPosition",
    "RecordChunk",
    "count_outcomes",
    "journal_folder",
]
