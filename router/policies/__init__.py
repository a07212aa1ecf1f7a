"""All routing policies: importing this package imports, and so registers, every module in it.

Others' policies are found by their entry points; see ``plugins.py``.
"""

from importlib import import_module
from pkgutil import iter_modules

from router.policies.plugins import load_plugins

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
load_plugins()
