"""What a method is, and which there are."""
