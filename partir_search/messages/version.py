"""The package's version; the build reads it from here, and a source tree needs no metadata."""

VERSION = "0.2.0"
