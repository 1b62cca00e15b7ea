"""The asyncio driver of awa-queue."""
