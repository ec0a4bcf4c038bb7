"""The pure core: values, names and errors that every other layer shares. No I/O, no third-party imports."""
