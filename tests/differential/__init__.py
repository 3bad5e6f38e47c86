"""Old and new beside each other: what was there before things were removed, and this tree, answer generated cases with
one key. A guard for the way to a smaller house, as long as it is under way."""
