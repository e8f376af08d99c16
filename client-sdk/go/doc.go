// Package sidecar is the Go client of mcp-sidecar, the daemon that holds every MCP connection of a host.
//
// What it adds to the generated stubs, which are in package mcpsidecarv1: it finds the daemon's socket and waits for it, fills
// in the namespace, walks through pages, decodes errors ([Error]), keeps updates going over lost connections and restarts of
// the daemon ([Client.Updates]), answers what servers ask with functions ([Client.AnswerQuestions]), and gives tools the shapes
// that model APIs want ([ToModelTools]). The comments of the messages are the reference.
package sidecar
