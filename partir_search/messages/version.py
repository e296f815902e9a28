"""The package version, read by the build; a source tree needs no installed metadata."""

VERSION = "0.2.0"
