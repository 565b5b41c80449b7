"""Say how long programs take on a described device, and what bounded every command."""
