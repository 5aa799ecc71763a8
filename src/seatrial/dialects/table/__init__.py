"""The engine of every dialect: rows of keys, how their values are read, named, overridden and suggested."""
