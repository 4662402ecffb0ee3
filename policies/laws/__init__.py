"""Laws: who lets others go first although a slot is free. One law a file."""
