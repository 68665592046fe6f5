"""Pack records into batches and send each batch to its partition's leader."""
