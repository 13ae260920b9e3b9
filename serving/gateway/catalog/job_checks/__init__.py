"""What jobs of each kind may ask for: the checks of their inputs, field by field."""
