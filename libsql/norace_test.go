//go:build !race

package libsql_test

const rushSeeds, rushCallers = 3, 1000
