"""A trained model behind HTTP: pictures are posted, JSON comes back; and a page to drop them on."""
