"""The Beam pipeline of a batch prediction job, its runners and its workers."""
