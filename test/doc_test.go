// Package test owns the suites that look at the product as a whole: the rules
// of the repository (imports, package comments, file length), the services
// that other suites rest on, and, in packages below it, runs from end to end.
// Nothing imports it.
package test
