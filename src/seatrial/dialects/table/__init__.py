"""The engine of every dialect: rows of keys, how their values are read, written, overridden and suggested.

For a new dialect, write a package with

- `keys.py`: `KEYS`, a table of `keys.Key`, one row a key: how its value is read (`coerce` has the usual readers), where
  it goes in a RunSpec, how it is written, what it means. `keys.as_is` is for a value that is the spec's own; `keys.to`
  for one that is converted, or that several keys decide together (with `write=keys.PATH`, it is written as the spec has
  it); `equivalent`, `ignored` and `rejected` for keys that no value of a run is made of. Reference pages,
  `plan --explain` and suggestions are made of the same rows. Where there are hundreds of the latter, they are a table
  of text (`without_effect`).
- `settings.py`: a class derived from `settings.Settings`, and `gather(request)`, which finds the entries in a document,
  puts overrides in their place (`overrides.resolve`) and gives each to `Settings.take`.
- `build.py`: what needs more than one key: batch arithmetic, devices and their layout (`layouts.lay_out`), the model.
  Everything else is in `Settings.placed()`, from which `spec.gather_part` makes parts of the spec.
- `findings.py`: what its own system would refuse or do otherwise, by `Settings.add`.
- `__init__.py`: `NAME`, `KEYS`, `read(request) -> Resolved` and `write(spec) -> Written`. `written.write` puts the
  values of `keys.written_values` into a text, reads it back and notes what came back otherwise, with the reasons of a
  table by path.

Add the dialect to `DIALECTS` (how it is recognised) and `TARGETS` (what `convert --to` calls it), and its page to
`tools/dialect_pages.py`. `tests/dialects/test_dialects.py` holds it to the same promises as the others.
"""
