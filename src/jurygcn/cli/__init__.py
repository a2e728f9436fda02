"""The command line: parses, calls the library, prints. Bad input is one sentence and exit code 2."""
