"""A door for people: the browser. It shows what rooms tell; no rule of the system lives here."""
