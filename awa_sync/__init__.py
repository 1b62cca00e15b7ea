"""The sync driver of awa-queue."""
