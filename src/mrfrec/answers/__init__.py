"""What is asked of a fitted state: for whom, which items, how many, and why these."""
