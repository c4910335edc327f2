package wire

var WithoutDump = withoutDump // for tests outside of the package
