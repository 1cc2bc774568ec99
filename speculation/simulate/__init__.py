"""`echelon simulate`: a discrete-event model of the pipeline, for hardware that is not at hand."""
