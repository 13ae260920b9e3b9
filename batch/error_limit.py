"""How many records may be rejected before a job stops."""

from __future__ import annotations

from dataclasses import dataclass

from serving.errors import InvalidArgument

# A share counts from this many records on while a job runs, and always at its end.
_MIN_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """At most `records` rejected records, or at most a `share` of all; None: no such limit."""

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """ "" (none), "100" records, "0.1" or "10%" of them. Raises InvalidArgument for anything else."""
        try:
            if not text:
                return cls()
            if text.isdigit():
                return cls(records=int(text))
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise InvalidArgument(
                f"{text!r} is not an error limit: a number of records (100), or a share of them (10% or 0.1)."
            )
        return cls(share=share)

    def explain_excess(self, predictions: int, errors: int, *, final: bool) -> str:
        """Why a job with so many of each must stop, "" if it need not."""
        records = predictions + errors
        if self.records is not None and errors > self.records:
            return f"{errors} of {records} records failed; at most {self.records} may."
        if self.share is not None and (final or records >= _MIN_RECORDS) and errors > self.share * records:
            return f"{errors} of {records} records failed; at most {self.share:.6g} of all may."
        return ""
