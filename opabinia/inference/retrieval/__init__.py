"""Image retrieval: galleries of images and the search in them."""
