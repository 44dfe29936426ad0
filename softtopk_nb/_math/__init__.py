"""Elementary and special functions of one number, and sums, written so that loops vectorise."""
