"""What a run will cost, before it starts: arithmetic, memory, communication, time."""
