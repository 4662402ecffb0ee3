"""Who may start now, and what those are told who must wait."""
