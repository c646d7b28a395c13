"""Other engines, each in an environment of its own: these modules import nothing that is not in all of them."""
