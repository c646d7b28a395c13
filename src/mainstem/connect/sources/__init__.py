"""IN: what brings records from databases, programs and files into the log; the position travels with the data."""
