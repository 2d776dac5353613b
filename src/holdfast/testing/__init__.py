"""What tests of Holdfast and of its plug-ins stand on.

Two pytest plug-ins, to be named in a `conftest.py` as `pytest_plugins = ["holdfast.testing.leaks", …]`:

- `leaks`: every test proves that it left no task, thread, process or descriptor behind;
- `virtual`: a test marked `virtual` runs on virtual time, in which an hour takes no time at all.

And for those who write a part: contract suites that any implementation can be run through (`stores`, `models`,
`channels`), servers that behave like the real ones and misbehave as told, and the whole gateway, in this process
(`gateways`) or in one of its own (`processes`).
"""
