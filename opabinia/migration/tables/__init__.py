"""What is to be known of each system, apart from what is done with it."""
