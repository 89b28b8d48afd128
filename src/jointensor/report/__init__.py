"""One page about a run that can be opened and sent on: facts of the run (plain data), drawings, a template."""
