// Package scripts owns the tests of the command line as people and scripts meet
// it: what is printed where, in which shape, and how commands end. Each file in
// testdata is a script. Nothing imports it.
package scripts
