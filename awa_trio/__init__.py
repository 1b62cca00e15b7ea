"""The trio driver of awa-queue."""
