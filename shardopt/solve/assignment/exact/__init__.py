"""Methods that prove the optimum: elimination, enumeration, integer programs."""
