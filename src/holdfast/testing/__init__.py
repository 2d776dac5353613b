"""What tests of Holdfast and of its plug-ins stand on.

Two pytest plug-ins, to be named in a `conftest.py` as `pytest_plugins = ["holdfast.testing.leaks", …]`:

- `leaks`: every test proves that it left no task, thread, process or descriptor behind;
- `virtual`: a test marked `virtual` runs on virtual time, in which an hour takes no time at all.
"""
