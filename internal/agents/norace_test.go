//go:build !race

package agents

const raced = false
