package wire

var WithoutDump = cutDump // for tests outside of the package
