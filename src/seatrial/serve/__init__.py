"""Serves one page over the runs of some folders: those that go on, the history by configuration, reports, comparisons.

Three kinds of processes. The scanner reads the run directories, and is the only one that does so all the time; the
workers render a report or a comparison each; the server holds a row per run in memory, and no file of a run is
opened there. So nothing that lies in a run directory, however large or odd, can hold up a page.
"""
