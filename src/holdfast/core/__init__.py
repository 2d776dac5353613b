"""Plain data and small mechanisms that every layer shares; nothing here does I/O of its own."""
