"""The front door: the command line, the demo and the generated pages."""

from importlib.metadata import version

__version__ = version("warmroute")
