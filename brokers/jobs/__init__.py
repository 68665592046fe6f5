"""Work beside the event loop: jobs, their threads, and operations that await them."""
