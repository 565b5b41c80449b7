"""The command line: one file per subcommand, and what they share."""
