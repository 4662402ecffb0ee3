"""The crowd as a source: torrents of served files, and the tracker by which their peers meet."""
