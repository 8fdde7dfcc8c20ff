"""Compression of the updates that clients return: schemes that both sides share, and what a client does with them."""
