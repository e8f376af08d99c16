// Written by proto/generate.sh.

/** The version of this package and of the contract. */
export const VERSION = "0.1.0";
