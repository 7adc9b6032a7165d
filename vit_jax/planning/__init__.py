"""What a run would cost before it starts: arithmetic, memory, communication, time."""
