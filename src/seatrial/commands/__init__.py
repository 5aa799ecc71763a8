"""The verbs of the command line: one file a verb, each from its arguments to what it prints or writes."""
