"""The readers of the job views. Each is a module beside this file: who adds one edits none that is there."""

from importlib import import_module
from pkgutil import iter_modules

from mainstem.process import topic

job_views = topic("job_views", key="viewer_id", event_time="at")

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
