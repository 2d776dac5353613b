"""Models that can be asked: one file per wire format, over connection pools that the process shares."""
