"""The report of a plan as one self-contained HTML page: `contents` reads the plan, `page` draws
it."""
