"""The only place that builds a whole node from its settings: no other room creates its own collaborators."""
