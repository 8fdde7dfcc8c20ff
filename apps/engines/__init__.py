"""What carries runs out: this process and its workers, or a Flower simulation on Ray."""
