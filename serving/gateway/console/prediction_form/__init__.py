"""The form that predictions are tried with: files in its request, and the same call for other programs."""
