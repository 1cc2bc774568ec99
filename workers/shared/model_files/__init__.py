"""What the files of a prepared model folder say, read without torch."""
