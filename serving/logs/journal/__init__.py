"""Queues of log records on disk: the server appends, the log writer reads, neither waits for the other.

A journal is a folder with everything for one destination:

    journal.json      what it is for, and how many records the server has put in or had to drop
    position.json     how far the log writer is, and how many records it has sent or given up
    00000001.segment  blocks of records, appended to by the server; removed by the writer once it is past it

The two processes share nothing else, so each may die at any time. A block counts once it is whole: a server
that is killed loses what it had not written, a writer that is killed does its last block again.
"""

from serving.logs.journal.appender import BlockBuilder, JournalAppender
from serving.logs.journal.file_format import JournalRecord, LogKind, journal_folder
from serving.logs.journal.position import JournalCounts, ReadPosition, count_outcomes
from serving.logs.journal.reader import JournalReader, RecordChunk

__all__ = [
    "JournalAppender", "BlockBuilder", "RecordChunk", "JournalCounts", "LogKind", "ReadPosition", "JournalReader", "JournalRecord", "count_outcomes", "journal_folder",
]  # fmt: skip
