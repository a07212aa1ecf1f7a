"""All routing policies: importing this package imports, and so registers, every module in it."""

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
