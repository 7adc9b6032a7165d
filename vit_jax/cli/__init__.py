"""What the commands share: options, errors, progress, pictures."""
