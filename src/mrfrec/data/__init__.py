"""What comes in: ids, interactions with their times, the item table and its features."""
